"""Histograms, calibration methods, and the choice between them."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import imported
from models import Net

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.quant.calibrate import BINS, METHODS, Histogram, best_scale, collect, merged
from orind.kernels.quant.choice import choose_methods
from orind.kernels.quant.gate import Regress
from orind.kernels.quant.scales import InputCode, assign_scales


def test_histogram_grows_and_keeps_every_value() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(0, s, 1000).astype(np.float32) for s in (0.1, 5, 1, 40)]
    grown = Histogram()
    for part in parts:
        grown.add(part.reshape(-1, 1))
    every = np.concatenate(parts)
    assert grown.counts.sum() == 4000 and grown.low == every.min() and grown.high == every.max()
    assert grown.top >= np.abs(every).max()
    direct = Histogram(grown.top, 0, 0)
    for part in parts:
        direct.add(part.reshape(-1, 1))
    centre = (grown.counts * grown.centres()).sum() / 4000
    assert centre == pytest.approx(np.abs(every).mean(), rel=0.01)
    both = merged([grown, direct])
    assert both.counts.sum() == 8000 and both.counts.shape == (BINS,)


def test_best_scale_clips_outliers_and_matches_brute_force() -> None:
    rng = np.random.default_rng(1)
    values = np.append(rng.normal(0, 1, 100_000), [30.0]).astype(np.float32)
    histogram = Histogram()
    histogram.add(values.reshape(-1, 1))
    scale = best_scale(histogram)

    def loss(s: float) -> float:
        return float((np.abs(values - np.clip(np.rint(values / s), -128, 127) * s).astype(np.float64) ** 2).sum())
    every = {s: loss(s) for s in 30 / 127 * np.linspace(0.05, 1, 60)}
    assert loss(scale) <= min(every.values()) * 1.1
    assert scale < 30 / 127 * 0.9
    empty = Histogram()
    empty.add(np.zeros((4, 1), dtype=np.float32))
    assert best_scale(empty) == 2.0 ** -20
    broken = Histogram()
    broken.add(np.array([[1, np.nan]], dtype=np.float32))
    with pytest.raises(ValueError, match="NaN or infinity"):
        best_scale(broken)


def test_methods_of_calibration() -> None:
    rng = np.random.default_rng(2)
    values = np.append(rng.normal(0, 1, 100_000), [30.0, -29.0]).astype(np.float32)
    histogram = Histogram()
    histogram.add(values.reshape(-1, 1))
    got = {method: best_scale(histogram, method) * 127 for method in METHODS}
    assert got["minmax"] == pytest.approx(30, rel=1e-6)
    assert got["percentile"] == pytest.approx(np.quantile(np.abs(values), 0.9999), rel=0.02)
    assert 2 < got["entropy"] < 6 and got["entropy"] < got["mse"] < got["minmax"]
    with pytest.raises(ValueError, match="'best' is not one of"):
        best_scale(histogram, "best")
    narrow = Histogram()
    narrow.add(np.full((3, 1), 0.5, dtype=np.float32))
    assert all(best_scale(narrow, method) * 127 <= 0.5 * 1.000001 for method in METHODS)


def test_channels_of_a_histogram() -> None:
    histogram = Histogram()
    for low, high in ((-1.0, 8.0), (-16.0, 2.0)):
        histogram.add(np.array([[[low, 0.5, 0.0], [high, 0.25, 0.0]]], dtype=np.float32))
    assert histogram.peaks.tolist() == [16, 0.5, 0] and histogram.spread() == pytest.approx(16 / 4.375)
    assert histogram.means().tolist() == [-1.75, 0.375, 0] and Histogram().spread() == 1


def test_a_tensor_whose_rare_values_count_leaves_mse() -> None:
    """One pixel of 65,536 carries the answer: MSE clips it, the choice by outputs does not."""
    net = Net((1, 1, 256, 256))
    x = net.op("Conv", net.input, net.constant(np.ones((1, 1, 1, 1), dtype=np.float32)), kernel_shape=[1, 1])
    net.channels[x] = 1
    x = net.op("MaxPool", x, kernel_shape=[256, 256], strides=[1, 1])
    y = net.op("Conv", x, net.constant(np.ones((1, 1, 1, 1), dtype=np.float32)), kernel_shape=[1, 1])
    graph = fuse(prepare(imported(net.model([(y, (1, 1, 1, 1))]))))
    frame = np.random.default_rng(0).normal(0, 0.1, (256, 256, 1)).astype(np.float32)
    frame[3, 5] = 1.0
    programs, constants = lower(graph, [1], FloatNumbers(graph))
    runner = ProgramRunner(programs[1], constants)
    ranges = collect(runner, [lambda out: np.copyto(out, frame)], lambda done: None)
    scales = assign_scales(graph, ranges, InputCode("int8", 1 / 127))
    name = graph.nodes[0].output
    assert scales.scale[name] * 127 < 0.9
    better, left = choose_methods(scales, "mse", Regress(), runner, [lambda out: np.copyto(out, frame)])
    assert name in left and better.scale[name] * 127 == pytest.approx(1.0, rel=0.02)
    assert better.scale["images"] == scales.scale["images"] == 1 / 127


def test_small_values_are_not_clipped() -> None:
    """From the smallest range whose scale float32 holds on: a bin of it is smaller than float32's inverse can say."""
    for largest in (1.5e-36, 1e-35, 9e-35, 2e-34, 1.0):
        values = (largest * np.linspace(-1, 1, 4001)).astype(np.float32).reshape(-1, 1)
        histogram = Histogram()
        histogram.add(values)
        assert histogram.counts.sum() == 4001 and (histogram.counts > 0).sum() > 1900
        assert best_scale(histogram) * 127 == pytest.approx(largest, rel=0.02)
