"""Between which values an integer tensor must be held: those that it can have, cut to what its readers tell apart.

Callers: `imported.py`, `views.py`. Forwards: the file's ranges, those of calibration, and bounds of operators
(`passes/intervals.py`). Backwards: behind a pair, a Clip or a Relu all values beyond its ends are the same, and so they
are in front of what only moves values; a term of a sum that is cut matters as far as the other terms can bring the sum
back inside. Cutting a tensor to such a range changes nothing at the outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import Graph, Node
from ..passes.fuse_convolutions import POST, PRE, RESIDUAL, SUM
from ..passes.intervals import FAR, OPEN, Intervals, grid
from ..passes.islands import coded_nodes
from ..passes.lower_f32 import clip_bounds
from ..passes.release_pairs import range_of
from .scales import keeps_scale

Range = tuple[float, float]
NOTHING = (0.0, 0.0)


def is_finite(ends: Range) -> bool:
    return bool(np.isfinite(ends).all())


def hull(parts: list[Range]) -> Range:
    """The least range with all of them."""
    return (min(low for low, _ in parts), max(high for _, high in parts)) if parts else NOTHING


def cut(ends: Range, to: Range) -> Range:
    """`ends`, each brought to the nearest value of `to`."""
    low, high = (float(np.clip(end, *to)) for end in ends)
    return low, high


def table_range(node: Node) -> Range:
    """Between which values the activation of a fused convolution stays, before a sum."""
    before = node.attrs.get(PRE, OPEN)
    y = np.clip(ACTIVATIONS[node.attrs["activation"]](grid(*before), node.attrs["activation_attrs"]),
                *node.attrs.get(POST, OPEN))
    low, high = float(y.min()), float(y.max())
    return low if low > -FAR / 10 else -np.inf, high if high < FAR / 10 else np.inf


def bounds_of(node: Node) -> Range:
    """The bounds of a fused convolution."""
    low, high = node.attrs.get("bounds", (None, None))
    return -np.inf if low is None else low, np.inf if high is None else high


class Values:
    """Forwards: the values that each tensor of a fused graph can have, as far as they are `known`."""

    def __init__(self, graph: Graph, known: Mapping[str, Range]) -> None:
        self.graph, self.known = graph, known
        self.seen = Intervals(graph)
        self.tables: dict[str, Range] = {}                   # by node: what a table gives to a sum
        for info in graph.inputs:
            self._narrow(info.name, OPEN)
        for node in graph.nodes:
            self.seen.see(node)
            for name in node.outputs:
                if name:
                    self._narrow(name, self._fused(node) if node.op == "Conv" else OPEN)

    def of(self, name: str) -> Range:
        return self.seen.of(name)

    def name_copy(self, copy: str, name: str) -> None:
        """`copy` has the values of `name`."""
        self.seen.assume(copy, *self.of(name))

    def _narrow(self, name: str, more: Range) -> None:
        ends = self.of(name)
        low, high = cut(cut(ends, self.known.get(name, OPEN)), more)
        if (low, high) != ends:
            self.seen.assume(name, low, high)

    def _fused(self, node: Node) -> Range:
        low, high = table_range(node) if "activation" in node.attrs else OPEN
        if SUM in node.attrs:
            low, high = self.tables[node.name] = cut((low, high), self.known.get(node.attrs[SUM].table, OPEN))
        if len(node.inputs) > RESIDUAL:
            other = self.of(node.inputs[RESIDUAL])
            low, high = low + other[0], high + other[1]
        return cut((low, high), bounds_of(node))


def beside(total: Range, other: Range) -> Range:
    """Which values of a term matter to a sum of which `total` is seen, where the other term is in `other`."""
    return total[0] - other[1], total[1] - other[0]


def matters(node: Node, name: str, values: Values, demand: Mapping[str, Range], coded: Collection[str],
            sums: bool = True) -> Range:
    """Which values of its input `name` a node tells apart, where `demand` is what matters of its outputs.

    `sums`: also in front of a sum, by the other terms.
    """
    if node.op == "FakeQuantise":                            # a Clip where float32 arithmetic alone reads it
        return range_of(node)
    out = hull([demand.get(output, OPEN) for output in node.outputs]) if node.name in coded else OPEN
    if node.op in ("Clip", "Relu"):
        low, high = clip_bounds(node, values.graph)
        return cut(out, (-np.inf if low is None else low, np.inf if high is None else high))
    if node.name not in coded or keeps_scale(node) or node.op == "Requantise":
        return out
    if not sums or not is_finite(out):
        return OPEN
    if node.op in ("Add", "Sub") and len(node.inputs) == 2 and node.inputs[0] != node.inputs[1]:
        other = values.of(node.inputs[1 if node.inputs[0] == name else 0])
        if node.op == "Add":
            return beside(out, other)
        return (out[0] + other[0], out[1] + other[1]) if node.inputs[0] == name else beside(other, out)
    if node.op == "Conv" and node.inputs[RESIDUAL:] == (name,) and name != node.inputs[0]:
        return beside(cut(out, bounds_of(node)), values.tables.get(node.name, OPEN))
    return OPEN


def demands(values: Values, sums: bool) -> dict[str, Range]:
    """Backwards: which values of each tensor matter to any of its readers; of what float32 arithmetic makes, to those
    that read it as codes."""
    graph, coded = values.graph, coded_nodes(values.graph)
    islands = {name for node in graph.nodes if node.name not in coded for name in node.outputs}
    parts: dict[str, list[Range]] = {name: [OPEN] for name in graph.outputs if name not in islands}
    found: dict[str, Range] = {}
    for node in reversed(graph.nodes):
        found |= {name: hull(parts.get(name, [])) for name in node.outputs}
        for name in dict.fromkeys(node.inputs):
            if node.name in coded or name not in islands:
                parts.setdefault(name, []).append(matters(node, name, values, found, coded, sums))
    return found | {info.name: hull(parts.get(info.name, [])) for info in graph.inputs}
