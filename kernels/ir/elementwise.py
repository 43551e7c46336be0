"""Element-wise operators in plain NumPy. Caller: `reference.py`; `ACTIVATIONS` also by passes and quantisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .codes import fake_quantise
from .graph import Node

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x.astype(np.float64))), dtype=x.dtype)


def softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x.astype(np.float64)), dtype=x.dtype)


def erf(x: Array) -> Array:
    from math import erf as one
    return np.asarray(np.vectorize(one, otypes=[np.float64])(x), dtype=x.dtype)


def gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide * 0.5 * (1 + erf(wide / np.sqrt(2))), dtype=x.dtype)


def gelu_tanh(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.asarray(wide * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide ** 3))), dtype=x.dtype)


def _elu(x: Array, alpha: float) -> Array:
    return np.asarray(np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x), dtype=x.dtype)


ACTIVATIONS: dict[str, Callable[[Array, Attrs], Array]] = {
    "Relu": lambda x, a: np.maximum(x, x.dtype.type(0)),
    "Sigmoid": lambda x, a: sigmoid(x),
    "SiLU": lambda x, a: x * sigmoid(x),
    "Tanh": lambda x, a: np.tanh(x),
    "LeakyRelu": lambda x, a: np.where(x < 0, x * x.dtype.type(a.get("alpha", 0.01)), x),
    "HardSigmoid": lambda x, a: np.clip(x * x.dtype.type(a.get("alpha", 0.2)) + x.dtype.type(a.get("beta", 0.5)), 0, 1),
    "HardSwish": lambda x, a: x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1),
    "Gelu": lambda x, a: gelu(x),
    "GeluTanh": lambda x, a: gelu_tanh(x),
    "Mish": lambda x, a: np.asarray(x * np.tanh(softplus(x)), dtype=x.dtype),
    "Elu": lambda x, a: _elu(x, a.get("alpha", 1.0)),
    "Selu": lambda x, a: _selu(x, a),
    "Softplus": lambda x, a: softplus(x),
    "FakeQuantise": lambda x, a: fake_quantise(x, a["alpha"], a["low"]),
}
"""Element-wise functions that a convolution can end in; each (x, attributes) -> y of x's dtype."""


def _divide(node: Node, a: Array, b: Array) -> Array:
    return np.asarray(a / b if a.dtype.kind == "f" else np.trunc(a / b), dtype=np.result_type(a, b))


def _clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    y = x if low is None else np.maximum(x, low)
    return np.asarray(y if high is None else np.minimum(y, high), dtype=x.dtype)


def _many(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def call(node: Node, *xs: Array) -> Array:
        y = xs[0]
        for x in xs[1:]:
            y = np.asarray(function(y, x), dtype=y.dtype)
        return y
    return call


def _mean(node: Node, *xs: Array) -> Array:
    return np.asarray(_many(np.add)(node, *xs) / len(xs), dtype=xs[0].dtype)


def _where(node: Node, condition: Array, a: Array, b: Array) -> Array:
    return np.asarray(np.where(condition, a, b))


def _modulo(node: Node, a: Array, b: Array) -> Array:
    return np.asarray(np.fmod(a, b) if node.attrs.get("fmod") else np.mod(a, b))


def _power(node: Node, a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b.astype(np.float64) if a.dtype.kind == "f" else b), dtype=a.dtype)


def _prelu(node: Node, x: Array, slope: Array) -> Array:
    return np.asarray(np.where(x < 0, x * slope, x), dtype=x.dtype)


def _selu(x: Array, a: Attrs) -> Array:
    return np.asarray(a.get("gamma", SELU_GAMMA) * _elu(x, a.get("alpha", SELU_ALPHA)), dtype=x.dtype)


def _celu(x: Array, a: Attrs) -> Array:
    alpha = a.get("alpha", 1.0)
    return np.asarray(np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha)), dtype=x.dtype)


UNARY: dict[str, Callable[[Array, Attrs], Array]] = {
    "Sqrt": lambda x, a: np.sqrt(x), "Exp": lambda x, a: np.exp(x), "Neg": lambda x, a: -x,
    "Identity": lambda x, a: x, "Dropout": lambda x, a: x,
    "Abs": lambda x, a: np.abs(x), "Ceil": lambda x, a: np.ceil(x), "Floor": lambda x, a: np.floor(x),
    "Round": lambda x, a: np.rint(x), "Sign": lambda x, a: np.sign(x), "Log": lambda x, a: np.log(x),
    "Reciprocal": lambda x, a: np.asarray(1 / x, dtype=x.dtype), "Sin": lambda x, a: np.sin(x),
    "Cos": lambda x, a: np.cos(x), "Erf": lambda x, a: erf(x), "Not": lambda x, a: np.logical_not(x),
    "Softsign": lambda x, a: x / (1 + np.abs(x)), "Celu": _celu,
    "ThresholdedRelu": lambda x, a: np.where(x > a.get("alpha", 1.0), x, x.dtype.type(0)),
    "Cast": lambda x, a: x.astype(a["to"]),
}
"""(x, attributes) -> y of x's shape."""

BINARY: dict[str, Callable[..., Array]] = {
    "Add": lambda n, a, b: a + b, "Sub": lambda n, a, b: a - b, "Mul": lambda n, a, b: a * b, "Div": _divide,
    "Pow": _power, "Mod": _modulo, "PRelu": _prelu,
    "Equal": lambda n, a, b: a == b, "Greater": lambda n, a, b: a > b, "Less": lambda n, a, b: a < b,
    "GreaterOrEqual": lambda n, a, b: a >= b, "LessOrEqual": lambda n, a, b: a <= b,
    "And": lambda n, a, b: a & b, "Or": lambda n, a, b: a | b, "Xor": lambda n, a, b: a ^ b,
}
"""(node, a, b) -> y of the broadcast shape."""
LOGICAL = frozenset({"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Not"})
VARIADIC: dict[str, Callable[..., Array]] = {
    "Sum": _many(np.add), "Max": _many(np.maximum), "Min": _many(np.minimum), "Mean": _mean}

ELEMENTWISE: dict[str, Callable[..., Array]] = {
    **BINARY, **VARIADIC, "Clip": _clip, "Where": _where,
    **{name: (lambda n, x, f=f: f(x, n.attrs)) for name, f in (UNARY | ACTIVATIONS).items()},
}
"""Operator name -> (node, inputs...) -> output of the inputs' broadcast shape."""
