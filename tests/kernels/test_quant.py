"""Coded programs: bias correction, tables, scales and concat groups."""

from __future__ import annotations

from dataclasses import replace

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
from orind.kernels.quant.calibrate import collect
from orind.kernels.quant.quantise import IntegerNumbers
from orind.kernels.quant.scales import InputCode, assign_scales


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


def test_uint8_input_that_joins_a_convolution_in_a_concat_is_requantised() -> None:
    net = Net((1, 3, 8, 8))
    both = net.concat(net.input, net.op("Relu", net.conv(net.input, 5)))
    scales = calibrated(net.model([(net.conv(both, 4), (1, 4, 8, 8))]), code=InputCode("uint8", 1.0))
    moved, = (node for node in scales.graph.nodes if node.op == "Requantise")
    assert moved.inputs == (net.input,) and scales.scale[moved.output] == scales.scale[both] != 1.0
    nodes = [replace(node, inputs=tuple(net.input if name == moved.output else name for name in node.inputs))
             for node in scales.graph.nodes if node is not moved]
    bare = replace(scales, graph=scales.graph.rebuilt(nodes))
    with pytest.raises(UnsupportedModel, match=r"joins tensors of types \['int8', 'uint8'\]"):
        lower(bare.graph, [1], IntegerNumbers(bare))


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
