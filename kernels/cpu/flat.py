"""Steps of the float tail, on flat float32 tensors: one IEEE rounding an operation, polynomials of `pre/polynomial.py`.

Bound by `executor.py`. Given exact inputs the results are the same bits on every executor, except Softmax, Tanh, Gelu.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..ir.errors import ProgramError
from ..ir.flat_steps import Binary, Cut, Join, Softmax, Transpose, Unary
from ..ir.steps import FromFlat, ToFlat
from ..pre import polynomial
from .activations import activate
from .binding import Array, Binding, Call
from .epilogue import bounds

BINARY: dict[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "power": np.power, "equal": np.equal, "greater": np.greater, "less": np.less,
    "greater_equal": np.greater_equal, "less_equal": np.less_equal, "and": np.logical_and, "or": np.logical_or,
    "xor": np.logical_xor, "modulo": np.mod, "fmod": np.fmod}
ELEMENTARY: dict[str, Callable[..., Array]] = {
    "Sqrt": np.sqrt, "Neg": np.negative, "Abs": np.abs, "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint,
    "Sign": np.sign, "Log": np.log, "Sin": np.sin, "Cos": np.cos, "Not": np.logical_not}


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
        low, high = bounds(step.low, step.high)
        return [partial(np.maximum, x, low, out=y), partial(np.minimum, y, high, out=y)]
    if op == "Exp":
        return [partial(polynomial.exp, x, out=y)]
    if op == "Sigmoid":
        return [partial(polynomial.sigmoid, x, out=y)]
    if op == "Softplus":
        return [partial(polynomial.softplus, x, out=y)]
    if op == "SiLU":
        gate = at.scratch("gate", x.shape)
        return [partial(polynomial.sigmoid, x, out=gate), partial(np.multiply, x, gate, out=y)]
    if op in ELEMENTARY:
        return [partial(ELEMENTARY[op], x, out=y)]
    if op == "Reciprocal":
        return [partial(np.divide, np.float32(1), x, out=y)]
    if op == "Boolean":
        return [partial(np.not_equal, x, np.float32(0), out=y)]
    try:
        return activate(op, step.alpha, step.beta, x, y, at.scratch("gate", x.shape))
    except ValueError as error:
        raise ProgramError(f"step '{step.name}': this executor does not know {op}: rebuild the plan") from error


def binary(step: Binary, at: Binding, frame: int) -> list[Call]:
    a = at.view(step.a, frame) if step.a else at.constant(step.constant)
    b = at.view(step.b, frame) if step.b else at.constant(step.constant)
    y = at.view(step.y, frame)
    if step.op == "prelu":
        part = at.scratch("gate", y.shape)
        return [partial(np.minimum, a, np.float32(0), out=part), partial(np.multiply, part, b, out=part),
                partial(np.maximum, a, np.float32(0), out=y), partial(np.add, y, part, out=y)]
    function = BINARY.get(step.op)
    if function is None:
        raise ProgramError(f"step '{step.name}': this executor does not know {step.op}: rebuild the plan")
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
