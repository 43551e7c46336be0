"""Steps of the float tail, on flat float32 tensors: one IEEE rounding an operation, polynomials of `pre/polynomial.py`.

Bound by `executor.py`. Given exact inputs the results are the same bits on every executor, except Softmax, Tanh, Gelu.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..ir.errors import ProgramError
from ..ir.steps import Binary, Cut, FromFlat, Join, Softmax, ToFlat, Transpose, Unary
from ..pre import polynomial
from .activations import activate
from .binding import Binding, Call

BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


def to_flat(step: ToFlat, at: Binding, frame: int) -> list[Call]:
    x, tensor = at.view(step.x, frame), at.tensor(step.x)
    y = at.view(step.y, frame)[0].transpose(1, 2, 0)
    calls: list[Call] = []
    first = 0
    for start, count in tensor.segments:
        calls.append(partial(np.copyto, y[..., first:first + count], x[..., start:start + count]))
        first += count
    if tensor.dtype != "float32" and tensor.scale != 1.0:
        scale = np.float32(tensor.scale)
        calls.append(partial(np.multiply, y, scale, out=y))
    return calls


def from_flat(step: FromFlat, at: Binding, frame: int) -> list[Call]:
    x, tensor = at.view(step.x, frame)[0].transpose(1, 2, 0), at.tensor(step.y)
    y = at.view(step.y, frame)
    calls: list[Call] = [partial(y.fill, 0)]
    first = 0
    for start, count in tensor.segments:
        calls.append(partial(np.copyto, y[..., start:start + count], x[..., first:first + count]))
        first += count
    return calls


def unary(step: Unary, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    op = step.op
    if op == "Clip":
        return [partial(np.clip, x, step.low, step.high, out=y)]
    if op == "Exp":
        return [partial(polynomial.exp, x, out=y)]
    if op == "Sigmoid":
        return [partial(polynomial.sigmoid, x, out=y)]
    if op == "Softplus":
        return [partial(polynomial.softplus, x, out=y)]
    if op == "SiLU":
        gate = at.scratch("gate", x.shape)
        return [partial(polynomial.sigmoid, x, out=gate), partial(np.multiply, x, gate, out=y)]
    if op == "Sqrt":
        return [partial(np.sqrt, x, out=y)]
    if op == "Neg":
        return [partial(np.negative, x, out=y)]
    try:
        return activate(op, step.alpha, step.beta, x, y, at.scratch("gate", x.shape))
    except ValueError as error:
        raise ProgramError(f"step '{step.name}': this executor does not know {op}: rebuild the plan") from error


def binary(step: Binary, at: Binding, frame: int) -> list[Call]:
    a = at.view(step.a, frame) if step.a else at.constant(step.constant)
    b = at.view(step.b, frame) if step.b else at.constant(step.constant)
    y, function = at.view(step.y, frame), BINARY[step.op]
    return [partial(function, a, b, out=y)]


def transpose(step: Transpose, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame).transpose(step.perm), at.view(step.y, frame)
    return [partial(np.copyto, y, x)]


def join(step: Join, at: Binding, frame: int) -> list[Call]:
    parts, y = [at.view(name, frame) for name in step.xs], at.view(step.y, frame)
    return [partial(np.concatenate, parts, step.axis, out=y)]


def cut(step: Cut, at: Binding, frame: int) -> list[Call]:
    index = tuple(slice(a, None if s < 0 and b < 0 else b, s) for a, b, s in step.ranges)
    x, y = at.view(step.x, frame)[index], at.view(step.y, frame)
    return [partial(np.copyto, y, x)]


def softmax(step: Softmax, at: Binding, frame: int) -> list[Call]:
    x, y = at.view(step.x, frame), at.view(step.y, frame)
    axis = step.axis

    def call() -> None:
        np.subtract(x, x.max(axis, keepdims=True), out=y)
        np.exp(y, out=y)
        np.divide(y, y.sum(axis, keepdims=True), out=y)
    return [call]
