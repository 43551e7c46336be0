"""Quantised (QDQ) models in which float32 arithmetic makes what integer layers read: each against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from compiled import bound, imported
from qdq import QdqNet, as_int8
from qdq_random import INPUT_SCALE, calibrate_on
from test_qdq_saturation import noise_db

from orind.kernels.ir.errors import UnsupportedModel
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.passes.release_pairs import release_pairs
from orind.kernels.quant.borders import layers_of, with_cuts
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.imported import loss_of_import, scales_of_file
from orind.kernels.quant.scales import InputCode, Scales

STEP, WIDTH = INPUT_SCALE, 4


def sliced(net: QdqNet, x: str) -> str:
    return str(net.op("Slice", x, *(net.constant(np.array([v])) for v in (0, WIDTH, 1))))


ISLANDS: dict[str, tuple[Callable[[QdqNet, str], str], bool]] = {
    "Slice": (sliced, True), "Transpose": (lambda net, x: str(net.op("Transpose", x, perm=[0, 1, 3, 2])), True),
    "Abs": (lambda net, x: str(net.op("Abs", x)), True), "Neg": (lambda net, x: str(net.op("Neg", x)), True),
    "Erf": (lambda net, x: str(net.op("Erf", x)), False), "Exp": (lambda net, x: str(net.op("Exp", x)), False),
    "Softmax": (lambda net, x: str(net.op("Softmax", x, axis=1)), False),
    "Div": (lambda net, x: str(net.op("Div", x, net.op("Exp", net.op("Abs", x)))), False)}
"""Operators without codes, and whether the pair in front of one says enough of what it makes."""
READERS: dict[str, Callable[[QdqNet, str], str]] = {
    "MaxPool": lambda net, y: str(net.op("MaxPool", y, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)),
    "Relu": lambda net, y: str(net.op("Relu", y)), "none": lambda net, y: y}


def started() -> tuple[QdqNet, str]:
    net = QdqNet((1, 3, 8, 8))
    return net, net.coded_conv(net.pair(net.input, STEP), STEP, WIDTH)


def ended(net: QdqNet, y: str, scale: float) -> onnx.ModelProto:
    net.channels[y] = WIDTH
    return net.model([(net.coded_conv(y, scale, WIDTH), (1, WIDTH, 8, 8))])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("island", ISLANDS)
def test_what_float_arithmetic_makes_has_codes_of_its_own(island: str, reader: str) -> None:
    """Of the file's range where it tells one, else of pictures; without them the model is refused by that remedy."""
    net, y = started()
    op, told = ISLANDS[island]
    y = op(net, net.pair(y, 0.03))
    model = ended(net, READERS[reader](net, y), 0.03)
    runner, _, _, facts = as_int8(model, calibrate_on(STEP))
    assert noise_db(model, runner) > 20
    if told:
        assert facts["scales_calibrated"] == 0 and noise_db(model, as_int8(model)[0]) > 30
    elif island == "Softmax" and reader != "none":            # alone, the convolution stays in float32
        with pytest.raises(UnsupportedModel, match=r"leaves 1 tensors in float .*give --calibrate with pictures"):
            as_int8(model)


@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("least", [0.004, 0.05])
def test_two_pairs_behind_an_island_are_both_kept(least: float, order: int, pictures: bool) -> None:
    """One cuts at 0.5, the other keeps 12: codes of the float tensor are made twice, and it itself once."""
    net, y = started()
    y = sliced(net, y)
    net.channels[y] = WIDTH
    parts = [net.pair(net.coded_conv(net.pair(y, scale), scale, 4), 0.05) for scale in (least, 0.1)[::order]]
    model = ended(net, net.pair(net.op("Add", *parts), 0.1), 0.1)
    runner, _, _, facts = as_int8(model, calibrate_on(STEP)) if pictures else as_int8(model)
    assert noise_db(model, runner) > 30 and facts["assumed"] == [] and facts["copies"] == 0


def test_an_island_that_is_read_as_it_is_beside_a_pair() -> None:
    """It is told, as that of a convolution; pictures give each reader its codes."""
    net, y = started()
    y = sliced(net, y)
    net.channels[y] = WIDTH
    parts = [net.pair(net.coded_conv(net.pair(y, 0.004), 0.004, 4), 0.05), net.pair(net.coded_conv(y, 0.1, 4), 0.5)]
    model = ended(net, net.pair(net.op("Add", *parts), 0.5), 0.5)
    facts = as_int8(model)[3]
    assert facts["assumed"] == [y] and "are read in float beside a pair" in loss_of_import(facts)
    runner, _, _, facts = as_int8(model, calibrate_on(STEP))
    assert noise_db(model, runner) > 25 and facts["assumed"] == []


def mixed_scales(model: onnx.ModelProto) -> Scales:
    released, ranges = release_pairs(imported(model))
    fused = fuse(float_ends(prepare(released)))
    return scales_of_file(fused, ranges, InputCode("int8", 1.0), dict, "mse")[0]


@pytest.mark.parametrize("beside", [False, True])
def test_float16_cuts_what_an_island_makes_as_codes_do(beside: bool) -> None:
    """Only for the readers of the pair: a float reader beside it sees the tensor as it is."""
    net, y = started()
    y = sliced(net, y)
    net.channels[y] = WIDTH
    cut = net.op("Relu", net.pair(y, 0.004))
    net.channels[cut] = WIDTH
    z = net.pair(net.coded_conv(cut, 0.004, WIDTH), 0.004)
    if beside:
        z = net.pair(net.op("Add", z, net.pair(net.op("Neg", y), 0.1)), 0.1)
    model = ended(net, z, 0.1 if beside else 0.004)
    scales = mixed_scales(model)
    every = layers_of(scales.graph)
    graph = with_cuts(scales.graph, scales.cuts)
    reference = bound(lower(graph, [1], FloatNumbers(graph)))[0]
    assert noise_db(model, reference) > 30
    for count in range(len(every) + 1):
        graph, numbers = mixed_numbers(scales, every[:count])
        assert noise_db(model, bound(lower(graph, [1], numbers))[0]) > 25, every[:count]


@pytest.mark.parametrize("activation", ["Sigmoid", "Relu", "SiLU"])
@pytest.mark.parametrize("term", [False, True])
def test_a_copy_that_float_arithmetic_alone_reads_keeps_what_was_fused(activation: str, term: bool) -> None:
    """Two pairs that are far apart make two convolutions; what is fused into one of them has no form in float32."""
    net, y = started()
    y = net.silu(y) if activation == "SiLU" else net.op(activation, y)
    if term:
        y = net.op("Add", y, net.pair(net.coded_conv(net.pair(net.input, STEP), STEP, WIDTH), 0.1))
    net.channels[y] = WIDTH
    narrow = net.coded_conv(net.pair(y, 0.0005), 0.0005, WIDTH)
    softmax = net.pair(net.op("Softmax", net.pair(y, 0.05), axis=1), 1 / 127)
    model = ended(net, net.pair(net.op("Add", net.pair(narrow, 0.02), softmax), 0.02), 0.02)
    for calibrate in (lambda prepared: {}, calibrate_on(STEP)):
        runner, _, _, facts = as_int8(model, calibrate)
        assert noise_db(model, runner) > 25 and facts["copies"] == 1


def test_a_pair_behind_an_island_cuts_for_float_readers_too() -> None:
    """One pair, read by a convolution and by a Softmax."""
    net, y = started()
    y = sliced(net, y)
    net.channels[y] = WIDTH
    y = net.pair(y, 0.004)
    soft = net.pair(net.op("Softmax", y, axis=1), 1 / 127)
    model = ended(net, net.pair(net.op("Add", net.pair(net.coded_conv(y, 0.004, WIDTH), 0.01), soft), 0.01), 0.01)
    assert noise_db(model, as_int8(model)[0]) > 28


@pytest.mark.parametrize("part", [0, 1])
def test_a_part_that_is_cut_does_not_cut_the_other(part: int) -> None:
    """What is split is coded again, in 0 .. 1.8; of one part a pair keeps 0.5, of the other all."""
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, STEP)
    y = net.pair(net.op("Relu", net.coded_conv(x, STEP, 8)), 1.8 / 255, -128)
    parts = net.op("Split", y, net.constant(np.array([4, 4])), axis=1, outputs=2)
    made = []
    for index, name in enumerate(parts):
        net.channels[name] = WIDTH
        scale, zero = (0.004, 0) if index == part else (3 / 255, -128)
        made.append(net.pair(net.coded_conv(net.pair(name, scale, zero), scale, WIDTH), 0.02))
    model = ended(net, net.pair(net.op("Add", *made), 0.04), 0.04)
    assert noise_db(model, as_int8(model)[0]) > 28


def test_nothing_is_assumed_of_what_has_no_codes() -> None:
    """A pair and a reader without one, both in float32: neither cuts the other."""
    net, y = started()
    a = net.pair(net.op("Softmax", net.pair(y, 0.004), axis=1), 1 / 127)
    b = net.pair(net.op("Transpose", y, perm=[0, 1, 3, 2]), 0.1)
    model = ended(net, net.pair(net.op("Add", a, b), 0.1), 0.1)
    runner, _, _, facts = as_int8(model)
    assert facts["assumed"] == [] and facts["copies"] == 0 and noise_db(model, runner) > 30
