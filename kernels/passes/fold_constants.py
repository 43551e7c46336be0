"""Pass: a node whose inputs are all constants becomes a constant. Caller: `pipeline.py`."""

from __future__ import annotations

from ..ir.graph import Array, Graph, Node
from ..ir.reference import evaluate


def fold_constants(graph: Graph) -> Graph:
    constants: dict[str, Array] = dict(graph.constants)
    kept: list[Node] = []
    for node in graph.nodes:
        if all(not name or name in constants for name in node.inputs):
            values = evaluate(node, [constants[name] if name else None for name in node.inputs])
            constants.update(zip(node.outputs, values, strict=False))
        else:
            kept.append(node)
    return graph.rebuilt(kept, constants=constants)
