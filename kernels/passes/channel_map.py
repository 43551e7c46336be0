"""Channel map: where each image's logical channels lie, so that concat, split and padding cost nothing where possible.

Caller: `lower.py`. Every image is a run of segments of one buffer (its root); segments are cut where a Split or Concat
needs a boundary, and each starts at a physical channel that is a multiple of 16. A Concat's parts that nobody else
placed are made in the Concat's buffer; the others are copied. The graph input keeps its own channel count (its pixels
come from outside).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ..ir.graph import Graph, Node
from ..ir.program import UNIT

SAME_MAP = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Add", "Sub", "Mul", "Clip",
                      "Requantise", "Convert", "Relu", "Sigmoid", "SiLU", "Tanh", "LeakyRelu", "HardSigmoid",
                      "HardSwish", "Gelu", "GeluTanh", "Mish", "Elu", "Selu", "Softplus", "ZeroStuff", "FakeQuantise"})
Cuts = dict[str, set[int]]


@dataclass(frozen=True, slots=True)
class View:
    """Segments `first` up to `first + len(sizes)` of the buffer `root`; `sizes` are logical channel counts."""

    root: str
    first: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChannelMap:
    views: Mapping[str, View]
    roots: Mapping[str, tuple[int, ...]]              # segment sizes of each buffer
    copied: frozenset[tuple[str, int]]                # (Concat node, input index) that need a copy
    tight: frozenset[str]                             # buffers without channel padding

    def starts(self, root: str) -> list[int]:
        """Physical start of each segment of a buffer, and its physical channel count."""
        at = [0]
        for size in self.roots[root]:
            at.append(at[-1] + (size if root in self.tight else -(-size // UNIT) * UNIT))
        return at


def _relations(graph: Graph, node: Node, images: Collection[str]) -> list[tuple[str, str, int]]:
    """(part, whole, offset): a cut of the whole at offset + k is a cut of the part at k, and the other way round."""
    if node.op == "Concat":
        found, at = [], 0
        for name in node.inputs:
            found.append((name, node.output, at))
            at += graph.shape(name)[1]
        return found
    if node.op == "Split":
        found, at = [], 0
        for name in node.outputs:
            found.append((name, node.inputs[0], at))
            at += graph.shape(name)[1]
        return found
    if node.op in SAME_MAP:
        return [(name, node.output, 0) for name in node.inputs if name in images]
    if node.op == "Conv":
        found = [(node.inputs[3], node.output, 0)] if len(node.inputs) > 3 else []
        channels = graph.shape(node.inputs[0])[1]
        if node.attrs["group"] == channels == graph.shape(node.output)[1]:
            found.append((node.inputs[0], node.output, 0))
        return found
    return []


def find_cuts(graph: Graph, nodes: Collection[Node], images: Collection[str]) -> Cuts:
    """Inner boundaries of every image's channels: the least set that all relations agree on."""
    cuts: Cuts = {name: set() for name in images}
    relations = [r for node in nodes for r in _relations(graph, node, images)]
    for part, whole, offset in relations:
        cuts[whole] |= {offset, offset + graph.shape(part)[1]} - {0, graph.shape(whole)[1]}
    changed = True
    while changed:
        changed = False
        for part, whole, offset in relations:
            size = graph.shape(part)[1]
            inner = {c - offset for c in cuts[whole] if 0 < c - offset < size}
            outer = {c + offset for c in cuts[part]}
            if not inner <= cuts[part] or not outer <= cuts[whole]:
                cuts[part] |= inner
                cuts[whole] |= outer
                changed = True
    return cuts


def map_channels(graph: Graph, nodes: Collection[Node], images: Collection[str], pinned: Collection[str]) -> ChannelMap:
    """The map of all `images`, of which `nodes` are the image nodes; `pinned` (graph inputs) are never moved."""
    cuts = find_cuts(graph, nodes, images)
    sizes: dict[str, tuple[int, ...]] = {}
    for name in images:
        edges = [0, *sorted(cuts[name]), graph.shape(name)[1]]
        sizes[name] = tuple(b - a for a, b in pairwise(edges))
    inside: dict[str, tuple[str, int]] = {}           # tensor -> (tensor it is a part of, first segment there)

    def resolve(name: str) -> tuple[str, int]:
        first = 0
        while name in inside:
            name, at = inside[name]
            first += at
        return name, first

    for node in nodes:
        if node.op == "Split":
            at = 0
            for name in node.outputs:
                inside[name] = (node.inputs[0], at)
                at += len(sizes[name])
    copied: set[tuple[str, int]] = set()
    for node in nodes:
        if node.op == "Concat":
            _place_parts(node, sizes, inside, resolve, copied, pinned)
    views, roots = {}, {}
    for name in images:
        root, first = resolve(name)
        views[name] = View(root, first, sizes[name])
        roots[root] = sizes[root]
    return ChannelMap(views, roots, frozenset(copied), frozenset(n for n in pinned if n in roots))


def _place_parts(node: Node, sizes: Mapping[str, tuple[int, ...]], inside: dict[str, tuple[str, int]],
                 resolve: object, copied: set[tuple[str, int]], pinned: Collection[str]) -> None:
    """Puts each whole root that a run of the Concat's inputs covers into the Concat's buffer; copies the rest."""
    assert callable(resolve)
    at, index = 0, 0
    while index < len(node.inputs):
        root, first = resolve(node.inputs[index])
        end, covered = index, 0
        while end < len(node.inputs) and resolve(node.inputs[end]) == (root, first + covered):
            covered += len(sizes[node.inputs[end]])
            end += 1
        free = first == 0 and covered == len(sizes[root]) and root not in pinned and root != resolve(node.output)[0]
        if free:
            inside[root] = (node.output, at)
            at, index = at + covered, end
        else:
            copied.add((node.name, index))
            at, index = at + len(sizes[node.inputs[index]]), index + 1
    return
