"""Pass: fake quantisation that INT8 cannot keep bit for bit leaves the graph; what it said about ranges is remembered.

Caller: `build.py`, before `prepare`, for builds with an integer or float16 body. A pair with another type than int8, or
another zero point than 0, is coded again anyway: so it need not stand between a convolution and what that can take in
(activation, sum, BatchNormalization). It is more than rounding where values leave the range of its codes: quantisers
drop a Relu or Clip in front of such a pair and let the codes saturate. There a Clip to that range stays, unless the
tensor provably stays inside it to one code (`intervals.py`). The graph input alone is taken to stay inside its pair's
range, where it has several inside the widest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ..ir.codes import CODES
from ..ir.errors import refuse
from ..ir.graph import Array, Graph, Node
from .intervals import Intervals
from .remove_dead import remove_dead

FLOAT32_MAX = float(np.finfo(np.float32).max)
Ranges = dict[str, tuple[float, float]]
OF_PAIR = "of_pair"
"""Attribute of a Clip that is a pair's range of codes, where a table is to take it in (`fuse_convolutions.py`)."""


def quantised_by_file(graph: Graph) -> bool:
    """Whether the model brings scales of its activations along."""
    return any(node.op == "FakeQuantise" for node in graph.nodes)


def range_of(node: Node) -> tuple[float, float]:
    """The least and the largest value that a FakeQuantise node gives."""
    return node.attrs["low"] * node.attrs["alpha"], (node.attrs["low"] + CODES) * node.attrs["alpha"]


def _is_repeated(graph: Graph, node: Node) -> bool:
    """Whether a Relu or Clip alone reads the node and the same codes are made again behind it."""
    reader = graph.only_consumer(node.output)
    if reader is None or reader.op not in ("Relu", "Clip") or reader.inputs[0] != node.output:
        return False
    again = graph.only_consumer(reader.output)
    return again is not None and again.op == "FakeQuantise" and again.attrs == node.attrs


def is_exact(node: Node) -> bool:
    """Whether a pair is int8 with zero point 0."""
    return bool(node.attrs["exact"])


def release_tail(graph: Graph) -> Graph:
    """A prepared graph without the pairs in its float tail, which is float32 at every precision but fp32 as it is."""
    body = graph.body
    return release_pairs(graph, lambda node: node.name in body)[0]


def clip_of_range(graph: Graph, node: Node, constants: dict[str, Array], **attrs: bool) -> Node:
    """What a FakeQuantise node is without its rounding; the ends go to `constants`."""
    ends = ends_of_clip(graph, node.name, range_of(node), constants)
    return Node(node.name, "Clip", (node.inputs[0], *ends), node.outputs, dict(attrs))


def ends_of_clip(graph: Graph, name: str, ends: tuple[float | None, float | None],
                 constants: dict[str, Array]) -> tuple[str, ...]:
    """The names of a Clip's bounds, "" for None; the bounds go to `constants`."""
    names = []
    for end, value in zip(("low", "high"), ends, strict=True):
        names.append("" if value is None else graph.free_name(f"{name}/{end}", constants))
        if value is not None:
            constants[names[-1]] = np.array(value, dtype=np.float32)
    return tuple(names)


def inside_of_pairs(graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> Intervals:
    """Intervals under the one assumption that is made: a graph input stays inside the pair in front of its readers, or
    inside the widest where they have several. `ranges`: what pairs that are gone said of the input."""
    seen = Intervals(graph)
    for info in graph.inputs:
        pairs = [range_of(node) for node in graph.consumers.get(info.name, ()) if node.op == "FakeQuantise"]
        told = [(low, high) for low, high in (*pairs, ranges.get(info.name, (0.0, 0.0))) if high > 0]
        if told:
            seen.assume(info.name, min(low for low, _ in told), max(high for _, high in told))
    return seen


def release_pairs(graph: Graph, keep: Callable[[Node], bool] = is_exact, tables: bool = False) -> tuple[Graph, Ranges]:
    """The graph with the pairs that are to be kept, and the range of each tensor that stays inside that of a pair that
    is gone: of the Clip that stands for it, or of the tensor in front of it where that needs none.

    The function is the same but for rounding. `tables`: every activation of a convolution will be an INT8 table, which
    takes in the Clips around it. Raises UnsupportedModel where float32 does not hold a range.
    """
    graph = remove_dead(graph)
    for node in graph.nodes:
        if node.op == "FakeQuantise" and node.attrs["alpha"] * CODES > FLOAT32_MAX:
            raise refuse(graph.file, node.name, "QuantizeLinear", f"its scale {node.attrs['alpha']:g} makes a range "
                         "that float32 does not hold", "quantise the model again")
    nodes: list[Node] = []
    ranges: Ranges = {}
    constants: dict[str, Array] = {}
    alias: dict[str, str] = {}
    seen = inside_of_pairs(graph, {})
    sources = {info.name for info in graph.inputs}
    for node in graph.nodes:
        node = replace(node, inputs=tuple(alias.get(name, name) for name in node.inputs))
        if node.op != "FakeQuantise":
            nodes.append(node)
        elif keep(node):
            if node.attrs["exact"] and _is_repeated(graph, node):
                alias[node.output] = node.inputs[0]
                continue
            nodes.append(node)
        else:
            x, (low, high) = node.inputs[0], range_of(node)
            if not seen.stays(x, low, high, node.attrs["alpha"]) or (x in sources and high <= 0):
                nodes.append(clip_of_range(graph, node, constants, **({OF_PAIR: True} if tables else {})))
                ranges[node.output] = (low, high)
                seen.assume(node.output, low, high)
                continue
            known = ranges.get(x, (0.0, 0.0))
            ranges[x] = (min(low, known[0]), max(high, known[1]))
            if node.output in graph.outputs:
                nodes.append(Node(node.name, "Identity", (x,), node.outputs))
            else:
                alias[node.output] = x
                continue
        seen.see(nodes[-1])
    return graph.rebuilt(nodes, constants=constants), ranges
