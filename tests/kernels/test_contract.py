"""The contract's numbers against exact arithmetic, and its plain functions by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from orind.kernels.quant import contract


def nearest_even(value: Fraction) -> int:
    return round(value)                       # Python rounds a Fraction half to even


def test_weights_bias_and_multiplier() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 1, (6, 4, 3, 3)).astype(np.float32)
    bias = rng.normal(0, 5, 6).astype(np.float32)
    weight[2], weight[3], bias[3] = 0, 0, 0
    weight[4], bias[4] = weight[4] * 1e-9, 1e6
    s_x = contract.single(0.037)
    scales = contract.weight_scales(weight, bias, s_x)
    codes, bias_q = contract.weight_codes(weight, scales), contract.bias_codes(bias, s_x, scales)
    assert scales.dtype == np.float32 and codes.dtype == np.int8
    for c in (0, 1, 5):
        assert scales[c] == np.float32(float(np.abs(weight[c]).max()) / 127)
        assert np.abs(codes[c]).max() == 127
    assert scales[3] == np.float32(2.0 ** -20) and not codes[2:4].any()
    assert np.abs(bias_q).max() <= 1 << 30 and abs(int(bias_q[4])) > (1 << 30) - 4096
    for c in range(6):
        exact = Fraction(float(bias[c])) / (Fraction(s_x) * Fraction(float(scales[c])))
        assert abs(int(bias_q[c]) - nearest_even(exact)) <= (1 if abs(exact) > 1 << 29 else 0)
    m = contract.multiplier(s_x, scales, contract.single(0.05))
    assert m[0] == np.float32(s_x * float(scales[0]) / contract.single(0.05))


def test_sums_that_do_not_fit() -> None:
    codes = np.full((2, 70_000), 127, dtype=np.int8)
    bias = np.array([0, (1 << 30)])
    assert contract.sum_fits(codes, bias, False).tolist() == [True, False]
    assert contract.sum_fits(codes, bias, True).tolist() == [False, False]


@pytest.mark.parametrize(("activation", "low", "high", "s_out", "want"), [
    ("SiLU", -20.0, 5.0, 0.1, 0.025), ("SiLU", -20.0, 0.5, 0.004, 8 / 512), ("SiLU", -1.0, 1.0, 0.001, 1 / 512),
    ("LeakyRelu", -20.0, 5.0, 0.1, 20 / 512), ("Sigmoid", -3.0, 2.0, 0.1, 3 / 512), ("Tanh", -30.0, 2.0, 0.1, 8 / 512),
    ("Sigmoid", 0.0, 0.0, 0.1, 2.0 ** -20)])
def test_table_scale(activation: str, low: float, high: float, s_out: float, want: float) -> None:
    assert contract.table_scale(activation, s_out, low, high) == contract.single(want)


def test_a_table_reaches_its_largest_code() -> None:
    """A SiLU whose input goes from -0.1 to 1: a step of s_out / 4 would end at 87 instead of 127."""
    def silu(x: contract.Doubles) -> contract.Doubles:
        return x / (1 + np.exp(-x))
    s_out = contract.single(float(silu(np.array([1.0]))[0]) / 127)
    top = contract.table_top(silu, s_out, 1.0)
    last = []
    for reach in (0.0, top):
        s_pre = contract.table_scale("SiLU", s_out, -0.1, 1.0, reach)
        last.append(contract.table_codes(silu, s_pre, s_out, -512, 511)[-1])
    assert top == pytest.approx(1.0, rel=1e-3) and last[0] < 90 and last[1] == 127
    assert contract.table_top(silu, 0.1, 50.0) == pytest.approx(12.7, rel=1e-3)        # not the outlier at 50
    assert contract.table_scale("SiLU", 0.1, -20.0, 50.0, 12.7) == contract.single(0.025)
    assert contract.table_top(silu, 0.1, -1.0) == 0


def test_plain_functions_round_half_to_even_and_clamp() -> None:
    acc = np.array([1, 3, 5, -1, -3, 1000, -1000])
    half = np.full(7, 0.5, dtype=np.float32)
    assert contract.requantise(acc, half).tolist() == [0, 2, 2, 0, -2, 127, -128]
    assert contract.requantise(acc, half, 0, 2).tolist() == [0, 2, 2, 0, 0, 2, 0]
    table = contract.table_codes(lambda x: x, 1.0, 1.0, -512, 511)
    assert table.shape == (1024,) and table[512] == 0 and table[0] == -128
    assert contract.look_up(acc, half, table).tolist() == [0, 2, 2, 0, -2, 127, -128]
    residual = np.array([1, 1, 1, 1, 1, -100, 100])
    assert contract.requantise_residual(acc, half, residual, 0.5).tolist() == [1, 2, 3, 0, -1, 127, -128]
    assert contract.look_up_residual(acc, half, table, residual, 1.0).tolist() == [1, 3, 3, 1, -1, 27, -28]
    assert contract.add(acc, 0.5, residual, -1.0).tolist() == [0, 0, 2, -2, -2, 127, -128]
    assert contract.multiply(np.array([100, -5]), np.array([100, 3]), 0.5).tolist() == [127, -8]
    assert contract.to_float(acc, half)[0] == np.float32(0.5)
    assert contract.clip_codes(0.0, 6.0, 0.1) == (0, 60) and contract.clip_codes(None, None, 1.0) == (-128, 127)
