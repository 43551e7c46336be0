"""Steps that place an image's pixels on another grid: zeros or values in between. Bound by `executor.py`."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.steps import ResampleF32, Stuff
from .binding import Array, Binding, Call
from .images import output


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
