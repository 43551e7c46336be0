"""From a convolution of a program to a kernel's launch: which instance, packed weights, arguments but for addresses.
Pure.

Called by `launching.py`, for the steps that `assignment.py` gives to the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..ir.program import UNIT, Program, Tensor
from ..ir.steps import ConvF16, ConvI8, Upsample
from .assignment import Convolution
from .convolution import (
    CHUNK,
    TILES,
    Arguments,
    Array,
    Kernel,
    Packed,
    Tile,
    ceil_div,
    grid,
    pack,
    partial_bytes,
)

MACS_PER_CLOCK = 2048
"""INT8 multiply-adds of an SM's tensor cores in a clock (facts: Orin, dense)."""
L2_BYTES_PER_CLOCK = 32
"""Bytes that an SM gets from L2 in a clock: assumed, to be measured on a board."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A convolution's launch. `arguments` holds offsets into the arena in x, y and residual, else 0 as pointers."""

    step: Convolution
    kernel: Kernel
    packed: Packed
    table: Array | None
    arguments: Arguments
    blocks: tuple[int, int, int]

    @property
    def partial_bytes(self) -> int:
        return partial_bytes(self.kernel.tile, self.blocks) if self.kernel.split else 0


def choose_tile(pixels: int, channels: int, groups: int, k_bytes: int, sms: int) -> tuple[Tile, int]:
    """The tile whose waves over the SMs take the fewest clocks, and into how many parts K is split where those are few.

    A rule over two bounds (tensor cores, L2); no table of measured times yet.
    """
    def clocks(tile: Tile) -> float:
        waves = ceil_div(int(np.prod(grid(tile, pixels, channels, groups, 1))), sms)
        k = ceil_div(k_bytes, tile.bk) * tile.bk
        return waves * k * max(tile.bm * tile.bn / MACS_PER_CLOCK, (tile.bm + tile.bn) / L2_BYTES_PER_CLOCK)

    tile = min(TILES, key=lambda tile: (clocks(tile), tile))
    blocks = int(np.prod(grid(tile, pixels, channels, groups, 1)))
    steps = ceil_div(k_bytes, tile.bk)
    return tile, max(1, min(4, sms // blocks, steps // 4))


def dense(weight: Array, groups: int, channels: int) -> Array:
    """(kh, kw, cin / groups, cout) of groups as one of a single group, zeros between; what follows the first `channels`
    of cout are pads, of no group."""
    kh, kw, per, cout = weight.shape
    full = np.zeros((kh, kw, per * groups, cout), weight.dtype)
    out = channels // groups
    for g in range(groups):
        full[:, :, g * per:(g + 1) * per, g * out:(g + 1) * out] = weight[..., g * out:(g + 1) * out]
    return full


def launch_of(step: Convolution, doubled: Upsample | None, program: Program, constants: Mapping[str, Array],
              sms: int) -> Launch:
    """The launch for all frames of the batch. `doubled`: the upsampling that the kernel does while it stores."""
    x, y = program.tensors[step.x], program.tensors[step.y]
    target = y if doubled is None else program.tensors[doubled.y]
    weight, groups = constants[step.weight], step.groups
    per = CHUNK // np.dtype(x.dtype).itemsize
    if groups > 1 and (weight.shape[2] % per or (y.shape[2] // groups) % UNIT):
        weight, groups = dense(weight, groups, y.shape[2]), 1
    if groups == 1:
        # a view may end within a unit of channels; the rest of the unit is pads, 0 before and after
        missing = [-size % UNIT for size in weight.shape[2:]]
        weight = np.pad(weight, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1])))
    (out_height, out_width, _), size, out_size = y.shape, np.dtype(x.dtype).itemsize, np.dtype(y.dtype).itemsize
    pixels, channels = program.batch * out_height * out_width, weight.shape[3] // groups
    tile, splits = choose_tile(pixels, channels, groups, int(np.prod(weight.shape[:3])) * size, sms)
    kernel = Kernel(tile, {"int8": "s8", "uint8": "u8", "float16": "f16"}[x.dtype], _ending(step, y),
                    windowed=step.kernel != (1, 1) or any(step.pads), split=splits > 1,
                    twice=doubled is not None, activation=step.activation if isinstance(step, ConvF16) else "")
    vectors = _vectors(step, y, constants, weight.shape[3])
    packed = pack(kernel, weight, vectors, groups, x.shape[1], x.pitch * size, step.dilation)
    low, high = _bounds(step)
    arguments = Arguments(
        x=x.offset + x.start * size, y=target.offset + target.start * out_size, height=x.shape[0], width=x.shape[1],
        out_height=out_height, out_width=out_width, pixels=pixels, stride_h=step.stride[0], stride_w=step.stride[1],
        pad_top=step.pads[0], pad_left=step.pads[1], x_frame=x.frame_bytes, x_pitch=x.pitch * size,
        x_group=weight.shape[2] * size, y_frame=target.frame_bytes, y_pitch=target.pitch * out_size, channels=channels,
        steps=packed.steps, stored=y.span,
        low=low, high=high, alpha=getattr(step, "alpha", 0.0), beta=getattr(step, "beta", 0.0))
    if step.residual:
        other = program.tensors[step.residual]
        item = np.dtype(other.dtype).itemsize
        arguments.residual = other.offset + other.start * item
        arguments.residual_frame, arguments.residual_pitch = other.frame_bytes, other.pitch * item
        arguments.residual_multiplier = getattr(step, "residual_multiplier", 1.0)
    table = constants[step.table] if isinstance(step, ConvI8) and step.table else None
    return Launch(step, kernel, packed, table, arguments, grid(tile, pixels, channels, groups, splits))


def _ending(step: Convolution, y: Tensor) -> str:
    if y.dtype == "float32":
        return "real"
    if isinstance(step, ConvF16):
        return "half"
    return {(False, False): "plain", (True, False): "table", (False, True): "residual",
            (True, True): "table_residual"}[bool(step.table), bool(step.residual)]


def _vectors(step: Convolution, y: Tensor, constants: Mapping[str, Array], channels: int) -> tuple[Array, Array]:
    """Bias and multiplier; the multiplier of a pad is 0, which keeps the pad 0."""
    given = constants[step.bias]
    bias, gain = np.zeros(channels, given.dtype), np.zeros(channels, np.float32)
    bias[:y.span] = given
    gain[y.channels()] = constants[step.multiplier][y.channels()] if isinstance(step, ConvI8) else 1
    return bias, gain


def _bounds(step: Convolution) -> tuple[float, float]:
    if isinstance(step, ConvI8):
        return float(step.low), float(step.high)
    infinite = float("inf")
    return (-infinite if step.low is None else step.low), (infinite if step.high is None else step.high)
