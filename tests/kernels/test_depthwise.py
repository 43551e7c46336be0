"""Depthwise convolutions of every stride, dilation, border and width: FP32 and INT8, whole and in tiles."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from compiled import fill, fp32, int8, onnxruntime_outputs
from judge import Judge
from models import Net, sides

from orind.kernels.cpu import gather
from orind.kernels.cpu.depthwise import RUN, depthwise_f32, run_pixels
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.steps import DepthwiseF32, DepthwiseI8

FORMS = list(itertools.product((1, 2, 3), (1, 2, 3), ((0, 0, 0, 0), (2, 1, 1, 3)), ((3, 3), (2, 5))))


def net_of(form: int) -> Any:
    """An image of odd sizes through Conv, depthwise Conv and a 1x1 Conv that ends the body."""
    stride, dilation, pads, kernel = FORMS[form]
    channels = (5, 16, 24, 40)[form % 4]
    net = Net((1, 3, 17, (15, 19, 23)[form % 3]), form)
    x = net.op("Relu", net.conv(net.input, channels))
    w = net.constant(net.rng.normal(0, 0.4, (channels, 1, *kernel)).astype(np.float32))
    b = net.constant(net.rng.normal(0, 0.2, channels).astype(np.float32))
    x = net.op("Conv", x, w, b, kernel_shape=kernel, strides=[stride, stride + form % 2], pads=pads,
               dilations=[dilation, 1 + form % 3], group=channels)
    y = net.conv(net.op("Relu", x), 4, 1)
    return net.model([(y, (1, 4, *sides(net, y)))])


@pytest.mark.parametrize("tile", [gather.TILE_BYTES, 4 << 10])
def test_every_form(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "TILE_BYTES", tile)
    for form in range(len(FORMS)):
        model = net_of(form)
        runner, _ = fp32(model)
        assert any(isinstance(step, DepthwiseF32) for step in runner.program.steps)
        fill(runner, form)
        x = np.ascontiguousarray(runner.input[0].transpose(2, 0, 1))[None]
        got = runner.run()[0][0].copy()
        want = onnxruntime_outputs(model, x)[0][0]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), FORMS[form]


@pytest.mark.parametrize("form", range(0, len(FORMS), 3))
def test_int8_form_equals_the_judge(form: int) -> None:
    runner, constants = int8(net_of(form), seed=form)
    assert any(isinstance(step, DepthwiseI8) for step in runner.program.steps)
    fill(runner, form)
    judge = Judge(runner, constants)
    judge.run()
    assert judge.checked["DepthwiseI8"] > 0


def test_a_run_divides_the_width_and_fits_the_cache() -> None:
    for width, channels in itertools.product((1, 7, 64, 97, 128, 127), (1, 16, 24, 96, 4000)):
        pixels = run_pixels(width, channels)
        assert width % pixels == 0 and (pixels * channels <= RUN or pixels in (1, width))
    assert run_pixels(128, 32) == 64 and run_pixels(127, 32) == 127


@pytest.mark.parametrize("form", [1, 6])
def test_a_step_bound_a_second_time_with_other_weights_reads_these(form: int) -> None:
    """As the ranking of layers does: one binding, one step name, twice the weights give twice the products."""
    runner, constants = fp32(net_of(form))
    step = next(s for s in runner.program.steps if isinstance(s, DepthwiseF32))
    more = {step.weight + " twice": constants[step.weight] * 2, step.bias + " twice": constants[step.bias] * 2}
    runner = ProgramRunner(runner.program, {**constants, **more})
    fill(runner)
    second = depthwise_f32(replace(step, weight=step.weight + " twice", bias=step.bias + " twice", activation="",
                                   low=None, high=None), runner.binding, 0)
    first = depthwise_f32(replace(step, activation="", low=None, high=None), runner.binding, 0)
    y = runner.binding.view(step.y, 0)
    for ran in runner.walk():
        if ran.name == step.name:
            break
    for call in first:
        call()
    want = 2 * y.copy()
    for call in second:
        call()
    assert np.array_equal(y, want) and want.any()
