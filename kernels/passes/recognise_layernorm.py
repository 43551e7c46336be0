"""Pass: LayerNormalization as exporters before opset 17 write it becomes one node. Caller: `pipeline.py`.

d = x - mean(x); d / sqrt(mean(d^2) + epsilon), over the last axes; a Mul and an Add by constants behind it stay apart.
"""

from __future__ import annotations

from ..ir.graph import Graph, Node
from .matching import constant_side, made_by, scalar
from .remove_dead import remove_dead


def _trailing(graph: Graph, mean: Node | None) -> int | None:
    """First of the axes of a ReduceMean that keeps them, if they are the last ones."""
    if mean is None or not mean.attrs["keepdims"]:
        return None
    axes, rank = mean.attrs["axes"], len(graph.shape(mean.inputs[0]))
    return axes[0] if tuple(axes) == tuple(range(axes[0], rank)) else None


def _deviation(graph: Graph, name: str) -> tuple[str, str, int, float] | None:
    """(x, d, axis, epsilon) where `name` is sqrt(mean(d^2) + epsilon) and d is x - mean(x)."""
    root = made_by(graph, name, "Sqrt")
    add = made_by(graph, root.inputs[0], "Add") if root is not None else None
    side = constant_side(graph, add) if add is not None else None
    spread = made_by(graph, side[0], "ReduceMean") if side is not None else None
    axis = _trailing(graph, spread)
    square = graph.producers.get(spread.inputs[0]) if spread is not None else None
    if side is None or axis is None or square is None:
        return None
    if square.op == "Pow" and scalar(graph, square.inputs[1]) != 2.0:
        return None
    if square.op not in ("Pow", "Mul") or (square.op == "Mul" and square.inputs[0] != square.inputs[1]):
        return None
    centred = made_by(graph, square.inputs[0], "Sub")
    mean = made_by(graph, centred.inputs[1], "ReduceMean") if centred is not None else None
    if centred is None or mean is None or mean.inputs[0] != centred.inputs[0] or _trailing(graph, mean) != axis:
        return None
    return centred.inputs[0], centred.output, axis, side[1]


def recognise_layernorm(graph: Graph) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        found = _deviation(graph, node.inputs[1]) if node.op == "Div" and len(node.inputs) == 2 else None
        # some exporters subtract the mean twice, once for the result and once for the square
        centred = made_by(graph, node.inputs[0], "Sub") if found is not None else None
        if found is not None and (node.inputs[0] == found[1] or (
                centred is not None and centred.inputs[0] == found[0]
                and made_by(graph, centred.inputs[1], "ReduceMean") is not None
                and graph.producers[centred.inputs[1]].inputs[0] == found[0]
                and _trailing(graph, graph.producers[centred.inputs[1]]) == found[2])):
            node = Node(node.name, "LayerNormalization", (found[0],), node.outputs,
                        {"axis": found[2], "epsilon": found[3]})
        nodes.append(node)
    return remove_dead(graph.rebuilt(nodes))
