"""Tensors of quantised (QDQ) models that a scale of others would cut off or blur: each against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import int8, onnxruntime_outputs
from models import Net
from qdq import QdqNet, WholeNumbers, as_int8, seen
from qdq_random import calibrate_on
from test_qdq_saturation import noise_db

from orind.kernels.explain import explain
from orind.kernels.quant.imported import loss_of_import
from orind.kernels.quant.scales import InputCode

SIDE, STEP = 8, 0.02
ACTIVATIONS: dict[str, Callable[[Net, str], str]] = {
    "SiLU": lambda net, x: net.silu(x), "Relu": lambda net, x: str(net.op("Relu", x)),
    "LeakyRelu": lambda net, x: str(net.op("LeakyRelu", x, alpha=0.3)),
    "HardSwish": lambda net, x: str(net.op("HardSwish", x)), "none": lambda net, x: x}
PAIRS = {"exact": (0.5 / 127, 0, np.int8), "int8": (1 / 255, 3, np.int8), "uint8": (1 / 255, 128, np.uint8)}
"""Pairs that keep -0.5 .. 0.5."""


def end(net: QdqNet, y: str, scale: float, channels: int = 4) -> onnx.ModelProto:
    net.channels[y] = channels
    return net.model([(net.coded_conv(y, scale, 4), (1, 4, SIDE, SIDE))])


def started() -> tuple[QdqNet, str]:
    net = QdqNet((1, 3, SIDE, SIDE))
    return net, net.pair(net.input, STEP)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_term_without_a_pair_is_not_cut_to_its_sum(activation: str, pair: str, swapped: bool) -> None:
    """The sum is cut to -0.5 .. 0.5; its terms reach to 5 and cancel each other."""
    net, x = started()
    scale, zero, kind = PAIRS[pair]
    a = ACTIVATIONS[activation](net, net.coded_conv(x, STEP, 4))
    b = net.pair(net.coded_conv(x, STEP, 4), 0.04)
    y = net.pair(net.op("Add", *((b, a) if swapped else (a, b))), scale, zero, kind)
    model = end(net, y, scale)
    runner, _, _, facts = as_int8(model)
    assert noise_db(model, runner) > 34 and facts["scales_calibrated"] == 0
    assert noise_db(model, as_int8(model, calibrate_on(STEP))[0]) > 34


def test_a_calibrated_table_is_not_cut_to_its_sum() -> None:
    """No quantised model: what is added takes away most of what the activation gives."""
    net = Net((1, 3, SIDE, SIDE))
    weight = net.rng.normal(0, 2, (8, 3, 1, 1)).astype(np.float32)
    a, b = (net.op("Conv", net.input, net.constant(np.float32(gain) * weight),
                   net.constant(np.full(8, bias, np.float32))) for gain, bias in ((1, 15), (-0.5, -15)))
    y = net.op("Add", net.silu(a), b)
    net.channels[y] = 8
    model = net.model([(net.conv(y, 4), (1, 4, SIDE, SIDE))])
    runner, _ = int8(model, code=InputCode("int8", float(np.float32(1 / 127))))
    codes = np.random.default_rng(0).integers(-127, 128, runner.input[0].shape)
    runner.input[0] = codes
    want = onnxruntime_outputs(model, (codes / np.float32(127)).transpose(2, 0, 1)[None].astype(np.float32))[0]
    got = runner.run()[0]
    assert 10 * np.log10((want ** 2).sum() / ((got - want) ** 2).sum()) > 20


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("activation", ["none", "Relu"])
def test_two_pairs_of_one_tensor_are_both_kept_to_the_bit(order: int, activation: str) -> None:
    """One cuts at 0.5, the other keeps 12."""
    net, x = started()
    y = ACTIVATIONS[activation](net, net.coded_conv(x, STEP, 4))
    scales = (0.004, 0.1)[::order]
    parts = [net.pair(net.coded_conv(net.pair(y, scale), scale, 4), 4 * scale) for scale in scales]
    model = end(net, net.pair(net.op("Add", *parts), 0.5), 0.5)
    runner, _, _, facts = as_int8(model)
    assert facts["copies"] == 1 and "computed once more" in loss_of_import(facts)
    codes = np.random.default_rng(1).integers(-128, 128, runner.input[0].shape)
    runner.input[0] = codes
    got, want = seen(runner), WholeNumbers(model).run(codes.transpose(2, 0, 1))
    behind = [name for name in want if name in got and name != y]
    assert len(behind) == 3
    for name in behind:
        assert np.array_equal(got[name], want[name].transpose(1, 2, 0)), name


@pytest.mark.parametrize("order", [1, -1])
def test_two_pairs_of_the_input(order: int) -> None:
    """The wider one is its code."""
    net = QdqNet((1, 3, SIDE, SIDE))
    parts = [net.pair(net.coded_conv(net.pair(net.input, scale), scale, 4), 2 * scale)
             for scale in (0.004, STEP)[::order]]
    model = end(net, net.pair(net.op("Add", *parts), 0.05), 0.05)
    runner, *_ = as_int8(model)
    assert runner.program.tensors[runner.program.inputs[0]].scale == np.float32(STEP) and noise_db(model, runner) > 28


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kinds", [("exact", "exact"), ("exact", "int8"), ("int8", "exact"), ("int8", "uint8")])
def test_parts_of_a_split_have_scales_of_their_own(activation: str, kinds: tuple[str, str]) -> None:
    """The first part is cut to -0.5 .. 0.5, the second is kept to 5."""
    net, x = started()
    y = ACTIVATIONS[activation](net, net.coded_conv(x, STEP, 8))
    parts = net.op("Split", y, net.constant(np.array([4, 4])), axis=1, outputs=2)
    made = []
    for part, kind, gain in zip(parts, kinds, (1, 10), strict=True):
        net.channels[part] = 4
        scale, zero, dtype = PAIRS[kind]
        made.append(net.pair(net.coded_conv(net.pair(part, gain * scale, zero, dtype), gain * scale, 4), 0.04))
    model = end(net, net.pair(net.op("Add", *made), 0.04), 0.04)
    assert noise_db(model, as_int8(model)[0]) > 25


@pytest.mark.parametrize("part", [0, 1])
def test_a_member_of_a_concat_keeps_its_range(part: int) -> None:
    """A sigmoid with a pair does not cut the convolution beside it, of which only the pair behind both tells."""
    net, x = started()
    members = [net.op("Sigmoid", net.coded_conv(x, STEP, 4)), net.coded_conv(x, STEP, 4)]
    members[0] = net.pair(members[0], 1 / 127)
    y = net.pair(net.concat(*members[::1 - 2 * part]), 0.04, 3)
    model = end(net, y, 0.04, 8)
    assert noise_db(model, as_int8(model)[0]) > 28


def test_concats_of_one_tensor_may_have_scales_that_are_near() -> None:
    """A tensor and its pooled form have one code; the Concats that they go into have other scales."""
    net, x = started()
    soft = net.pair(net.coded_conv(x, STEP, 4), 0.05, 3)
    other = net.pair(net.coded_conv(x, STEP, 4), 0.05)
    pooled = net.op("MaxPool", soft, kernel_shape=[1, 1])
    ends = []
    for part, scale in ((pooled, 0.056), (soft, 0.058)):
        joined = net.pair(net.concat(part, other), scale)
        ends.append((net.coded_conv(joined, scale, 2), (1, 2, SIDE, SIDE)))
    model = net.model(ends)
    assert noise_db(model, as_int8(model)[0]) > 25


@pytest.mark.parametrize("cut", [0.5, 6.0])
@pytest.mark.parametrize("kind", PAIRS)
def test_what_is_read_in_float_beside_a_pair_is_told_or_calibrated(cut: float, kind: str, tmp_path: Path) -> None:
    """One reader has a pair, the other reads the tensor as it is, to about 10."""
    net, x = started()
    y = net.coded_conv(x, STEP, 4)
    scale, zero, dtype = PAIRS[kind]
    scale *= cut / 0.5
    a = net.pair(net.coded_conv(net.pair(y, scale, zero, dtype), scale, 4), cut / 10)
    b = net.pair(net.coded_conv(y, 0.1, 4), 1)
    model = end(net, net.pair(net.op("Add", a, b), 1.5), 1.5)
    _, _, _, facts = as_int8(model)
    told = loss_of_import(facts)
    assert facts["assumed"] == [y] and f"1 tensors ({y}) are read in float beside a pair" in told
    onnx.save(model, tmp_path / "model.onnx")
    assert f"whether {y} stay in their pairs' ranges" in explain(tmp_path / "model.onnx").summary
    runner, _, _, facts = as_int8(model, calibrate_on(STEP))
    assert noise_db(model, runner) > 25 and facts["assumed"] == [] and facts["copies"] == (cut == 0.5)


@pytest.mark.parametrize("order", [1, -1])
def test_an_input_that_is_pooled_too_keeps_its_code(order: int) -> None:
    """All readers have one scale: nothing between them codes anew, which once took the ends of the range off."""
    net = QdqNet((1, 3, SIDE, SIDE))
    attrs = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4}
    parts = []
    for pooled in (False, True)[::order]:
        y = net.op("MaxPool", net.op("MaxPool", net.input, **attrs), **attrs) if pooled else net.input
        net.channels[y] = 3
        parts.append(net.pair(net.coded_conv(net.pair(y, STEP), STEP, 4), 0.04))
    model = end(net, net.pair(net.op("Add", *parts), 0.05), 0.05)
    runner, *_ = as_int8(model)
    assert "RequantiseI8" not in {type(step).__name__ for step in runner.program.steps}
    runner.input[0] = codes = np.random.default_rng(2).integers(-128, 128, runner.input[0].shape)
    frame = (codes * np.float32(STEP)).transpose(2, 0, 1)[None].astype(np.float32)
    assert np.abs(runner.run()[0] - onnxruntime_outputs(model, np.ascontiguousarray(frame))[0]).max() < 1e-4
