"""Element-wise functions of the float body, without new arrays. Callers: `epilogue.py`, `elementwise.py`.

NumPy's own exp and tanh: tolerance, not bits. The tail's functions, whose bits are fixed, are in `flat.py`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from .binding import Call, Floats

ONE = np.float32(1)


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
    raise ValueError(f"no float32 form of the activation {op}")
