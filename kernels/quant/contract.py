"""The numerics contract in NumPy: every number that a step uses and what a step computes from it, and nothing else.

Callers: `quantise.py` (scales, weights, bias, multipliers, tables); tests compare the executor's steps with the plain
functions below. `fmul` and `fadd` are float32 with one rounding; RNE is round half to even. Integer tensors are int8,
or uint8 for a graph input; sums are int32.

Beyond the letter of CONTRACT.md is the pre-scale of a table, `table_scale`. For activations that follow x above 0 the
last index also reaches the input of the largest code (`top` / 511): by max(s_out / 4, ...) alone a SiLU whose input
goes from -0.1 to 1 ends at 87 of 127 codes. And Mish, Elu, Selu, Softplus and GeluTanh, which CONTRACT.md does not
list, take the rule of SiLU, since they too are constant to a code from -8 down. Both choose a number that the plan
stores; what a step computes from it is as CONTRACT.md says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]

LOW, HIGH = -128, 127
TABLE_LOW, TABLE_HIGH = -512, 511
LARGEST_BIAS = 1 << 30
LEAST_SCALE = 2.0 ** -20
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales below this lose bits, and their multipliers become 0."""
SETTLED_BELOW = frozenset({"SiLU", "HardSwish", "Gelu", "GeluTanh", "Mish", "Elu", "Selu", "Softplus"})
"""Activations that follow x above 0 and are constant, to a code, from -8 down."""


def single(value: float) -> float:
    """A float64 number rounded once to float32."""
    return float(np.float32(value))


# ---- numbers derived at build time: float64, rounded once


def weight_scales(weight: Array, bias: Array, s_x: float) -> Floats:
    """(M, ...) weights and (M,) bias to (M,) float32 scales: max|w| / 127, raised until |b_q| <= 2^30."""
    largest = np.abs(weight.astype(np.float64)).reshape(len(weight), -1).max(1)
    for_bias = np.abs(bias.astype(np.float64)) / (s_x * LARGEST_BIAS)
    scales = np.maximum(np.where(largest > 0, largest / 127, LEAST_SCALE), for_bias).astype(np.float32)
    while True:
        over = np.abs(bias_codes(bias, s_x, scales)) > LARGEST_BIAS
        if not over.any():
            return scales
        scales = np.where(over, np.nextafter(scales, np.float32(np.inf)), scales).astype(np.float32)


def weight_codes(weight: Array, scales: Floats) -> Codes:
    side = (-1,) + (1,) * (weight.ndim - 1)
    return np.clip(np.rint(weight.astype(np.float64) / scales.astype(np.float64).reshape(side)), -127,
                   127).astype(np.int8)


def bias_codes(bias: Array, s_x: float, scales: Floats) -> npt.NDArray[np.int64]:
    return np.rint(bias.astype(np.float64) / (s_x * scales.astype(np.float64))).astype(np.int64)


def sum_fits(codes: Codes, bias: Array, unsigned: bool) -> npt.NDArray[np.bool_]:
    """(M,): |b_q| + 128 sum|w_q| < 2^31 (255 for a uint8 input)."""
    reach = np.abs(codes.astype(np.int64)).reshape(len(codes), -1).sum(1) * (255 if unsigned else 128)
    return np.asarray(np.abs(bias.astype(np.int64)) + reach < 1 << 31)


def exact_in_float32(codes: Codes, bias: Array, unsigned: bool) -> bool:
    """Whether every sum of products, and every bias, is a number that float32 holds: 128 sum|w_q| <= 2^24 (255)."""
    reach = np.abs(codes.astype(np.int64)).reshape(len(codes), -1).sum(1) * (255 if unsigned else 128)
    held = (bias.astype(np.float32).astype(np.int64) == bias).all()
    return bool(reach.max(initial=0) <= 1 << 24 and held)


def multiplier(s_x: float, scales: Floats, s_out: float | Array) -> Floats:
    """f32(s_x s_w[c] / s_out), s_out one number or one a channel; with s_out 1 the factor of the float end."""
    return (s_x * scales.astype(np.float64) / s_out).astype(np.float32)


def clip_codes(low: float | None, high: float | None, s_out: float) -> tuple[int, int]:
    """The code bounds of Clip(low, high); None is no bound."""
    least = LOW if low is None else max(LOW, int(np.rint(low / s_out)))
    most = HIGH if high is None else min(HIGH, int(np.rint(high / s_out)))
    return least, most


def table_scale(activation: str, s_out: float, pre_min: float, pre_max: float, top: float = 0.0) -> float:
    """s_pre of a 1,024-entry table, from the calibrated range of the pre-activation; the last index is at least `top`.

    `top` matters where the pre-activation stays near 0: SiLU halves x there, so that s_out / 4 ends at half the codes.
    """
    if activation in SETTLED_BELOW:
        value = max(s_out / 4, min(-pre_min, 8.0) / 512, top / TABLE_HIGH)
    elif activation == "LeakyRelu":
        value = max(s_out / 4, -pre_min / 512)
    else:
        value = min(max(abs(pre_min), abs(pre_max)), 8.0) / 512
    return single(value) if value > 0 else LEAST_SCALE


def table_top(function: Callable[[Doubles], Doubles], s_out: float, pre_max: float) -> float:
    """The least x up to pre_max from which on f(x) is the largest code, for f that rises above 0."""
    low, high = 0.0, max(pre_max, 0.0)
    if function(np.array([high]))[0] <= HIGH * s_out:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if function(np.array([middle]))[0] > HIGH * s_out else (middle, high)
    return high


def table_codes(function: Callable[[Doubles], Doubles], s_in: float, s_out: float, low: int, high: int) -> Codes:
    """Entry i - low is RNE(clamp(f(i s_in) / s_out)) for i from low to high; computed in float64."""
    values = function(np.arange(low, high + 1, dtype=np.float64) * s_in) / s_out
    return np.rint(np.clip(values, LOW, HIGH)).astype(np.int8)


# ---- what steps compute


def store(v: Floats, low: int = LOW, high: int = HIGH) -> Codes:
    """q = RNE(clamp(v, low, high))."""
    return np.rint(np.clip(v, np.float32(low), np.float32(high))).astype(np.int8)


def requantise(acc: Array, m: Array | float, low: int = LOW, high: int = HIGH) -> Codes:
    """plain: q of fmul(f32(acc), m); also a change of scale of int8 codes."""
    return store(acc.astype(np.float32) * np.float32(m), low, high)


def requantise_residual(acc: Array, m: Array, residual: Array, m_r: float, low: int = LOW, high: int = HIGH) -> Codes:
    """+res: v = fadd(fmul(f32(acc), m), fmul(f32(r), m_r)), two roundings and never an FMA."""
    v = acc.astype(np.float32) * m.astype(np.float32)
    return store(v + residual.astype(np.float32) * np.float32(m_r), low, high)


def look_up(acc: Array, m: Array, table: Codes) -> Codes:
    """table: i = RNE(clamp(fmul(f32(acc), m), -512, 511)); q = table[i + 512]."""
    v = np.clip(acc.astype(np.float32) * m.astype(np.float32), np.float32(TABLE_LOW), np.float32(TABLE_HIGH))
    return table[np.rint(v).astype(np.int64) - TABLE_LOW]


def look_up_residual(acc: Array, m: Array, table: Codes, residual: Array, m_r: float, low: int = LOW,
                     high: int = HIGH) -> Codes:
    """tab+res: the table is in the sum's scale."""
    v = look_up(acc, m, table).astype(np.float32)
    return store(v + residual.astype(np.float32) * np.float32(m_r), low, high)


def to_float(acc: Array, m: Array) -> Floats:
    """The end of the integers: y = fmul(f32(acc), f32(s_x s_w[c]))."""
    return acc.astype(np.float32) * m.astype(np.float32)


def add(a: Array, m_a: float, b: Array, m_b: float, low: int = LOW, high: int = HIGH) -> Codes:
    return store(a.astype(np.float32) * np.float32(m_a) + b.astype(np.float32) * np.float32(m_b), low, high)


def multiply(a: Array, b: Array, m: float, low: int = LOW, high: int = HIGH) -> Codes:
    return store((a.astype(np.int32) * b.astype(np.int32)).astype(np.float32) * np.float32(m), low, high)
