"""Which nodes of a body are float16 when some layers are, and the Convert nodes where types meet.

Callers: `mixed.py`, `build.py`. Layers with arithmetic are chosen; nodes that only move values follow: float16 where
they lie between float16 layers. A tensor is converted once for all its readers of the other type; what an island
(passes/islands.py) or a float32 graph input brings is converted for all that read it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ..ir.graph import Graph, Node, TensorInfo
from ..passes.islands import body_images, coded_nodes, is_coded
from .scales import keeps_scale

HALF, CODES, FLOAT = "float16", "int8", "float32"
SUFFIXES = {HALF: "@half", CODES: "@int8", FLOAT: "@float32"}


def moves(node: Node) -> bool:
    """Whether a node has no arithmetic of its own."""
    return keeps_scale(node) or node.op == "Requantise"


def layers_of(graph: Graph) -> tuple[str, ...]:
    """Names of the body's nodes that can be float16 or int8 on their own, in order."""
    coded = coded_nodes(graph)
    return tuple(node.name for node in graph.nodes if node.name in coded and not moves(node))


def unsuffixed(name: str) -> str:
    """The tensor that a Convert node's output is a form of."""
    for suffix in SUFFIXES.values():
        name = name.removesuffix(suffix)
    return name


def spread_to_moves(graph: Graph, layers: Collection[str], coded: Collection[str]) -> frozenset[str]:
    """`layers` and the moving nodes that both come from and lead to float16; parts are what the whole is."""
    moving = [node for node in graph.nodes if node.name in coded and moves(node)]
    comes = {name for node in graph.nodes if node.name in layers for name in node.outputs}
    for node in moving:
        if any(name in comes for name in node.inputs):
            comes.update(node.outputs)
    leads = {name for node in graph.nodes if node.name in layers for name in node.inputs}
    for node in reversed(moving):
        if any(name in leads for name in node.outputs):
            leads.update(node.inputs)
    between = {node.name for node in moving if any(name in comes for name in node.inputs)
               and any(name in leads for name in node.outputs)}
    made = {name for node in graph.nodes if node.name in layers for name in node.outputs}
    views = {node.name for node in moving if node.attrs.get("parts") and node.inputs[0] in made}
    return frozenset(layers) | between | views


def place_conversions(graph: Graph, layers: Collection[str], float_input: bool = False) -> tuple[Graph, frozenset[str]]:
    """The graph with Convert nodes (attribute `to`), and all its float16 nodes.

    `float_input`: the graph input has no codes of its own. A Requantise between float16 nodes has nothing to do and
    goes.
    """
    coded, images = coded_nodes(graph), body_images(graph)
    half = spread_to_moves(graph, layers, coded)
    kind = {info.name: FLOAT if float_input else "input" for info in graph.inputs}
    nodes: list[Node] = []
    tensors: list[TensorInfo] = []
    converted: dict[str, str] = {}
    alias: dict[str, str] = {}

    def taken(name: str, want: str) -> str:
        name = alias.get(name, name)
        have = kind.get(name)
        if have is None or have == want or (have == "input" and want == CODES):
            return name
        other = name + SUFFIXES[want]
        if other not in converted:
            converted[other] = name
            nodes.append(Node(other, "Convert", (name,), (other,), {"to": want}))
            tensors.append(TensorInfo(other, graph.shape(name)))
        return other
    for node in graph.nodes:
        if node.name not in images:
            nodes.append(node)
            kind.update(dict.fromkeys(node.outputs, FLOAT))
            continue
        want = FLOAT if node.name not in coded else HALF if node.name in half else CODES
        inputs = tuple(taken(name, want) if name and name not in graph.constants else name for name in node.inputs)
        if node.op == "Requantise" and want == HALF:
            alias[node.output] = inputs[0]
            continue
        nodes.append(replace(node, inputs=inputs))
        ends = not any(is_coded(graph, coded, name) for name in node.outputs)
        kind.update(dict.fromkeys(node.outputs, FLOAT if ends else want))
    return graph.rebuilt(nodes, tensors=tensors), half
