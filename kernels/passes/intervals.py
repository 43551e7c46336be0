"""Between which values a tensor provably stays: bounds of operators, and functions of one tensor evaluated on a grid.

Callers: `release_pairs.py`, `quant/imported.py`: a range of codes that no value leaves needs no Clip; `quant/held.py`.
A tensor that is computed element by element from one other (SiLU out of Sigmoid and Mul, GELU out of Erf) is known as
that function's values over the other's interval, so that x * Sigmoid(x) is not taken for any product. Unknown means
without bounds; bounds from a grid are right to its step, which is far below a code's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.elementwise import ACTIVATIONS, ELEMENTWISE
from ..ir.graph import Array, Graph, Node

POINTWISE = frozenset(ACTIVATIONS) | {"Identity", "Dropout", "Clip", "Neg", "Abs", "Exp", "Erf", "Add", "Sub", "Mul",
                                      "Max", "Min", "Softsign", "Celu"}
"""Continuous, so that a grid bounds them."""
MOVES = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Concat", "Split", "Resize", "Pad",
                   "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "Tile",
                   "DepthToSpace", "SpaceToDepth", "Max", "Min", "Mean", "Where", "Requantise", "Convert",
                   "ChannelGather"})
"""No output beyond the least and the largest of the inputs, or beyond 0 where zeros are filled in."""
FILLS = frozenset({"Pad", "AveragePool"})
FAR = 1e4
"""The ends of an open interval on the grid; what reaches it has no bound."""
OPEN = (-np.inf, np.inf)


def grid(low: float, high: float) -> Array:
    """Points of an interval: even ones, dense ones around 0, and far ones where it is open."""
    least, most = max(low, -FAR), min(high, FAR)
    far = np.geomspace(16, FAR, 200)
    points = np.concatenate([np.linspace(least, most, 2049), np.linspace(-16, 16, 4097), far, -far])
    return np.asarray(np.clip(points, least, most))


@dataclass(frozen=True)
class _Known:
    """An interval, and values over the points of the tensor that this one is a function of. float64."""

    low: float
    high: float
    points: Array
    values: Array


def _interval(low: float, high: float) -> _Known:
    """A tensor that is a function of none but itself."""
    points = grid(low, high)
    return _Known(low, high, points, points)


class Intervals:
    """Filled node by node, in the graph's order, by `see`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[str, Array] = dict(graph.constants)
        self.known: dict[str, _Known] = {}
        for info in graph.inputs:
            if info.dtype == "uint8":
                self.assume(info.name, 0.0, 255.0)

    def of(self, name: str) -> tuple[float, float]:
        """(least, largest), infinite where unknown."""
        if name in self.constants:
            value = self.constants[name]
            return (float(value.min()), float(value.max())) if value.size and value.dtype.kind in "fiu" else OPEN
        known = self.known.get(name)
        return OPEN if known is None else (known.low, known.high)

    def assume(self, name: str, low: float, high: float) -> None:
        """From here on the tensor is taken to stay in this interval."""
        self.known[name] = _interval(low, high)

    def stays(self, name: str, low: float, high: float, slack: float) -> bool:
        """Whether the tensor leaves low..high by at most `slack`."""
        least, largest = self.of(name)
        return least >= low - slack and largest <= high + slack

    def see(self, node: Node) -> None:
        """Bounds of what a node makes."""
        live = [name for name in node.inputs if name and name not in self.constants]
        found = self._function(node, live) or _interval(*self._bounds(node, live))
        self.known.update((name, found) for name in node.outputs if name)

    def _function(self, node: Node, live: list[str]) -> _Known | None:
        """A node as a function of one tensor; None where it is none of which a grid tells the bounds."""
        fixed = [self.constants[name] for name in node.inputs if name in self.constants]
        if node.op not in POINTWISE or not live or any(v.size != 1 or v.dtype.kind != "f" for v in fixed):
            return None
        parts = {name: self.known.setdefault(name, _interval(*OPEN)) for name in live}
        points = parts[live[0]].points
        if any(part.points is not points for part in parts.values()):
            return None
        inputs = [None if not name else parts[name].values if name in parts else
                  self.constants[name].astype(np.float64).reshape(()) for name in node.inputs]
        with np.errstate(all="ignore"):
            y = np.asarray(ELEMENTWISE[node.op](node, *inputs), dtype=np.float64)
        if np.isnan(y).any():
            return None
        low, high = float(y.min()), float(y.max())
        return _Known(low if low > -FAR / 10 else -np.inf, high if high < FAR / 10 else np.inf, points, y)

    def _bounds(self, node: Node, live: list[str]) -> tuple[float, float]:
        """An interval that all outputs stay in."""
        ends = [self.of(name) for name in node.inputs if name and (
            name in live or self.constants[name].dtype.kind == "f")]
        if node.op in ("Relu", "Clip"):                              # with bounds of which no grid was made
            return (0.0, np.inf) if node.op == "Relu" else OPEN
        if node.op == "Softmax":
            return 0.0, 1.0
        if node.op == "Conv" and "bounds" in node.attrs:
            low, high = node.attrs["bounds"]
            return -np.inf if low is None else low, np.inf if high is None else high
        if node.op == "Resize" and len(live) == 1:
            return self.of(live[0])
        if node.op in MOVES and ends:
            filled = [(0.0, 0.0)] if node.op in FILLS else []
            return min(low for low, _ in ends + filled), max(high for _, high in ends + filled)
        if node.op in ("Add", "Sub", "Mul") and len(ends) == 2:
            (a, b), (c, d) = ends
            corners = (a + c, b + d) if node.op == "Add" else (a - d, b - c) if node.op == "Sub" else \
                tuple(0.0 if 0 in (p, q) else p * q for p in (a, b) for q in (c, d))
            return min(corners), max(corners)
        return OPEN
