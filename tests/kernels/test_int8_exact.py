"""The INT8 executor equals the int64 judge bit for bit: detector, BlazeFace, forms of every step, random graphs."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import fill, imported, int8
from judge import Judge
from models import Net, detector_onnx, random_net

from orind.kernels.cpu.convolution import exact_parts
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.errors import ProgramError, UnsupportedModel
from orind.kernels.ir.grid_steps import ResampleI8, Stuff
from orind.kernels.ir.program import program_from_json
from orind.kernels.ir.steps import ConvI8, DepthwiseI8
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.quant.calibrate import Histogram
from orind.kernels.quant.quantise import IntegerNumbers
from orind.kernels.quant.scales import InputCode, assign_scales

BLAZEFACE = Path(__file__).parents[2] / "configs" / "models" / "blazeface-back.onnx"
PIXELS = InputCode("uint8", float(np.float32(1 / 255)))


def judged(model: onnx.ModelProto, seed: int = 0, **options: object) -> Judge:
    runner, constants = int8(model, seed=seed, **options)  # type: ignore[arg-type]
    fill(runner, seed)
    judge = Judge(runner, constants)
    assert judge.run() > 0
    return judge


def test_detector_with_uint8_input() -> None:
    judge = judged(detector_onnx(), code=PIXELS)
    assert judge.checked["ConvI8"] > 700_000
    assert {"MaxPool", "Upsample"} <= set(judge.checked)
    forms = {(bool(s.table), bool(s.residual)) for s in judge.runner.program.steps if isinstance(s, ConvI8)}
    assert forms == {(True, False), (True, True), (False, False)}


def test_blazeface() -> None:
    judge = judged(onnx.load(BLAZEFACE))
    assert judge.checked["DepthwiseI8"] > 1_000_000
    assert {"ConvI8", "Copy", "MaxPool"} <= set(judge.checked)


def test_batch_of_three_frames_equals_frames_alone() -> None:
    model = detector_onnx(64)
    runner, constants = int8(model, batch=3)
    fill(runner)
    frames = runner.input.copy()
    Judge(runner, constants).run()
    together = [o.copy() for o in runner.outputs]
    alone, _ = int8(model)
    for i in range(3):
        alone.input[0] = frames[i]
        assert all(np.array_equal(a[0], t[i]) for a, t in zip(alone.run(), together, strict=True))


@pytest.mark.parametrize("seed", range(48))
def test_random_graph(seed: int) -> None:
    judged(random_net(seed), seed, code=PIXELS if seed % 2 else None)


@pytest.mark.parametrize("code", [PIXELS, None])
def test_extreme_weights_split_k(code: InputCode | None) -> None:
    """All weights and codes at their limits: one float32 sum would be wrong; K is split instead."""
    net = Net((1, 130, 5, 5))
    sign = np.where(np.arange(130 * 9).reshape(130, 3, 3) < 600, 1.0, -1.0)
    w = np.broadcast_to(sign, (7, 130, 3, 3)).astype(np.float32).copy()
    w[1] = np.abs(w[1])
    x = net.op("Conv", net.input, net.constant(w), net.constant(np.full(7, 1000.37, dtype=np.float32)),
               kernel_shape=[3, 3], pads=[1] * 4)
    net.channels[x] = 7
    model = net.model([(net.conv(x, 2, 1), (1, 2, 5, 5))])
    runner, constants = int8(model, code=code)
    step = runner.program.steps[0]
    assert isinstance(step, ConvI8)
    stored = constants[step.weight]
    assert len(exact_parts(stored.reshape(-1, stored.shape[-1]), 255 if code else 128)) > 1
    for value in (np.iinfo(runner.input.dtype).min, np.iinfo(runner.input.dtype).max):
        runner.input[...] = value
        Judge(runner, constants).run()
    fill(runner)
    Judge(runner, constants).run()


def test_grouped_convolution_keeps_its_groups_and_small_ones_are_joined() -> None:
    net = Net((1, 3, 12, 12))
    x = net.op("Relu", net.conv(net.input, 64))
    x = net.op("Relu", net.conv(x, 128, 3, group=4))
    x = net.op("Relu", net.conv(x, 64, 3, 2, group=32))
    judge = judged(net.model([(net.conv(x, 4, 1), (1, 4, 6, 6))]))
    groups = [s.groups for s in judge.runner.program.steps if isinstance(s, ConvI8)]
    assert groups == [1, 4, 8, 1]


def test_depthwise_over_two_segments_strided_and_asymmetric() -> None:
    net = Net((1, 3, 17, 13))
    both = net.concat(net.silu(net.conv(net.input, 20)), net.op("Relu", net.conv(net.input, 5)))
    x = net.conv(both, 25, 3, 2, pads=[0, 0, 1, 1], group=25)
    judge = judged(net.model([(net.conv(x, 4, 1), (1, 4, 8, 6))]))
    step = next(s for s in judge.runner.program.steps if isinstance(s, DepthwiseI8))
    assert judge.tensor(step.x).segments == ((0, 20), (32, 5))


def test_depthwise_that_float32_would_not_hold_becomes_a_convolution() -> None:
    net = Net((1, 3, 24, 24))
    x = net.op("Relu", net.conv(net.input, 5))
    w = net.constant(np.ones((5, 1, 33, 33), dtype=np.float32))
    x = net.op("Conv", x, w, kernel_shape=[33, 33], pads=[16] * 4, group=5)
    net.channels[x] = 5
    judge = judged(net.model([(net.conv(x, 4, 1), (1, 4, 24, 24))]))
    assert [type(s).__name__ for s in judge.runner.program.steps].count("DepthwiseI8") == 0


def test_depthwise_step_that_is_not_exact_is_refused() -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Relu", net.conv(net.input, 5))
    runner, constants = int8(net.model([(net.conv(net.conv(x, 5, group=5), 4, 1), (1, 4, 8, 8))]))
    step = next(s for s in runner.program.steps if isinstance(s, DepthwiseI8))
    bias = np.full_like(constants[step.bias], (1 << 24) + 1)
    with pytest.raises(ProgramError, match="is not exact in float32"):
        ProgramRunner(runner.program, {**constants, step.bias: bias})


@pytest.mark.parametrize("output", ["convolution", "silu", "sum", "pool"])
def test_body_tensor_that_is_an_output_has_a_float_end_of_its_own(output: str) -> None:
    """What feeds a convolution and is a graph output: the output is float32 of the sums, never of int8 codes."""
    net = Net((1, 3, 8, 8))
    first = net.conv(net.input, 20)
    x = {"convolution": lambda: first, "silu": lambda: net.silu(first),
         "sum": lambda: net.op("Add", net.silu(first), net.conv(net.input, 20)),
         "pool": lambda: net.op("MaxPool", first, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)}[output]()
    net.channels[x] = 20
    judge = judged(net.model([(x, (1, 20, 8, 8)), (net.conv(x, 4), (1, 4, 8, 8))]))
    program = judge.runner.program
    ends = [s for s in program.steps if isinstance(s, ConvI8) and program.tensors[s.y].dtype == "float32"]
    assert [s.name for s in ends] == (["Conv_0@float", "Conv_3@float", "Conv_5"] if output == "sum" else
                                      ["Conv_0@float", f"Conv_{len(net.nodes) - 1}"])
    assert not any(type(s).__name__ == "ToFlat" and program.tensors[s.x].dtype == "int8" for s in program.steps)
    own = judge.convolution(ends[0], 0)                       # frame 0, from the codes that the end reads
    assert np.array_equal(judge.read(ends[0].y, 0, whole=False), own) or output != "convolution"
    exact = program.tensors[program.outputs[0]].exact
    assert exact and np.unique(judge.runner.outputs[0]).size > 300    # int8 codes would be 256 at most


@pytest.mark.parametrize(("code", "side", "odd"), [(PIXELS, 256, 255), (PIXELS, 257, 255), (None, 362, 127),
                                                   (None, 364, 127)])
def test_average_of_more_codes_than_float32_sums(code: InputCode | None, side: int, odd: int) -> None:
    """65,793 pixels of 255 and 132,104 codes of 127 are the last whose sum is below 2^24."""
    net = Net((1, 1, side, side))
    mean = net.op("GlobalAveragePool", net.input)
    runner, constants = int8(net.model([(net.conv(mean, 3, 1), (1, 3, 1, 1))]), code=code)
    rng = np.random.default_rng(side)
    runner.input[...] = odd - 2 * (rng.random(runner.input.shape) < 0.01)
    judge = Judge(runner, constants)
    judge.run()
    assert judge.checked["AveragePoolI8"] == 1
    if side * side * (255 if code else 128) > 1 << 24:
        assert int(runner.binding.scratch("pool sums", (1,), np.int32)[0]) == int(runner.input.astype(np.int64).sum())


def test_average_that_int32_does_not_hold_is_refused() -> None:
    net = Net((1, 1, 2, 1 << 23))
    mean = net.op("GlobalAveragePool", net.input)
    graph = fuse(prepare(imported(net.model([(net.conv(mean, 3, 1), (1, 3, 1, 1))]))))
    everything = {node.output: Histogram(1.0, 0.0, 1.0) for node in graph.nodes}
    with pytest.raises(UnsupportedModel, match="sums 2 x 8388608 codes, which 32 bits may not hold"):
        lower(graph, [1], IntegerNumbers(assign_scales(graph, everything, PIXELS)))


@pytest.mark.parametrize(("mode", "transform", "size"), [
    ("linear", "half_pixel", (15, 10)), ("linear", "align_corners", (13, 21)), ("linear", "asymmetric", (4, 30)),
    ("nearest", "asymmetric", (11, 7))])
def test_resampling(mode: str, transform: str, size: tuple[int, int]) -> None:
    net = Net((1, 3, 9, 8))
    x = net.op("Relu", net.conv(net.input, 20))
    sizes = net.constant(np.array([1, 20, *size], dtype=np.int64))
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    x = net.op("Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode=transform, **more)
    net.channels[x] = 20
    model = net.model([(net.conv(x, 4), (1, 4, *size))])
    judge = judged(model)
    assert judge.checked["ResampleI8"] == 20 * size[0] * size[1]
    step = next(s for s in judge.runner.program.steps if isinstance(s, ResampleI8))
    parts = judge.constants[step.row_parts]
    assert parts.dtype == np.int32 and parts.min() >= 0 and parts.max() <= 2048
    assert bool(parts.any()) is (mode == "linear")
    tensors = judge.runner.program.tensors
    assert (tensors[step.x].scale == tensors[step.y].scale) is (mode == "nearest")


def test_transposed_convolution_equals_that_of_the_stuffed_input() -> None:
    net = Net((1, 3, 7, 6))
    x = net.silu(net.conv(net.input, 20))
    w = net.constant(net.rng.normal(0, 0.2, (20, 12, 4, 4)).astype(np.float32))
    x = net.op("ConvTranspose", x, w, kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    net.channels[x] = 12
    judge = judged(net.model([(net.conv(net.op("Relu", x), 4), (1, 4, 14, 12))]))
    assert judge.checked["Stuff"] > 0
    tensors = judge.runner.program.tensors
    step = next(s for s in judge.runner.program.steps if isinstance(s, Stuff))
    assert tensors[step.x].scale == tensors[step.y].scale


def test_program_survives_json() -> None:
    runner, constants = int8(detector_onnx(64))
    fill(runner)
    want = [o.copy() for o in runner.run()]
    frames = runner.input.copy()
    again = program_from_json(json.loads(json.dumps(runner.program.to_json())))
    assert again == runner.program
    other = ProgramRunner(again, constants)
    other.input[...] = frames
    assert all(np.array_equal(a, b) for a, b in zip(other.run(), want, strict=True))
