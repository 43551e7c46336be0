"""Which nodes of a body are float16 when some layers are, and the Convert nodes where types meet.

Callers: `mixed.py`, `build.py`. Layers with arithmetic are chosen; nodes that only move values follow: float16 where
they lie between float16 layers. A tensor is converted once for all its readers of the other type; what an island
(passes/islands.py) or a float32 graph input brings is converted for all that read it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from ..ir.graph import Array, Graph, Node, TensorInfo
from ..passes.fuse_convolutions import RESIDUAL
from ..passes.islands import body_images, coded_nodes, is_coded
from ..passes.layouts import assign_layouts
from ..passes.merge_parallel import part_outputs
from ..passes.release_pairs import ends_of_clip
from .scales import keeps_scale

HALF, CODES, PIXELS, FLOAT = "float16", "int8", "uint8", "float32"
SUFFIXES = {HALF: "@half", CODES: "@int8", FLOAT: "@float32"}
SIGNED = "@signed"
"""Suffix of a uint8 graph input's int8 form, whose scale is that of the input times SIGNED_STEP."""
SIGNED_STEP = 255 / 127
UNCUT = "@uncut"
"""Suffix of a float16 tensor in front of the Clip that its codes would be."""
CUT = "@cut"
"""Suffix of what readers of codes see of a float32 tensor, where all is float32."""
JOINS = frozenset({"Add", "Sub", "Mul"})


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


def spread_to_moves(graph: Graph, layers: Collection[str], coded: Collection[str],
                    floats: Collection[str] = ()) -> frozenset[str]:
    """`layers` and the moving nodes that both come from and lead to float16; parts are what the whole is. `floats`:
    graph inputs in float32, which come as float16 where that is what reads them."""
    moving = [node for node in graph.nodes if node.name in coded and moves(node)]
    comes = {*floats, *(name for node in graph.nodes if node.name in layers for name in node.outputs)}
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


def place_conversions(graph: Graph, layers: Collection[str], input_dtype: str = CODES,
                      cuts: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> tuple[Graph, frozenset[str]]:
    """The graph with Convert nodes (attribute `to`), and all its float16 nodes.

    `input_dtype`: type of the graph input; float32 has no codes of its own, and uint8 codes that are joined with int8
    ones are brought to them by a Requantise (suffix SIGNED). A Requantise between float16 nodes has nothing to do and
    goes. Tensors among `cuts` are cut to these ends where they are float16, as their codes would be: by the convolution
    that makes them, or by a Clip; those in float32 where they become float16.
    """
    coded, images = coded_nodes(graph), body_images(graph)
    tail = {node.name for node in assign_layouts(graph).image_nodes} - images
    inputs = [info.name for info in graph.inputs]
    half = spread_to_moves(graph, layers, coded, inputs if input_dtype == FLOAT else ())
    kind = dict.fromkeys(inputs, FLOAT if input_dtype == FLOAT else "input")
    nodes: list[Node] = []
    tensors: list[TensorInfo] = []
    constants: dict[str, Array] = {}
    clips: set[str] = set()
    converted: dict[str, str] = {}
    alias: dict[str, str] = {}

    def taken(name: str, want: str, joined: bool) -> str:
        name = alias.get(name, name)
        have = kind.get(name)
        signed = have == "input" and want == CODES and joined and input_dtype == PIXELS
        if have is None or have == want or (have == "input" and want == CODES and not signed):
            return name
        other = name + (SIGNED if signed else SUFFIXES[want])
        if other not in converted:
            converted[other] = name
            if have == FLOAT and want == HALF and name in cuts:
                whole = other + UNCUT
                nodes.append(Node(whole, "Convert", (name,), (whole,), {"to": want}))
                nodes.append(_clip(graph, other, (whole, other), cuts[name], constants))
                clips.add(other)
                tensors.extend(TensorInfo(made, graph.shape(name)) for made in (whole, other))
                return other
            nodes.append(Node(other, "Requantise", (name,), (other,)) if signed else
                         Node(other, "Convert", (name,), (other,), {"to": want}))
            tensors.append(TensorInfo(other, graph.shape(name)))
        return other
    for node in graph.nodes:
        if node.name not in images:
            if node.name in tail:                            # it keeps its input's type: codes have no scale there
                node = replace(node, inputs=tuple(taken(name, FLOAT, False) for name in node.inputs))
            nodes.append(node)
            kind.update(dict.fromkeys(node.outputs, FLOAT))
            continue
        want = FLOAT if node.name not in coded else HALF if node.name in half else CODES
        reads = tuple(taken(name, want, node.op in JOINS or index == RESIDUAL)
                       if name and name not in graph.constants else name for index, name in enumerate(node.inputs))
        if node.op == "Requantise" and want == HALF and node.output not in cuts:
            alias[node.output] = reads[0]
            continue
        made = [replace(node, inputs=reads)]
        if want == HALF and cuts.keys() & set(node.outputs):
            made, added = _cut(graph, made[0], cuts, constants)
            tensors += added
            clips.update(part.name for part in made)
        nodes += made
        if want == CODES and keeps_scale(node) and all(kind.get(name) == "input" for name in reads if name not in
                                                       graph.constants):
            kind.update(dict.fromkeys(node.outputs, "input"))
            continue
        ends = not any(is_coded(graph, coded, name) for name in node.outputs)
        kind.update(dict.fromkeys(node.outputs, FLOAT if ends else want))
    return graph.rebuilt(nodes, constants=constants, tensors=tensors), half | clips


def with_cuts(graph: Graph, cuts: Mapping[str, tuple[float, float]]) -> Graph:
    """A graph without types in which every tensor among `cuts` stays within them; one that an island makes only for
    readers of codes, by another name (CUT)."""
    coded = coded_nodes(graph)
    nodes: list[Node] = []
    tensors: list[TensorInfo] = []
    constants: dict[str, Array] = {}
    alias: dict[str, str] = {}
    for node in graph.nodes:
        if node.name in coded:
            node = replace(node, inputs=tuple(alias.get(name, name) for name in node.inputs))
            made, added = _cut(graph, node, cuts, constants) if cuts.keys() & set(node.outputs) else ([node], [])
            nodes += made
            tensors += added
            continue
        nodes.append(node)
        for name in cuts.keys() & set(node.outputs):
            alias[name] = name + CUT
            nodes.append(_clip(graph, name + CUT, (name, name + CUT), cuts[name], constants))
            tensors.append(TensorInfo(name + CUT, graph.shape(name)))
    return graph.rebuilt(nodes, constants=constants, tensors=tensors)


def _cut(graph: Graph, node: Node, cuts: Mapping[str, tuple[float, float]],
         constants: dict[str, Array]) -> tuple[list[Node], list[TensorInfo]]:
    """A node whose outputs stay within `cuts`; the ends of Clips go to `constants`."""
    if node.op == "Conv" and not part_outputs(graph, node.output):
        low, high = cuts[node.output]
        least, most = node.attrs.get("bounds", (None, None))
        bounds = (low if least is None else max(low, least), high if most is None else min(high, most))
        return [node.with_attrs(bounds=bounds)], []
    names = {name: name + UNCUT for name in node.outputs if name in cuts}
    made = [replace(node, outputs=tuple(names.get(name, name) for name in node.outputs))]
    if node.op == "Requantise":                              # it only cuts
        made, names = [], {node.output: node.inputs[0]}
    for name, whole in names.items():
        made.append(_clip(graph, f"{name}/cut", (whole, name), cuts[name], constants))
    return made, [TensorInfo(whole, graph.shape(name)) for name, whole in names.items() if whole not in node.inputs]


def _clip(graph: Graph, name: str, from_to: tuple[str, str], ends: tuple[float, float],
          constants: dict[str, Array]) -> Node:
    return Node(name, "Clip", (from_to[0], *ends_of_clip(graph, name, ends, constants)), from_to[1:])
