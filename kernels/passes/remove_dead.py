"""Pass: drops nodes that change nothing (Identity, Dropout, Cast to the same type) and nodes and constants unread.

Caller: `pipeline.py`, first and last. The names of graph outputs and of the graph input never change.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Node


def _changes_nothing(graph: Graph, node: Node) -> bool:
    if node.op in ("Identity", "Dropout"):
        return True
    if node.op == "Cast":
        return bool(graph.tensors[node.inputs[0]].dtype == node.attrs["to"])
    if node.op in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand"):
        return graph.shape(node.inputs[0]) == graph.shape(node.output)
    return node.op == "Pad" and not graph.constants[node.inputs[1]].any()


def remove_dead(graph: Graph) -> Graph:
    alias: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(alias.get(name, name) for name in node.inputs)
        if _changes_nothing(graph, node) and node.output not in graph.outputs:
            alias[node.output] = inputs[0]
        else:
            kept.append(replace(node, inputs=inputs))
    needed = set(graph.outputs)
    alive: list[Node] = []
    for node in reversed(kept):
        if any(name in needed for name in node.outputs):
            alive.append(node)
            needed.update(node.inputs)
    return Graph(graph.file, graph.inputs, graph.outputs, tuple(reversed(alive)),
                 {name: value for name, value in graph.constants.items() if name in needed},
                 graph.tensors, graph.input_layout)
