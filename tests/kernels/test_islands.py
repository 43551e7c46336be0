"""Float32 islands in an INT8 body: what surrounds them stays INT8, what is coded at their borders equals the judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import calibrated, fill, fp32, imported, int8
from forms import recent_yolo, vit
from judge import Judge
from models import Net
from verified import least_sqnr_db

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir import steps as s
from orind.kernels.passes.islands import coded_nodes
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.scales import InputCode
from orind.kernels.spec import ModelSpec
from orind.kernels.verify import verify


def between(kind: str) -> onnx.ModelProto:
    """Two convolutions with something between them that has no integer form."""
    net = Net((1, 3, 8, 8))
    first = x = net.op("Relu", net.conv(net.input, 20))
    if kind == "shuffle":
        x = net.op("Transpose", net.op("Transpose", x, perm=[0, 1, 3, 2]), perm=[0, 1, 3, 2])
    elif kind == "softmax":
        x = net.op("Softmax", x, axis=1)
    elif kind == "both":                       # the island and the convolution behind it read the same codes
        x = net.op("Add", x, net.op("Sqrt", net.op("Add", x, net.constant(np.array(0.1, dtype=np.float32)))))
    else:                                      # what the island makes joins codes in a Concat, and a pool reads that
        x = net.op("MaxPool", net.concat(net.op("Exp", net.op("Neg", x)), first), kernel_shape=[2, 2])
        net.channels[x] = 40
    net.channels[x] = net.channels[x] or 20
    shape = [d.dim_value for d in onnx.shape_inference.infer_shapes(net.model([(x, [None] * 4)])).graph.output[0]
             .type.tensor_type.shape.dim]
    return net.model([(net.conv(x, 5, 1), (1, 5, *shape[2:]))])


@pytest.mark.parametrize("kind", ["shuffle", "softmax", "both", "concat"])
def test_convolutions_around_an_island_are_int8(kind: str) -> None:
    model = between(kind)
    runner, constants = int8(model)
    fill(runner)
    frames = runner.input.copy()
    judge = Judge(runner, constants)
    judge.run()
    assert judge.checked["Convert"] > 0
    kinds = [type(x).__name__ for x in runner.program.steps]
    assert [kind for kind in kinds if "Conv" in kind] == ["ConvI8", "Convert", "ConvI8"]
    tensors = runner.program.tensors
    border = next(x for x in runner.program.steps if isinstance(x, s.Convert))
    assert tensors[border.x].dtype == "float32" and tensors[border.y].dtype == "int8"
    floats, _ = fp32(model)
    floats.input[...] = frames * np.float32(tensors[runner.program.inputs[0]].scale)
    want = floats.run()[0]
    assert ((runner.outputs[0] - want) ** 2).sum() < 10 ** -1.5 * (want ** 2).sum()


def wild(seed: int) -> onnx.ModelProto:
    """Convolutions, moves and element-wise operators in any order, with islands between, read by one or by several."""
    net = Net((1, 3, 12, 12), seed)
    rng = np.random.default_rng(seed)
    c = 12
    live = [net.op("Relu", net.conv(net.input, c)), net.conv(net.input, c)]

    def pick() -> str:
        return str(live[int(rng.integers(max(0, len(live) - 4), len(live)))])
    for _ in range(9):
        kind, x = rng.integers(0, 12), pick()
        if kind < 2:
            x = net.conv(x, c, 3)
        elif kind == 2:
            x = net.silu(net.conv(x, c, 1))
        elif kind == 3:
            x = net.op("MaxPool", net.op("Pad", x, net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))),
                       kernel_shape=[3, 3], strides=[1, 1])
        elif kind == 4:
            x = net.op("Add", x, net.op("Relu", net.conv(pick(), c, 3, group=c)))
        elif kind == 5:
            x = net.op("Mul", x, net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), c, 1)))
        elif kind == 6:
            x = net.conv(net.concat(x, pick()), c, 1)
        elif kind == 7:
            x = net.op("AveragePool", net.op("Relu", x), kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        elif kind == 8:
            x = net.op("Softmax", x, axis=int(rng.integers(1, 4)))
        elif kind == 9:
            x = net.op("Sqrt", net.op("Abs", x))
        elif kind == 10:
            x = net.op("Transpose", net.op("Sub", x, pick()), perm=[0, 1, 3, 2])
        else:
            x = net.op("Tanh", net.op("Add", x, pick()))
        net.channels[x] = c
        live.append(x)
    head = net.conv(net.concat(*live[-4:]), 6, 1)
    outputs = [(net.op("Sigmoid", head), (1, 6, 12, 12))]
    if seed % 3 == 0:                                                  # a body tensor is an output too
        outputs.append((live[-4], (1, c, 12, 12)))
    return net.model(outputs)


@pytest.mark.parametrize("seed", range(12))
def test_random_islands(seed: int) -> None:
    """Seeds 0 to 199 hold; the first dozen run here."""
    model = wild(seed)
    scales, batch = calibrated(model, seed=seed, frames=4), 1 + seed % 2
    floats, _ = fp32(model, batch)
    for layers in ((), layers_of(scales.graph)[seed // 2 % 2::2]):
        graph, numbers = mixed_numbers(scales, layers)
        programs, constants = lower(graph, [batch], numbers)
        runner = ProgramRunner(programs[batch], constants)
        fill(runner, seed)
        floats.input[...] = runner.input * np.float32(runner.program.tensors[runner.program.inputs[0]].scale)
        assert Judge(runner, constants).run() > 0
        for got, want in zip(runner.outputs, floats.run(), strict=True):
            assert ((got - want) ** 2).sum() <= 0.1 * ((want - want.mean()) ** 2).sum() + 1e-3 * (want ** 2).sum()


def test_what_only_an_island_reads_is_never_coded() -> None:
    """The sums of the first convolution go to the island as float32, and its codes have no scale."""
    scales = calibrated(between("softmax"))
    softmax = next(node for node in scales.graph.nodes if node.op == "Softmax")
    assert softmax.inputs[0] == "relu_1_0" and "relu_1_0" not in scales.scale
    runner, _ = int8(between("softmax"))
    assert runner.program.tensors["relu_1_0"].dtype == "float32" and runner.program.tensors["relu_1_0"].exact


def test_exactness_ends_at_a_floating_point_sum_and_not_before() -> None:
    for kind, exact in (("shuffle", True), ("softmax", False)):
        runner, _ = int8(between(kind))
        assert runner.program.tensors[runner.program.outputs[0]].exact is exact


def test_golden_outputs_behind_codes_of_floating_point_sums(tmp_path: Path) -> None:
    """Another order of summing flips codes: a difference of a code is no mismatch, a larger one is."""
    onnx.save(between("softmax"), tmp_path / "s.onnx")
    (tmp_path / "frames").mkdir()
    for i in range(4):
        np.save(tmp_path / "frames" / f"{i}.npy", np.random.default_rng(i).normal(0, 1, (3, 8, 8)).astype(np.float32))
    build_plan(tmp_path / "s.onnx", ModelSpec.for_tensor("s"), [tmp_path / "frames"], tmp_path / "s.plan", "int8")
    with PlanFile.open_path(tmp_path / "s.plan") as plan:
        tensors = {name: np.array(value) for name, value in plan.tensors.items()}
        metadata = {k: v for k, v in plan.metadata.items() if k not in ("format", "crc32")}
    for part, same in ((0.01, True), (0.05, False)):
        off = tensors["golden.output.0"] + np.float32(part) * np.abs(tensors["golden.output.0"]).max()
        write_plan(tmp_path / "t.plan", {**tensors, "golden.output.0": off}, metadata)
        assert verify(tmp_path / "t.plan").ok is same


@pytest.mark.parametrize("kind", ["softmax", "both", "concat"])
def test_float16_layers_beside_an_island(kind: str) -> None:
    scales = calibrated(between(kind))
    every = layers_of(scales.graph)
    assert all(name in coded_nodes(scales.graph) for name in every)
    for layers in (every, every[-1:], every[:1]):
        graph, numbers = mixed_numbers(scales, layers)
        programs, constants = lower(graph, [1], numbers)
        runner = ProgramRunner(programs[1], constants)
        fill(runner)
        Judge(runner, constants).run()
        assert np.isfinite(runner.outputs[0]).all()
        found = sum(isinstance(x, s.ConvF16) for x in programs[1].steps)
        assert found == sum(name.startswith("Conv_") for name in layers)


def test_a_small_product_of_an_island_stays_float() -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Softmax", net.conv(net.input, 16), axis=1)
    net.channels[x] = 16
    weight = net.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    y = net.op("Conv", x, weight)
    model = net.model([(y, (1, 1, 8, 8))])
    graph = fuse(prepare(imported(model)))
    assert [node.op for node in graph.nodes if node.name in coded_nodes(graph)] == ["Conv"]
    runner, constants = int8(model)
    assert [type(x).__name__ for x in runner.program.steps] == ["ConvI8", "ToFlat", "Softmax", "FromFlat", "ConvF32",
                                                               "ToFlat"]
    fill(runner)
    assert Judge(runner, constants).run() > 0


def test_a_float_tensor_is_coded_behind_the_input(tmp_path: Path) -> None:
    """Task `tensor` with float32 input: the interface stays float32, INT8 starts behind a Convert."""
    net = Net((1, 4, 8, 8))
    x = net.op("Relu", net.conv(net.input, 16))
    onnx.save(net.model([(net.conv(net.op("Add", x, net.conv(x, 16)), 4), (1, 4, 8, 8))]), tmp_path / "f.onnx")
    rng = np.random.default_rng(0)
    for i in range(64):
        np.save(tmp_path / f"{i:02d}.npy", rng.normal(0, 3, (4, 8, 8)).astype(np.float32))
    for precision in ("int8", "mixed"):
        spec, out = ModelSpec.for_tensor("f"), tmp_path / "f.plan"
        report = build_plan(tmp_path / "f.onnx", spec, [tmp_path], out, precision).report
        assert report["gate"]["met"] and report["calibration"]["input"]["dtype"] == "float32"
        assert [row["step"] for row in report["layers"]] == ["Convert", "ConvI8", "ConvI8", "ConvI8", "ToFlat"]
        assert least_sqnr_db(tmp_path / "f.plan", tmp_path / "f.onnx") >= 20
    scales = calibrated(onnx.load(tmp_path / "f.onnx"), InputCode("float32", 1 / 127))
    assert scales.scale["images"] == pytest.approx(255 / 127 / 127, rel=0.05)      # the frames go from 0 to 255 / 127


@pytest.mark.parametrize(("name", "precision"), [("recent yolo", "mixed"), ("recent yolo", "fp16"), ("vit", "mixed"),
                                                 ("vit", "fp16")])
def test_whole_forms_from_file_to_verified_plan(tmp_path: Path, name: str, precision: str) -> None:
    """Attention, DFL and LayerNormalization between layers in INT8 and FP16; every batch size; ONNX Runtime agrees."""
    model = recent_yolo() if name == "recent yolo" else vit(True)
    onnx.save(model, tmp_path / "n.onnx")
    (tmp_path / "frames").mkdir()
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    for i in range(64):
        frame = np.random.default_rng(i).uniform(0, 1, shape).astype(np.float32)
        np.save(tmp_path / "frames" / f"{i:02d}.npy", frame)
    spec = ModelSpec.for_tensor("n", (1, 2))
    report = build_plan(tmp_path / "n.onnx", spec, [tmp_path / "frames"], tmp_path / "n.plan", precision).report
    assert report["gate"]["met"] and report["gate"]["is_gate"]
    assert least_sqnr_db(tmp_path / "n.plan", tmp_path / "n.onnx") >= (20 if precision == "mixed" else 40)
    types = {row["precision"] for row in report["layers"] if "Conv" in row["step"]}
    assert ("int8" in types) is (precision == "mixed") and ("float16" in types) is (precision == "fp16"
                                                                                    or name == "recent yolo")


def test_codes_of_tokens(tmp_path: Path) -> None:
    """Dense layers over tokens are convolutions: a chain with bias and activation is one of codes."""
    net = Net((1, 24, 8, 8))
    x = net.op("Transpose", net.op("Reshape", net.conv(net.input, 24, 1), net.constant(np.array([1, 24, 64]))),
               perm=[0, 2, 1])
    for a, b in ((24, 48), (48, 24)):
        w, bias = (net.constant(net.rng.normal(0, 0.2, shape).astype(np.float32)) for shape in ((a, b), (b,)))
        x = net.op("Relu", net.op("Add", net.op("MatMul", x, w), bias))
    small = net.op("MatMul", x, net.constant(net.rng.normal(0, 1, (24, 8)).astype(np.float32)))
    runner, constants = int8(net.model([(small, (1, 64, 8))]))
    fill(runner)
    Judge(runner, constants).run()
    kinds = [type(step).__name__ for step in runner.program.steps]
    assert kinds.count("ConvI8") == 3 and kinds.count("Convert") == 1 and kinds.count("MatMul") == 1
    assert "Unary" in kinds                                            # the last Relu is tail: float32 of the sums
