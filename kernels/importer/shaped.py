"""An ONNX file under other input shapes, for whoever runs the file itself. Caller: `verify.py`, for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx


def with_shapes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The model, its external data inside, with these input shapes; the shapes that it gives its outputs are left out,
    since they belong to others."""
    model = onnx.load(str(path))
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    data: bytes = model.SerializeToString()
    return data
