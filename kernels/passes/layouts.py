"""Pass: decides which tensors are NHWC images and which are flat, and puts ToFlat / FromFlat nodes between them.

Caller: `lower.py`. The body is images; the tail is flat (ONNX's own order) except for poolings and upsampling. After
this pass every tensor is of one kind; `images` lists the images. The graph input has the channels that come from
outside, without padding: a node that needs them where those of another tensor lie reads a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.graph import Graph, Node, TensorInfo
from .channel_map import SAME_MAP, find_cuts

ALWAYS = frozenset({"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "ZeroStuff", "Convert"})
PADDED = "@padded"
"""Suffix of the copy of a graph input whose channels are padded as those of all other images."""
IN_BODY = SAME_MAP | {"Concat", "Split", "Pad", "ChannelGather"}


@dataclass(frozen=True, slots=True)
class Layouts:
    graph: Graph
    images: frozenset[str]
    image_nodes: tuple[Node, ...]
    body: frozenset[str]


def _is_image_node(graph: Graph, node: Node, body: frozenset[str]) -> bool:
    live = [name for name in node.inputs if name and name not in graph.constants]
    shapes = [graph.shape(name) for name in (*live, *node.outputs)]
    if any(len(shape) != 4 or shape[0] != 1 for shape in shapes):
        return False
    if node.op == "AveragePool" and max(node.attrs["dilations"]) > 1:
        return False
    if node.op in ALWAYS:
        return True
    if node.op not in IN_BODY or node.name not in body:
        return False
    if node.op == "Pad" and (node.attrs or (node.inputs[2:] and graph.constants[node.inputs[2]].any())):
        return False
    if node.op in ("Concat", "Split"):
        return node.attrs.get("axis", 0) % 4 == 1 and (node.op == "Split" or len(live) == len(node.inputs))
    if node.op in ("Add", "Sub", "Mul"):
        gate = node.op == "Mul" and any(graph.shape(n)[2:] == (1, 1) for n in live)
        same = len({graph.shape(n)[1] for n in live}) == 1
        return len(live) == 2 and (len({graph.shape(n) for n in live}) == 1 or (gate and same))
    return True


def assign_layouts(graph: Graph) -> Layouts:
    body = graph.body
    images = {i.name for i in graph.inputs if len(i.shape) == 4 and i.shape[0] == 1}
    nodes: list[Node] = []
    image_nodes: list[Node] = []
    tensors: dict[str, TensorInfo] = {}
    made: set[str] = set()

    def converted(name: str, want_image: bool) -> str:
        if not name or name in graph.constants or (name in images) == want_image:
            return name
        other = f"{name}@{'image' if want_image else 'flat'}"
        if other not in made:
            made.add(other)
            nodes.append(Node(other, "FromFlat" if want_image else "ToFlat", (name,), (other,)))
            tensors[other] = TensorInfo(other, graph.shape(name))
            if want_image:
                images.add(other)
        return other

    for node in graph.nodes:
        image = _is_image_node(graph, node, body)
        node = replace(node, inputs=tuple(converted(name, image) for name in node.inputs))
        nodes.append(node)
        if image:
            image_nodes.append(node)
            images.update(node.outputs)
    outputs = tuple(converted(name, False) for name in graph.outputs)
    whole = replace(graph.rebuilt(nodes, tensors=tensors.values()), outputs=outputs)
    return _with_padded_inputs(Layouts(whole, frozenset(images), tuple(image_nodes), body))


def _need_padding(found: Layouts, name: str) -> frozenset[str]:
    """Names of the nodes that join the graph input `name` with another image, or pass on channels that are cut."""
    names = {node.name for node in found.image_nodes}
    readers = [node for node in found.graph.consumers.get(name, ()) if node.name in names]
    joins = {node.name for node in readers if node.op in ("Add", "Sub", "Mul") or name in node.inputs[3:]}
    passing = {node.name for node in readers if node.op in SAME_MAP | {"Split"}}
    cut = passing - joins and find_cuts(found.graph, found.image_nodes, found.images)[name]
    return frozenset(joins | passing if cut else joins)


def _with_padded_inputs(found: Layouts) -> Layouts:
    graph, images = found.graph, found.images
    names = {node.name for node in found.image_nodes}
    nodes, infos = list(graph.nodes), []
    for info in graph.inputs:
        readers = _need_padding(found, info.name) if info.name in images else ()
        if not readers:
            continue
        other = info.name + PADDED
        copy = Node(other, "ChannelGather", (info.name,), (other,), {"channels": tuple(range(info.shape[1]))})
        nodes = [copy, *(replace(node, inputs=tuple(other if name == info.name else name for name in node.inputs))
                         if node.name in readers else node for node in nodes)]
        names.add(other)
        infos.append(replace(info, name=other))
    if not infos:
        return found
    padded = graph.rebuilt(nodes, tensors=infos)
    return Layouts(replace(padded, outputs=graph.outputs), images | {info.name for info in infos},
                   tuple(node for node in padded.nodes if node.name in names), found.body)
