"""DepthwiseI8 and DepthwiseF32: one multiply-add a tap over runs of pixels. Bound by `executor.py`.

`np.einsum` over (tap, run) adds the products of a tap to the sums in one pass, where multiply and add are two with a
store in between. Runs must be contiguous, so the input is framed in one plane for each column phase of the stride.
INT8 must be exact in float32, which lowering sees to (kernels up to 22 x 22 always are); a plan that is not is refused.
"""

from __future__ import annotations

from functools import partial
from math import gcd

import numpy as np

from ..ir.errors import ProgramError
from ..ir.steps import ConvF32, ConvI8, DepthwiseF32, DepthwiseI8
from .binding import Array, Binding, Call, Floats
from .convolution import EXACT, exact_bias, largest_code
from .epilogue import finish_f32, finish_i8, sums_in_place
from .gather import tiles

RUN = 2048
"""Numbers of a run, at most where the width allows: its sums stay in the first-level cache for all taps."""
SHORTEST = 256


def run_pixels(width: int, channels: int) -> int:
    """Pixels of a run: the largest divisor of `width` within RUN; the whole width where only short runs divide it."""
    best = max(n for n in range(1, width + 1) if width % n == 0 and (n == 1 or n * channels <= RUN))
    return best if best * channels >= SHORTEST else width


def _plane(at: Binding, x: Array, grid: tuple[int, int, int], rows: tuple[int, int],
           columns: int) -> tuple[Floats, list[Call]]:
    """Framed columns phase, phase + stride, ... of framed input rows [rows), border 0, and the calls that fill them.

    grid: (left border, stride, phase).
    """
    height, width, channels = x.shape
    (begin, stop), (left, stride, phase) = rows, grid
    first = max(0, -(-(left - phase) // stride))              # the first framed column that is a column of x
    source = phase + first * stride - left
    count = max(0, min(columns - first, -(-(width - source) // stride)))
    plane = at.frame((first, count), (stop - begin, columns, channels), np.dtype(np.float32))
    low, high = max(begin, 0), min(stop, height)
    calls: list[Call] = []
    if begin < low:
        calls.append(partial(plane[:low - begin].fill, 0))
    if high < stop:
        calls.append(partial(plane[max(high - begin, 0):].fill, 0))
    if low < high and count:
        calls.append(partial(np.copyto, plane[low - begin:high - begin, first:first + count],
                             x[low:high, source:source + (count - 1) * stride + 1:stride]))
    return plane, calls


def _taps(step: ConvI8 | ConvF32, at: Binding, x: Array, weight: Floats, sums: Floats, first: int, end: int,
          out_width: int) -> list[Call]:
    """Calls for sums (pixels, C) = the windows' products for output rows [first, end)."""
    rows, channels = end - first, sums.shape[1]
    (kh, kw), (sy, sx), (dy, dx) = step.kernel, step.stride, step.dilation
    begin = first * sy - step.pads[0]
    reach = (begin, begin + (rows - 1) * sy + (kh - 1) * dy + 1)
    pixels = run_pixels(out_width, channels)
    image = sums.reshape(rows, out_width // pixels, pixels * channels)
    every = sx // gcd(sx, dx)                                  # taps of one phase are this many apart
    calls: list[Call] = []
    for s in range(min(every, kw)):
        count = -(-(kw - s) // every)
        columns = out_width + (s + (count - 1) * every) * dx // sx
        plane, fill = _plane(at, x, (step.pads[1], sx, s * dx % sx), reach, columns)
        line, pixel, item = plane.strides
        taps = np.lib.stride_tricks.as_strided(
            plane[:, s * dx // sx:], (*image.shape[:2], kh, count, image.shape[2]),
            (sy * line, pixels * pixel, dy * line, every * dx // sx * pixel, item))
        wide = at.weight(step.weight, f"taps from {s} by {every}, {pixels} times {channels}",
                         lambda _, s=s: np.tile(weight[:, s::every, :channels], (1, 1, pixels)))  # type: ignore[misc]
        target = image if s == 0 else at.scratch("product", image.shape)
        calls += [*fill, partial(np.einsum, "ybrsx,rsx->ybx", taps, wide, out=target)]
        if s:
            calls.append(partial(np.add, image, target, out=image))
    return calls


def depthwise_i8(step: DepthwiseI8, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    stored = at.constant(step.weight)
    largest = np.abs(stored.astype(np.int64)).sum((0, 1)).max() * largest_code(x.dtype)
    bias = at.constant(step.bias)
    if largest > EXACT or not exact_bias(bias):
        raise ProgramError(f"step '{step.name}': a depthwise kernel of {step.kernel} with these weights is not "
                           "exact in float32: build the plan with --precision fp32")
    weight = at.weight(step.weight, "taps", lambda w: w.astype(np.float32))
    calls: list[Call] = []
    for first, end in tiles(y.shape[0], y.shape[1] * y.shape[2] * 12):
        sums = at.scratch("sums", ((end - first) * y.shape[1], y.shape[2]))
        calls += _taps(step, at, x, weight, sums, first, end, y.shape[1])
        calls += finish_i8(step, at, sums, y, first, end, frame, bias.astype(np.float32))
    return calls


def depthwise_f32(step: DepthwiseF32, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    weight = at.weight(step.weight, "taps", lambda w: np.asarray(w, dtype=np.float32))
    calls: list[Call] = []
    for first, end in tiles(y.shape[0], y.shape[1] * y.shape[2] * 12):
        sums = sums_in_place(step, at, y, first, end)
        calls += _taps(step, at, x, weight, sums, first, end, y.shape[1])
        calls += finish_f32(step, at, sums, y, first, end, frame, at.constant(step.bias))
    return calls
