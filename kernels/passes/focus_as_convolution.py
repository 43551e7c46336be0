"""Pass: a Focus stem (slices of every second pixel, joined, then a convolution) becomes one convolution of stride 2.

Caller: `pipeline.py`. Space-to-depth by Reshape-Transpose-Reshape in front of a convolution is the same thing. The new
kernel is larger by the block, its taps at the slices' corners: the same products, and no pixel is moved.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Array, Graph, Node
from ..ir.movement import slices
from .matching import only
from .remove_dead import remove_dead
from .rewriter import Rewriter


def _blocks(graph: Graph, name: str, reader: Node) -> tuple[str, int, list[tuple[int, int, int]]] | None:
    """(image, block, (channel, row, column) of each channel of `name`)."""
    node = only(graph, name, reader)
    if node is None:
        return None
    if node.op == "Concat" and node.attrs["axis"] == 1:
        return _from_slices(graph, node)
    return _from_reshapes(graph, node)


def _trace(graph: Graph, name: str, reader: Node) -> tuple[str, list[tuple[int, int]]] | None:
    """Follows Slices to the image that they cut: (image, (start, step) of rows and of columns)."""
    way: list[Node] = []
    while True:
        node = graph.producers.get(name)
        if node is None or node.op != "Slice":
            break
        way.append(node)
        name = node.inputs[0]
    shape = graph.shape(name)
    if len(shape) != 4 or not way:
        return None
    axes = [np.arange(n) for n in shape]
    for node in reversed(way):
        given = [graph.constants[n] if n else None for n in (*node.inputs[1:], "", "")[:4]]
        if given[0] is None or given[1] is None:
            return None
        cut = slices(tuple(len(a) for a in axes), given[0], given[1], given[2], given[3])
        axes = [a[c] for a, c in zip(axes, cut, strict=True)]
    if any(len(a) < 2 for a in axes[2:]) or len(axes[0]) != 1 or len(axes[1]) != shape[1]:
        return None
    return name, [(int(a[0]), int(a[1] - a[0])) for a in axes[2:]]


def _from_slices(graph: Graph, node: Node) -> tuple[str, int, list[tuple[int, int, int]]] | None:
    places: list[tuple[int, int, int]] = []
    image, block = "", 0
    for part in node.inputs:
        found = _trace(graph, part, node)
        if found is None:
            return None
        x, ((row, step), (column, step_x)) = found
        if step != step_x or step < 2 or (image and (x, step) != (image, block)) or max(row, column) >= step:
            return None
        image, block = x, step
        places += [(c, row, column) for c in range(graph.shape(x)[1])]
    shape = graph.shape(image)
    whole = (1, len(places), shape[2] // block, shape[3] // block)
    return (image, block, places) if shape[2] % block == shape[3] % block == 0 and graph.shape(node.output) == whole \
        else None


def _from_reshapes(graph: Graph, node: Node) -> tuple[str, int, list[tuple[int, int, int]]] | None:
    turn = only(graph, node.inputs[0], node) if node.op == "Reshape" else None
    first = only(graph, turn.inputs[0], turn) if turn is not None and turn.op == "Transpose" else None
    if turn is None or first is None or first.op != "Reshape":
        return None
    x, out = first.inputs[0], graph.shape(node.output)
    shape = graph.shape(x)
    if len(shape) != 4 or len(out) != 4 or shape[0] != 1 or not out[2] or shape[2] // out[2] < 2:
        return None
    block = shape[2] // out[2]
    if (out[2] * block, out[3] * block) != shape[2:]:
        return None
    index = np.arange(int(np.prod(shape))).reshape(graph.shape(first.output)).transpose(turn.attrs["perm"]).reshape(out)
    channel, rest = np.divmod(index[0], shape[2] * shape[3])
    row, column = np.divmod(rest, shape[3])
    rows, columns = np.arange(out[2])[:, None] * block, np.arange(out[3])[None] * block
    places = [(int(channel[i, 0, 0]), int(row[i, 0, 0]), int(column[i, 0, 0])) for i in range(out[1])]
    right = all((channel[i] == c).all() and (row[i] == r + rows).all() and (column[i] == s + columns).all()
                for i, (c, r, s) in enumerate(places))
    return (x, block, places) if right else None


def focus_as_convolution(graph: Graph) -> Graph:
    out = Rewriter(graph)
    for node in graph.nodes:
        out.node = node
        plain = node.op == "Conv" and node.attrs["group"] == 1 and tuple(node.attrs["dilations"]) == (1, 1) \
            and len(node.attrs["kernel_shape"]) == 2
        found = _blocks(graph, node.inputs[0], node) if plain else None
        out.nodes.append(node if found is None else _unfolded(out, node, *found))
    return remove_dead(out.finish())


def _unfolded(out: Rewriter, node: Node, image: str, block: int, places: list[tuple[int, int, int]]) -> Node:
    weight: Array = out.graph.constants[node.inputs[1]]
    m, _, kh, kw = weight.shape
    wide = np.zeros((m, out.graph.shape(image)[1], kh * block, kw * block), dtype=np.float32)
    for i, (c, row, column) in enumerate(places):
        wide[:, c, row::block, column::block] += weight[:, i]
    a = node.attrs
    return Node(node.name, "Conv", (image, out.constant(wide), *node.inputs[2:]), node.outputs, {
        **a, "kernel_shape": (kh * block, kw * block), "strides": tuple(s * block for s in a["strides"]),
        "pads": tuple(p * block for p in a["pads"])})
