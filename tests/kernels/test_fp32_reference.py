"""The FP32 program agrees with ONNX Runtime (graph optimisation off) within 1e-4 of each output's largest magnitude."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fill, fp32, imported, onnxruntime_outputs
from models import Net, detector_onnx, identity_onnx, random_net
from onnx import helper

from orind.kernels.passes.pipeline import fuse, prepare

MODELS = Path(__file__).parents[2] / "configs" / "models"
LIMIT = 1e-4


def compare(model: onnx.ModelProto, batch: int = 1, limit: float = LIMIT) -> Any:
    """Runs both on random input; the runner, for further looks."""
    runner, _ = fp32(model, batch)
    fill(runner, 3)
    frames = runner.input.copy()
    outputs = [o.copy() for o in runner.run()]
    for i in range(batch):
        x = frames[i] if runner.program.input_layout == "nhwc" or frames.ndim != 4 else frames[i].transpose(2, 0, 1)
        for got, want in zip(outputs, onnxruntime_outputs(model, x[None]), strict=True):
            assert got[i].shape == want.shape[1:]
            assert np.abs(got[i] - want[0]).max() <= limit * np.abs(want).max()
    return runner


@pytest.mark.parametrize("name", ["part-inspect.onnx", "blazeface-back.onnx"])
def test_shipped_models(name: str) -> None:
    compare(onnx.load(MODELS / name))


def test_detector_in_a_batch() -> None:
    runner = compare(detector_onnx(64), batch=3)
    assert runner.outputs[0].shape == (3, 8, 80)


@pytest.mark.parametrize("seed", range(48))
def test_random_graph(seed: int) -> None:
    compare(random_net(seed), batch=1 + seed % 2)


def classifier(pool: str) -> onnx.ModelProto:
    """Conv + BatchNorm + ReLU6 + depthwise, pooling or Flatten, two dense layers, Softmax."""
    net = Net((1, 3, 20, 20))
    x = net.op("Clip", net.norm(net.conv(net.input, 20, 3, 2, bias=False)),
               net.constant(np.array(0, dtype=np.float32)), net.constant(np.array(6, dtype=np.float32)))
    x = net.op("Relu", net.norm(net.conv(x, 20, 3, group=20, bias=False)))
    features = 20
    if pool == "flatten":
        x, features = net.op("Flatten", x), 2000
    else:
        x = net.op("Flatten", net.op("GlobalAveragePool", x))
    w = net.rng.normal(0, 0.05, (30, features)).astype(np.float32)
    x = net.op("Relu", net.op("Gemm", x, net.constant(w), net.constant(np.ones(30, dtype=np.float32)), transB=1))
    x = net.op("Add", net.op("MatMul", x, net.constant(net.rng.normal(0, 0.3, (30, 7)).astype(np.float32))),
               net.constant(net.rng.normal(0, 1, 7).astype(np.float32)))
    return net.model([(net.op("Softmax", x), (1, 7))])


@pytest.mark.parametrize("pool", ["flatten", "average"])
def test_classifier(pool: str) -> None:
    compare(classifier(pool))


def test_dense_layers_on_a_vector() -> None:
    net = Net((1, 12))
    w = net.rng.normal(0, 0.3, (12, 5)).astype(np.float32)
    x = net.op("Tanh", net.op("Gemm", net.input, net.constant(w), alpha=0.5))
    compare(net.model([(x, (1, 5))]))


ACTIVATIONS: list[tuple[str, dict[str, float]]] = [
    ("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("LeakyRelu", {"alpha": 0.2}), ("HardSwish", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4})]


@pytest.mark.parametrize(("op", "attrs"), ACTIVATIONS)
@pytest.mark.parametrize("place", ["fused", "image", "tail"])
def test_activation_in_every_place(op: str, attrs: dict[str, float], place: str) -> None:
    net = Net((1, 3, 9, 7))
    x = net.conv(net.input, 21)
    if place == "image":
        x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = net.op(op, x, **attrs)
    if place != "tail":
        net.channels[x] = 21
        x = net.conv(x, 4, 1)
    size = (1, 4, 5, 4) if place == "image" else (1, 21, 9, 7) if place == "tail" else (1, 4, 9, 7)
    compare(net.model([(x, size)]))


def test_pools_with_borders_strides_and_ceil() -> None:
    net = Net((1, 5, 15, 11))
    kinds = [net.op("MaxPool", net.input, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
             net.op("AveragePool", net.input, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
             net.op("AveragePool", net.input, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1],
                    count_include_pad=1)]
    compare(net.model([(k, (1, 5, 8, 6)) for k in kinds]))


def test_arithmetic_of_the_tail() -> None:
    net = Net((1, 4, 6, 6))
    x = net.conv(net.input, 6, 3)
    half = net.constant(np.array(0.5, dtype=np.float32))
    exp = net.op("Exp", net.op("Mul", x, half))
    root = net.op("Sqrt", net.op("Add", exp, half))
    parts = net.op("Split", net.op("Div", net.op("Neg", root), exp), net.constant(np.array([2, 4])), outputs=2, axis=1)
    back = [net.constant(np.array([v])) for v in (-1, -9, 1, -2)]
    y = net.op("Slice", net.op("Softplus", parts[1]), *back)
    y = net.op("Transpose", net.op("Clip", y, half, ""), perm=[0, 2, 3, 1])
    compare(net.model([(y, (1, 6, 6, 4)), (net.silu(parts[0]), (1, 2, 6, 6))]))


def test_flat_operators_inside_an_fp32_body() -> None:
    """A channel shuffle between convolutions: the image goes to ONNX's order and back."""
    net = Net((1, 3, 8, 8))
    x = net.op("Relu", net.conv(net.input, 12))
    x = net.op("Reshape", x, net.constant(np.array([1, 2, 6, 8, 8])))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1, 3, 4]), net.constant(np.array([1, 12, 8, 8])))
    net.channels[x] = 12
    compare(net.model([(net.conv(x, 3), (1, 3, 8, 8))]))


def test_gate_sub_mul_and_copied_concat() -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Relu", net.conv(net.input, 18))
    gated = net.op("Mul", net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 18, 1)), x)
    both = net.concat(x, net.op("Sub", gated, x), x, net.op("Mul", gated, x))
    compare(net.model([(net.conv(both, 3), (1, 3, 8, 8))]))


def test_padding_shapes_and_old_opset_forms() -> None:
    """Shape-Gather-Concat-Reshape vanishes; Pad before Conv is absorbed; an NHWC input loses its Transpose."""
    net = Net((1, 9, 7, 3))
    x = net.op("Transpose", net.input, perm=[0, 3, 1, 2])
    x = net.op("Pad", x, net.constant(np.array([0, 0, 1, 0, 0, 0, 2, 1])))
    net.channels[x] = 3
    y = net.conv(x, 8, 3, pads=[0, 0, 0, 0])
    size = net.op("Unsqueeze", net.op("Gather", net.op("Shape", y), net.constant(np.array(1)), axis=0),
                  net.constant(np.array([0])))
    shape = net.op("Concat", net.constant(np.array([1])), size, net.constant(np.array([-1])), axis=0)
    model = net.model([(net.op("Reshape", y, shape), (1, 8, 60))])
    runner = compare(model)
    assert runner.program.input_layout == "nhwc"
    assert [type(s).__name__ for s in runner.program.steps] == ["ConvF32", "ToFlat"]


def test_opset_9_attributes() -> None:
    nodes = [helper.make_node("Upsample", ["x", "s"], ["u"], "up", mode="nearest"),
             helper.make_node("Slice", ["u"], ["v"], "cut", starts=[1], ends=[3], axes=[1]),
             helper.make_node("Clip", ["v"], ["w"], "clip", min=-0.5, max=0.25),
             helper.make_node("Split", ["w"], ["a", "b"], "split", axis=1, split=[1, 1]),
             helper.make_node("Squeeze", ["a"], ["y"], "squeeze", axes=[1])]
    scale = onnx.numpy_helper.from_array(np.array([1, 1, 2, 3], dtype=np.float32), "s")
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "old", [helper.make_tensor_value_info("x", floats, [1, 4, 3, 3]),
                       helper.make_tensor_value_info("s", floats, [4])],
        [helper.make_tensor_value_info("y", floats, [1, 6, 9]),
         helper.make_tensor_value_info("b", floats, [1, 1, 6, 9])],
        [scale])
    compare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4))


def test_identity_reads_one_byte_of_each_page() -> None:
    runner, _ = fp32(identity_onnx(23))
    assert runner.input.shape == (1, 23, 4096, 1) and runner.input.dtype == np.uint8
    fill(runner)
    assert np.array_equal(runner.run()[0][0, 0, :, 0], runner.input[0, :, 0, 0])


def test_detector_has_no_copies_and_few_steps() -> None:
    graph = fuse(prepare(imported(detector_onnx(64))))
    assert len(graph.nodes) == 66
    runner, _ = fp32(detector_onnx(64))
    kinds = [type(s).__name__ for s in runner.program.steps]
    assert kinds.count("ConvF32") == 32 and "Copy" not in kinds
