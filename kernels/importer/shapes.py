"""Shapes and types of a node's outputs by formula: nothing large is computed to find them. Caller: `builder.py`.

Operators without a formula here never make more than they read: the builder evaluates them on ones.
"""

from __future__ import annotations

import numpy as np

from ..ir.elementwise import BINARY, ELEMENTWISE, LOGICAL
from ..ir.graph import Node
from ..ir.reference import REDUCTIONS
from .context import Context, Shape
from .windows import window_shape

SAME = frozenset({"BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization", "LRN",
                  "RMSNormalization", "LpNormalization", "MeanVarianceNormalization", "Softmax", "LogSoftmax"})
WINDOWS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool"})
LARGEST_RANK = 16
"""Dimensions of a tensor; NumPy stops at 32 in the middle of its work."""
MIXED_TYPES = frozenset({"Pow", "Clip"})


def infer(ctx: Context, node: Node) -> tuple[Shape, str] | None:
    """(shape, type) of the first output, None where there is no formula. Raises ValueError where shapes do not fit."""
    if node.op in ELEMENTWISE:
        return _broadcast(ctx, node)
    if node.op in ("ConstantOfShape", "Range", "OneHot", "Shape", "Size"):
        return _made(ctx, node)
    dtype = ctx.dtypes[node.inputs[0]] if node.inputs and node.inputs[0] else ""
    shape = ctx.shape(node)
    if node.op in SAME and len(node.outputs) == 1:
        return shape, dtype
    if node.op in WINDOWS:
        return window_shape(ctx, node), dtype
    if node.op in ("MatMul", "Gemm"):
        return _product(ctx, node, shape), dtype
    if node.op in REDUCTIONS:
        axes, keep = node.attrs["axes"], node.attrs["keepdims"]
        return tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes), dtype
    if node.op in ("GlobalAveragePool", "GlobalMaxPool"):
        return (*shape[:2], *(1 for _ in shape[2:])), dtype
    return _moved(ctx, node, shape, dtype)


def _broadcast(ctx: Context, node: Node) -> tuple[Shape, str]:
    given = [name for name in node.inputs if name]
    types = {ctx.dtypes[name] for name in given}
    if node.op in BINARY and len(types) > 1 and node.op not in MIXED_TYPES:
        raise ValueError(f"types {sorted(types)} are mixed")
    dtype = ctx.dtypes[given[1]] if node.op == "Where" else node.attrs["to"] if node.op == "Cast" else \
        "bool" if node.op in LOGICAL else ctx.dtypes[given[0]]
    if node.op == "Clip":
        return ctx.shapes[given[0]], dtype
    return tuple(np.broadcast_shapes(*(ctx.shapes[name] for name in given))), dtype


def _made(ctx: Context, node: Node) -> tuple[Shape, str] | None:
    values = [ctx.constants.get(name) for name in node.inputs]
    if node.op in ("Shape", "Size"):
        return None
    if any(v is None for v in values):
        raise ValueError("its inputs are computed at run time")
    first = [v for v in values if v is not None]
    if node.op == "ConstantOfShape":
        if (first[0] < 0).any():
            raise ValueError(f"a negative size in {first[0].tolist()}")
        return tuple(int(v) for v in first[0].reshape(-1)), node.attrs["value"].dtype.name
    if node.op == "Range":
        start, limit, delta = (v.reshape(()).item() for v in first)
        if delta == 0 or not np.isfinite([start, limit, delta]).all():
            raise ValueError(f"range {start} to {limit} by {delta}")
        return (max(0, int(np.ceil((limit - start) / delta))),), first[0].dtype.name
    return (*first[0].shape, max(1, int(first[1].reshape(-1)[0]))), first[2].dtype.name


def _product(ctx: Context, node: Node, a: Shape) -> Shape:
    b = ctx.shape(node, 1)
    if node.op == "Gemm":
        if len(a) != 2 or len(b) != 2:
            raise ValueError(f"shapes {a} and {b}")
        a = a[::-1] if node.attrs.get("transA") else a
        b = b[::-1] if node.attrs.get("transB") else b
        out: Shape = (a[0], b[1])
        if len(node.inputs) > 2 and node.inputs[2] and np.broadcast_shapes(ctx.shape(node, 2), out) != out:
            raise ValueError(f"the third operand {ctx.shape(node, 2)} does not fit {out}")
    else:
        if not a or not b:
            raise ValueError(f"shapes {a} and {b}")
        left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
        out = (*np.broadcast_shapes(left[:-2], right[:-2]), *(left[-2:-1] if len(a) > 1 else ()),
               *(right[-1:] if len(b) > 1 else ()))
        a, b = left, right
    if a[-1] != b[-2]:
        raise ValueError(f"shapes {a} and {b} do not fit")
    return out


def _moved(ctx: Context, node: Node, shape: Shape, dtype: str) -> tuple[Shape, str] | None:
    if node.op == "Resize":
        sizes = list(shape)
        for axis, low, _, _ in node.attrs.get("positions", ()):
            sizes[axis] = len(low)
        for i, factor in enumerate(node.attrs.get("factors", ())):
            sizes[2 + i] *= factor
        return tuple(sizes), dtype
    if node.op == "Concat":
        axis = node.attrs["axis"]
        shapes = [ctx.shape(node, i) for i in range(len(node.inputs))]
        if len({(s[:axis], s[axis + 1:]) for s in shapes}) > 1 or len({ctx.dtypes[n] for n in node.inputs}) > 1:
            raise ValueError(f"shapes {shapes} or their types do not fit along axis {axis}")
        return (*shape[:axis], sum(s[axis] for s in shapes), *shape[axis + 1:]), dtype
    if node.op == "Pad":
        pads = ctx.constants[node.inputs[1]].reshape(2, -1)
        return tuple(int(n + pads[0, i] + pads[1, i]) for i, n in enumerate(shape)), dtype
    if node.op == "Gather":
        axis = node.attrs["axis"]
        return (*shape[:axis], *ctx.shape(node, 1), *shape[axis + 1:]), dtype
    if node.op in ("Expand", "Tile"):
        other = [int(v) for v in ctx.constants[node.inputs[1]].reshape(-1)]
        if len(other) > LARGEST_RANK or min(other, default=1) < 0 or (node.op == "Tile" and len(other) != len(shape)):
            raise ValueError(f"sizes {other} for a tensor of shape {shape}")
        return tuple(a * b for a, b in zip(shape, other, strict=True)) if node.op == "Tile" else \
            tuple(np.broadcast_shapes(shape, tuple(other))), dtype
    return None
