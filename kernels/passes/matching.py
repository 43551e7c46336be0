"""What passes that recognise patterns ask of a graph. Callers: `recognise_*.py`, `fold_scales.py`."""

from __future__ import annotations

from ..ir.graph import Graph, Node


def scalar(graph: Graph, name: str) -> float | None:
    """The one number that a constant is, None for anything else."""
    value = graph.constants.get(name)
    return None if value is None or value.size != 1 else float(value.reshape(()))


def constant_side(graph: Graph, node: Node) -> tuple[str, float] | None:
    """(other input, number) of a node of two inputs of which one is a number."""
    if len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        value = scalar(graph, other)
        if value is not None and x not in graph.constants:
            return x, value
    return None


def only(graph: Graph, name: str, reader: Node) -> Node | None:
    """The node that makes `name`, if `reader` alone reads it."""
    return graph.producers.get(name) if graph.only_consumer(name) is reader else None


def made_by(graph: Graph, name: str, op: str) -> Node | None:
    """The node that makes `name`, if it is an `op`."""
    node = graph.producers.get(name)
    return node if node is not None and node.op == op else None
