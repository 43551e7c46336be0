"""Pass: convolutions and poolings of rows (N, C, W) become ones of images of one row. Caller: `pipeline.py`."""

from __future__ import annotations

from ..ir.graph import Graph, Node
from .rewriter import Rewriter

WINDOWS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})


def rows_as_images(graph: Graph) -> Graph:
    out = Rewriter(graph)
    for node in graph.nodes:
        if node.op in WINDOWS and len(graph.shape(node.output)) == 3:
            out.node = node
            _widen(out, node)
        else:
            out.nodes.append(node)
    return out.finish()


def _widen(out: Rewriter, node: Node) -> None:
    def tall(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:2], 1, shape[2])
    a = dict(node.attrs)
    begin, end = a["pads"]
    for key, value in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if key in a:
            a[key] = (value, *a[key])
    a["pads"] = (0, begin, 0, end)
    if "counted" in a:
        a["counted"] = tuple((0, *side) for side in a["counted"])
    inputs = [out.reshape(node.inputs[0], tall(out.graph.shape(node.inputs[0])))]
    if node.op in ("Conv", "ConvTranspose"):
        weight = out.graph.constants[node.inputs[1]]
        inputs += [out.constant(weight[:, :, None]), *node.inputs[2:]]
    shape = out.graph.shape(node.output)
    out.reshape(out.add(node.op, tuple(inputs), tall(shape), **a), shape, True)
