"""Pass: GELU as exporters write it, by Erf or by Tanh, becomes one node. Caller: `pipeline.py`.

0.5 x (1 + erf(x / sqrt 2)) and 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), with the factors in any order and
place, are recognised by what they compute: everything between x and the result is evaluated on numbers and compared.
"""

from __future__ import annotations

import numpy as np

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import Graph, Node
from ..ir.reference import evaluate
from .remove_dead import remove_dead

PARTS = frozenset({"Add", "Mul", "Div", "Sub", "Pow", "Erf", "Tanh"})
LARGEST = 12
NEAR = 1e-5
PROBE = np.linspace(-6, 6, 97, dtype=np.float64)


def _cone(graph: Graph, node: Node, stop: str) -> tuple[str, list[Node]] | None:
    """(x, nodes in order): everything behind one tensor x that makes `node`'s output; None if there is no such x.

    It does not go beyond the tensor `stop`.
    """
    members = {node.name: node}
    waiting = [node]
    edge: set[str] = set()
    while waiting:
        for name in waiting.pop().inputs:
            source = graph.producers.get(name)
            if name in graph.constants:
                if graph.constants[name].size != 1:
                    return None
            elif source is not None and name != stop and _is_part(graph, source) and len(members) < LARGEST:
                if source.name not in members:
                    members[source.name] = source
                    waiting.append(source)
            else:
                edge.add(name)
    inner = {n.output for n in members.values()} - {node.output}
    read_outside = any(r.name not in members for name in inner for r in graph.consumers[name])
    if len(edge) != 1 or edge & inner or read_outside or inner & set(graph.outputs):
        return None
    return edge.pop(), [n for n in graph.nodes if n.name in members]


def _is_part(graph: Graph, node: Node) -> bool:
    return node.op in PARTS and all(graph.constants[n].size == 1 for n in node.inputs if n in graph.constants)


def _as_gelu(graph: Graph, node: Node, stop: str) -> Node | None:
    cone = _cone(graph, node, stop)
    if cone is None or not {n.op for n in cone[1]} & {"Erf", "Tanh"} or len(cone[1]) < 4:
        return None
    x, nodes = cone
    values = {x: PROBE}
    for inner in nodes:
        operands = [np.asarray(graph.constants[n], dtype=np.float64).reshape(()) if n in graph.constants
                    else values[n] for n in inner.inputs]
        with np.errstate(all="ignore"):
            values[inner.output] = evaluate(inner, operands)[0]
    for op in ("Gelu", "GeluTanh"):
        if np.abs(values[node.output] - ACTIVATIONS[op](PROBE, {})).max() < NEAR:
            return Node(node.name, op, (x,), node.outputs)
    return None


def recognise_gelu(graph: Graph) -> Graph:
    """Tries each tensor that several nodes read as x."""
    if not any(node.op in ("Erf", "Tanh") for node in graph.nodes):
        return graph
    shared = [name for name, readers in graph.consumers.items() if len(readers) > 1 and name not in graph.constants]
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op == "Mul":
            for stop in reversed(shared):
                gelu = _as_gelu(graph, node, stop)
                if gelu is not None:
                    found[node.name] = gelu
                    break
    return remove_dead(graph.rebuilt([found.get(n.name, n) for n in graph.nodes])) if found else graph
