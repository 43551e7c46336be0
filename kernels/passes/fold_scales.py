"""Pass: a Mul, Div, Add or Sub by one number a channel behind a convolution goes into its weights.

Caller: `pipeline.py`. Scale layers of old exporters elsewhere in the body, and PRelu with a slope a channel (max(x, 0)
+ slope * min(x, 0)), become convolutions themselves (depthwise, 1x1), so that the body stays one of images. Products in
float64, rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.graph import Array, Graph, Node
from .channel_map import SAME_MAP
from .grids import scaled_grid
from .rewriter import Rewriter

POINT: dict[str, Any] = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
Doubles = npt.NDArray[np.float64]


def per_channel(graph: Graph, node: Node) -> tuple[str, Doubles, Doubles] | None:
    """(x, gain, shift): y = x * gain + shift, one number a channel each."""
    if node.op not in ("Mul", "Div", "Add", "Sub") or len(graph.shape(node.output)) != 4 or len(node.inputs) != 2:
        return None
    constant = next((i for i, name in enumerate(node.inputs) if name in graph.constants), None)
    if constant is None or node.inputs[1 - constant] in graph.constants:
        return None
    x = node.inputs[1 - constant]
    shape, value = graph.shape(x), graph.constants[node.inputs[constant]].astype(np.float64)
    if shape != graph.shape(node.output) or value.ndim > 4 or (node.op == "Div" and (constant == 0 or not value.all())):
        return None
    side = value.reshape((1,) * (4 - value.ndim) + value.shape)
    if side.shape[0] != 1 or side.shape[2:] != (1, 1):
        return None
    number = np.broadcast_to(side.reshape(-1), (shape[1],))
    zero, one = np.zeros(shape[1]), np.ones(shape[1])
    if node.op in ("Mul", "Div"):
        return x, number if node.op == "Mul" else 1 / number, zero
    if node.op == "Add":
        return x, one, number
    return (x, one, -number) if constant == 1 else (x, -one, number)


def fold_scales(graph: Graph) -> Graph:
    """Only in the body: the float tail keeps its arithmetic."""
    out = Rewriter(graph)
    body = graph.body
    made: dict[str, Node] = {}                         # tensor -> the convolution that makes it now
    for node in graph.nodes:
        out.node = node
        found = per_channel(graph, node) if node.name in body else None
        slope = _slope(graph, node) if node.name in body else None
        if slope is not None:
            _prelu(out, node, slope)
            continue
        if found is None or not _is_image(graph, found[0]):
            out.nodes.append(node)
            if node.op == "Conv":
                made[node.output] = node
            continue
        x, gain, shift = found
        before = made.get(x)
        if before is not None and graph.only_consumer(x) is node:
            weight = _value(out, before.inputs[1]) * gain[:, None, None, None]
            bias = (_value(out, before.inputs[2]) if len(before.inputs) > 2 and before.inputs[2] else 0) * gain + shift
            out.nodes.remove(before)
            inputs = (before.inputs[0], *(out.constant(v.astype(np.float32)) for v in (weight, bias)))
            folded = Node(before.name, "Conv", inputs, node.outputs, scaled_grid(before, gain))
        else:
            folded = Node(node.name, "Conv", (x, out.constant(gain.astype(np.float32)[:, None, None, None]),
                                              out.constant(shift.astype(np.float32))), node.outputs,
                          {**POINT, "group": len(gain)})
        out.nodes.append(folded)
        made[node.output] = folded
    return out.finish()


def _is_image(graph: Graph, name: str) -> bool:
    """Whether a tensor comes from an image operator, and not from products that happen to have four dimensions."""
    source = graph.producers.get(name)
    return source is None or source.op in SAME_MAP | {"Conv", "Concat", "Split", "Pad", "ChannelGather", "Cast"}


def _value(out: Rewriter, name: str) -> Doubles:
    value: Array = out.constants[name] if name in out.constants else out.graph.constants[name]
    return value.astype(np.float64)


def _slope(graph: Graph, node: Node) -> Array | None:
    """(C,) slopes of a PRelu on an image."""
    if node.op != "PRelu" or len(graph.shape(node.output)) != 4 or node.inputs[1] not in graph.constants:
        return None
    value, channels = graph.constants[node.inputs[1]], graph.shape(node.inputs[0])[1]
    plain = value.shape[-3:] == (channels, 1, 1) and value.size == channels
    return value.reshape(-1) if plain and graph.shape(node.inputs[0]) == graph.shape(node.output) else None


def _prelu(out: Rewriter, node: Node, slope: Array) -> None:
    x, shape = node.inputs[0], out.graph.shape(node.output)
    below = out.add("Clip", (x, "", out.number(0.0)), shape)
    weight = out.constant(slope.astype(np.float32)[:, None, None, None])
    part = out.add("Conv", (below, weight), shape, False, **POINT, group=len(slope))
    out.add("Add", (out.add("Relu", (x,), shape), part), shape, True)
