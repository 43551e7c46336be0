"""What must hold for each kind of step on flat tensors, so that an executor may run it. Caller: `validate.py`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .flat_steps import (
    Binary,
    Border,
    Cut,
    Fill,
    Join,
    MatMul,
    Normalise,
    Reduce,
    Select,
    Softmax,
    Spread,
    Take,
    Transpose,
    Unary,
    WindowConv,
    WindowPool,
)
from .look import Look, Shape


def _operand(look: Look, name: str, constant: str) -> Shape:
    """Shape of a tensor of the program, or of the constant that takes its place."""
    return look.flat(name).shape if name else look.constant(constant, "float32").shape


def _broadcast(look: Look, out: Shape, *shapes: Shape) -> None:
    try:
        found = np.broadcast_shapes(*shapes)
    except ValueError:
        found = ()
    look.need(found == out, f"does not take {' and '.join(map(str, shapes))} to {out}")


def _axis(look: Look, axis: int, rank: int) -> None:
    look.need(0 <= axis < rank, f"works on axis {axis} of {rank}")


def unary(look: Look, step: Unary) -> None:
    look.same_shape(look.flat(step.x), look.flat(step.y))


def binary(look: Look, step: Binary) -> None:
    look.need(bool(step.constant) is not (bool(step.a) and bool(step.b)), "has not two sides")
    _broadcast(look, look.flat(step.y).shape, _operand(look, step.a, step.constant),
               _operand(look, step.b, step.constant))


def transpose(look: Look, step: Transpose) -> None:
    x, y = look.flat(step.x), look.flat(step.y)
    look.need(sorted(step.perm) == list(range(len(x.shape))), f"orders {len(x.shape)} axes as {step.perm}")
    look.need(y.shape == tuple(x.shape[i] for i in step.perm), f"takes {x.shape} to {y.shape} by {step.perm}")


def join(look: Look, step: Join) -> None:
    parts, y = [look.flat(name).shape for name in step.xs], look.flat(step.y).shape
    _axis(look, step.axis, len(y))
    rest = {(*shape[:step.axis], *shape[step.axis + 1:]) for shape in parts}
    look.need(rest == {(*y[:step.axis], *y[step.axis + 1:])} and all(len(shape) == len(y) for shape in parts)
              and sum(shape[step.axis] for shape in parts) == y[step.axis], f"joins {parts} to {y} on axis {step.axis}")


def cut(look: Look, step: Cut) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    look.need(len(step.ranges) == len(x) == len(y) and all(s for _, _, s in step.ranges), f"cuts {x} by {step.ranges}")
    sizes = []
    for (first, stop, s), n in zip(step.ranges, x, strict=True):
        look.need(-1 <= first <= n and -1 <= stop <= n and (s < 0 or min(first, stop) >= 0),
                  f"cuts {x} by {step.ranges}")
        sizes.append(len(range(n)[slice(first, None if s < 0 and stop < 0 else stop, s)]))
    look.need(tuple(sizes) == y, f"cuts {x} by {step.ranges}, which does not give {y}")


def softmax(look: Look, step: Softmax) -> None:
    x = look.flat(step.x)
    look.same_shape(x, look.flat(step.y))
    look.need(-len(x.shape) <= step.axis < len(x.shape), f"works on axis {step.axis} of {len(x.shape)}")


def select(look: Look, step: Select) -> None:
    _broadcast(look, look.flat(step.y).shape, look.flat(step.condition).shape, _operand(look, step.a, step.constant_a),
               _operand(look, step.b, step.constant_b))


def reduce(look: Look, step: Reduce) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    for axis in step.axes:
        _axis(look, axis, len(x))
    kept = prod(1 if i in step.axes else n for i, n in enumerate(x))
    look.need(prod(y) == kept and len(set(step.axes)) == len(step.axes), f"takes {x} to {y} over the axes {step.axes}")


def mat_mul(look: Look, step: MatMul) -> None:
    look.need(bool(step.constant) is not (bool(step.a) and bool(step.b)), "has not two sides")
    a, b = _operand(look, step.a, step.constant), _operand(look, step.b, step.constant)
    y = look.flat(step.y).shape
    look.need(bool(a) and bool(b), f"multiplies {a} by {b}")
    left, right = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    look.need(left[-1] == right[-2], f"multiplies {a} by {b}")
    rows, columns = left[-2:-1] if len(a) > 1 else (), right[-1:] if len(b) > 1 else ()
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        batch = (-1,)
    look.need((*batch, *rows, *columns) == y, f"multiplies {a} by {b} to {y}")


def normalise(look: Look, step: Normalise) -> None:
    x = look.flat(step.x)
    look.same_shape(x, look.flat(step.y))
    _axis(look, step.axis, len(x.shape))
    look.need(0 <= step.epsilon < 1e30, f"adds {step.epsilon}")
    for name in (step.scale, step.bias):
        if name:
            _broadcast(look, x.shape, x.shape, look.constant(name, "float32").shape)


def take(look: Look, step: Take) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    index = look.constant(step.index, "int64")
    _axis(look, step.axis, len(x))
    look.need(not index.size or (int(index.min()) >= 0 and int(index.max()) < x[step.axis]),
              f"'{step.index}' reaches out of {x}")
    found = [n for n in (*x[:step.axis], *index.shape, *x[step.axis + 1:]) if n != 1]    # a single index drops the axis
    look.need(found == [n for n in y if n != 1], f"takes {index.shape} of {x} to {y}")


def spread(look: Look, step: Spread) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    _broadcast(look, y, x, y)


def border(look: Look, step: Border) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    look.need(len(step.corner) == len(x) == len(y)
              and all(c >= 0 and c + n <= m for c, n, m in zip(step.corner, x, y, strict=True)),
              f"puts {x} at {step.corner} of {y}")


def fill(look: Look, step: Fill) -> None:
    look.constant(step.constant, "float32", look.flat(step.y).shape)


def window_conv(look: Look, step: WindowConv) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    weight = look.constant(step.weight, "float32")
    look.need(len(x) == len(y) == weight.ndim >= 3 and x[0] == y[0] and step.groups >= 1 and weight.size > 0
              and x[1] == weight.shape[1] * step.groups and y[1] == len(weight) and y[1] % step.groups == 0,
              f"takes {x} to {y} with weights of {weight.shape} in {step.groups} groups")
    look.constant(step.bias, "float32", (y[1],))
    look.window(x[2:], y[2:], weight.shape[2:], step.stride, step.pads, step.dilation)


def window_pool(look: Look, step: WindowPool) -> None:
    x, y = look.flat(step.x).shape, look.flat(step.y).shape
    look.need(len(x) == len(y) >= 3 and x[:2] == y[:2], f"takes {x} to {y}")
    look.window(x[2:], y[2:], step.kernel, step.stride, step.pads, step.dilation)
    if step.multiplier:
        look.constant(step.multiplier, "float32", y[2:])


FLAT_RULES: dict[str, Callable[[Look, Any], None]] = {
    "Unary": unary, "Binary": binary, "Transpose": transpose, "Join": join, "Cut": cut, "Softmax": softmax,
    "Select": select, "Reduce": reduce, "MatMul": mat_mul, "Normalise": normalise, "Take": take, "Spread": spread,
    "Border": border, "Fill": fill, "WindowConv": window_conv, "WindowPool": window_pool}
