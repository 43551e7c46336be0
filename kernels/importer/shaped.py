"""An ONNX model under other input shapes, for whoever runs the model itself.

Callers, each for ONNX Runtime: `verify_model.py`, and scripts/model_figures.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A copy with these input shapes by name; the shapes that it gives its outputs are left out: they belong to others.

    The importer has refused names that are no inputs, and shapes of another rank.
    """
    shaped = onnx.ModelProto()
    shaped.CopyFrom(model)
    for value in shaped.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    for value in shaped.graph.output:
        value.type.tensor_type.ClearField("shape")
    return shaped
