"""Pass: convolutions and poolings of rows (N, C, W) become ones of images of one row.

Caller: `pipeline.py`, before `decompose`, which takes a normalisation of anything but images apart.
What works element by element or by channel between them is moved onto the image, so that a chain of them stays one:
activations, bounds, normalisation, sums, and a file's fake quantisation, also the one in front of the first.
"""

from __future__ import annotations

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import Graph, Node
from .remove_dead import remove_dead
from .rewriter import Rewriter

WINDOWS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})
MOVED = frozenset(ACTIVATIONS) | {"Clip", "BatchNormalization"}
JOINED = frozenset({"Add", "Sub", "Mul"})


def rows_as_images(graph: Graph) -> Graph:
    rows = {node.output for node in graph.nodes if node.outputs and len(graph.shape(node.output)) == 3}
    if not any(node.op in WINDOWS and node.output in rows for node in graph.nodes):
        return graph
    out = Rewriter(graph)
    images: dict[str, str] = {}                # tensor of rows -> the image of one row that it is a view of
    for node in graph.nodes:
        out.node = node
        moved = node.op in MOVED and node.inputs[0] in images and all(
            not name or (name in graph.constants and (node.op != "Clip" or graph.constants[name].size == 1))
            for name in node.inputs[1:])
        joined = node.op in JOINED and all(name in images for name in node.inputs) \
            and len({graph.shape(name) for name in node.inputs}) == 1
        if node.outputs and node.output in rows and (node.op in WINDOWS or moved or joined):
            _widen(out, node, images)
        else:
            out.nodes.append(node)
    return remove_dead(out.finish())


def _tall(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], 1, shape[2])


def _image(out: Rewriter, name: str, images: dict[str, str]) -> str:
    """The image of a tensor of rows; fake quantisation in front is put on the image of what it reads."""
    if name not in images:
        source, shape = out.graph.producers.get(name), _tall(out.graph.shape(name))
        if source is not None and source.op == "FakeQuantise":
            inner = _image(out, source.inputs[0], images)
            images[name] = out.add("FakeQuantise", (inner,), shape, named=f"{name}/image", **source.attrs)
        else:
            images[name] = out.reshape(name, shape)
    return images[name]


def _widen(out: Rewriter, node: Node, images: dict[str, str]) -> None:
    a = dict(node.attrs)
    if node.op in JOINED:
        inputs = [images[name] for name in node.inputs]
    else:
        inputs = [_image(out, node.inputs[0], images), *node.inputs[1:]]
    if node.op in WINDOWS:
        begin, end = a["pads"]
        for key, value in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
            if key in a:
                a[key] = (value, *a[key])
        a["pads"] = (0, begin, 0, end)
        if "counted" in a:
            a["counted"] = tuple((0, *side) for side in a["counted"])
    if node.op in ("Conv", "ConvTranspose"):
        inputs[1] = out.constant(out.graph.constants[node.inputs[1]][:, :, None])
    shape = out.graph.shape(node.output)
    made = out.add(node.op, tuple(inputs), _tall(shape), named=f"{node.output}/image", **a)
    images[node.output] = made
    out.reshape(made, shape, True)
