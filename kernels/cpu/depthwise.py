"""DepthwiseI8 and DepthwiseF32: one multiply and one add a tap over whole tiles. Bound by `executor.py`.

INT8 must be exact in float32, which lowering sees to (kernels up to 22 x 22 always are); a plan that is not is refused.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.errors import ProgramError
from ..ir.steps import ConvF32, ConvI8, DepthwiseF32, DepthwiseI8
from .binding import Array, Binding, Call, Floats
from .convolution import EXACT, exact_bias, largest_code
from .epilogue import finish_f32, finish_i8, packable, sums_in_place
from .gather import Window, framed_rows, tiles


def _taps(step: ConvI8 | ConvF32, at: Binding, x: Array, weight: Floats, sums: Floats, first: int, end: int,
          out_width: int) -> list[Call]:
    """Calls for sums (pixels, C) = the windows' products for output rows [first, end)."""
    rows, channels = end - first, sums.shape[1]
    window = Window(step.kernel, step.stride, step.pads, step.dilation)
    segments = at.tensor(step.x).segments if channels < x.shape[2] else ((0, channels),)
    frame, calls = framed_rows(at, x, segments, window, first, end, out_width, np.float32)
    image = sums.reshape(rows, out_width, channels)
    product = at.scratch("product", image.shape)
    sy, sx = step.stride
    for r in range(step.kernel[0]):
        for s in range(step.kernel[1]):
            y0, x0 = r * step.dilation[0], s * step.dilation[1]
            taps = frame[y0:y0 + (rows - 1) * sy + 1:sy, x0:x0 + (out_width - 1) * sx + 1:sx]
            wide = np.broadcast_to(weight[r, s, :channels], (out_width, channels)).copy()
            if r == s == 0:
                calls.append(partial(np.multiply, taps, wide, out=image))
            else:
                calls.append(partial(np.multiply, taps, wide, out=product))
                calls.append(partial(np.add, image, product, out=image))
    return calls


def depthwise_i8(step: DepthwiseI8, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    stored = at.constant(step.weight)
    largest = np.abs(stored.astype(np.int64)).sum((0, 1)).max() * largest_code(x.dtype)
    bias = at.constant(step.bias)
    if largest > EXACT or not exact_bias(bias):
        raise ProgramError(f"step '{step.name}': a depthwise kernel of {step.kernel} with these weights is not "
                           "exact in float32: build the plan with --precision fp32")
    weight = at.weight(step.weight, lambda w: w.astype(np.float32))
    calls: list[Call] = []
    channels = at.tensor(step.y).shape[2] if packable(step, at) else y.shape[2]
    for first, end in tiles(y.shape[0], y.shape[1] * channels * 12):
        sums = at.scratch("sums", ((end - first) * y.shape[1], channels))
        calls += _taps(step, at, x, weight, sums, first, end, y.shape[1])
        calls += finish_i8(step, at, sums, y, first, end, frame, bias.astype(np.float32))
    return calls


def depthwise_f32(step: DepthwiseF32, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    weight = at.weight(step.weight, lambda w: np.asarray(w, dtype=np.float32))
    calls: list[Call] = []
    channels = at.tensor(step.y).shape[2] if packable(step, at) else y.shape[2]
    for first, end in tiles(y.shape[0], y.shape[1] * channels * 12):
        sums = sums_in_place(at, y, first, end, channels)
        calls += _taps(step, at, x, weight, sums, first, end, y.shape[1])
        calls += finish_f32(step, at, sums, y, first, end, frame, at.constant(step.bias))
    return calls
