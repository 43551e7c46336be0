"""Pass: a transposed convolution becomes zeros between the pixels and a convolution. Caller: `pipeline.py`.

CONTRACT.md: it equals the convolution of the zero-stuffed input, at every precision.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Graph, Node
from ..ir.windowed import swapped_weight
from .grids import grids
from .rewriter import Rewriter


def transposed_as_convolution(graph: Graph) -> Graph:
    out = Rewriter(graph)
    for node in graph.nodes:
        if node.op == "ConvTranspose" and len(graph.shape(node.output)) == 4:
            out.node = node
            _rewrite(out, node)
        else:
            out.nodes.append(node)
    return out.finish()


def _rewrite(out: Rewriter, node: Node) -> None:
    a, x = node.attrs, node.inputs[0]
    n, c, *size = out.graph.shape(x)
    reach = [(k - 1) * d for k, d in zip(a["kernel_shape"], a["dilations"], strict=True)]
    pads = [reach[i % 2] - a["pads"][i] + (a["output_padding"][i % 2] if i > 1 else 0) for i in range(4)]
    crop = tuple(max(0, -p) for p in pads)
    wide = [(size[i] - 1) * a["strides"][i] + 1 - crop[i] - crop[2 + i] for i in (0, 1)]
    if a["strides"] != (1, 1) or any(crop):
        x = out.add("ZeroStuff", (x,), (n, c, *wide), strides=tuple(a["strides"]), crop=crop)
    weight = out.constant(np.ascontiguousarray(swapped_weight(out.graph.constants[node.inputs[1]], a["group"])))
    out.add("Conv", (x, weight, *node.inputs[2:]), (), True, kernel_shape=tuple(a["kernel_shape"]), strides=(1, 1),
            pads=tuple(max(0, p) for p in pads), dilations=tuple(a["dilations"]), group=a["group"], **grids(node))
