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
PROBE = np.linspace(-6, 6, 97, dtype=np.float64)


def _cone(graph: Graph, node: Node) -> tuple[str, list[Node]] | None:
    """(x, nodes in order): everything behind one tensor x that makes `node`'s output; None if there is no such x."""
    members = {node.name: node}
    waiting = [node]
    edge: set[str] = set()
    while waiting:
        for name in waiting.pop().inputs:
            source = graph.producers.get(name)
            if name in graph.constants:
                if graph.constants[name].size != 1:
                    return None
            elif source is not None and source.op in PARTS and len(members) < LARGEST \
                    and all(r.name in members for r in graph.consumers[name]) and name not in graph.outputs:
                if source.name not in members:
                    members[source.name] = source
                    waiting.append(source)
            else:
                edge.add(name)
    edge -= {n.output for n in members.values()}
    if len(edge) != 1:
        return None
    return edge.pop(), [n for n in graph.nodes if n.name in members]


def recognise_gelu(graph: Graph) -> Graph:
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op != "Mul" or not graph.producers or found.keys() & {node.name}:
            continue
        cone = _cone(graph, node)
        if cone is None or not {n.op for n in cone[1]} & {"Erf", "Tanh"} or len(cone[1]) < 4:
            continue
        x, nodes = cone
        values = {x: PROBE}
        for inner in nodes:
            operands = [np.asarray(graph.constants[n], dtype=np.float64).reshape(()) if n in graph.constants
                        else values[n] for n in inner.inputs]
            values[inner.output] = evaluate(inner, operands)[0]
        for op, limit in (("Gelu", 1e-5), ("GeluTanh", 1e-5)):
            if np.abs(values[node.output] - ACTIVATIONS[op](PROBE, {})).max() < limit:
                found[node.name] = Node(node.name, op, (x,), node.outputs)
    return remove_dead(graph.rebuilt([found.get(n.name, n) for n in graph.nodes])) if found else graph
