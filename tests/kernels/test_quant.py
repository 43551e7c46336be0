"""The contract's numbers against exact arithmetic, calibration, scales and concat groups."""

from fractions import Fraction

import numpy as np
import pytest
from compiled import calibrated, fill, imported, int8
from judge import Judge
from models import Net

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.elementwise import ACTIVATIONS
from orind.kernels.ir.errors import UnsupportedModel
from orind.kernels.ir.steps import ConvI8, RequantiseI8
from orind.kernels.passes.fuse_convolutions import TABLES
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.quant import contract
from orind.kernels.quant.calibrate import BINS, METHODS, Histogram, best_scale, collect, merged
from orind.kernels.quant.choice import choose_methods
from orind.kernels.quant.gate import Regress
from orind.kernels.quant.quantise import IntegerNumbers
from orind.kernels.quant.scales import InputCode, assign_scales


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


def test_bias_takes_up_the_mean_of_the_weights_rounding() -> None:
    """Inputs with a large mean: the corrected bias brings the mean of every output channel nearer to FP32."""
    net = Net((1, 8, 10, 10))
    graph = fuse(prepare(imported(net.model([(net.conv(net.input, 16, 1), (1, 16, 10, 10))]))))
    frame = np.random.default_rng(0).integers(100, 128, (10, 10, 8)).astype(np.int8)
    programs, constants = lower(graph, [1], FloatNumbers(graph))
    runner = ProgramRunner(programs[1], constants)
    ranges = collect(runner, [lambda out: np.copyto(out, frame * np.float32(1 / 127))], lambda done: None)
    want = runner.outputs[0].mean((0, 2, 3))
    scales = assign_scales(graph, ranges, InputCode("int8", 1 / 127))
    off = []
    for correct in (False, True):
        programs, constants = lower(graph, [1], IntegerNumbers(scales, correct))
        runner = ProgramRunner(programs[1], constants)
        runner.input[0] = frame
        off.append(float(np.abs(runner.run()[0].mean((0, 2, 3)) - want).max()))
        Judge(runner, constants).run()
    assert off[1] < off[0] / 20


@pytest.mark.parametrize("gain", [0.05, 1.0, 12.0])
@pytest.mark.parametrize("op", sorted(TABLES))
def test_every_activation_ends_a_convolution_as_a_table(op: str, gain: float) -> None:
    """Codes are those of the float function of the same sums, but for the step of the index."""
    net = Net((1, 3, 12, 12))
    x = net.conv(net.input, 24, gain=gain)
    attrs = {"alpha": 0.1} if op == "LeakyRelu" else {}
    y = net.silu(x) if op == "SiLU" else net.op("Gelu", x, approximate="tanh") if op == "GeluTanh" else \
        net.op(op, x, **attrs)
    net.channels[y] = 24
    model = net.model([(net.conv(y, 4), (1, 4, 12, 12))], opset=20)
    scales = calibrated(model)
    programs, constants = lower(scales.graph, [1], IntegerNumbers(scales))
    runner = ProgramRunner(programs[1], constants)
    assert [type(s).__name__ for s in runner.program.steps] == ["ConvI8", "ConvI8", "ToFlat"]
    fill(runner)
    judge, step = Judge(runner, constants), next(iter(runner.walk()))
    assert isinstance(step, ConvI8) and step.table and judge.check(step, 0) > 0
    first, entry = scales.graph.nodes[0], scales.scale["images"]
    weight, bias = (scales.graph.constants[name] for name in first.inputs[1:])
    sums = judge.convolution(step, 0, sums=True) * entry * contract.weight_scales(weight, bias, entry).astype(float)
    want = np.clip(np.rint(ACTIVATIONS[op](sums, attrs) / scales.scale[y]), -128, 127)
    off = np.abs(judge.read(y, 0) - want)
    assert off.max() <= 2 and (off == 0).mean() > 0.8, (off.max(), (off == 0).mean())


def test_concat_group_shares_a_scale_and_a_quiet_member_leaves_it() -> None:
    net = Net((1, 3, 8, 8))
    loud, quiet = net.conv(net.input, 16, gain=40.0), net.conv(net.input, 16, gain=0.4)
    pooled = net.op("MaxPool", loud, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    net.channels[pooled] = 16
    both = net.concat(pooled, quiet)
    model = net.model([(net.conv(both, 4), (1, 4, 8, 8))])
    runner, constants = int8(model)
    tensors = runner.program.tensors
    assert tensors[loud].scale == tensors[pooled].scale == tensors[both].scale
    assert tensors[quiet].scale < tensors[both].scale / 8
    alone, _ = int8(net.model([(net.conv(pooled, 4), (1, 4, 8, 8))]))       # the member that left has no say
    assert tensors[loud].scale == alone.program.tensors[loud].scale
    assert any(isinstance(s, RequantiseI8) and s.x == quiet for s in runner.program.steps)
    fill(runner)
    Judge(runner, constants).run()


@pytest.mark.parametrize("kind", ["ChannelGather", "ZeroStuff", "Resize", "Split", "Pad", "MaxPool"])
def test_moves_keep_the_scale_and_sums_of_pixels_do_not(kind: str) -> None:
    net = Net((1, 3, 6, 6))
    x = net.op("Relu", net.conv(net.input, 8))
    sizes = net.constant(np.array([1, 8, 9, 9]))
    whole = net.constant(np.array([1, 2, 4, 6, 6])), net.constant(np.array([1, 8, 6, 6]))
    w = net.constant(net.rng.normal(0, 0.3, (8, 8, 2, 2)).astype(np.float32))
    y = {"ChannelGather": lambda: net.op("Reshape", net.op("Transpose", net.op("Reshape", x, whole[0]),
                                                           perm=[0, 2, 1, 3, 4]), whole[1]),
         "ZeroStuff": lambda: net.op("ConvTranspose", x, w, strides=[2, 2]),
         "Resize": lambda: net.op("Resize", x, "", "", sizes, mode="nearest"),
         "Split": lambda: net.op("Split", x, net.constant(np.array([3, 5])), outputs=2, axis=1)[1],
         "Pad": lambda: net.op("MaxPool", net.op("Pad", x, net.constant(np.array([0, 0, 1, 0, 0, 0, 0, 1]))),
                               kernel_shape=[2, 2]),
         "MaxPool": lambda: net.op("MaxPool", x, kernel_shape=[2, 2])}[kind]()
    net.channels[y] = 5 if kind == "Split" else 8
    scales = calibrated(net.model([(net.conv(y, 4), [None] * 4)]))
    moves = [node for node in scales.graph.nodes if node.op == kind]
    assert moves
    for node in moves:
        assert scales.scale[node.inputs[0]] == scales.scale[node.output]
        assert scales.group[node.inputs[0]] == scales.group[node.output]
    bilinear = net.op("Resize", x, "", "", sizes, mode="linear")
    net.channels[bilinear] = 8
    scales = calibrated(net.model([(net.conv(bilinear, 4), [None] * 4)]))
    assert scales.scale[x] != scales.scale[bilinear]


def test_alike_members_stay_without_a_copy() -> None:
    net = Net((1, 3, 8, 8))
    both = net.concat(net.conv(net.input, 16), net.conv(net.input, 16))
    runner, _ = int8(net.model([(net.conv(both, 4), (1, 4, 8, 8))]))
    assert [type(s).__name__ for s in runner.program.steps] == ["ConvI8", "ConvI8", "ConvI8", "ToFlat"]
    assert len({runner.program.tensors[s.y].scale for s in runner.program.steps[:2]}) == 1  # type: ignore[attr-defined]


def test_input_that_joins_a_convolution_in_a_concat_is_refused() -> None:
    net = Net((1, 3, 8, 8))
    both = net.concat(net.input, net.op("Relu", net.conv(net.input, 5)))
    with pytest.raises(UnsupportedModel, match=r"joins tensors of types \['int8', 'uint8'\]"):
        int8(net.model([(net.conv(both, 4), (1, 4, 8, 8))]), code=InputCode("uint8", 1.0))


def test_all_zero_weights_and_a_dead_input() -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Conv", net.input, net.constant(np.zeros((4, 3, 1, 1), dtype=np.float32)), kernel_shape=[1, 1])
    net.channels[x] = 4
    runner, constants = int8(net.model([(net.conv(net.op("Relu", x), 2), (1, 2, 8, 8))]))
    fill(runner)
    assert Judge(runner, constants).run() > 0 and np.isfinite(runner.outputs[0]).all()


def test_scales_of_a_graph_without_ranges_are_left_out() -> None:
    net = Net((1, 3, 8, 8))
    graph = fuse(prepare(imported(net.model([(net.conv(net.input, 4), (1, 4, 8, 8))]))))
    assert set(assign_scales(graph, {}, InputCode("int8", 0.5)).scale) == {"images"}
