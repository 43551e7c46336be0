"""Pass: fake quantisation that INT8 cannot keep bit for bit leaves the graph; what it said about ranges is remembered.

Caller: `build.py`, before `prepare`, for builds with an integer or float16 body. A pair with another type than int8, or
another zero point than 0, is coded again anyway: so it need not stand between a convolution and what that can take in
(activation, sum, BatchNormalization). It is more than rounding where it cuts off at 0 what may be below: quantisers
drop a Relu or Clip in front of such a pair. There a Clip stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..ir.codes import CODES
from ..ir.graph import Array, Graph, Node
from .remove_dead import remove_dead

Ranges = dict[str, tuple[float, float]]
NOT_NEGATIVE = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Exp", "Abs", "Sqrt"})
KEEP_SIGN = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Concat", "Split", "Resize",
                       "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Identity", "Dropout",
                       "Add", "Mul", "FakeQuantise"})


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


def release_pairs(graph: Graph, keep: Callable[[Node], bool] = is_exact) -> tuple[Graph, Ranges]:
    """The graph with the pairs that are to be kept, and the range of each tensor whose pair is gone.

    The function is the same but for rounding and for what lies beyond the ranges.
    """
    graph = remove_dead(graph)
    nodes: list[Node] = []
    ranges: Ranges = {}
    constants: dict[str, Array] = {}
    alias: dict[str, str] = {}
    positive = {name for name, value in graph.constants.items() if value.dtype.kind == "f" and (value >= 0).all()}
    positive |= {info.name for info in graph.inputs if info.dtype == "uint8"}
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
            cuts = (low == 0 and x not in positive and x not in {i.name for i in graph.inputs}) or high == 0
            if cuts:
                names = [graph.free_name(f"{node.name}/{end}", constants) for end in ("low", "high")]
                constants |= {n: np.array(v, dtype=np.float32) for n, v in zip(names, (low, high), strict=True)}
                nodes.append(Node(node.name, "Clip", (x, *names), node.outputs))
                ranges[node.output] = (low, high)
            else:
                known = ranges.get(x, (0.0, 0.0))
                ranges[x] = (min(low, known[0]), max(high, known[1]))
                if node.output in graph.outputs:
                    nodes.append(Node(node.name, "Identity", (x,), node.outputs))
                else:
                    alias[node.output] = x
                continue
        made = nodes[-1]
        low_end = graph.constants.get(made.inputs[1]) if made.op == "Clip" and len(made.inputs) > 1 else None
        if made.op in NOT_NEGATIVE or (made.op == "Clip" and made.output in ranges and ranges[made.output][0] == 0) or (
                low_end is not None and float(low_end.reshape(())) >= 0) or (
                made.op in KEEP_SIGN and all(n in positive for n in made.inputs if n and (
                    n not in graph.constants or graph.constants[n].dtype.kind == "f"))):
            positive.update(made.outputs)
    return graph.rebuilt(nodes, constants=constants), ranges
