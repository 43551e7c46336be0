"""Steps that place an image's pixels on another grid: zeros or values in between. Bound by `executor.py`."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.grid_steps import WEIGHT_UNIT, ResampleF16, ResampleF32, ResampleI8, Stuff
from .binding import Array, Binding, Call
from .half import watch
from .images import output, store


def stuff(step: Stuff, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, _ = output(at, x, step.y, frame)
    picked: list[Array] = [x, y]
    for axis in (0, 1):
        stride, crop = step.stride[axis], step.crop[axis]
        first = -(-crop // stride)                     # the first pixel that is not cut off, and where it comes to lie
        where = first * stride - crop
        count = max(0, min(x.shape[axis] - first, -(-(y.shape[axis] - where) // stride)))
        index = (slice(None),) * axis
        picked = [picked[0][(*index, slice(first, first + count))],
                  picked[1][(*index, slice(where, where + (count - 1) * stride + 1, stride))]]
    return [partial(at.view(step.y, frame).fill, 0), partial(np.copyto, picked[1], picked[0])]


def resample_f32(step: ResampleF32, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    between = at.scratch("resampled rows", (y.shape[0], x.shape[1], x.shape[2]))
    calls += _along(at, x, between, at.constant(step.rows), at.constant(step.row_parts), 0)
    return calls + _along(at, between, y, at.constant(step.columns), at.constant(step.column_parts), 1)


def _along(at: Binding, x: Array, y: Array, index: Array, parts: Array, axis: int) -> list[Call]:
    first = at.scratch("resampled low", y.shape)
    if not parts.any():
        return [partial(np.take, x, index[0], axis=axis, out=first, mode="clip"), partial(np.copyto, y, first)]
    second = at.scratch("resampled high", y.shape)
    side = parts.reshape(-1, *[1] * (2 - axis))
    return [partial(np.take, x, index[0], axis=axis, out=first, mode="clip"),
            partial(np.take, x, index[1], axis=axis, out=second, mode="clip"),
            partial(np.subtract, second, first, out=second), partial(np.multiply, second, side, out=second),
            partial(np.add, first, second, out=y)]


def resample_f16(step: ResampleF16, at: Binding, frame: int) -> list[Call]:
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    wide, done = at.scratch("resampled input", x.shape), at.scratch("resampled output", y.shape)
    between = at.scratch("resampled rows", (y.shape[0], x.shape[1], x.shape[2]))
    calls.append(partial(np.copyto, wide, x))
    calls += _along(at, wide, between, at.constant(step.rows), at.constant(step.row_parts), 0)
    calls += _along(at, between, done, at.constant(step.columns), at.constant(step.column_parts), 1)
    return [*calls, partial(np.copyto, y, done), *watch(at, step.name, y, frame)]


def resample_i8(step: ResampleI8, at: Binding, frame: int) -> list[Call]:
    """Sums of four pixels in int32, at most 2^29, then one float32 product."""
    x = at.view(step.x, frame)
    y, calls = output(at, x, step.y, frame)
    codes = at.scratch("resampled codes", x.shape, np.int32)
    between = at.scratch("resampled code rows", (y.shape[0], x.shape[1], x.shape[2]), np.int32)
    sums, v = at.scratch("resampled sums", y.shape, np.int32), at.scratch("resampled output", y.shape)
    calls.append(partial(np.copyto, codes, x))
    calls += _weighed(at, codes, between, at.constant(step.rows), at.constant(step.row_parts), 0)
    calls += _weighed(at, between, sums, at.constant(step.columns), at.constant(step.column_parts), 1)
    return [*calls, partial(np.copyto, v, sums, casting="unsafe"),
            partial(np.multiply, v, np.float32(step.multiplier), out=v), *store(v, y, -128, 127)]


def _weighed(at: Binding, x: Array, y: Array, index: Array, parts: Array, axis: int) -> list[Call]:
    """y = x[low] * (2^11 - part) + x[high] * part along an axis, int32."""
    second = at.scratch("resampled code high", y.shape, np.int32)
    side = parts.astype(np.int32).reshape(-1, *[1] * (2 - axis))
    return [partial(np.take, x, index[0], axis=axis, out=y, mode="clip"),
            partial(np.take, x, index[1], axis=axis, out=second, mode="clip"),
            partial(np.multiply, y, np.int32(WEIGHT_UNIT) - side, out=y),
            partial(np.multiply, second, side, out=second),
            partial(np.add, y, second, out=y)]
