"""Steps on flat float32 tensors that combine many elements or place them: products, sums, statistics, windows.

Bound by `executor.py`. Floating-point sums: tolerance, not bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..ir.errors import ProgramError
from ..ir.flat_steps import (
    Border,
    Fill,
    MatMul,
    Normalise,
    Reduce,
    Select,
    Spread,
    Take,
    WindowConv,
    WindowPool,
)
from .binding import Array, Binding, Call

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def select(step: Select, at: Binding, frame: int) -> list[Call]:
    condition, y = at.view(step.condition, frame), at.view(step.y, frame)
    a = at.view(step.a, frame) if step.a else at.constant(step.constant_a)
    b = at.view(step.b, frame) if step.b else at.constant(step.constant_b)
    mask = at.scratch("mask", y.shape, np.bool_)
    return [partial(np.copyto, y, b), partial(np.not_equal, condition, np.float32(0), out=mask),
            partial(np.copyto, y, a, where=mask)]


def reduce(step: Reduce, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    if step.op not in REDUCTIONS:
        raise ProgramError(f"step '{step.name}': this executor does not know {step.op}: rebuild the plan")
    kept = tuple(1 if i in step.axes else n for i, n in enumerate(x.shape))
    return [partial(REDUCTIONS[step.op], x, axis=step.axes, keepdims=True, out=y.reshape(kept))]


def mat_mul(step: MatMul, at: Binding, frame: int) -> list[Call]:
    a = at.view(step.a, frame) if step.a else at.constant(step.constant)
    b = at.view(step.b, frame) if step.b else at.constant(step.constant)
    y = at.view(step.y, frame)
    if a.ndim > 1 and b.ndim > 1:
        return [partial(np.matmul, a, b, out=y)]

    def call() -> None:
        y[...] = a @ b
    return [call]


def normalise(step: Normalise, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    axes = tuple(range(step.axis, x.ndim))
    epsilon = np.float32(step.epsilon)
    mean = np.empty([1 if i in axes else n for i, n in enumerate(x.shape)], dtype=np.float32)
    spread, square = np.empty_like(mean), at.scratch("square", x.shape)
    calls: list[Call] = [
        partial(np.mean, x, axis=axes, keepdims=True, out=mean), partial(np.subtract, x, mean, out=y),
        partial(np.multiply, y, y, out=square), partial(np.mean, square, axis=axes, keepdims=True, out=spread),
        partial(np.add, spread, epsilon, out=spread), partial(np.sqrt, spread, out=spread),
        partial(np.divide, y, spread, out=y)]
    if step.scale:
        calls.append(partial(np.multiply, y, at.constant(step.scale), out=y))
    if step.bias:
        calls.append(partial(np.add, y, at.constant(step.bias), out=y))
    return calls


def take(step: Take, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    index = at.constant(step.index)
    shape = (*x.shape[:step.axis], *index.shape, *x.shape[step.axis + 1:])
    return [partial(np.take, x, index, axis=step.axis, out=y.reshape(shape), mode="clip")]


def spread(step: Spread, at: Binding, frame: int) -> list[Call]:
    return [partial(np.copyto, at.view(step.y, frame), at.view(step.x, frame))]


def border(step: Border, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    inner = y[tuple(slice(at_, at_ + n) for at_, n in zip(step.corner, x.shape, strict=True))]
    return [partial(y.fill, step.value), partial(np.copyto, inner, x)]


def fill(step: Fill, at: Binding, frame: int) -> list[Call]:
    return [partial(np.copyto, at.view(step.y, frame), at.constant(step.constant))]


def _windows(at: Binding, x: Array, kernel: tuple[int, ...], step: WindowConv | WindowPool, border_value: float,
             out: tuple[int, ...]) -> tuple[Array, list[Call]]:
    """(1, C, *out, *kernel) view of the framed input, and the calls that fill the frame."""
    n = len(kernel)
    size = [max((out[i] - 1) * step.stride[i] + (kernel[i] - 1) * step.dilation[i] + 1, step.pads[i] + x.shape[2 + i])
            for i in range(n)]
    framed = at.scratch("frame", (*x.shape[:2], *size))
    inner = framed[(slice(None), slice(None), *(slice(step.pads[i], step.pads[i] + x.shape[2 + i]) for i in range(n)))]
    lines = framed.strides[2:]
    view = np.lib.stride_tricks.as_strided(
        framed, (*x.shape[:2], *out, *kernel),
        (*framed.strides[:2], *(lines[i] * step.stride[i] for i in range(n)),
         *(lines[i] * step.dilation[i] for i in range(n))))
    return view, [partial(framed.fill, border_value), partial(np.copyto, inner, x)]


def window_conv(step: WindowConv, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    weight, bias = at.constant(step.weight), at.constant(step.bias)
    kernel, n = weight.shape[2:], weight.ndim - 2
    view, calls = _windows(at, x, kernel, step, 0, y.shape[2:])
    per_in, per_out = x.shape[1] // step.groups, y.shape[1] // step.groups
    axes = ((1, *range(2, 2 + n)), (1, *range(2 + n, 2 + 2 * n)))

    def call() -> None:
        for g in range(step.groups):
            part = weight[g * per_out:(g + 1) * per_out]
            made = np.tensordot(part, view[:, g * per_in:(g + 1) * per_in], axes)
            y[:, g * per_out:(g + 1) * per_out] = made.swapaxes(0, 1)
        np.add(y, bias.reshape(-1, *[1] * n), out=y)
    return [*calls, call]


def window_pool(step: WindowPool, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    view, calls = _windows(at, x, step.kernel, step, 0 if step.multiplier else -np.inf, y.shape[2:])
    axes = tuple(range(-len(step.kernel), 0))
    if not step.multiplier:
        return [*calls, partial(np.max, view, axis=axes, out=y)]
    gain = at.constant(step.multiplier)
    return [*calls, partial(np.sum, view, axis=axes, out=y), partial(np.multiply, y, gain, out=y)]
