"""Multiply-accumulates of a graph's nodes, for one frame. Callers: `quant/mixed.py`, `quant/report.py`.

Counted are sums of products: convolutions of any number of axes (grouped, depthwise and transposed ones too: they have
become Conv), MatMul and Gemm, whether a factor is a constant or not. A product without a sum (Mul, a channel gate, the
weights of a resampling, an average's division) is not.
"""

from __future__ import annotations

import math

from .graph import Graph, Node


def multiply_accumulates(graph: Graph) -> dict[str, int]:
    """By node name; nodes without any are left out."""
    return {node.name: count for node in graph.nodes if (count := _count(node, graph))}


def _count(node: Node, graph: Graph) -> int:
    if node.op == "Conv":                       # every weight is used once at each place of the output
        return math.prod(graph.shape(node.inputs[1])) * math.prod(graph.shape(node.output)[2:]) * graph.shape(
            node.output)[0]
    if node.op == "ConvTranspose":              # every weight is used once at each place of the input
        return math.prod(graph.shape(node.inputs[1])) * math.prod(graph.shape(node.inputs[0])[2:]) * graph.shape(
            node.inputs[0])[0]
    if node.op == "MatMul":
        return math.prod(graph.shape(node.output)) * graph.shape(node.inputs[0])[-1]
    if node.op == "Gemm":
        return math.prod(graph.shape(node.output)) * graph.shape(node.inputs[0])[0 if node.attrs.get("transA") else 1]
    return 0
