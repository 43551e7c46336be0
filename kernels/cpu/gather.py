"""The columns of a convolution: windows of an NHWC image as rows of a float32 matrix, a tile of output rows at a time.

Callers: `convolution.py`, `depthwise.py`. Channel pads are left out, so that the product has no work for them. A kernel
row's taps lie together in NHWC, so each is copied as one run of kw * C numbers, converted on the way. A tile is small
enough to stay in the cache until its product and epilogue are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .binding import Array, Binding, Call, Floats

TILE_BYTES = 768 << 10
"""Columns and sums of a tile; measured on the part detector."""

Segments = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Window:
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilation: tuple[int, int]

    @property
    def span(self) -> tuple[int, int]:
        return ((self.kernel[0] - 1) * self.dilation[0] + 1, (self.kernel[1] - 1) * self.dilation[1] + 1)

    @property
    def is_point(self) -> bool:
        return self.kernel == self.stride == (1, 1) and self.pads == (0, 0, 0, 0)


def tiles(height: int, row_bytes: int) -> list[tuple[int, int]]:
    """(first, end) output rows of near-equal tiles of about TILE_BYTES."""
    count = max(1, min(height, -(-height * row_bytes // TILE_BYTES)))
    rows = -(-height // count)
    return [(first, min(first + rows, height)) for first in range(0, height, rows)]


def width_of(segments: Segments) -> int:
    return sum(count for _, count in segments)


def packed_copy(target: Array, source: Array, segments: Segments) -> list[Call]:
    """Calls that copy the segments of `source`'s channels, one after the other, to `target`."""
    if len(segments) == 1 and segments[0] == (0, source.shape[-1]):
        return [partial(np.copyto, target, source)]
    calls: list[Call] = []
    at = 0
    for start, count in segments:
        calls.append(partial(np.copyto, target[..., at:at + count], source[..., start:start + count]))
        at += count
    return calls


def framed_rows(at: Binding, x: Array, segments: Segments, window: Window, first: int, end: int,
                out_width: int, dtype: object) -> tuple[Array, list[Call]]:
    """The input rows that output rows [first, end) read, with borders of 0, and the calls that fill them."""
    height, width, _ = x.shape
    channels = width_of(segments)
    top, left, _, _ = window.pads
    begin = first * window.stride[0] - top
    stop = (end - 1) * window.stride[0] - top + window.span[0]
    columns = max((out_width - 1) * window.stride[1] + window.span[1], left + width)
    frame = at.frame((left, width), (stop - begin, columns, channels), np.dtype(dtype))  # type: ignore[call-overload]
    low, high = max(begin, 0), min(stop, height)
    calls: list[Call] = []
    if begin < low:
        calls.append(partial(frame[:low - begin].fill, 0))
    if high < stop:
        calls.append(partial(frame[max(high - begin, 0):].fill, 0))
    if low < high:
        calls += packed_copy(frame[low - begin:high - begin, left:left + width], x[low:high], segments)
    return frame, calls


def columns(at: Binding, x: Array, segments: Segments, window: Window, first: int, end: int,
            out_width: int) -> tuple[Floats, list[Call]]:
    """Columns (pixels, kh * kw * C) of output rows [first, end), and the calls that fill them. Border 0."""
    rows, channels = end - first, width_of(segments)
    kh, kw = window.kernel
    if window.is_point:
        source = x[first:end]
        if x.dtype == np.float32 and len(segments) == 1 and x.strides[0] == x.shape[1] * x.strides[1]:
            start = segments[0][0]                     # BLAS takes rows that lie apart: nothing is copied
            return np.lib.stride_tricks.as_strided(source[..., start:], (rows * out_width, channels),
                                                   (x.strides[1], 4)), []
        matrix = at.scratch("columns", (rows, out_width, channels))
        return matrix.reshape(-1, channels), packed_copy(matrix, source, segments)
    frame, calls = framed_rows(at, x, segments, window, first, end, out_width, x.dtype)
    matrix = at.scratch("columns", (rows, out_width, kh, kw, channels))
    line, pixel, item = frame.strides
    sy, sx = window.stride
    dy, dx = window.dilation
    whole_rows = dx == 1 or kw == 1
    for r in range(kh):
        for s in range(1 if whole_rows else kw):
            run = kw * channels if whole_rows else channels
            taps = matrix[:, :, r] if whole_rows else matrix[:, :, r, s]
            target = np.lib.stride_tricks.as_strided(taps, (rows, out_width, run), (*taps.strides[:2], 4))
            source = np.lib.stride_tricks.as_strided(frame[r * dy:, s * dx:], (rows, out_width, run),
                                                     (sy * line, sx * pixel, item))
            calls.append(partial(np.copyto, target, source))
    return matrix.reshape(rows * out_width, -1), calls
