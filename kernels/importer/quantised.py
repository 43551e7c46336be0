"""QuantizeLinear and DequantizeLinear of any opset in the graph's form. Callers: `operators.py`, `builder.py`.

A pair around a computed tensor becomes FakeQuantise (`ir/codes.py`); codes between the two may be moved, not computed
with. Dequantised constants become float32, and what they were is kept for the lowering: attributes `weight_grid` (the
scale of each output channel), `bias_grid` and `bias_codes` of the node that multiplies by them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.codes import whole_codes
from ..ir.errors import UnsupportedModel
from ..ir.graph import Node
from .context import Array, Code, Context, Grid

PAIRS = frozenset({"QuantizeLinear", "DequantizeLinear"})
MOVES = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "MaxPool", "Slice", "Split",
                   "Concat", "Gather", "DepthToSpace", "SpaceToDepth", "Resize"})
"""What may stand between a QuantizeLinear and its DequantizeLinear: it gives the same on codes as on values."""
AS_STATIC = "quantise it with static scales, 8 bits, one scale a tensor for activations and one a tensor or channel " \
            "for weights, or give the FP32 model with --calibrate"
AS_QDQ = "quantise the model statically in the QDQ format (QuantizeLinear and DequantizeLinear around float operators)"
CONSTANTS = frozenset({"int8", "uint8", "int4", "uint4", "int32"})


def _parameters(ctx: Context, node: Node) -> tuple[Array, Array | None]:
    """(scale, zero point) of either node, sound."""
    if node.attrs.get("block_size"):
        raise ctx.refuse(node, f"has scales for blocks of {node.attrs['block_size']}", AS_STATIC)
    if len(node.inputs) > 1 and node.inputs[1] and node.inputs[1] not in ctx.constants:
        raise ctx.refuse(node, "its scale is computed at run time", AS_STATIC)
    scale, zero = ctx.constant(node, 1, "scale"), ctx.constant(node, 2, "zero point")
    if scale is None or scale.dtype != np.float32 or not np.isfinite(scale).all() or (scale <= 0).any():
        why = "none" if scale is None else f"{scale.dtype.name} {scale.reshape(-1)[:4].tolist()}"
        raise ctx.refuse(node, f"its scale must be float32, finite and above 0, not {why}", "quantise the model again")
    if (scale < np.finfo(np.float32).tiny).any():
        raise ctx.refuse(node, f"its scale {float(scale.min()):g} underflows", "quantise the model again")
    shape = ctx.shape(node)
    axis = node.attrs.get("axis", 1)
    if scale.size != 1 and (scale.ndim != 1 or shape[ctx.axis(node, axis, len(shape))] != scale.size):
        raise ctx.refuse(node, f"{scale.shape} scales do not fit axis {axis} of {shape}", AS_STATIC)
    if zero is not None and zero.size != scale.size:
        raise ctx.refuse(node, f"{zero.size} zero points for {scale.size} scales", "quantise the model again")
    return scale, zero


def _complete(ctx: Context, node: Node, zero: Array) -> Node:
    """A node on a constant, with its zero point and a positive axis."""
    rank = len(ctx.shape(node))
    axis = int(node.attrs.get("axis", 1)) % max(rank, 1)
    return Node(node.name, node.op, (*node.inputs[:2], ctx.add(node, "zero point", zero)), node.outputs, {"axis": axis})


def quantize(ctx: Context, node: Node) -> Node:
    """On a constant the node itself, to be computed; else FakeQuantise, or Identity where the same pair was made."""
    scale, zero = _parameters(ctx, node)
    kind = "uint8"
    if zero is not None:
        kind = zero.dtype.name
    elif node.attrs.get("output_dtype"):
        from onnx.helper import tensor_dtype_to_np_dtype
        kind = tensor_dtype_to_np_dtype(node.attrs["output_dtype"]).name
    if kind not in ("int8", "uint8"):
        raise ctx.refuse(node, f"makes codes of the type {kind}", AS_STATIC)
    if ctx.dtypes[node.inputs[0]] != "float32":
        raise ctx.refuse(node, f"works on {ctx.dtypes[node.inputs[0]]}", "export the model in float32")
    if zero is None:
        zero = np.zeros(scale.shape, dtype=kind)
    if node.inputs[0] in ctx.constants:
        return _complete(ctx, node, zero)
    if scale.size != 1:
        raise ctx.refuse(node, f"has {scale.size} scales on a computed tensor", AS_STATIC)
    code = Code(float(scale.reshape(())), int(zero.reshape(())), kind)
    same = ctx.pairs.setdefault((node.inputs[0], code), node.output)
    ctx.coded[node.output] = code
    if same != node.output:
        return Node(node.name, "Identity", (same,), node.outputs)
    low = int(np.iinfo(kind).min) - code.zero
    return Node(node.name, "FakeQuantise", node.inputs[:1], node.outputs,
                {"alpha": code.scale, "low": low, "exact": (kind, code.zero) == ("int8", 0)})


def dequantize(ctx: Context, node: Node) -> Node:
    """On a constant the node itself, noting its grid; behind a QuantizeLinear of the same code, Identity."""
    scale, zero = _parameters(ctx, node)
    source = node.inputs[0]
    if source in ctx.constants:
        codes = ctx.constants[source]
        if codes.dtype.name not in CONSTANTS:
            raise ctx.refuse(node, f"its codes are {codes.dtype.name}", AS_STATIC)
        node = _complete(ctx, node, np.zeros(scale.shape, dtype=codes.dtype) if zero is None else zero)
        whole = whole_codes(node, codes, ctx.constants[node.inputs[2]])
        ctx.grids[node.output] = Grid(scale.astype(np.float64).reshape(-1), node.attrs["axis"], whole)
        return node
    code = ctx.coded.get(source)
    if code is None:
        raise ctx.refuse(node, f"its codes '{source}' ({ctx.dtypes[source]}) come from no QuantizeLinear",
                         "start and end the model in float32, with QuantizeLinear in front of each DequantizeLinear")
    here = Code(float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]) if zero is not None else 0, code.dtype)
    if scale.size != 1 or here != code:
        raise ctx.refuse(node, f"its scale {here.scale:g} and zero point {here.zero} differ from those of the "
                         f"QuantizeLinear before it ({code.scale:g}, {code.zero})", "quantise the model again")
    return Node(node.name, "Identity", (source,), node.outputs)


def carry(ctx: Context, node: Node) -> None:
    """Codes, and the grids of constants, go through a node that only moves them. Raises UnsupportedModel for others."""
    live = [name for name in node.inputs if name and name not in ctx.constants]
    codes = [ctx.coded[name] for name in live if name in ctx.coded]
    if codes:
        between = node.op == "Resize" and any(any(p[3]) for p in node.attrs.get("positions", ()))
        if node.op not in MOVES or between or len(set(codes)) > 1 or len(codes) != len(live):
            raise computes(ctx, node)
        ctx.coded.update({name: codes[0] for name in node.outputs if name})
    grid = ctx.grids.get(node.inputs[0]) if node.inputs else None
    if grid is not None and node.op == "Transpose" and len(ctx.shape(node)) == len(node.attrs["perm"]):
        ctx.grids[node.output] = Grid(grid.scale, node.attrs["perm"].index(grid.axis), grid.codes)
    elif grid is not None and (node.op == "Identity" or (grid.scale.size == 1 and node.op in MOVES)):
        ctx.grids[node.output] = grid


def computes(ctx: Context, node: Node) -> UnsupportedModel:
    return ctx.refuse(node, "computes with integer codes", AS_QDQ)


def attach(ctx: Context, node: Node) -> Node:
    """A multiply-accumulate with the grids of its weight and bias, where they are one scale an output channel."""
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or len(node.inputs) < 2:
        return node
    attrs: dict[str, Any] = {}
    weight, bias = ctx.grids.get(node.inputs[1]), ctx.grids.get(node.inputs[2]) if len(node.inputs) > 2 else None
    shape = ctx.shape(node, 1)
    axis = 0 if node.op == "Conv" or (node.op == "Gemm" and node.attrs.get("transB")) else 1
    count = shape[axis] * (node.attrs.get("group", 1) if node.op == "ConvTranspose" else 1) if len(shape) > 1 else 0
    if weight is not None and len(shape) > 1 and (weight.scale.size == 1 or (weight.axis == axis
                                                                            and weight.scale.size == count)):
        attrs["weight_grid"] = tuple(np.broadcast_to(weight.scale, (count,)).tolist())
    if bias is not None and bias.codes.size == count and bias.scale.size in (1, count):
        attrs["bias_grid"] = tuple(np.broadcast_to(bias.scale, (count,)).tolist())
        attrs["bias_codes"] = tuple(bias.codes.reshape(-1).tolist())
    return node.with_attrs(**attrs) if attrs else node
