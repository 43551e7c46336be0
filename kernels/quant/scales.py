"""One scale for every integer tensor of a graph. Caller: `coding.py`, between calibration and lowering.

Tensors that Concat, Split, MaxPool, nearest Resize, Pad and the like join must share a scale (union-find); a Concat
member that would lose more than 3 dB by that leaves the group: a Requantise node is put in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..ir.errors import ModelError
from ..ir.graph import Graph, Node, TensorInfo
from ..passes.islands import coded_nodes, is_coded
from .calibrate import Histogram, best_scale, merged
from .contract import SMALLEST_SCALE

SHARING = frozenset({"Concat", "Split", "MaxPool", "Pad", "ChannelGather", "ZeroStuff"})
LARGEST_LOSS_DB = 3.0


@dataclass(frozen=True, slots=True)
class InputCode:
    """How the graph input is coded: type and scale. float32: it is not, and its scale is calibrated as any other's.
    `given`: scales of other tensors that a quantised model brings along."""

    dtype: str
    scale: float
    given: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scales:
    """The graph (with Requantise nodes), the scale of each tensor that may be an integer, and its group's name.

    `cuts`: ends to which codes of a quantised model cut a tensor, which float16 must do too.
    """

    graph: Graph
    scale: Mapping[str, float]
    input: InputCode
    ranges: Mapping[str, Histogram]
    group: Mapping[str, str]
    cuts: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def keeps_scale(node: Node) -> bool:
    """Whether a node only moves values: its input and output are one group. Not so a Resize between pixels."""
    return node.op in SHARING or (node.op == "Resize" and not any(any(p[3]) for p in node.attrs.get("positions", ())))


class _Groups:
    def __init__(self, graph: Graph) -> None:
        self.parent: dict[str, str] = {}
        self.coded = coded_nodes(graph)
        for node in graph.nodes:
            if keeps_scale(node) and node.name in self.coded:
                for name in (*node.inputs, *node.outputs):
                    if name and name not in graph.constants:
                        self.join(name, node.output)

    def find(self, name: str) -> str:
        while self.parent.setdefault(name, name) != name:
            name = self.parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        self.parent[self.find(a)] = self.find(b)


def group_names(graph: Graph) -> dict[str, str]:
    """Tensor -> the name of the group whose scale it shares; tensors that are alone are left out."""
    groups = _Groups(graph)
    return {name: groups.find(name) for name in list(groups.parent)}


def assign_scales(graph: Graph, ranges: Mapping[str, Histogram], code: InputCode, method: str = "mse") -> Scales:
    """`ranges` are of the unfused graph, whose tensor names the fused one keeps."""
    graph = _requantised(graph, ranges, code, method)
    groups = _Groups(graph)
    chosen = _group_scales(graph, groups, ranges, code, method)
    assert _worst_member(graph, groups, ranges, chosen, code, method) is None, "a member that should have left is there"
    every = [i.name for i in graph.inputs] + [name for node in graph.nodes for name in node.outputs]
    coded = [name for name in every if groups.find(name) in chosen]
    return Scales(graph, {n: chosen[groups.find(n)] for n in coded}, code, ranges, {n: groups.find(n) for n in coded})


def _members(graph: Graph, groups: _Groups, ranges: Mapping[str, Histogram], code: InputCode) -> dict[str, list[str]]:
    """The tensors that decide each group's scale: made by arithmetic, not brought in by a Requantise, and a float32
    graph input."""
    found: dict[str, list[str]] = {}
    made = [name for node in graph.nodes if node.op != "Requantise" and not (keeps_scale(node) and node.name in
            groups.coded) for name in node.outputs]
    inputs = [info.name for info in graph.inputs if code.dtype == "float32"]
    for name in (*inputs, *made):
        if name in ranges and is_coded(graph, groups.coded, name):
            found.setdefault(groups.find(name), []).append(name)
    return found


def deciding_members(scales: Scales) -> dict[str, list[str]]:
    """`_members` of finished scales, by the group's name."""
    return _members(scales.graph, _Groups(scales.graph), scales.ranges, scales.input)


def _group_scales(graph: Graph, groups: _Groups, ranges: Mapping[str, Histogram], code: InputCode,
                  method: str) -> dict[str, float]:
    members = _members(graph, groups, ranges, code)
    for name in (name for names in members.values() for name in names):
        if 0 < ranges[name].largest / 127 < SMALLEST_SCALE:
            raise ModelError(f"{graph.file}: tensor '{name}' has values of at most {ranges[name].largest:.3g}: its "
                             "scale underflows float32; scale the weights in front of it up, or build with --precision "
                             "fp32")
    chosen = {root: best_scale(merged(ranges[n] for n in names), method) for root, names in members.items()}
    brought: dict[str, list[str]] = {}                   # groups whose members have all left: made by Requantise alone
    for node in graph.nodes:
        if node.op == "Requantise" and (root := groups.find(node.output)) not in chosen and node.inputs[0] in ranges:
            brought.setdefault(root, []).append(node.inputs[0])
    chosen |= {root: best_scale(merged(ranges[n] for n in names), method) for root, names in brought.items()}
    if code.dtype != "float32":
        chosen |= {groups.find(info.name): code.scale for info in graph.inputs}
    return chosen | {groups.find(name): scale for name, scale in code.given.items()}


def _worst_member(graph: Graph, groups: _Groups, ranges: Mapping[str, Histogram], chosen: Mapping[str, float],
                  code: InputCode, method: str) -> tuple[Node, int] | None:
    """The Concat member that its group's scale hurts most, if by more than LARGEST_LOSS_DB."""
    inside = _members(graph, groups, ranges, code)
    pinned = {groups.find(info.name) for info in graph.inputs if code.dtype != "float32"}
    pinned |= {groups.find(name) for name in code.given}
    worst: tuple[float, Node, int] | None = None
    for node in graph.nodes:
        root = groups.find(node.output)
        if node.op != "Concat" or node.name not in groups.coded or root not in chosen:
            continue
        group = inside.get(root, [])
        if len(group) < 2 and root not in pinned:
            continue
        for index, name in enumerate(node.inputs):
            if name in group and (loss := loss_db(ranges[name], chosen[root], method)) > LARGEST_LOSS_DB \
                    and (worst is None or loss > worst[0]):
                worst = (loss, node, index)
    return None if worst is None else worst[1:]


def _requantised(graph: Graph, ranges: Mapping[str, Histogram], code: InputCode, method: str) -> Graph:
    """Puts a Requantise before each Concat member that the group's scale would hurt; from the worst, one at a time.

    Where the graph input gives the group its scale, that is what leaves it: no other member could be cut off less. A
    uint8 input leaves wherever it meets int8 codes.
    """
    while code.dtype == "uint8" and (mixed := _meets_input(graph)) is not None:
        graph = _insert(graph, *mixed)
    while True:
        groups = _Groups(graph)
        chosen = _group_scales(graph, groups, ranges, code, method)
        worst = _worst_member(graph, groups, ranges, chosen, code, method)
        if worst is None:
            return graph
        node, index = worst
        given = {groups.find(name) for name in code.given}
        if code.dtype != "float32" and groups.find(node.output) not in given:
            moved = _moved_inputs(graph)
            index = next((i for i, name in enumerate(node.inputs) if name in moved), index)
        graph = _insert(graph, node, index)


def _moved_inputs(graph: Graph) -> set[str]:
    """The graph inputs and what only moves their values."""
    found = {info.name for info in graph.inputs}
    for node in graph.nodes:
        if keeps_scale(node) and any(name in found for name in node.inputs):
            found.update(node.outputs)
    return found


def _meets_input(graph: Graph) -> tuple[Node, int] | None:
    """The first Concat in the body that joins values of the graph input with others, and where they come in."""
    moved, coded = _moved_inputs(graph), coded_nodes(graph)
    for node in graph.nodes:
        if node.op == "Concat" and node.name in coded and not moved.issuperset(node.inputs):
            for index, name in enumerate(node.inputs):
                if name in moved:
                    return node, index
    return None


def loss_db(histogram: Histogram, shared: float, method: str) -> float:
    own = histogram.squared_error(best_scale(histogram, method))
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
