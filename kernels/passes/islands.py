"""Which nodes of the body work on codes, and which stay float32 between them: attention, norms, tiny products.

Callers: `float_ends.py`, kernels/quant (`scales.py`, `borders.py`, `quantise.py`, `choice.py`). Codes exist on images
only, and only of what a coded node reads; a body tensor that an island makes is coded (Convert) where a coded node
reads it. INT8 products need one constant operand (CONTRACT.md), so MatMul of two tensors and Softmax are such islands,
and what leads from a product to an island is one too: no code is made that is only read back.
"""

from __future__ import annotations

from collections.abc import Collection

from ..ir.graph import MAC_OPS, Graph
from .layouts import assign_layouts

FEW_OUTPUTS = 4
"""A convolution of a float32 tensor into so few channels stays float32: making codes of its input costs as much as its
products, and such ones (the expectation over bins in a box head) mix units."""
IMAGE = "@image"
"""Suffix of the image that layouts make of a flat tensor."""


def body_images(graph: Graph) -> frozenset[str]:
    """Names of the body's nodes that work on images."""
    return frozenset(node.name for node in assign_layouts(graph).image_nodes if node.name in graph.body)


def coded_nodes(graph: Graph) -> frozenset[str]:
    """Names of the body's nodes that work on codes (or float16)."""
    images = body_images(graph)
    coded: set[str] = set()
    for node in reversed(graph.nodes):
        if node.name not in images:
            continue
        read = any(is_coded(graph, coded, name) for name in node.outputs)
        if node.op in MAC_OPS:
            made_by = graph.producers.get(node.inputs[0])
            flat = made_by is not None and made_by.name not in images
            few = len(graph.constants[node.inputs[1]]) <= FEW_OUTPUTS and len(node.inputs) < 4
            if read or not (flat and few):
                coded.add(node.name)
        elif read:
            coded.add(node.name)
    return frozenset(coded)


def is_coded(graph: Graph, coded: Collection[str], name: str) -> bool:
    """Whether codes of a tensor are made: a node among `coded` reads it."""
    return any(reader.name in coded for reader in graph.consumers.get(name, ()))
