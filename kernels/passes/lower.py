"""Graph to program: layouts, channel map, steps with their packed weights, arena offsets for each batch size.

Callers: `build.py` and tests. The arithmetic of an image node comes from a `Numbers` object (`lower_f32.py`,
kernels/quant/quantise.py, kernels/quant/half.py); flat nodes are float32 at every precision (`lower_flat.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.errors import UnsupportedModel
from ..ir.graph import Graph, Node
from ..ir.program import Program
from ..ir.steps import FromFlat, ToFlat
from .lower_flat import fill_constant, lower_flat, refuse_output
from .lower_images import lower_image
from .lowering import Array, Lowering, Numbers
from .packing import is_depthwise, pack_channels, pack_weight

__all__ = ["Array", "Lowering", "Numbers", "is_depthwise", "lower", "pack_channels", "pack_weight"]


def lower(graph: Graph, batches: Iterable[int], numbers: Numbers,
          problems: list[str] | None = None) -> tuple[dict[int, Program], dict[str, Array]]:
    """A program for each batch size, and the constants they share. Raises UnsupportedModel; with `problems`, each text
    is put there instead, and the program is then of no use."""
    out = Lowering(graph, numbers)
    image_nodes = {node.name for node in out.layouts.image_nodes}
    for node in out.graph.nodes:
        try:
            _node(node, node.name in image_nodes, out)
        except UnsupportedModel as error:
            if problems is None:
                raise
            problems.append(str(error))
            for name in node.outputs:
                if name and name not in out.tensors:
                    out.declare(name, "float32")
    if problems:
        return {}, {}
    for name in dict.fromkeys(out.graph.outputs):
        if name in out.graph.constants:
            fill_constant(name, out)
        elif out.graph.tensors[name].dtype != "float32":
            raise refuse_output(name, out.graph.tensors[name].dtype, out)
    return {batch: out.program(batch) for batch in batches}, out.constants


def _node(node: Node, image: bool, out: Lowering) -> None:
    if image:
        lower_image(node, out)
    elif node.op == "FromFlat":
        out.declare(node.output, "float32", exact=out.tensors[node.inputs[0]].exact)
        out.steps.append(FromFlat(node.name, node.inputs[0], node.output))
    elif node.op == "ToFlat":
        out.declare(node.output, "float32", exact=out.tensors[node.inputs[0]].exact)
        out.steps.append(ToFlat(node.name, node.inputs[0], node.output))
    else:
        lower_flat(node, out)
