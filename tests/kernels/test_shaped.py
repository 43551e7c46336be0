"""A model under other input shapes: what ONNX Runtime is given, and that `verify` judges such a plan by it."""

from __future__ import annotations

from pathlib import Path

import onnx
from models import Net

from orind.kernels.build import build_plan
from orind.kernels.importer.shaped import with_shapes
from orind.kernels.verify import verify


def sizes(value: onnx.ValueInfoProto) -> list[int | str]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def test_inputs_get_their_shapes_and_outputs_lose_theirs(tmp_path: Path) -> None:
    net = Net((1, 3, 16, 16))
    model = net.model([(net.op("Relu", net.conv(net.input, 4, 3)), (1, 4, 16, 16))])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    shaped = with_shapes(model, {net.input: (1, 3, 8, 12)})
    assert sizes(shaped.graph.input[0]) == [1, 3, 8, 12] and sizes(model.graph.input[0]) == [1, 3, "height", 16]
    assert not shaped.graph.output[0].type.tensor_type.HasField("shape")
    assert model.graph.output[0].type.tensor_type.HasField("shape")
    assert with_shapes(model, {}).graph.input[0] == model.graph.input[0]
    onnx.save(model, tmp_path / "n.onnx")
    build_plan(tmp_path / "n.onnx", None, [], tmp_path / "n.plan", "fp32", shapes={net.input: (1, 3, 8, 12)})
    assert verify(tmp_path / "n.plan", tmp_path / "n.onnx", "onnxruntime").ok
