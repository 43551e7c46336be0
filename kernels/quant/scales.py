"""One scale for every integer tensor of a graph. Caller: `build.py`, between calibration and lowering.

Tensors that Concat, Split, MaxPool, Resize and Pad join must share a scale (union-find); a Concat member that would
lose more than 3 dB by that leaves the group: a Requantise node is put in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..ir.graph import Graph, Node, TensorInfo
from .calibrate import Histogram, best_scale, merged

SHARING = frozenset({"Concat", "Split", "MaxPool", "Resize", "Pad"})
LARGEST_LOSS_DB = 3.0


@dataclass(frozen=True, slots=True)
class InputCode:
    """How the graph input is coded: type and scale."""

    dtype: str
    scale: float


@dataclass(frozen=True, slots=True)
class Scales:
    """The graph (with Requantise nodes) and the scale of each tensor that may be an integer."""

    graph: Graph
    scale: Mapping[str, float]
    input: InputCode
    ranges: Mapping[str, Histogram]


class _Groups:
    def __init__(self, graph: Graph) -> None:
        self.parent: dict[str, str] = {}
        for node in graph.nodes:
            if node.op in SHARING and len(graph.shape(node.output)) == 4:
                for name in (*node.inputs, *node.outputs):
                    if name and name not in graph.constants:
                        self.join(name, node.output)

    def find(self, name: str) -> str:
        while self.parent.setdefault(name, name) != name:
            name = self.parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(a)] = self.find(b)


def assign_scales(graph: Graph, ranges: Mapping[str, Histogram], code: InputCode) -> Scales:
    """`ranges` are of the unfused graph, whose tensor names the fused one keeps."""
    graph = _requantised(graph, ranges, code)
    groups = _Groups(graph)
    members: dict[str, list[str]] = {}
    made = [(n.output, n.inputs[0] if n.op == "Requantise" else n.output) for n in graph.nodes if n.op not in SHARING]
    for name, source in made:
        if source in ranges and len(graph.shape(name)) == 4:
            members.setdefault(groups.find(name), []).append(source)
    chosen = {root: best_scale(merged(ranges[n] for n in names)) for root, names in members.items()}
    for info in graph.inputs:
        chosen[groups.find(info.name)] = code.scale
    every = [i.name for i in graph.inputs] + [name for node in graph.nodes for name in node.outputs]
    return Scales(graph, {n: chosen[groups.find(n)] for n in every if groups.find(n) in chosen}, code, ranges)


def _requantised(graph: Graph, ranges: Mapping[str, Histogram], code: InputCode) -> Graph:
    """Puts a Requantise before each Concat member that the group's scale would hurt; from the worst, one at a time."""
    while True:
        groups = _Groups(graph)
        sources: dict[str, set[str]] = {}
        for node in graph.nodes:
            if node.op not in SHARING and node.output in ranges and node.op != "Requantise":
                sources.setdefault(groups.find(node.output), set()).add(node.output)
        worst: tuple[float, Node, int] | None = None
        for node in graph.nodes:
            if node.op != "Concat" or node.name not in graph.body:
                continue
            group = sources.get(groups.find(node.output), set())
            if len(group) < 2:
                continue
            shared = best_scale(merged(ranges[n] for n in group))
            for index, name in enumerate(node.inputs):
                if name in group and (loss := _loss_db(ranges[name], shared)) > LARGEST_LOSS_DB \
                        and (worst is None or loss > worst[0]):
                    worst = (loss, node, index)
        if worst is None:
            return graph
        graph = _insert(graph, worst[1], worst[2])


def _loss_db(histogram: Histogram, shared: float) -> float:
    own = histogram.squared_error(best_scale(histogram))
    return 10 * float(np.log10(max(histogram.squared_error(shared), 1e-30) / max(own, 1e-30)))


def _insert(graph: Graph, concat: Node, index: int) -> Graph:
    source = concat.inputs[index]
    name = f"{concat.name}/requantise{index}"
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name == concat.name:
            nodes.append(Node(name, "Requantise", (source,), (name,)))
            inputs = (*node.inputs[:index], name, *node.inputs[index + 1:])
            node = replace(node, inputs=inputs)
        nodes.append(node)
    return graph.rebuilt(nodes, tensors=[TensorInfo(name, graph.shape(source))])
