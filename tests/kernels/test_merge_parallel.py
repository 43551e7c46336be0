"""Parallel convolutions become one: the same numbers in FP32, the same codes in INT8, fewer steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from compiled import calibrated, fill, imported
from judge import Judge
from models import Net, detector_onnx
from test_passes import same

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.errors import ModelError
from orind.kernels.ir.graph import Graph
from orind.kernels.passes.lower import Lowering, lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.merge_parallel import merge_parallel, part_outputs
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.parts import channel_scales, merged_scales
from orind.kernels.quant.scales import Scales


def inception(net: Net, x: str, widths: Sequence[int]) -> str:
    """A GoogLeNet module: 1x1; 1x1, 3x3; 1x1, 5x5; pool, 1x1; joined. The branches differ in range."""
    a, b, c, d, e, f = widths

    def relu(x: str, out: int, k: int, gain: float) -> str:
        y = net.op("Relu", net.conv(x, out, k, gain=gain))
        net.channels[y] = out
        return str(y)
    pooled = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    return net.concat(relu(x, a, 1, 1.5), relu(relu(x, b, 1, 0.3), c, 3, 3), relu(relu(x, d, 1, 6), e, 5, 0.5),
                      relu(pooled, f, 1, 1.5))


def googlenet(modules: int = 2) -> onnx.ModelProto:
    net = Net((1, 3, 12, 12), 3)
    x = net.op("Relu", net.conv(net.input, 16, 3, 2))
    net.channels[x] = 16
    for _ in range(modules):
        x = inception(net, x, (10, 12, 20, 5, 9, 7))
    return net.model([(net.conv(x, 6, 1), (1, 6, 6, 6))])


def convolutions(graph: Graph) -> int:
    return sum(node.op == "Conv" for node in graph.nodes)


def test_the_reducing_branches_of_inception_are_one() -> None:
    """The branch that the Concat takes in place stays apart: as a part it would have to be copied."""
    before = fuse(prepare(imported(googlenet())))
    after = same(before, merge_parallel(before))
    assert convolutions(before) - convolutions(after) == 2
    split = [node for node in after.nodes if node.attrs.get("parts")]
    assert len(split) == 2 and part_outputs(after, split[0].inputs[0]) == split[0].outputs
    assert [after.shape(name)[1] for name in split[0].outputs] == [12, 5]


def steps(graph: Graph) -> int:
    return len(lower(graph, [1], FloatNumbers(graph))[0][1].steps)


def test_heads_that_meet_in_a_concat_lose_it() -> None:
    before = fuse(prepare(imported(detector_onnx(32, (4, 8, 8, 8)))))
    after = same(before, merge_parallel(before))
    assert convolutions(before) - convolutions(after) == 2 and steps(before) - steps(after) == 6
    assert not any(node.attrs.get("parts") for node in after.nodes)


def test_what_is_not_merged() -> None:
    """Other windows, activations with a table, depthwise, a residual, graph outputs, parts of the tail alone."""
    net = Net((1, 4, 8, 8))
    x = net.op("Relu", net.conv(net.input, 8))
    net.channels[x] = 8
    branches = [net.conv(x, 8, 1), net.op("Relu", net.conv(x, 8, 1)), *(net.silu(net.conv(x, 8, 1)) for _ in "ab"),
                net.conv(x, 8, 3), net.conv(x, 8, 3, dilation=2), net.conv(x, 8, 1, group=8)]
    for y in branches:
        net.channels[y] = 8
    ends = [net.conv(net.op("MaxPool", y, kernel_shape=[2, 2]), 8, 1) for y in branches]
    tail = [net.op("Sigmoid", net.conv(x, 3, 1)) for _ in range(2)]
    before = fuse(prepare(imported(net.model([(y, [None] * 4) for y in (*ends, *tail)]))))
    assert merge_parallel(before) is before


def codes(scales: Scales, half: Sequence[str] = ()) -> tuple[ProgramRunner, list[np.ndarray], int]:
    graph, numbers = mixed_numbers(scales, half)
    programs, constants = lower(graph, [1], numbers)
    runner = ProgramRunner(programs[1], constants)
    fill(runner)
    values = Judge(runner, constants).run()
    return runner, [o.copy() for o in runner.outputs], values


@pytest.mark.parametrize("make", [googlenet, lambda: detector_onnx(32, (4, 8, 8, 8))])
def test_int8_is_the_same_to_the_bit(make: object) -> None:
    assert callable(make)
    scales = calibrated(make())
    merged = merged_scales(scales)
    (a, want, _), (b, got, values) = codes(scales), codes(merged)
    assert all(np.array_equal(x, y) for x, y in zip(want, got, strict=True)) and values > 3000
    assert len(a.program.steps) > len(b.program.steps)


def test_parts_of_other_ranges_keep_their_scales() -> None:
    merged = merged_scales(calibrated(googlenet(1)))
    (name, units), = channel_scales(merged).items()
    first, second = part_outputs(merged.graph, name)
    assert merged.scale[second] > 5 * merged.scale[first] and set(units) == {merged.scale[first], merged.scale[second]}
    assert len(units) == 17


def test_a_merged_layer_in_float16_leaves_its_readers_in_codes() -> None:
    """Each part is converted under its own scale: as if the two convolutions had been float16 on their own."""
    scales = calibrated(googlenet(1))
    merged = merged_scales(scales)
    (name, _), = channel_scales(merged).items()
    alone = [next(n.name for n in scales.graph.nodes if n.output == part) for part in part_outputs(merged.graph, name)]
    whole = [n.name for n in merged.graph.nodes if n.output == name]
    (_, want, _), (runner, got, _) = codes(scales, alone), codes(merged, whole)
    assert runner.program.tensors[name].dtype == "float16"
    assert all(np.abs(x - y).max() <= 1e-3 * np.abs(x).max() for x, y in zip(want, got, strict=True))


def long_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every tensor and node gets 140 characters that all have in front of their own names."""
    names = {n for node in model.graph.node for n in (*node.output, node.name)} - {o.name for o in model.graph.output}
    for node in model.graph.node:
        node.name = "block/" * 23 + node.name
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                field[i] = "block/" * 23 + name if name in names else name
    return model


@pytest.mark.parametrize("make", [lambda: googlenet(2), lambda: detector_onnx(32, (4, 8, 8, 8))])
def test_names_as_long_as_nested_modules_make_them(make: Callable[[], onnx.ModelProto]) -> None:
    """Groups whose names begin alike stay apart: every one keeps its own weights and its own tensors."""
    short, long = (merge_parallel(fuse(prepare(imported(m)))) for m in (make(), long_names(make())))
    assert [n.op for n in short.nodes] == [n.op for n in long.nodes]
    same(fuse(prepare(imported(long_names(make())))), long)


def test_a_name_that_is_taken_gets_a_number() -> None:
    """The model itself calls a constant, a tensor and a node what a pass would call them."""
    model = googlenet(1)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "taken"
    graph = fuse(prepare(imported(model)))
    plain = merge_parallel(graph)
    whole = next(n for n in plain.nodes if "+" in n.name)
    first = graph.nodes[0]
    names = {whole.inputs[1]: np.zeros(3, dtype=np.float32), whole.inputs[2]: np.zeros(3, dtype=np.float32),
             whole.output: np.zeros(3, dtype=np.float32)}
    other = graph.rebuilt([replace(first, name=whole.name), *graph.nodes[1:]], constants=names)
    merged = same(other, merge_parallel(other))
    assert all(np.array_equal(merged.constants[name], np.zeros(3)) for name in names)
    assert [n.name for n in merged.nodes].count(whole.name) == 1


def test_graphs_refuse_two_of_one_name() -> None:
    graph = imported(googlenet(1))
    twice = [graph.nodes[0], replace(graph.nodes[1], name=graph.nodes[0].name), *graph.nodes[2:]]
    with pytest.raises(ModelError, match=f"test.onnx: two nodes are called '{graph.nodes[0].name}'; give every node"):
        graph.rebuilt(twice)
    name, value = next(iter(graph.constants.items()))
    assert graph.rebuilt(graph.nodes, constants={name: value.copy()}).constants[name] is not value
    for other in (value + 1, value.astype(np.float64), value.reshape(-1)):
        with pytest.raises(ModelError, match=f"test.onnx: a pass makes the constant '{name}', which is the name of an"):
            graph.rebuilt(graph.nodes, constants={name: other})


def test_lowered_constants_of_one_name_stay_apart() -> None:
    graph = fuse(prepare(imported(googlenet(1))))
    out = Lowering(graph, FloatNumbers(graph))
    names = [out.constant("a/weight", np.array(v)) for v in (1.0, 1.0, 2.0, 2)]
    assert names == ["a/weight", "a/weight", "a/weight 2", "a/weight 3"]
