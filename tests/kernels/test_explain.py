"""All problems of a model at once; shapes given on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from models import Net
from onnx import TensorProto, helper, numpy_helper
from qdq import QdqNet

from orind.kernels.build import build_plan
from orind.kernels.explain import explain
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.ir.errors import ModelError
from orind.kernels.plan.file import PlanFile
from orind.kernels.verify import verify


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save_model(model, path)
    return path


def open_model(shape: list[object], name: str = "x") -> onnx.ModelProto:
    """A convolution whose weight is among the inputs (IR 4), then a Reshape by a chain over the input's own shape."""
    w = numpy_helper.from_array(np.random.default_rng(0).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32), "w")
    ints = {"zero": 0, "minus": [-1], "four": [4], "front": [0]}
    nodes = [helper.make_node("Conv", [name, "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
             helper.make_node("Shape", ["c"], ["s"], "shape"),
             helper.make_node("Gather", ["s", "zero"], ["n"], "batch"),
             helper.make_node("Unsqueeze", ["n", "front"], ["u"], "unsqueeze"),
             helper.make_node("Concat", ["u", "four", "minus"], ["t"], "sizes", axis=0),
             helper.make_node("Reshape", ["c", "t"], ["y"], "reshape")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape),
                     helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [w, *(numpy_helper.from_array(np.array(v, dtype=np.int64), k) for k, v in ints.items())])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=4)


def test_every_problem_is_listed(tmp_path: Path) -> None:
    nodes = [helper.make_node("LSTM", ["x"], ["a"], "first"),
             helper.make_node("Relu", ["a"], ["b"], "second"),
             helper.make_node("Fancy", ["b"], ["c"], "third", domain="com.acme"),
             helper.make_node("Loop", ["b"], ["d"], "fourth"),
             helper.make_node("Concat", ["x", "x"], ["e"], "fifth", axis=9),
             helper.make_node("Relu", ["x"], ["y"], "sixth")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    found = explain(saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path))
    assert [p.split("'")[1] for p in found.problems] == ["first", "third", "fourth", "fifth"]
    assert all(p.startswith("m.onnx: node ") and ";" in p for p in found.problems)
    assert found.summary == "m.onnx: 4 problems"


def test_what_lowering_refuses_is_listed_too(tmp_path: Path) -> None:
    net = Net((1, 3, 8, 8))
    x = net.op("Relu", net.input)
    parts = [net.op("CumSum", x, net.constant(np.array(i))) for i in (1, 2)]
    found = explain(saved(net.model([(p, (1, 3, 8, 8)) for p in parts]), tmp_path))
    assert len(found.problems) == 2 and all("(CumSum): not supported on a tensor" in p for p in found.problems)


def test_a_sound_model_and_a_damaged_file(tmp_path: Path) -> None:
    found = explain(saved(open_model([1, 3, 8, 8]), tmp_path))
    assert found.problems == () and found.summary.endswith("no problems")
    (tmp_path / "m.onnx").write_bytes(b"garbage")
    assert "not an ONNX model" in explain(tmp_path / "m.onnx").problems[0] or "holds no graph" in \
        explain(tmp_path / "m.onnx").problems[0]


def test_it_counts_what_the_build_counts(tmp_path: Path) -> None:
    """On a model of which convolutions over the same tensor become one."""
    model = Path(__file__).parents[2] / "configs" / "models" / "part-inspect.onnx"
    report = build_plan(model, None, [], tmp_path / "m.plan", "fp32").report
    counts = f"{report['nodes_after']} after the passes, {report['steps']} steps in FP32; no problems"
    assert explain(model).summary == f"part-inspect.onnx: {report['nodes_before']} nodes, {counts}"


@pytest.mark.parametrize("shape", [["n", 3, "h", "w"], [10, 3, 32, 32]])
def test_shapes_are_given_by_the_user(shape: list[object], tmp_path: Path) -> None:
    path = saved(open_model(shape), tmp_path)
    with pytest.raises(ModelError, match="--input x=1x3x"):
        read_model(path)
    graph = read_model(path, {"x": (1, 3, 12, 20)})
    assert [n.op for n in graph.nodes] == ["Conv", "Reshape"] and graph.shape("y") == (1, 4, 240)
    build_plan(path, None, [], tmp_path / "m.plan", "fp32", shapes={"x": (1, 3, 12, 20)})
    with PlanFile.open_path(tmp_path / "m.plan") as plan:
        assert plan.tensors["golden.input"].shape == (1, 12, 20, 3)
    report = verify(tmp_path / "m.plan", path, "import")
    assert report.ok, report


def test_names_and_ranks_that_do_not_fit(tmp_path: Path) -> None:
    path = saved(open_model([1, 3, 8, 8]), tmp_path)
    with pytest.raises(ModelError, match=r"--input names 'z', but the model's inputs are x"):
        read_model(path, {"z": (1, 3, 8, 8)})
    with pytest.raises(ModelError, match="2 sizes; it has 4 dimensions"):
        read_model(path, {"x": (1, 3)})
    with pytest.raises(ModelError, match="more than 67108864 values"):
        read_model(path, {"x": (1, 3, 1 << 16, 1 << 16)})


def test_what_int8_refuses_of_a_quantised_model_is_a_problem(tmp_path: Path) -> None:
    """FP32 would take it; the multiplier that its scales give is nothing in float32."""
    net = QdqNet((1, 3, 6, 6))
    x = net.pair(net.input, 0.01)
    parts = []
    for k in (1, 3):
        codes = net.rng.integers(-128, 128, (4, 3, k, k)).astype(np.int8)
        codes[:, 0, 0, 0] = -128
        y = net.op("Conv", x, net.weight(codes, np.full(4, 2e-38)), pads=[k // 2] * 4)
        net.channels[y] = 4
        parts.append(net.coded_conv(net.pair(net.op("Relu", y), 1.0), 1.0, 2))
    path = saved(net.model([(part, (1, 2, 6, 6)) for part in parts]), tmp_path)
    build_plan(path, None, [], tmp_path / "m.plan", "fp32")
    found = explain(path)
    assert len(found.problems) == 2 and all(
        p.startswith("m.onnx: node ") and "(Conv): the multiplier of channel 0 underflows" in p for p in found.problems)
    assert found.summary.startswith("m.onnx: ") and "FP32 can be built, INT8 has 2 problems; quantised" in found.summary
    with pytest.raises(ModelError, match="the multiplier of channel 0 underflows"):
        build_plan(path, None, [], tmp_path / "m.plan", "int8")
