"""Image nodes in float32. Caller: `lower.py` through `FloatNumbers`."""

from __future__ import annotations

import numpy as np

from ..ir.elementwise import ACTIVATIONS
from ..ir.errors import refuse
from ..ir.graph import Graph, Node
from ..ir.grid_steps import ResampleF32
from ..ir.steps import ActivationF32, AddF32, AveragePoolF32, ConvF32, DepthwiseF32, MulF32, Step
from ..ir.windowed import element_counts
from .fuse_convolutions import POST, PRE
from .lower_flat import activation_parameters
from .lowering import Array, Lowering
from .packing import is_depthwise, pack_channels, pack_weight


class FloatNumbers:
    """The Numbers of an FP32 program."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def dtype(self, node: Node, name: str, body_reads: bool) -> str:
        return "float32"

    def input_dtype(self, dtype: str) -> str:
        return dtype

    def scale(self, name: str) -> float:
        return 1.0

    def emit(self, node: Node, lowering: Lowering) -> Step:
        x = lowering.tensors[node.inputs[0]]
        if x.dtype != "float32" and node.op != "Conv":
            raise refuse(self.graph.file, node.name, node.op, f"works on {x.dtype}", "start the model in float32")
        return emit_f32(node, lowering)


def counts(node: Node, shape: tuple[int, ...], out: tuple[int, ...]) -> Array:
    """(Ho, Wo) number of elements that each place of an average pool divides by."""
    if node.op == "GlobalAveragePool":
        return np.full(out[2:], shape[2] * shape[3], dtype=np.float64)
    return element_counts(node, shape[2:], out[2:])


def pool_window(node: Node, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int], tuple[int, ...]]:
    """(kernel, stride, pads) of an average pool; a global one covers the image."""
    if node.op == "GlobalAveragePool":
        return (shape[2], shape[3]), (1, 1), (0, 0, 0, 0)
    return node.attrs["kernel_shape"], node.attrs["strides"], node.attrs["pads"]


def clip_bounds(node: Node, graph: Graph) -> tuple[float | None, float | None]:
    if node.op == "Relu":
        return 0.0, None
    low, high = (None if not n else float(graph.constants[n].reshape(())) for n in (*node.inputs[1:], "", "")[:2])
    return low, high


def emit_f32(node: Node, out: Lowering) -> Step:
    graph = out.graph
    x, y = out.tensors[node.inputs[0]], out.tensors[node.output]
    if node.op == "Conv":
        return _convolution(node, out)
    if node.op in ("AveragePool", "GlobalAveragePool"):
        kernel, stride, pads = pool_window(node, graph.shape(x.name))
        n = counts(node, graph.shape(x.name), graph.shape(y.name))
        multiplier = out.constant(f"{node.name}/multiplier", (1 / n).astype(np.float32))
        return AveragePoolF32(node.name, x.name, y.name, multiplier, kernel, stride, pads)  # type: ignore[arg-type]
    if node.op in ("Add", "Sub"):
        return AddF32(node.name, x.name, node.inputs[1], y.name, -1.0 if node.op == "Sub" else 1.0)
    if node.op == "Mul":
        a, b = node.inputs
        if graph.shape(a)[2:] == (1, 1) and graph.shape(b)[2:] != (1, 1):
            a, b = b, a
        return MulF32(node.name, a, b, y.name)
    if node.op == "Resize":
        return ResampleF32(node.name, node.inputs[0], node.output, *resample_constants(node, out, np.float32))
    if node.op in ("Relu", "Clip"):
        low, high = clip_bounds(node, graph)
        return ActivationF32(node.name, x.name, y.name, "", low=low, high=high)
    if node.op in ACTIVATIONS:
        alpha, beta = activation_parameters(node.op, node.attrs)
        return ActivationF32(node.name, x.name, y.name, node.op, alpha, beta)
    raise out.refuse(node, "not supported on an image in the body", "export the model without it")


def resample_constants(node: Node, out: Lowering, kind: type[np.generic], unit: int = 1) -> tuple[str, str, str, str]:
    """Names of a resampling's rows, row parts, columns, column parts; parts are floor(part * unit + 0.5) if integer."""
    x = out.tensors[node.inputs[0]]
    names = []
    for axis, what in ((2, "rows"), (3, "columns")):
        same = (axis, tuple(range(x.shape[axis - 2])), tuple(range(x.shape[axis - 2])), (0.0,) * x.shape[axis - 2])
        _, low, high, part = next((p for p in node.attrs["positions"] if p[0] == axis), same)
        parts = np.array(part, dtype=np.float64)
        parts = np.floor(parts * unit + 0.5) if np.issubdtype(kind, np.integer) else parts
        names.append(out.constant(f"{node.name}/{what}", np.array([low, high], dtype=np.int64)))
        names.append(out.constant(f"{node.name}/{what} parts", parts.astype(kind)))
    return names[0], names[1], names[2], names[3]


def _convolution(node: Node, out: Lowering) -> Step:
    graph, a = out.graph, node.attrs
    x, y = out.tensors[node.inputs[0]], out.tensors[node.output]
    weight = graph.constants[node.inputs[1]].astype(np.float32)
    has_bias = len(node.inputs) > 2 and node.inputs[2]
    bias = graph.constants[node.inputs[2]].astype(np.float32) if has_bias else np.zeros(len(weight), dtype=np.float32)
    assert not {PRE, POST} & set(a), f"{node.name}: only a table takes in the Clips around an activation"
    groups = a["group"]
    depthwise = is_depthwise(weight, groups) and (x.segments, x.span) == (y.segments, y.span)
    if depthwise:
        packed = pack_channels(weight[:, 0].transpose(1, 2, 0), y)
    else:
        packed, groups = pack_weight(weight, x, y, groups)
    op = a.get("activation", "")
    alpha, beta = activation_parameters(op, a.get("activation_attrs", {}))
    low, high = a.get("bounds", (None, None))
    kind = DepthwiseF32 if depthwise else ConvF32
    return kind(node.name, x.name, y.name, out.constant(f"{node.name}/weight", packed),
                out.constant(f"{node.name}/bias", pack_channels(bias, y)), a["kernel_shape"], a["strides"], a["pads"],
                a["dilations"], groups, op, alpha, beta, node.inputs[3] if len(node.inputs) > 3 else "", low, high)
