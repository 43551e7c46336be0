"""Samplers: the pixels of a picture that the resampling needs, channel by channel, already in the model's colours.

Made by the Preprocessor, one for each (encoding, size). A sampler knows the gathered rows and columns (Axis.sources),
so the work depends on the input's size, hardly on the picture's. Invariant: colour is converted at source pixels,
before any interpolation (chroma replicated), as the numerics contract orders it. Products name their type: before
NumPy 2 a small scalar would choose a smaller one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..picture import PACKED, SUBSAMPLING
from .colour import BITS, HALF, rgb_to_luma, yuv_to_rgb
from .scratch import Scratch

Bytes = npt.NDArray[np.uint8]
Plane = npt.NDArray[np.integer]
Index = npt.NDArray[np.intp]


class Sampler(Protocol):
    """`load` reads the picture's bytes once; `plane(c)` gives channel c of `planes`, (rows, columns), values 0..255.

    A plane is valid until the next call. `planes` is 1 where all channels of the model are the same plane.
    """

    planes: int

    def load(self, data: Bytes, scratch: Scratch) -> None: ...

    def plane(self, channel: int, scratch: Scratch) -> Plane: ...


def make_sampler(
    encoding: str, size: tuple[int, int], stride: int, rows: Index, columns: Index,
    colour: str, matrix: str, range_: str,
) -> Sampler:
    """The sampler for pictures of `encoding` and `size` (width, height), rows `stride` bytes apart, to `colour`."""
    width, height = size
    if encoding in PACKED or encoding == "gray":
        count = PACKED.get(encoding, 1)
        order = (0, 1, 2) if encoding == "rgb8" else (2, 1, 0)  # where R, G, B lie in a pixel
        return PackedSampler(height, stride, count, order, rows, columns, colour, matrix)
    if encoding == "nv12":
        return YuvSampler(Nv12Layout(width, height, stride), rows, columns, colour, matrix, range_)
    if encoding == "i420":
        return YuvSampler(PlanarLayout(encoding, width, height), rows, columns, colour, matrix, range_)
    # the planes of a JPEG are full-range BT.601 by definition (JFIF), whatever the cameras' matrix is
    return YuvSampler(PlanarLayout(encoding, width, height), rows, columns, colour, "bt601", "full")


class PackedSampler:
    """bgr8, rgb8, mono8, gray: interleaved channels in rows."""

    def __init__(
        self, height: int, stride: int, count: int, order: tuple[int, int, int], rows: Index, columns: Index,
        colour: str, matrix: str,
    ) -> None:
        self._shape = (height, stride)
        self._rows = rows
        if count == 1:
            order = (0, 0, 0)
        red, green, blue = (columns * count + place for place in order)
        self._weights: tuple[int, ...] = ()
        if count == 1:
            self._columns: tuple[Index, ...] = (red,)
        elif colour == "mono":
            self._columns, self._weights = (red, green, blue), rgb_to_luma(matrix)
        else:
            self._columns = (red, green, blue) if colour == "rgb" else (blue, green, red)
        self.planes = 1 if self._weights else len(self._columns)
        self._lines: Bytes | None = None

    def load(self, data: Bytes, scratch: Scratch) -> None:
        self._lines = _take(data.reshape(self._shape), self._rows, 0, scratch, "lines")

    def plane(self, channel: int, scratch: Scratch) -> Plane:
        assert self._lines is not None
        if not self._weights:
            return _take(self._lines, self._columns[channel], 1, scratch, "plane")
        shape = (len(self._rows), len(self._columns[0]))
        total = scratch.array("luma", shape, np.int32)
        part = scratch.array("luma part", shape, np.int32)
        total.fill(HALF)
        for columns, weight in zip(self._columns, self._weights, strict=True):
            np.multiply(_take(self._lines, columns, 1, scratch, "plane"), weight, out=part, dtype=np.int32)
            np.add(total, part, out=total)
        return np.right_shift(total, BITS, out=total)


class PlanarLayout:
    """Tight planes Y, U, V."""

    def __init__(self, encoding: str, width: int, height: int) -> None:
        self.across, self.down = SUBSAMPLING[encoding]
        self._luma = (height, width)
        self._chroma = (-(-height // self.down), -(-width // self.across))

    def luma(self, data: Bytes) -> Bytes:
        return data[: self._luma[0] * self._luma[1]].reshape(self._luma)

    def chroma(self, data: Bytes) -> tuple[Bytes, Bytes]:
        size = self._chroma[0] * self._chroma[1]
        start = self._luma[0] * self._luma[1]
        u, v = data[start : start + size], data[start + size : start + 2 * size]
        return u.reshape(self._chroma), v.reshape(self._chroma)

    def chroma_columns(self, columns: Index) -> tuple[Index, Index]:
        place = columns // self.across
        return place, place


class Nv12Layout:
    """Luma rows, then rows of interleaved U V, all `stride` bytes apart."""

    across = down = 2

    def __init__(self, width: int, height: int, stride: int) -> None:
        self._height, self._stride = height, stride

    def luma(self, data: Bytes) -> Bytes:
        return data[: self._height * self._stride].reshape(self._height, self._stride)

    def chroma(self, data: Bytes) -> tuple[Bytes, Bytes]:
        both = data[self._height * self._stride :].reshape(-1, self._stride)
        return both, both

    def chroma_columns(self, columns: Index) -> tuple[Index, Index]:
        place = columns // 2 * 2
        return place, place + 1


class YuvSampler:
    """nv12, i420, yuv420, yuv422, yuv444: luma and subsampled chroma.

    The chroma terms are computed once a chroma row, then repeated for each luma row. With full range the luma's factor
    is 2^14 exactly, so the terms can be rounded and shifted before the luma is added: int16 is then enough.
    """

    def __init__(
        self, layout: PlanarLayout | Nv12Layout, rows: Index, columns: Index, colour: str, matrix: str, range_: str
    ) -> None:
        self._layout, self._rows, self._columns = layout, rows, columns
        self._channels = {"rgb": (0, 1, 2), "bgr": (2, 1, 0), "mono": ()}[colour]
        self._matrix = yuv_to_rgb(matrix, range_)
        self._full = range_ == "full"
        chroma_rows, repeat = np.unique(rows // layout.down, return_inverse=True)
        self._chroma_rows, self._repeat = chroma_rows.astype(np.intp), repeat.astype(np.intp)
        self._chroma_columns = layout.chroma_columns(columns)
        self.planes = len(self._channels) or 1
        self._luma: Plane | None = None
        self._u: Bytes | None = None
        self._v: Bytes | None = None

    def load(self, data: Bytes, scratch: Scratch) -> None:
        lines = _take(self._layout.luma(data), self._rows, 0, scratch, "lines")
        luma = _take(lines, self._columns, 1, scratch, "luma")
        if self._full:
            self._luma = luma
        else:
            # luma * (Y - 16) + 2^13, the shift comes after the chroma
            term = scratch.array("luma term", luma.shape, np.int32)
            np.multiply(luma, self._matrix.luma, out=term, dtype=np.int32)
            self._luma = np.add(term, np.int32(HALF - self._matrix.offset * self._matrix.luma), out=term)
        if self._channels:
            planes = self._layout.chroma(data)
            u, v = (_take(plane, self._chroma_rows, 0, scratch, f"{name} lines")
                    for plane, name in zip(planes, "uv", strict=True))
            self._u = _take(u, self._chroma_columns[0], 1, scratch, "u")
            self._v = _take(v, self._chroma_columns[1], 1, scratch, "v")

    def plane(self, channel: int, scratch: Scratch) -> Plane:
        assert self._luma is not None
        kind = np.int16 if self._full else np.int32
        plane: Plane = scratch.array("plane", self._luma.shape, kind)
        if self._channels:
            np.take(self._chroma_term(self._channels[channel], scratch), self._repeat, axis=0, out=plane, mode="clip")
            np.add(plane, self._luma, out=plane)
        elif self._full:
            return self._luma
        else:
            np.copyto(plane, self._luma)
        if not self._full:
            np.right_shift(plane, BITS, out=plane)
        np.maximum(plane, kind(0), out=plane)
        return np.minimum(plane, kind(255), out=plane)

    def _chroma_term(self, colour: int, scratch: Scratch) -> Plane:
        """u * (U - 128) + v * (V - 128) for R, G or B; rounded and shifted already where the range is full."""
        assert self._u is not None and self._v is not None
        u, v = self._matrix.u[colour], self._matrix.v[colour]
        term = scratch.array("chroma", self._u.shape, np.int32)
        np.multiply(*((self._v, v) if v else (self._u, u)), out=term, dtype=np.int32)
        if u and v:
            part = scratch.array("chroma part", term.shape, np.int32)
            np.add(term, np.multiply(self._u, u, out=part, dtype=np.int32), out=term)
        np.add(term, np.int32((HALF if self._full else 0) - 128 * (u + v)), out=term)
        if not self._full:
            return term
        short = scratch.array("chroma short", term.shape, np.int16)
        return np.right_shift(term, BITS, out=short, casting="same_kind")


def _take(source: Bytes, index: Index, axis: int, scratch: Scratch, name: str) -> Bytes:
    """Lines or columns of a plane, into scratch. `clip` spares NumPy a second buffer; no index is out of range."""
    shape = (len(index), source.shape[1]) if axis == 0 else (source.shape[0], len(index))
    return np.take(source, index, axis=axis, out=scratch.array(name, shape, np.uint8), mode="clip")
