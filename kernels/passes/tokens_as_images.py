"""Pass: MatMul of rows of tokens by a constant becomes a 1x1 convolution over an image of one row.

Caller: `pipeline.py`, before `dense_as_convolution`. (1, N, K) x (K, M) is a convolution of (1, K, 1, N): so the dense
layers of a transformer are products with one constant operand like all others, and have an INT8 form. A bias behind
goes into the convolution; an activation behind and a file's fake quantisation are moved onto the image, so that a chain
of dense layers stays one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import Array, Graph, Node
from .grids import grids
from .remove_dead import remove_dead
from .rewriter import Rewriter

LEAST_SIDE = 16
"""Smaller products are those of decoding, which stays in float."""
PLAIN: dict[str, Any] = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1),
                         "group": 1}


def tokens_as_images(graph: Graph) -> Graph:
    out = Rewriter(graph)
    images: dict[str, str] = {}                # tensor of tokens -> the image (1, K, 1, N) that it is a view of
    done: set[str] = set()
    for node in graph.nodes:
        out.node = node
        if node.name in done:
            continue
        if _is_dense(graph, node):
            bias = _bias(graph, node)
            source = _image(out, node.inputs[0], images)
            weight = graph.constants[node.inputs[1]].T.astype(np.float32)[:, :, None, None]
            inputs, target = [source, out.constant(np.ascontiguousarray(weight))], node.output
            if bias is not None:
                done.add(bias[0].name)
                target = bias[0].output
                inputs.append(out.constant(bias[1].astype(np.float32)))
            made = out.add("Conv", tuple(inputs), (1, len(weight), 1, out.shape(source)[3]), named=f"{target}/image",
                           **PLAIN, **grids(node))
            images[target] = made
            _tokens(out, made, target)
        elif node.op in ACTIVATIONS and node.inputs[0] in images:
            source = images[node.inputs[0]]
            images[node.output] = made = out.add(node.op, (source,), out.shape(source),
                                                  named=f"{node.output}/image", **node.attrs)
            _tokens(out, made, node.output)
        else:
            out.nodes.append(node)
    return remove_dead(out.finish()) if images else graph


def _is_dense(graph: Graph, node: Node) -> bool:
    if node.op != "MatMul" or node.inputs[1] not in graph.constants or node.inputs[0] in graph.constants:
        return False
    shape, weight = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    return len(weight) == 2 and min(weight) >= LEAST_SIDE and (len(shape) > 2 or (len(shape) == 2 and shape[0] > 1))


def _bias(graph: Graph, node: Node) -> tuple[Node, Array] | None:
    """The Add of one number a column that alone reads the product, and the numbers."""
    add = graph.only_consumer(node.output)
    if add is None or add.op != "Add" or graph.shape(add.output) != graph.shape(node.output):
        return None
    value = graph.constants.get(add.inputs[1] if add.inputs[0] == node.output else add.inputs[0])
    columns = graph.shape(node.output)[-1]
    if value is None or value.size not in (1, columns) or (value.size > 1 and value.shape[-1] != columns):
        return None
    return add, np.broadcast_to(value.reshape(-1), (columns,))


def _image(out: Rewriter, name: str, images: dict[str, str]) -> str:
    """The image of a tensor of tokens; fake quantisation in front is put on the image of what it reads."""
    if name in images:
        return images[name]
    source = out.graph.producers.get(name)
    if source is not None and source.op == "FakeQuantise":
        inner = _image(out, source.inputs[0], images)
        images[name] = out.add("FakeQuantise", (inner,), out.shape(inner), named=f"{name}/image", **source.attrs)
        return images[name]
    *rows, columns = out.shape(name)
    count = int(np.prod(rows))
    turned = out.add("Transpose", (out.reshape(name, (count, columns)),), (columns, count), perm=(1, 0))
    images[name] = out.reshape(turned, (1, columns, 1, count))
    return images[name]


def _tokens(out: Rewriter, image: str, name: str) -> None:
    """The tensor `name` of the graph from its image."""
    _, columns, _, count = out.shape(image)
    turned = out.add("Transpose", (out.reshape(image, (columns, count)),), (count, columns), perm=(1, 0))
    made = out.reshape(turned, out.graph.shape(name))
    out.rename(made, name)
