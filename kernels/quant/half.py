"""Numbers of a program with float16 layers: the FP32 steps in their float16 form, int8 steps for the rest.

Callers: `build.py`, `mixed.py`. The graph has Convert nodes where types meet (`borders.py`). Weights and activations
are stored as float16, biases as float32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ..ir.graph import Graph, Node
from ..ir.grid_steps import ResampleF32
from ..ir.steps import (
    STEPS,
    ActivationF32,
    AddF32,
    AveragePoolF32,
    ConvF32,
    DepthwiseF32,
    MulF32,
    Step,
)
from ..passes.lower import Lowering
from ..passes.lower_f32 import emit_f32
from .borders import HALF, SIGNED, SIGNED_STEP, place_conversions
from .quantise import IntegerNumbers
from .scales import Scales

WITH_HALF_FORM = (ConvF32, DepthwiseF32, AveragePoolF32, AddF32, MulF32, ActivationF32, ResampleF32)
AS_FP32 = "build with --precision fp32"


def mixed_numbers(scales: Scales, layers: Collection[str]) -> tuple[Graph, IntegerNumbers]:
    """The graph to lower and the Numbers for it, with `layers` in float16 and all others in int8."""
    graph, half = place_conversions(scales.graph, layers, scales.input.dtype, scales.cuts)
    signed = {node.output: scales.scale[node.inputs[0]] * SIGNED_STEP for node in graph.nodes
              if node.op == "Requantise" and node.output == node.inputs[0] + SIGNED}
    placed = replace(scales, graph=graph, scale={**scales.scale, **signed})
    return graph, MixedNumbers(placed, half) if half else IntegerNumbers(placed)


class MixedNumbers(IntegerNumbers):
    """`half` names the float16 nodes of the graph of `scales`."""

    def __init__(self, scales: Scales, half: Collection[str]) -> None:
        super().__init__(scales)
        self.half = half

    def stored(self, node: Node) -> str:
        return HALF if node.name in self.half else super().stored(node)

    def input_dtype(self, dtype: str) -> str:
        """float32 where float16 layers alone read the input: nothing is lost to a code then."""
        graph = self.scales.graph
        readers = graph.consumers.get(graph.inputs[0].name, ())
        direct = all(node.op == "Convert" and node.attrs["to"] == HALF for node in readers)
        return "float32" if direct and dtype == "float32" else super().input_dtype(dtype)

    def emit(self, node: Node, lowering: Lowering) -> Step:
        if node.name not in self.half:
            return super().emit(node, lowering)
        step = emit_f32(node, lowering)
        if not isinstance(step, WITH_HALF_FORM):
            raise lowering.refuse(node, "has no float16 form", AS_FP32)
        values: dict[str, Any] = {f.name: getattr(step, f.name) for f in fields(step)}
        if isinstance(step, ConvF32):
            weight = lowering.constants[step.weight]
            if np.abs(weight).max(initial=0) > np.finfo(np.float16).max:
                raise lowering.refuse(node, "has weights that float16 does not hold", AS_FP32)
            lowering.constants[step.weight] = weight.astype(np.float16)
        return STEPS[type(step).__name__.replace("F32", "F16")](**values)
