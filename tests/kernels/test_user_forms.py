"""Forms of facts that users bring, each opset's own way of writing them, and files that are no sound model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fill, fp32, imported, onnxruntime_outputs
from forms import ints
from models import Net, detector_onnx
from onnx import TensorProto, helper

from orind.kernels.build import build_plan
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.ir.errors import ModelError
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.verify import verify


def equal(model: onnx.ModelProto, seed: int = 1) -> list[str]:
    """Asserts that FP32 gives what ONNX Runtime gives; what is left of the graph."""
    runner, _ = fp32(model)
    fill(runner, seed)
    x = runner.input[0].copy()
    got = [o.copy() for o in runner.run()]
    x = x.transpose(2, 0, 1) if runner.program.input_layout != "nhwc" else x
    for a, b in zip(got, onnxruntime_outputs(model, np.ascontiguousarray(x)[None]), strict=True):
        assert np.abs(b).max() > 0 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
    return [node.op for node in fuse(prepare(imported(model))).nodes]


class Writer(Net):
    """A Net that writes what became an input in a later opset as that opset writes it."""

    def __init__(self, version: int) -> None:
        super().__init__((1, 4, 9, 11))
        self.version = version

    def moved(self, kind: str, x: str, since: int, outputs: int = 1, **values: Any) -> Any:
        """`values` are attributes before opset `since`, inputs from then on, in their order."""
        if self.version < since:
            return self.op(kind, x, outputs=outputs, **values)
        return self.op(kind, x, *(self.constant(np.array(v)) for v in values.values()), outputs=outputs)


def by_opset(version: int) -> onnx.ModelProto:
    """Clip, Pad, Slice, Split, Squeeze, Unsqueeze, upsampling, reductions and Softmax in the words of one opset."""
    net = Writer(version)
    x = net.norm(net.conv(net.input, 8, bias=False))
    x = net.moved("Clip", x, 11, min=np.float32(-0.5), max=np.float32(6))
    x = net.moved("Pad", x, 11, pads=[0, 0, 1, 0, 0, 0, 2, 1]) if version < 11 else net.op(
        "Pad", x, ints(net, 0, 0, 1, 0, 0, 0, 2, 1), net.constant(np.float32(0)))
    net.channels[x] = 8
    a, b = net.op("Split", x, outputs=2, axis=1, **({"num_outputs": 2} if version >= 18 else {})) \
        if version < 13 or version >= 18 else net.op("Split", x, ints(net, 4, 4), outputs=2, axis=1)
    net.channels[a] = net.channels[b] = 4
    scales = net.constant(np.array([1, 1, 2, 2], dtype=np.float32))
    up: Any = {9: lambda: net.op("Upsample", a, scales, mode="nearest"),
               10: lambda: net.op("Resize", a, scales, mode="nearest")}.get(version, lambda: net.op(
                   "Resize", a, net.constant(np.zeros(0, dtype=np.float32)), scales, mode="nearest",
                   nearest_mode="floor", coordinate_transformation_mode="asymmetric"))()
    down = net.op("MaxPool", up, kernel_shape=[2, 2], strides=[2, 2])
    if version < 10:
        cut = net.op("Slice", net.op("Add", down, b), starts=[1, 0], ends=[12, 2 ** 31 - 1], axes=[2, 3])
    else:
        cut = net.op("Slice", net.op("Add", down, b), ints(net, 1, 0), ints(net, 12, 2 ** 62), ints(net, 2, 3))
    net.channels[cut] = 4
    y = net.conv(cut, 5, 3)
    mean = net.op("ReduceMean", y, ints(net, 2, 3), keepdims=0) if version >= 18 else \
        net.op("ReduceMean", y, axes=[2, 3], keepdims=0)
    mean = net.moved("Squeeze", net.moved("Unsqueeze", mean, 13, axes=[2]), 13, axes=[2])
    return net.model([(net.op("Softmax", mean, axis=1), (1, 5))], version)


@pytest.mark.parametrize("version", range(9, 19))
def test_each_opset_in_its_own_words(version: int) -> None:
    left = equal(by_opset(version))
    assert "BatchNormalization" not in left and left.count("Conv") == 2


def test_padding_built_in_the_graph() -> None:
    """As PyTorch writes F.pad: the amounts filled up with zeros, turned round, and put in ONNX's order."""
    net = Net((1, 3, 8, 9))
    given = ints(net, 1, 2, 0, 3)                                     # left, right, top, bottom
    length = net.op("Gather", net.op("Shape", given), net.constant(np.array(0)))
    missing = net.op("Sub", net.constant(np.array(8)), length)
    zeros = net.op("ConstantOfShape", net.op("Unsqueeze", missing, ints(net, 0)),
                   value=helper.make_tensor("v", TensorProto.INT64, [1], [0]))
    both = net.op("Reshape", net.op("Concat", given, zeros, axis=0), ints(net, -1, 2))
    turned = net.op("Slice", both, ints(net, -1), ints(net, -(1 << 62)), ints(net, 0), ints(net, -1))
    pads = net.op("Cast", net.op("Reshape", net.op("Transpose", turned, perm=[1, 0]), ints(net, -1)),
                  to=TensorProto.INT64)
    x = net.op("Pad", net.input, pads, net.constant(np.float32(0)))
    net.channels[x] = 3
    assert equal(net.model([(net.conv(x, 4, 3, pads=[0] * 4), (1, 4, 9, 10))])) == ["Conv"]


def test_hardswish_in_parts_and_weights_as_graph_inputs() -> None:
    """MobileNetV3 as PyTorch exported it before HardSwish was an operator; IR 3 lists weights among the inputs."""
    net = Net((1, 3, 8, 8))
    x = net.norm(net.conv(net.input, 8, 3, 2, bias=False))
    three, zero, six = (net.constant(np.float32(v)) for v in (3, 0, 6))
    x = net.op("Div", net.op("Mul", x, net.op("Clip", net.op("Add", x, three), zero, six)), six)
    net.channels[x] = 8
    model = net.model([(net.conv(x, 4, 1), (1, 4, 4, 4))], 11)
    model.ir_version = 3
    model.graph.input.extend(helper.make_tensor_value_info(w.name, w.data_type, list(w.dims))
                             for w in model.graph.initializer)
    assert equal(model) == ["Conv", "Conv"]


def test_an_nhwc_uint8_input_with_a_transpose_in_front() -> None:
    net = Net((1, 10, 12, 3), dtype=TensorProto.UINT8)
    x = net.op("Cast", net.op("Transpose", net.input, perm=[0, 3, 1, 2]), to=TensorProto.FLOAT)
    net.channels[x] = 3
    x = net.conv(net.op("Mul", x, net.constant(np.float32(1 / 255))), 4)
    assert equal(net.model([(x, (1, 4, 10, 12))])) == ["Conv"]


def test_nodes_in_any_order() -> None:
    """Editors append nodes at the end; ONNX asks for an order, ONNX Runtime does not."""
    model = detector_onnx(32, (4, 8, 8, 8))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    graph = imported(model)
    assert [n.name for n in graph.nodes] != [n.name for n in nodes]
    assert equal(model)


def test_a_cycle_names_its_nodes() -> None:
    nodes = [helper.make_node("Add", ["x", "c"], ["a"], "first"), helper.make_node("Relu", ["a"], ["b"], "second"),
             helper.make_node("Neg", ["b"], ["c"], "third"), helper.make_node("Relu", ["c"], ["y"], "behind")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    with pytest.raises(ModelError, match=r"test\.onnx: the nodes 'first' \(Add\), 'second' \(Relu\), 'third' \(Neg\) "
                                         r"feed each other in a cycle; export"):
        imported(helper.make_model(graph))


@pytest.mark.parametrize("location", ["../m.data", "/etc/hostname", "sub/../../m.data"])
def test_external_data_outside_of_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save_model(detector_onnx(32, (4, 8, 8, 8)), folder / "m.onnx", save_as_external_data=True, location="m.data",
                    size_threshold=0)
    (tmp_path / "m.data").write_bytes((folder / "m.data").read_bytes())
    model = onnx.load(folder / "m.onnx", load_external_data=False)
    for weight in model.graph.initializer:
        for entry in weight.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save_model(model, folder / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx: the weights 'c\d+' lie in '.*', outside of the model's folder"):
        read_model(folder / "m.onnx")


@pytest.mark.parametrize("size", [(9,), (9, 7), (5, 6, 4)])
def test_convolutions_of_two_frames_at_once_are_built(size: tuple[int, ...], tmp_path: Path) -> None:
    """N = 2 inside the model: such rows, images and volumes are flat tensors of the program, and a plan holds them."""
    rank = len(size)
    net = Net((1, 6, *size), rank)
    weight = net.constant(net.rng.normal(0, 0.3, (4, 3, *(3,) * rank)).astype(np.float32))
    both = net.op("Reshape", net.input, ints(net, 2, 3, *size))
    x = net.op("Conv", both, weight, net.constant(np.ones(4, dtype=np.float32)), kernel_shape=[3] * rank,
               pads=[1] * 2 * rank)
    last = net.constant(net.rng.normal(0, 0.3, (2, 2, *(1,) * rank)).astype(np.float32))
    y = net.op("Conv", net.op("Relu", x), last, kernel_shape=[1] * rank, group=2)
    onnx.save(net.model([(y, (2, 2, *size))]), tmp_path / "two.onnx")
    build_plan(tmp_path / "two.onnx", None, [], tmp_path / "two.plan", "fp32")
    report = verify(tmp_path / "two.plan", tmp_path / "two.onnx", "onnxruntime")
    assert report.ok, report
