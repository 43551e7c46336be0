"""FP16 steps within the contract's bound of float64, overflow, marks and borders, and mixed precision on a hard net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import bound, calibrated, fill, imported
from judge import Judge
from models import Net, detector_onnx, random_net
from numpy.typing import NDArray

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.devices import CpuDevice
from orind.kernels.ir import steps as s
from orind.kernels.ir.errors import UnsupportedModel
from orind.kernels.ir.program import program_from_json
from orind.kernels.ir.reference import run_graph
from orind.kernels.ir.validate import programs_of
from orind.kernels.model import FrameFault, open_models
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.picture import Picture
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.borders import layers_of, place_conversions
from orind.kernels.quant.coding import without_codes
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.spec import ModelSpec

Array = NDArray[Any]


def fp16(model: onnx.ModelProto, batch: int = 1) -> tuple[ProgramRunner, dict[str, Array]]:
    graph = fuse(float_ends(prepare(imported(model))))
    return bound(lower(*lowering_of(without_codes(graph), layers_of(graph), batch)), batch)


def lowering_of(scales: Any, layers: Any, batch: int) -> tuple[Any, list[int], Any]:
    graph, numbers = mixed_numbers(scales, layers)
    return graph, [batch], numbers


def mixed(model: onnx.ModelProto, layers: Any = None, seed: int = 0) -> tuple[ProgramRunner, dict[str, Array]]:
    """Every second layer in float16 unless `layers` picks them from the list."""
    scales = calibrated(model, seed=seed)
    every = layers_of(scales.graph)
    return bound(lower(*lowering_of(scales, every[::2] if layers is None else layers(every), 1)))


def float64_sums(runner: ProgramRunner, constants: dict[str, Array], step: s.ConvF32) -> tuple[Array, Array, int]:
    """(sum + bias, sum of |x w|, K) of a float16 convolution in float64 from its float16 inputs; ends without
    activation only. (Ho, Wo, physical channels of y)"""
    x = runner.binding.view(step.x, 0).astype(np.float64)
    weight = constants[step.weight].astype(np.float64)
    ho, wo, _ = runner.program.tensors[step.y].shape
    big = np.zeros((x.shape[0] + 64, x.shape[1] + 64, x.shape[2]))
    big[step.pads[0]:step.pads[0] + x.shape[0], step.pads[1]:step.pads[1] + x.shape[1]] = x
    total, size = np.zeros((ho, wo, weight.shape[-1])), np.zeros((ho, wo, weight.shape[-1]))
    for r in range(step.kernel[0]):
        for c in range(step.kernel[1]):
            tap = big[r * step.dilation[0]:, c * step.dilation[1]:][:(ho - 1) * step.stride[0] + 1:step.stride[0],
                                                                   :(wo - 1) * step.stride[1] + 1:step.stride[1]]
            w = weight[r, c]
            if isinstance(step, s.DepthwiseF32):
                part, reach = tap * w, np.abs(tap * w)
            else:
                part, reach = tap @ w, np.abs(tap) @ np.abs(w)
            total, size = total + part, size + reach
    k = step.kernel[0] * step.kernel[1] * (1 if isinstance(step, s.DepthwiseF32) else weight.shape[-2])
    return total + constants[step.bias].astype(np.float64), size, k


def check_bound(runner: ProgramRunner, constants: dict[str, Array]) -> int:
    """CONTRACT.md: |y - y64| <= 2^-11 |y64| + (K + 16) 2^-23 sum|x w| + 2^-25; the number of values compared."""
    compared = 0
    for step in runner.walk():
        if not isinstance(step, s.ConvF16 | s.DepthwiseF16) or step.activation or step.residual or (step.groups > 1 \
                and not isinstance(step, s.DepthwiseF16)):
            continue
        want, reach, k = float64_sums(runner, constants, step)
        want = np.clip(want, -np.inf if step.low is None else step.low, np.inf if step.high is None else step.high)
        got = runner.binding.view(step.y, 0).astype(np.float64)
        channels = runner.program.tensors[step.y].channels()
        bound = 2.0 ** -11 * np.abs(want) + (k + 16) * 2.0 ** -23 * reach + 2.0 ** -25
        assert (np.abs(got - want) <= bound)[..., channels].all(), step.name
        compared += want.size
    return compared


def test_float16_convolutions_are_within_the_bound() -> None:
    net = Net((1, 3, 20, 20))
    x = net.op("Relu", net.conv(net.input, 24, 3, 2))
    x = net.conv(x, 24, 5, group=24)
    x = net.conv(net.op("Relu", x), 300, 1)
    x = net.conv(net.op("Clip", net.conv(x, 40, 3), net.constant(np.array(-1, dtype=np.float32)),
                        net.constant(np.array(1, dtype=np.float32))), 8)
    runner, constants = fp16(net.model([(x, (1, 8, 10, 10))]))
    fill(runner)
    assert check_bound(runner, constants) > 40_000
    assert {type(step).__name__ for step in runner.program.steps} == {"Convert", "ConvF16", "DepthwiseF16", "ToFlat"}
    assert not runner.binding.overflows


@pytest.mark.parametrize("seed", range(24))
def test_random_graph_in_float16_and_mixed(seed: int) -> None:
    """FP16 near the graph's meaning; in a mixed program every integer step equals the judge still."""
    model = random_net(seed)
    graph = imported(model)
    runner, constants = fp16(model)
    fill(runner, seed)
    frame = runner.logical(runner.program.inputs[0], 0).transpose(2, 0, 1)[None]
    [want] = [run_graph(graph, {graph.inputs[0].name: frame})[name] for name in graph.outputs]
    got = runner.run()[0]
    assert np.abs(got.reshape(want.shape) - want).max() <= 0.03
    check_bound(runner, constants)
    both, constants = mixed(model, seed=seed)
    fill(both, seed)
    Judge(both, constants).run()
    types = {t.dtype for t in both.program.tensors.values() if t.layout == "nhwc"}
    assert "int8" in types
    assert program_from_json(both.program.to_json()) == both.program


def test_float16_elements_one_rounding() -> None:
    net = Net((1, 8, 6, 6))
    a, b = net.op("Relu", net.conv(net.input, 16)), net.op("Relu", net.conv(net.input, 16))
    x = net.op("Mul", net.op("Sub", net.op("Add", a, b), b), b)
    x = net.op("Mul", x, net.op("GlobalAveragePool", net.op("Sigmoid", x)))
    runner, _ = fp16(net.model([(net.conv(x, 4), (1, 4, 6, 6))]))
    fill(runner)
    seen: dict[str, int] = {}
    for step in runner.walk():
        read = [runner.logical(name, 0).astype(np.float64) for name in step.reads()]
        got = runner.logical(step.writes()[0], 0)
        if isinstance(step, s.AddF16):
            want = read[0] + step.sign * read[1]
        elif isinstance(step, s.MulF16):
            want = read[0] * read[1]
        elif isinstance(step, s.AveragePoolF16):
            assert np.abs(got - read[0].mean((0, 1))).max() < 2.0 ** -11
            want = got
        else:
            continue
        assert np.array_equal(got, want.astype(np.float32).astype(np.float16)), step.name
        seen[type(step).__name__] = seen.get(type(step).__name__, 0) + 1
    assert seen == {"AddF16": 2, "MulF16": 2, "AveragePoolF16": 1}


def test_conversions_at_the_borders_to_the_bit() -> None:
    net = Net((1, 3, 9, 9))
    x = net.op("Relu", net.conv(net.input, 20))
    x = net.op("Relu", net.conv(x, 20))
    model = net.model([(net.conv(x, 4), (1, 4, 9, 9))])
    runner, _ = mixed(model, lambda every: every[1:2])
    fill(runner)
    kinds = []
    for step in runner.walk():
        if isinstance(step, s.Convert):
            read, got = runner.logical(step.x, 0), runner.logical(step.y, 0)
            v = read.astype(np.float32) * np.float32(step.multiplier)
            want = v.astype(np.float16) if got.dtype == np.float16 else np.rint(np.clip(v, -128, 127)).astype(np.int8)
            assert np.array_equal(got, want)
            kinds.append(got.dtype.name)
    tensors = runner.program.tensors
    assert kinds == ["float16", "int8"]
    names = [(type(step).__name__, tensors[step.writes()[0]].exact) for step in runner.program.steps]
    assert names == [("ConvI8", True), ("Convert", True), ("ConvF16", False), ("Convert", False), ("ConvI8", False),
                     ("ToFlat", False)]
    assert [runner.checksum(step) != 0 for step in runner.walk()] == [exact for _, exact in names]


def test_moves_follow_the_layers_around_them() -> None:
    net = Net((1, 3, 8, 8))
    a, b = net.op("Relu", net.conv(net.input, 16)), net.op("Relu", net.conv(net.input, 16))
    pool = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4}
    both = net.concat(net.op("MaxPool", a, **pool), b)
    net.channels[both] = 32
    graph = fuse(float_ends(prepare(imported(net.model([(net.conv(both, 4), (1, 4, 8, 8))])))))
    first, second, last = layers_of(graph)
    cases = {(first,): 2, (last,): 1, (first, last): 2, (first, second, last): 1, (): 0}
    for layers, conversions in cases.items():
        placed, half = place_conversions(graph, layers)
        assert sum(node.op == "Convert" for node in placed.nodes) == conversions, layers
        moved = {node.op for node in placed.nodes if node.name in half and node.op in ("MaxPool", "Concat")}
        assert moved == ({"MaxPool", "Concat"} if {first, last} <= set(layers) else set()), layers


def test_an_overflow_is_noted_for_its_frame_alone() -> None:
    net = Net((1, 2, 4, 4))
    big = net.op("Conv", net.input, net.constant(np.full((4, 2, 1, 1), 4e4, dtype=np.float32)), kernel_shape=[1, 1])
    net.channels[big] = 4
    runner, _ = fp16(net.model([(net.op("Sigmoid", net.conv(big, 2, 1)), (1, 2, 4, 4))]), batch=3)
    runner.input[...] = 0.1
    runner.input[1] = 1.0
    assert np.isfinite(runner.run()[0][[0, 2]]).all()
    assert runner.binding.overflows == {1: "Conv_0"}
    runner.input[...] = 0.1
    runner.run()
    assert runner.binding.overflows == {}


def test_weights_that_float16_does_not_hold_are_refused() -> None:
    net = Net((1, 2, 4, 4))
    x = net.op("Conv", net.input, net.constant(np.full((4, 2, 1, 1), 7e4, dtype=np.float32)), kernel_shape=[1, 1])
    net.channels[x] = 4
    with pytest.raises(UnsupportedModel, match=r"has weights that float16 does not hold.*--precision fp32"):
        fp16(net.model([(net.conv(x, 2, 1), (1, 2, 4, 4))]))


def test_detector_in_float16() -> None:
    runner, constants = fp16(detector_onnx(64))
    fill(runner)
    assert check_bound(runner, constants) > 0
    assert runner.program.tensors[runner.program.inputs[0]].dtype == "float32"
    assert not any(step for step in runner.program.steps if type(step).__name__.endswith("I8"))


def test_resampling_in_float16() -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Resize", net.op("Relu", net.conv(net.input, 4)), "",
               net.constant(np.array([1, 1, 2, 2], dtype=np.float32)), mode="linear",
               coordinate_transformation_mode="half_pixel")
    net.channels[x] = 4
    model = net.model([(net.conv(x, 2, 1), (1, 2, 16, 16))])
    runner, _ = fp16(model)
    assert "ResampleF16" in {type(step).__name__ for step in runner.program.steps}
    fill(runner)
    frame = runner.logical(runner.program.inputs[0], 0).transpose(2, 0, 1)[None]
    graph = imported(model)
    want = run_graph(graph, {graph.inputs[0].name: frame})[graph.outputs[0]]
    assert np.abs(runner.run()[0].reshape(want.shape) - want).max() < 0.005


def test_a_served_frame_that_overflows_is_a_fault_and_the_program_is_parsed_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net((1, 2, 4, 4))
    big = net.op("Conv", net.input, net.constant(np.full((4, 2, 1, 1), 2e4, dtype=np.float32)), kernel_shape=[1, 1])
    net.channels[big] = 4
    onnx.save(net.model([(net.op("Sigmoid", net.conv(big, 2, 1)), (1, 2, 4, 4))]), tmp_path / "net.onnx")
    out = tmp_path / "net.plan"
    build_plan(tmp_path / "net.onnx", ModelSpec.for_tensor("net", (1, 2)), [], out, "fp16")
    parsed = []
    monkeypatch.setattr("orind.kernels.model.programs_of", lambda m, t: parsed.append(m) or programs_of(m, t))
    monkeypatch.setattr("orind.kernels.cpu.executor.programs_of", lambda m, t: parsed.append(m))
    (model,) = open_models([PlanFile.open_path(out)], CpuDevice())
    try:
        assert len(parsed) == 1 and list(model._executors) == [1, 2]
        frames = [np.full((4, 4, 2), value, dtype=np.float32) for value in (0.1, 2.0)]
        pictures = [Picture("tensor", 0, 0, 0, f.view(np.uint8).reshape(-1), "float32", (4, 4, 2)) for f in frames]
        targets = [np.zeros((32, 1), dtype=np.float32) for _ in frames]
        rows, fault = model.run(pictures, targets)
        assert rows == 32 and isinstance(fault, FrameFault) and "step 'Conv_0' overflowed float16" in fault.text
    finally:
        model.close()
