"""Random quantised (QDQ) networks in INT8 and mixed precision against ONNX Runtime, with pictures and without."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from compiled import bound, imported
from numpy.typing import NDArray
from qdq import as_int8
from qdq_random import INPUT_SCALE, calibrate_on, frames, random_qdq, values_of, within, without_rounding

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.errors import UnsupportedModel
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.passes.release_pairs import release_pairs
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.imported import loss_of_import, scales_of_file
from orind.kernels.quant.parts import merged_scales
from orind.kernels.quant.scales import InputCode, Scales

SEEDS = range(100)
GOOD_DB, BEYOND_FILE_DB = 30.0, 10.0
"""INT8 must come within GOOD_DB of the file, or be no more than BEYOND_FILE_DB further from it than the file's own
rounding moves it. Of the seeds 0 to 1499 747 fails by 0.2 dB: pairs with a zero point, one behind another, which
by CONTRACT.md are coded again in twice the steps. Tensors that were cut to a range not their own, or a convolution that
lost its activation, were 12 to 50 dB further."""


def decibel(want: NDArray[np.float32], got: NDArray[np.float32]) -> float:
    noise = ((got.astype(np.float64) - want) ** 2).sum()
    return float(10 * np.log10(max((want.astype(np.float64) ** 2).sum(), 1e-30) / max(noise, 1e-30)))


def far_off(model: onnx.ModelProto, runner: ProgramRunner) -> str:
    """What is wrong with a program of the model; empty where nothing is."""
    end = model.graph.output[0].name
    smooth = without_rounding(model)
    for codes in frames():
        runner.input[0] = codes if runner.input.dtype == np.int8 else codes * np.float32(INPUT_SCALE)
        got, want = runner.run()[0], values_of(model, [end], codes)[end]
        found, of_file = decibel(want, got), decibel(values_of(smooth, [end], codes)[end], want)
        if found < min(GOOD_DB, of_file - BEYOND_FILE_DB):
            return f"{found:.1f} dB, of the file {of_file:.1f} dB"
    return ""


def assumed_ends(scales: Scales, names: list[str]) -> dict[str, tuple[float, float]]:
    """The range of the codes that readers in float have of these tensors: the widest that there are."""
    found = {}
    for name in names:
        widest = max(scale for copy, scale in scales.scale.items() if copy.split("@")[0] == name)
        found[name] = (-128 * widest, 127 * widest)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_net_is_what_the_file_says(seed: int) -> None:
    """Without pictures it may be refused, or say what it had to assume."""
    model = random_qdq(seed)
    runner, *_ = as_int8(model, calibrate_on(INPUT_SCALE))
    assert not (wrong := far_off(model, runner)), f"with pictures: {wrong}"
    try:
        runner, _, scales, facts = as_int8(model)
    except UnsupportedModel as error:
        assert "give --calibrate with pictures" in str(error)
        return
    if facts["assumed"]:
        assert "are read in float beside a pair" in loss_of_import(facts)
        model = within(model, assumed_ends(scales, facts["assumed"]))
    assert not (wrong := far_off(model, runner)), f"without pictures: {wrong}"


def as_mixed(model: onnx.ModelProto, draw: random.Random) -> ProgramRunner:
    """With some layers in float16, as `build.py` makes it."""
    released, ranges = release_pairs(imported(model))
    prepared = prepare(released)
    scales, _ = scales_of_file(fuse(float_ends(prepared)), ranges, InputCode("int8", 1.0),
                               lambda: calibrate_on(INPUT_SCALE)(prepared), "mse")
    scales = merged_scales(scales)
    often = draw.choice((0.3, 0.7, 1.0))
    graph, numbers = mixed_numbers(scales, [name for name in layers_of(scales.graph) if draw.random() < often])
    return bound(lower(graph, [1], numbers))[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_layers_in_float16_are_cut_as_codes_are(seed: int) -> None:
    model = random_qdq(seed)
    assert not (wrong := far_off(model, as_mixed(model, random.Random(seed)))), wrong
