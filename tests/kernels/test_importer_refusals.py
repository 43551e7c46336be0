"""What cannot be taken is refused with file, node, operator and remedy."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fp32, int8
from google.protobuf.message import DecodeError
from models import Net, detector_onnx
from onnx import TensorProto, helper, numpy_helper

from orind.kernels.build import build_plan
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.ir.errors import ModelError, UnsupportedModel
from orind.kernels.ir.graph import Graph, Node, TensorInfo
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.scales import InputCode
from orind.kernels.verify import verify

FLOAT = TensorProto.FLOAT


def raw(nodes: list[onnx.NodeProto], shape: list[Any] | None = None, weights: dict[str, Any] | None = None,
        outputs: tuple[str, ...] = ("y",), opset: int = 17, dtype: int = FLOAT, inputs: int = 1) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info("x" if i == 0 else f"x{i}", dtype, shape or [1, 3, 8, 8])
              for i in range(inputs)]
    graph = helper.make_graph(nodes, "g", values, [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, *inputs: str, name: str = "the node", output: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name, **attrs)


W = {"w": np.ones((4, 3, 3, 3), dtype=np.float32)}
CASES: list[tuple[onnx.ModelProto, str]] = [
    (raw([node("LSTM", "x")]), r"'the node' \(LSTM\): this operator is not supported; export"),
    (raw([helper.make_node("Relu", ["x"], ["y"], "the node", domain="com.acme")]), "domain 'com.acme'"),
    (raw([node("Relu", "x")], ["batch", 3, 8, 8]),
     r"input 'x' has the dynamic shape \['batch', 3, 8, 8\]; give it with --input x=1x3x8x8"),
    (raw([node("Relu", "x")], [4, 3, 8, 8]), "batch size 4; give --input x=1x3x8x8"),
    (raw([node("Relu", "x")], dtype=TensorProto.INT64), "input 'x' is int64"),
    (raw([node("Add", "x", "x1")], inputs=2), r"2 inputs \(x, x1\)"),
    (raw([node("Relu", "x")], opset=99), "opset 99; 7 to"),
    (raw([node("Relu", "x")], opset=0), r"ONNX opset 0; 7 to \d+ are known here: export the model with one of these"),
    (raw([node("Add", "x", "w")], opset=6, weights={"w": np.ones(1, "f4")}), r"version 6 of this operator \(opset 6\)"),
    (raw([node("Relu", "nowhere")]), "reads 'nowhere'"),
    (raw([node("Conv", "x", "x")]), "weight is computed at run time"),
    (raw([node("Conv", "x", "w", group=2)], weights=W), "with group 2 does not fit 3 input channels"),
    (raw([node("Conv", "x", "w")], weights={"w": np.full((4, 3, 3, 3), np.nan, dtype=np.float32)}), "NaN or infinity"),
    (raw([node("Conv", "x", "w")], [1, 3, 2, 2], W), "window is larger than the input"),
    (raw([node("Conv", "x", "w", pads=[-1, 0, 0, 0])], weights=W), "negative pads"),
    (raw([node("Conv", "x", "w")], [1, 3], {"w": np.ones((4, 3), dtype=np.float32)}), "input of 2 dimensions"),
    (raw([node("If", "x")]), "control flow is not supported; export"),
    (raw([node("NonMaxSuppression", "x")]), "the spec's decoder does this"),
    (raw([node("Resize", "x", "", "s", mode="cubic")], weights={"s": np.array([1, 1, 2, 2], dtype=np.float32)}),
     "mode cubic"),
    (raw([node("Resize", "x", "", "s")], weights={"s": np.array([1, 1, -1.5, 2], dtype=np.float32)}), "scales"),
    (raw([node("Resize", "x", "r", "s", coordinate_transformation_mode="tf_crop_and_resize")],
         weights={"s": np.array([1, 1, 2, 2], "f4"), "r": np.array([0, 0, -1, 0, 1, 1, 1, 1], "f4")}), "outside of"),
    (raw([node("Resize", "x", "", "s", coordinate_transformation_mode="odd")],
         weights={"s": np.array([1, 1, 2, 2], dtype=np.float32)}), "coordinate mode odd"),
    (raw([node("Pad", "x", "p", mode="mirror")], weights={"p": np.zeros(8, dtype=np.int64)}), "mode mirror"),
    (raw([node("Pad", "x", "p")], weights={"p": np.full(8, -9)}), "impossible shape"),
    (raw([node("MaxPool", "x", kernel_shape=[2, 2], dilations=[2, 2], pads=[1] * 4)], [1, 3, 1, 8]),
     r"'the node' \(MaxPool\): a window of .* lies in the padding of \(1, 8\) altogether.*smaller pads, or a larger"),
    (raw([helper.make_node("MaxPool", ["x"], ["y", "i"], "the node", kernel_shape=[2, 2])]), "indices of the maxima"),
    (raw([node("AveragePool", "x", kernel_shape=[3, 3], pads=[3] * 4)]), "pads .* as large as the kernel"),
    (raw([node("MatMul", "x", "w")], weights={"w": np.ones((7, 8), dtype=np.float32)}), "inputs do not fit"),
    (raw([node("Gemm", "x", "w", transA=1)], [1, 3], {"w": np.ones((2, 2), dtype=np.float32)}), "inputs do not fit"),
    (raw([node("Reshape", "x", "s")], weights={"s": np.array([5, 5])}), "inputs do not fit"),
    (raw([node("ConvTranspose", "x", "w", output_padding=[9, 9])], weights=W | {"w": np.ones((3, 2, 2, 2), "f4")}),
     "output_padding"),
    (raw([node("Expand", "x", "s")], weights={"s": np.array([1 << 30, 3, 8, 8])}), "makes a tensor of shape"),
    (raw([node("Expand", "x", "s")], weights={"s": np.ones(40, dtype=np.int64)}), "inputs do not fit: sizes"),
    (raw([node("Add", "x", "w")], weights={"w": np.ones((1,) * 40, dtype=np.float32)}), "reads 'w' of 40 dimensions"),
    (raw([node("Equal", "x", "w")], weights={"w": np.ones(1, dtype=np.float32)}), "graph output 'y' is bool"),
    (raw([node("Gelu", "x")], opset=17), "this operator is not supported"),
    (raw([node("Relu", "x", output="a"), node("Relu", "x", name="second", output="a")], outputs=("a",)),
     "'second' .* a second time"),
    (raw([node("Relu", "x")], outputs=("z",)), "output 'z' is made by no node"),
    (raw([node("Relu", "x")], outputs=("y", "y")), "two outputs are named 'y'; export"),
    (raw([node("Relu", "x", output="r"), node("Slice", "r", "five", "five", "two", name="second")],
         weights={"five": np.array([5]), "two": np.array([2])}),
     r"graph output 'y' has the shape \(1, 3, 0, 8\), no values at all"),
    (raw([node("ReduceMean", "x", axes=[0, 1, 2, 3], keepdims=0)]), r"graph output 'y' has the shape \(\), no axis"),
    (raw([node("Relu", "x")], [1]), r"input 'x' has the shape \(1,\), one axis, .* in front of it: \(1, 1\)"),
    (raw([node("Relu", "x")], [7]), r"one axis, .* in front of it: \(1, 7\)"),
    (raw([node("Relu", "x")], outputs=()), "has no outputs; export"),
    (raw([node("Relu", "x", output="")]), r"'the node' \(Relu\): its output has no name"),
    (raw([node("Conv", "x", "w", kernel_shape=[1, 3])], weights=W),
     r"'the node' \(Conv\): kernel_shape \(1, 3\) is not that of its weight \(4, 3, 3, 3\)"),
    (raw([node("ConvTranspose", "x", "w", kernel_shape=[2, 2])], weights={"w": np.ones((3, 4, 3, 3), "f4")}),
     r"kernel_shape \(2, 2\) is not that"),
    (raw([node("Pad", "x", "p", mode="reflect")], weights={"p": np.array([0, 0, 0, 8, 0, 0, 0, 0])}),
     r"'the node' \(Pad\): reflects 8 values of a tensor of shape \(1, 3, 8, 8\)"),
    (raw([node("Concat", "x", "x", axis=7)]), "axis 7 of a tensor of 4 dimensions"),
    (raw([node("Concat", "x", "x")]), r"missing or malformed \(KeyError"),
    (raw([node("Conv", "x", "w", strides=[2])], weights=W), "make no sense"),
    (raw([node("Conv", "x", "w", strides=[1 << 62, 1])], weights=W), "make no sense"),
    (raw([node("BatchNormalization", "x", *"wwww")], weights={"w": np.full(3, np.inf, dtype=np.float32)}),
     "NaN or infinity"),
    (raw([node("BatchNormalization", "x", *"wwww", training_mode=1)], weights={"w": np.ones(3, dtype=np.float32)}),
     "training mode"),
    (raw([helper.make_node("Relu", ["x"], ["y", "z"], "the node")]), "has 1 inputs and 2 outputs"),
    (raw([node("Constant", value_string="a")]), "use a dense constant"),
    (raw([node("Conv", "x", "")]), "has 1 inputs and 1 outputs; it needs 2 to 3"),
    (raw([node("Cast", "x", to=7)]), r"\(Cast\): casts to int64"),
]


@pytest.mark.parametrize(("model", "text"), CASES, ids=[text[:30] for _, text in CASES])
def test_refused(model: onnx.ModelProto, text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        fp32(model)
    assert str(caught.value).startswith("test.onnx")


def test_files_that_contradict_themselves() -> None:
    model = raw([node("Add", "x", "w")], weights={"w": np.ones((1, 1), "f4")})
    model.opset_import.append(helper.make_opsetid("ai.onnx", 17))
    assert fp32(model)
    model.opset_import[1].version = 18
    with pytest.raises(ModelError, match=r"test\.onnx: names the ONNX opsets 17, 18: only one can be meant"):
        fp32(model)
    del model.opset_import[1]
    model.graph.initializer[0].dims[:] = [-1, 1]
    with pytest.raises(ModelError, match=r"test\.onnx: the weights 'w' have the impossible shape \[-1, 1\]"):
        fp32(model)
    constant = raw([node("Constant", value=model.graph.initializer[0])])
    with pytest.raises(ModelError, match=r"'the node' \(Constant\): attribute 'value' cannot be read \(it has the imp"):
        fp32(constant)


@pytest.mark.parametrize("name", [".c", "orind.c", ".pad.00000", "golden.input"])
def test_names_that_the_plan_keeps_for_itself(tmp_path: Path, name: str) -> None:
    model = raw([node("Conv", "x", "w", name=name, output=name + "y"), node("Relu", name + "y", name=f"{name}2")],
                weights=W)
    onnx.save_model(model, tmp_path / "m.onnx")
    build_plan(tmp_path / "m.onnx", None, [], tmp_path / "m.plan", "fp32")
    with PlanFile.open_path(tmp_path / "m.plan") as plan:
        assert sum(key.startswith((f"{name}/", f"constant {name}/")) for key in plan.tensors) == 2
    report = verify(tmp_path / "m.plan", tmp_path / "m.onnx", "onnxruntime")
    assert report.ok and any(check.name == "output 0 against onnxruntime" and check.ok for check in report.checks)


def test_as_many_values_as_there_are_can_be_reflected() -> None:
    assert fp32(raw([node("Pad", "x", "p", mode="reflect")], weights={"p": np.array([0, 0, 0, 7, 0, 0, 7, 0])}))


def test_external_data_that_is_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(detector_onnx(32), path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    os.mkfifo(tmp_path / "m.data")
    with pytest.raises(ModelError, match=r"the weights 'c\d+' are missing or cut short"):
        read_model(path)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.onnx: cannot be read: No such file"):
        read_model(tmp_path / "absent.onnx")
    whole = detector_onnx(32).SerializeToString()
    path = tmp_path / "cut.onnx"
    for content in (whole[: len(whole) // 2], b"", b"\x00\x01garbage", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"cut\.onnx: "):
            read_model(path)


def test_external_data_that_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(detector_onnx(32), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert read_model(path).nodes
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"the weights 'c\d+' are missing or cut short"):
        read_model(path)


def test_cycle_and_duplicate_in_a_graph() -> None:
    info = (TensorInfo("x", (1, 2)),)
    with pytest.raises(ModelError, match="has a cycle or lacks a tensor"):
        Graph("m.onnx", info, ("b",), (Node("n", "Add", ("x", "b"), ("a",)), Node("m", "Relu", ("a",), ("b",))), {},
              {"x": info[0]})


def test_damaged_bytes_are_refused_or_run() -> None:
    """Flipped bits and cut files: a message, or a model that still makes sense; never another exception."""
    base = detector_onnx(32, (4, 8, 8, 8)).SerializeToString()
    rng = np.random.default_rng(7)
    refused = 0
    for trial in range(150):
        data = bytearray(base)
        if trial % 3 == 0:
            data = data[:int(rng.integers(0, len(data)))]
        else:
            data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
        try:
            model = onnx.load_model_from_string(bytes(data))
        except DecodeError:
            continue
        try:
            fp32(model)
        except ModelError:
            refused += 1
    assert refused > 10


def test_activation_on_a_uint8_input_has_no_integer_form() -> None:
    net = Net((1, 3, 8, 8))
    with pytest.raises(UnsupportedModel, match="has no integer form on uint8"):
        int8(net.model([(net.conv(net.op("Tanh", net.input), 3), (1, 3, 8, 8))]), code=InputCode("uint8", 1.0))


def test_sums_that_do_not_fit_32_bits() -> None:
    net = Net((1, 3, 220, 220))
    w = net.constant(np.ones((1, 3 * 220 * 220), dtype=np.float32))
    with pytest.raises(UnsupportedModel, match=r"\(Conv|Gemm\): its sums do not fit 32 bits; build with"):
        int8(net.model([(net.op("Gemm", net.op("Flatten", net.input), w, transB=1), (1, 1))]), frames=1)


def test_a_gather_with_computed_indices_is_refused_where_it_is() -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Cast", net.op("Relu", net.input), to=TensorProto.INT64)
    with pytest.raises(UnsupportedModel, match=r"\(Cast\): casts to int64"):
        fp32(net.model([(net.op("Gather", net.input, x, axis=1), [None] * 7)]))
