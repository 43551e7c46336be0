"""Pass: what is both in the integer body and read by the float tail is made a second time, in float, for the tail.

Caller: builds with an integer or FP16 body, between `prepare` and `fuse`. CONTRACT.md: a graph output, and every
operator after the last multiply-accumulate on its path, is float32 of that sum; no code is made of it. So the
operators between the tail and the last convolutions before it are copied (suffix FLOAT); the copies lead to no
convolution, which makes them tail. A copied convolution costs its multiply-accumulates twice: the form is rare
(backbones whose stages are outputs). What leads to a float32 island of the body alone (`islands.py`) is float32 without
a copy; the attribute STAYS keeps it out of convolutions.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import MAC_OPS, Graph, Node, TensorInfo
from .islands import coded_nodes, is_coded

FLOAT = "@float"
STAYS = "stays_float"
FUSED = frozenset(ACTIVATIONS) | {"Clip", "Add"}


def float_ends(graph: Graph) -> Graph:
    """The same function; graph outputs that were body tensors get the suffix FLOAT in their names."""
    coded = coded_nodes(graph)
    wanted: set[str] = set()                     # tensors of the body that the tail needs in float
    waiting = list(graph.outputs)
    waiting += [name for node in graph.nodes if node.name not in graph.body for name in node.inputs]
    while waiting:
        name = waiting.pop()
        made_by = graph.producers.get(name)
        if made_by is None or made_by.name not in coded or name in wanted:
            continue                             # what an island makes is float32 already
        if made_by.op in MAC_OPS and not is_coded(graph, coded, name):
            continue                             # the tail alone reads it: it is float32 already
        wanted.add(name)
        if made_by.op not in MAC_OPS:
            waiting += made_by.inputs
    nodes: list[Node] = []

    def floated(name: str) -> str:
        return name + FLOAT if name in wanted else name
    for node in graph.nodes:
        if node.name not in graph.body:
            nodes.append(replace(node, inputs=tuple(floated(name) for name in node.inputs)))
            continue
        stays = node.name not in coded and node.op in FUSED
        nodes.append(node.with_attrs(**{STAYS: True}) if stays else node)
        if any(name in wanted for name in node.outputs):
            inputs = node.inputs if node.op in MAC_OPS else tuple(floated(name) for name in node.inputs)
            nodes.append(replace(node, name=node.name + FLOAT, inputs=inputs,
                                 outputs=tuple(name + FLOAT for name in node.outputs)))
    copies = [replace(info, name=name + FLOAT) for node in graph.nodes for name in node.outputs
              if (info := graph.tensors.get(name)) is not None]
    whole = graph.rebuilt(nodes, tensors=[c for c in copies if isinstance(c, TensorInfo)])
    return replace(whole, outputs=tuple(floated(name) for name in graph.outputs))
