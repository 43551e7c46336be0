"""Element-wise functions of the float body, without new arrays. Callers: `epilogue.py`, `images.py`, `flat.py`.

NumPy's own exp and tanh: tolerance, not bits. The tail's functions, whose bits are fixed, are in `flat.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from .binding import Call, Floats

ONE = np.float32(1)
BLOCK = 1 << 13


def activate(op: str, alpha: float, beta: float, x: Floats, y: Floats, gate: Floats) -> list[Call]:
    """Calls for y = op(x); y may be x, `gate` is scratch of the same shape."""
    a, b = np.float32(alpha), np.float32(beta)
    if op in ("Sigmoid", "SiLU"):
        calls: list[Call] = [partial(np.negative, x, out=gate),
                             partial(np.minimum, gate, np.float32(88), out=gate),
                             partial(np.exp, gate, out=gate),
                             partial(np.add, gate, ONE, out=gate)]
        top = x if op == "SiLU" else ONE
        return [*calls, partial(np.divide, top, gate, out=y)]
    if op == "Relu":
        return [partial(np.maximum, x, np.float32(0), out=y)]
    if op == "Tanh":
        return [partial(np.tanh, x, out=y)]
    if op == "LeakyRelu":
        return [partial(np.minimum, x, np.float32(0), out=gate), partial(np.multiply, gate, a, out=gate),
                partial(np.maximum, x, np.float32(0), out=y), partial(np.add, y, gate, out=y)]
    if op in ("HardSigmoid", "HardSwish"):
        slope, shift = (a, b) if op == "HardSigmoid" else (np.float32(1 / 6), np.float32(0.5))
        calls = [partial(np.multiply, x, slope, out=gate), partial(np.add, gate, shift, out=gate),
                 partial(np.clip, gate, np.float32(0), ONE, out=gate)]
        last: Call = (partial(np.multiply, x, gate, out=y)) if op == "HardSwish" else (partial(np.copyto, y, gate))
        return [*calls, last]
    if op in ("Gelu", "GeluTanh", "Erf"):
        return _error_function(op, x, y, gate)
    if op == "Mish":                                   # tanh(ln(1 + e^x)) = t (t + 2) / (t (t + 2) + 2) with t = e^x
        return [partial(np.minimum, x, np.float32(30), out=gate), partial(in_blocks, _mish, gate),
                partial(np.multiply, x, gate, out=y)]
    if op in ("Elu", "Selu", "Celu"):
        inner, outer, slope = {"Elu": (ONE, a, ONE), "Selu": (ONE, a * b, b), "Celu": (a, a, ONE)}[op]
        return [partial(np.minimum, x, np.float32(0), out=gate), partial(np.divide, gate, inner, out=gate),
                partial(np.expm1, gate, out=gate), partial(np.multiply, gate, outer, out=gate),
                partial(np.maximum, x, np.float32(0), out=y), partial(np.multiply, y, slope, out=y),
                partial(np.add, y, gate, out=y)]
    if op == "Softplus":
        return [partial(np.logaddexp, x, np.float32(0), out=y)]
    if op == "Softsign":
        return [partial(np.abs, x, out=gate), partial(np.add, gate, ONE, out=gate), partial(np.divide, x, gate, out=y)]
    if op == "FakeQuantise":                           # codes from b to b + 255 in steps of a
        return [partial(np.divide, x, a, out=gate), partial(np.rint, gate, out=gate),
                partial(np.clip, gate, b, b + np.float32(255), out=gate), partial(np.multiply, gate, a, out=y)]
    if op == "ThresholdedRelu":
        off = gate.reshape(-1).view(np.bool_)[:gate.size].reshape(gate.shape)
        return [partial(np.greater, x, a, out=off), partial(np.logical_not, off, out=off), partial(np.copyto, y, x),
                partial(np.copyto, y, np.float32(0), where=off)]
    raise ValueError(f"no float32 form of the activation {op}")


def in_blocks(function: Callable[[Floats], object], x: Floats) -> None:
    """`function` on x, which lies in one piece, block by block in place: what it allocates stays small."""
    flat = x.reshape(-1)
    for first in range(0, flat.size, BLOCK):
        function(flat[first:first + BLOCK])


def _mish(x: Floats) -> None:
    """x = tanh(ln(1 + e^x)), x <= 30."""
    t = np.exp(x)
    t *= t + np.float32(2)
    np.divide(t, t + np.float32(2), out=x)


def _error_function(op: str, x: Floats, y: Floats, gate: Floats) -> list[Call]:
    if op == "Erf":
        return [partial(np.copyto, gate, x), partial(in_blocks, erf, gate), partial(np.copyto, y, gate)]
    if op == "Gelu":
        inner: list[Call] = [partial(np.multiply, x, np.float32(np.sqrt(0.5)), out=gate), partial(in_blocks, erf, gate)]
    else:
        inner = [partial(np.multiply, x, x, out=gate), partial(np.multiply, gate, np.float32(0.044715), out=gate),
                 partial(np.add, gate, ONE, out=gate), partial(np.multiply, gate, x, out=gate),
                 partial(np.multiply, gate, np.float32(np.sqrt(2 / np.pi)), out=gate), partial(np.tanh, gate, out=gate)]
    return [*inner, partial(np.add, gate, ONE, out=gate), partial(np.multiply, gate, np.float32(0.5), out=gate),
            partial(np.multiply, x, gate, out=y)]


# erf(x) = x P(x^2) / Q(x^2) on |x| <= 4, a minimax fit for float32; beyond, +-1 to the last bit
NUMERATOR = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
             -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
DENOMINATOR = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
               -1.42647390514189e-02)


def erf(x: Floats) -> None:
    """x = erf(x), within 4e-7."""
    z = np.clip(x, np.float32(-4), np.float32(4))
    square = z * z
    top, bottom = np.full_like(z, NUMERATOR[0]), np.full_like(z, DENOMINATOR[0])
    for value in NUMERATOR[1:]:
        top *= square
        top += np.float32(value)
    for value in DENOMINATOR[1:]:
        bottom *= square
        bottom += np.float32(value)
    top *= z
    np.divide(top, bottom, out=x)
