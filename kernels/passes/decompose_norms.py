"""Norms and soft maxima from sums, products and roots. Caller: `decompose.py`, one function an operator or two."""

from __future__ import annotations

import numpy as np

from ..ir.graph import Node
from ..ir.windowed import channel_band
from .rewriter import Rewriter


def softmax(out: Rewriter, node: Node) -> None:
    x, axis = node.inputs[0], node.attrs["axis"]
    shape = whole = out.graph.shape(x)
    if node.attrs.get("flatten"):
        shape = (int(np.prod(whole[:axis])), int(np.prod(whole[axis:])))
        x, axis = out.reshape(x, shape), 1
    if node.op == "Softmax":
        y = out.add("Softmax", (x,), shape, shape == whole, axis=axis)
    else:
        kept = tuple(1 if i == axis else n for i, n in enumerate(shape))
        top = out.add("ReduceMax", (x,), kept, axes=(axis,), keepdims=1)
        shifted = out.add("Sub", (x, top), shape)
        total = out.add("ReduceSum", (out.add("Exp", (shifted,), shape),), kept, axes=(axis,), keepdims=1)
        y = out.add("Sub", (shifted, out.add("Log", (total,), kept)), shape, shape == whole)
    if shape != whole:
        out.reshape(y, whole, True)


def group_norm(out: Rewriter, node: Node) -> None:
    x = node.inputs[0]
    shape = out.graph.shape(x)
    groups = node.attrs.get("num_groups", shape[1])
    flat = (shape[0], groups, int(np.prod(shape)) // (shape[0] * groups))
    y = out.add("LayerNormalization", (out.reshape(x, flat),), flat, axis=2, epsilon=node.attrs.get("epsilon", 1e-5))
    y = out.reshape(y, shape)
    side = (1, shape[1]) + (1,) * (len(shape) - 2)
    for op, name in (("Mul", node.inputs[1]), ("Add", node.inputs[2])):
        value = out.graph.constants[name]
        y = out.add(op, (y, out.constant(np.repeat(value, shape[1] // len(value)).reshape(side))), shape, op == "Add")


def batch_norm(out: Rewriter, node: Node) -> None:
    """Of anything but an image (images: `fold_batchnorm.py`)."""
    scale, bias, mean, variance = (out.graph.constants[n].astype(np.float64) for n in node.inputs[1:5])
    shape = out.graph.shape(node.inputs[0])
    side = (1, -1) + (1,) * (len(shape) - 2)
    gain = scale / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
    shift = bias - mean * gain
    y = out.add("Mul", (node.inputs[0], out.constant(gain.astype(np.float32).reshape(side))), shape)
    out.add("Add", (y, out.constant(shift.astype(np.float32).reshape(side))), shape, True)


def mean_norms(out: Rewriter, node: Node) -> None:
    """RMSNormalization, LpNormalization, MeanVarianceNormalization."""
    x = node.inputs[0]
    shape = out.graph.shape(x)
    rank = len(shape)
    axis = node.attrs.get("axis", -1) % rank
    axes = tuple(range(axis, rank)) if node.op == "RMSNormalization" else (axis,)
    if node.op == "MeanVarianceNormalization":
        axes = tuple(i % rank for i in node.attrs.get("axes", (0, 2, 3)))
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))

    def reduced(op: str, name: str) -> str:
        return out.add(op, (name,), kept, axes=axes, keepdims=1)
    if node.op == "RMSNormalization":
        mean = reduced("ReduceMean", out.add("Mul", (x, x), shape))
        root = out.add("Sqrt", (out.add("Add", (mean, out.number(node.attrs.get("epsilon", 1e-5))), kept),), kept)
        out.add("Mul", (out.add("Div", (x, root), shape), node.inputs[1]), shape, True)
    elif node.op == "MeanVarianceNormalization":
        x = out.add("Sub", (x, reduced("ReduceMean", x)), shape)
        root = out.add("Sqrt", (reduced("ReduceMean", out.add("Mul", (x, x), shape)),), kept)
        out.add("Div", (x, out.add("Add", (root, out.number(1e-9)), kept)), shape, True)
    else:
        if node.attrs.get("p", 2) == 1:
            norm = reduced("ReduceSum", out.add("Abs", (x,), shape))
        else:
            norm = out.add("Sqrt", (reduced("ReduceSum", out.add("Mul", (x, x), shape)),), kept)
        out.add("Div", (x, out.add("Max", (norm, out.number(1e-30)), kept)), shape, True)


def layer_norm(out: Rewriter, node: Node) -> None:
    """One that also gives its mean and its inverse deviation."""
    x = node.inputs[0]
    shape = out.graph.shape(x)
    axes = tuple(range(node.attrs["axis"], len(shape)))
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    out.add("LayerNormalization", node.inputs, shape, True, **node.attrs)
    _, mean, inverse = (*node.outputs, "")[:3]
    centre = out.add("ReduceMean", (x,), kept, axes=axes, keepdims=1)
    if mean:
        out.rename(centre, mean)
    if inverse:
        apart = out.add("Sub", (x, mean or centre), shape)
        spread = out.add("ReduceMean", (out.add("Mul", (apart, apart), shape),), kept, axes=axes, keepdims=1)
        root = out.add("Sqrt", (out.add("Add", (spread, out.number(node.attrs.get("epsilon", 1e-5))), kept),), kept)
        out.rename(out.add("Reciprocal", (root,), kept), inverse)


def lrn(out: Rewriter, node: Node) -> None:
    """The sum over neighbouring channels is a product with a band of ones."""
    x, a = node.inputs[0], node.attrs
    shape = out.graph.shape(x)
    flat = (shape[0], shape[1], int(np.prod(shape[2:])))
    square = out.reshape(out.add("Mul", (x, x), shape), flat)
    band = channel_band(shape[1], a["size"]) * np.float32(a["alpha"] / a["size"])
    sums = out.reshape(out.add("MatMul", (out.constant(band), square), flat), shape)
    power = out.add("Pow", (out.add("Add", (sums, out.number(a["bias"])), shape), out.number(a["beta"])), shape)
    out.add("Div", (x, power), shape, True)
