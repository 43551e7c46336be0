"""Pass: Reshape-Transpose-Reshape that only moves channels becomes one ChannelGather. Caller: `pipeline.py`.

Also a Gather of constant channels of an image. The channel map and the executors then treat it as a copy of runs.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Graph, Node
from .matching import only
from .remove_dead import remove_dead


def _order(graph: Graph, node: Node) -> tuple[str, tuple[int, ...]] | None:
    """(image, source channel of each channel) of the Reshape that ends a shuffle, or of a Gather."""
    shape = graph.shape(node.output)
    if len(shape) != 4 or shape[0] != 1:
        return None
    if node.op == "Gather":
        x, index = node.inputs[0], graph.constants.get(node.inputs[1])
        if index is None or index.ndim != 1 or node.attrs.get("axis", 0) != 1:
            return None
        channels = graph.shape(x)[1]
        return x, tuple(int(i) % channels for i in index)
    turn = only(graph, node.inputs[0], node) if node.op == "Reshape" else None
    first = only(graph, turn.inputs[0], turn) if turn is not None and turn.op == "Transpose" else None
    if turn is None or first is None or first.op != "Reshape" or graph.shape(first.inputs[0]) != shape:
        return None
    places = np.arange(int(np.prod(shape))).reshape(graph.shape(first.output)).transpose(turn.attrs["perm"])
    image = places.reshape(shape)
    plane = np.arange(shape[2] * shape[3]).reshape(shape[2:])
    source = image[0, :, 0, 0]
    if (source % plane.size).any() or not np.array_equal(image[0], source[:, None, None] + plane):
        return None
    return first.inputs[0], tuple((source // plane.size).tolist())


def recognise_shuffles(graph: Graph) -> Graph:
    nodes: list[Node] = []
    body = graph.body
    for node in graph.nodes:
        found = _order(graph, node) if node.name in body else None
        if found is not None:
            node = Node(node.name, "ChannelGather", (found[0],), node.outputs, {"channels": found[1]})
        nodes.append(node)
    return remove_dead(graph.rebuilt(nodes))
