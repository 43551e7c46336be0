"""A convolution on tensor cores: which kernel, how its weights lie, what it is launched with.

Called by the executor and by tests. Pure: NumPy in, NumPy and numbers out; source/convolution.cuh is the other half,
and `Arguments` is its `Convolution`, field by field.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CHUNK = 16
"""Bytes of K that lie together: 16 int8 or 8 float16 channels."""


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """Pixels by channels by bytes of K of a block; pixels by channels of a warp; stages in shared memory (tile.cuh)."""

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int

    @property
    def threads(self) -> int:
        return 32 * (self.bm // self.wm) * (self.bn // self.wn)

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.bm + self.bn) * self.bk

    @property
    def owned(self) -> int:
        """Output channels of a thread."""
        return self.wn // 4

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk}_{self.wm}x{self.wn}_s{self.stages}"


TILES = (
    Tile(128, 128, 64, 64, 64, 3),
    Tile(128, 64, 64, 64, 32, 4),
    Tile(64, 64, 64, 32, 32, 4),
    Tile(64, 128, 64, 32, 64, 4),
    Tile(64, 32, 64, 32, 32, 4),
    Tile(128, 32, 64, 32, 32, 4),
    Tile(32, 64, 128, 32, 32, 3),
    Tile(128, 64, 128, 64, 32, 3),
)
ENDINGS = {"s8": ("plain", "table", "residual", "table_residual", "real"), "f16": ("half", "real")}
"""How a kernel ends, by type; "u8" (the graph's input) ends as "s8". A float16 one adds a residual where it has one."""
ACTIVATIONS = (
    "",
    "Sigmoid",
    "SiLU",
    "Tanh",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Gelu",
    "GeluTanh",
    "Mish",
    "Elu",
    "Relu",
)
"""What a float16 kernel can apply to its sums, in activation.cuh's order."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One instance of convolution_i8.cu or convolution_f16.cu; `type` is x's: s8, u8 or f16.

    `activation` is a float16 kernel's. It is fixed when the kernel is compiled: a branch for each value kept the
    compiler from overlapping what follows the sums: layers took 1.3 to 4 times as long (docs/measurements/h200.md).
    """

    tile: Tile
    type: str = "s8"
    ending: str = "plain"
    windowed: bool = True
    split: bool = False
    twice: bool = False
    activation: str = ""

    @property
    def name(self) -> str:
        flags = "".join(letter for letter, on in (("w", self.windowed), ("k", self.split), ("t", self.twice)) if on)
        parts = ("conv", self.type, str(self.tile), self.ending, self.activation.lower(), flags)
        return "_".join(part for part in parts if part)

    @property
    def run(self) -> int:
        """Contiguous channels of a thread, which it stores in one go: 16 bytes, or all INT8 codes that it has.

        A group's channels must be a multiple.
        """
        return {"half": 8, "real": 4}.get(self.ending, self.tile.owned)

    @property
    def source(self) -> str:
        """The file that it is an instance of."""
        return "convolution_f16.cu" if self.type == "f16" else "convolution_i8.cu"

    def defines(self) -> dict[str, int | str]:
        t = self.tile
        return {
            "ORIND_NAME": self.name,
            "ORIND_BM": t.bm,
            "ORIND_BN": t.bn,
            "ORIND_BK": t.bk,
            "ORIND_WM": t.wm,
            "ORIND_WN": t.wn,
            "ORIND_STAGES": t.stages,
            "ORIND_RUN": self.run,
            "ORIND_UNSIGNED": int(self.type == "u8"),
            "ORIND_ENDING": ENDINGS["f16" if self.type == "f16" else "s8"].index(self.ending),
            "ORIND_WINDOWED": int(self.windowed),
            "ORIND_SPLIT": int(self.split),
            "ORIND_TWICE": int(self.twice),
            "ORIND_ACTIVATION": ACTIVATIONS.index(self.activation),
        }


class Arguments(ctypes.Structure):
    """`Convolution` of source/convolution.cuh."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "x",
                "weight",
                "gather",
                "y",
                "bias",
                "multiplier",
                "residual",
                "table",
                "partial",
                "arrived",
                "overflow",
            )
        ),
        *(
            (name, ctypes.c_int32)
            for name in (
                "height",
                "width",
                "out_height",
                "out_width",
                "pixels",
                "stride_h",
                "stride_w",
                "pad_top",
                "pad_left",
                "x_frame",
                "x_pitch",
                "x_group",
                "y_frame",
                "y_pitch",
                "residual_frame",
                "residual_pitch",
                "channels",
                "steps",
                "stored",
            )
        ),
        *((name, ctypes.c_float) for name in ("residual_multiplier", "low", "high", "alpha", "beta")),
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def channel_order(wn: int, run: int) -> npt.NDArray[np.intp]:
    """Channel (of wn) that each row of a warp's weights holds, so that a thread ends with runs of contiguous channels.

    Thread t of a quad owns columns 2 t and 2 t + 1 of each of wn / 8 mma columns; row 8 j + 2 t + e is its channel
    number c = 2 j + e. Run r of the four threads lies side by side: channels (4 r + t) * run on.
    """
    order = np.empty(wn, np.intp)
    for c in range(wn // 4):
        for t in range(4):
            order[8 * (c // 2) + 2 * t + c % 2] = (4 * (c // run) + t) * run + c % run
    return order


@dataclass(frozen=True, slots=True)
class Packed:
    """What lies in device memory for a layer: weight (groups, channels padded, K padded) of the layer's type, gather
    (chunks, 2) int32, channel vectors (groups, channels padded); `steps` of the tile's bk bytes in K."""

    weight: Array
    gather: npt.NDArray[np.int32]
    vectors: tuple[Array, ...]
    steps: int


def pack(
    kernel: Kernel,
    weight: Array,
    vectors: Sequence[Array],
    groups: int,
    width: int,
    pitch: int,
    dilation: tuple[int, int],
) -> Packed:
    """weight (kh, kw, channels of a group of x, channels of y) int8 or float16; `vectors` (channels of y), such as bias
    and multiplier; `width`, `pitch` of x in pixels and bytes. Raises ValueError where channels do not suit the kernel.

    Chunks of input channels whose weights are all 0 (pads between segments, pruned taps) are left out of K.
    """
    tile = kernel.tile
    kh, kw, cin, cout = weight.shape
    per = CHUNK // weight.itemsize
    if cin % per or cout % groups or cout // groups % kernel.run:
        raise ValueError(f"{cin} input and {cout} output channels in {groups} groups do not suit {kernel.name}")
    out = cout // groups
    chunks = weight.reshape(kh, kw, cin // per, per, cout)
    used = [(r, s, c) for r in range(kh) for s in range(kw) for c in range(cin // per) if chunks[r, s, c].any()]
    steps = max(1, ceil_div(len(used) * CHUNK, tile.bk))
    gather = np.zeros((steps * tile.bk // CHUNK, 2), np.int32)
    padded = ceil_div(out, tile.bn) * tile.bn
    packed = np.zeros((groups, padded, len(gather), per), weight.dtype)
    for k, (r, s, c) in enumerate(used):
        h, w = r * dilation[0], s * dilation[1]
        gather[k] = (h * width + w) * pitch + c * CHUNK, h << 16 | w
        packed[:, :out, k] = chunks[r, s, c].T.reshape(groups, out, per)
    rows = (np.arange(0, padded, tile.wn)[:, None] + channel_order(tile.wn, kernel.run)).ravel()
    wide = [np.zeros((groups, padded), vector.dtype) for vector in vectors]
    for target, vector in zip(wide, vectors, strict=True):
        target[:, :out] = vector.reshape(groups, out)
    return Packed(np.ascontiguousarray(packed[:, rows].reshape(groups, padded, -1)), gather, tuple(wide), steps)


def grid(tile: Tile, pixels: int, channels: int, groups: int, splits: int) -> tuple[int, int, int]:
    """Blocks of a launch; `channels` of one group."""
    return ceil_div(pixels, tile.bm), groups * ceil_div(channels, tile.bn), splits


def partial_bytes(tile: Tile, blocks: tuple[int, int, int]) -> int:
    """Bytes that split-K needs for the sums of all blocks."""
    return blocks[0] * blocks[1] * blocks[2] * tile.bm * tile.bn * 4
