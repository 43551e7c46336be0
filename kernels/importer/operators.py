"""Brings an ONNX node of any opset to the one form that the graph knows; refuses what the compiler does not take.

Caller: `builder.py`. After this, pads are explicit, axes are complete, sizes are inputs, a Resize is positions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir.graph import Node
from ..ir.movement import block_permutation
from ..ir.reference import REDUCTIONS
from .context import Context
from .quantised import dequantize, quantize
from .resize import resize
from .windows import conv, conv_transpose, pool

FOR_INFERENCE = "export the model for inference"


def _clip(ctx: Context, node: Node) -> Node:
    for index in range(1, len(node.inputs)):
        if node.inputs[index] and np.prod(ctx.shape(node, index)) != 1:
            raise ctx.refuse(node, f"a bound of shape {ctx.shape(node, index)}", "a bound must be one number")
    if ctx.version >= 11:
        return node
    names = [ctx.add(node, w, np.array(node.attrs[w], dtype=np.float32)) if w in node.attrs else ""
             for w in ("min", "max")]
    return Node(node.name, "Clip", (node.inputs[0], *names), node.outputs)


def _attribute_as_input(*attrs: str) -> Callable[[Context, Node], Node]:
    """For operators whose int lists were attributes in old opsets and are inputs since."""
    def normalise(ctx: Context, node: Node) -> Node:
        if any(a in node.attrs for a in attrs):
            names = [ctx.add(node, a, np.array(node.attrs[a], dtype=np.int64).reshape(-1)) if a in node.attrs else ""
                     for a in attrs]
            rest = {k: v for k, v in node.attrs.items() if k not in attrs}
            node = Node(node.name, node.op, (node.inputs[0], *names), node.outputs, rest)
        for index in range(1, len(node.inputs)):
            ctx.constant(node, index, f"input {index}")
        return node
    return normalise


def _pad(ctx: Context, node: Node) -> Node:
    mode = node.attrs.get("mode", b"constant").decode()
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ctx.refuse(node, f"mode {mode}", "use constant, reflect, edge or wrap padding")
    if "pads" in node.attrs:
        filling = np.array(node.attrs.get("value", 0.0), dtype=np.float32)
        names = (ctx.add(node, "pads", np.array(node.attrs["pads"], dtype=np.int64)), ctx.add(node, "value", filling))
        node = Node(node.name, "Pad", (node.inputs[0], *names), node.outputs, node.attrs)
    pads, rank = ctx.constant(node, 1, "padding"), len(ctx.shape(node))
    axes = ctx.constant(node, 3, "padding axes")
    value = ctx.constant(node, 2, "padding value")
    where = list(range(rank)) if axes is None else [ctx.axis(node, int(i), rank) for i in axes.reshape(-1)]
    if pads is None or pads.size != 2 * len(where) or np.abs(pads).max(initial=0) > 1 << 24:
        raise ctx.refuse(node, f"padding {None if pads is None else pads.tolist()} for {len(where)} axes",
                         "export the model again")
    full = np.zeros((2, rank), dtype=np.int64)
    for i, axis in enumerate(where):
        full[:, axis] = pads[i], pads[len(where) + i]
    if mode == "reflect" and (full >= np.maximum(ctx.shape(node), 1)).any():
        raise ctx.refuse(node, f"reflects {full.max()} values of a tensor of shape {ctx.shape(node)}",
                         "pad by less than the size of the axis")
    inputs = [node.inputs[0], ctx.add(node, "all pads", full.reshape(-1))]
    if value is not None and value.size:
        inputs.append(node.inputs[2])
    return Node(node.name, "Pad", tuple(inputs), node.outputs, {} if mode == "constant" else {"mode": mode})


def _first_output(ctx: Context, node: Node) -> Node:
    return Node(node.name, node.op, node.inputs, node.outputs[:1], node.attrs)


def _dropout(ctx: Context, node: Node) -> Node:
    training = ctx.constant(node, 2, "training mode")
    if training is not None and training.any():
        raise ctx.refuse(node, "is in training mode", FOR_INFERENCE)
    if len(node.outputs) > 1 and node.outputs[1]:
        ctx.keep(node.outputs[1], np.broadcast_to(np.True_, ctx.shape(node)))
    return Node(node.name, "Dropout", node.inputs[:1], node.outputs[:1])


def _batch_norm(ctx: Context, node: Node) -> Node:
    if node.attrs.get("training_mode") or node.attrs.get("spatial", 1) != 1:
        raise ctx.refuse(node, "is in training mode", FOR_INFERENCE)
    channels = ctx.shape(node)[1]
    if any(ctx.shape(node, i) != (channels,) for i in range(1, 5)):
        raise ctx.refuse(node, f"its parameters do not fit {channels} channels", "export the model again")
    ctx.finite(node)
    return _first_output(ctx, node)


def _channel_norm(ctx: Context, node: Node) -> Node:
    """InstanceNormalization and GroupNormalization: groups that divide, parameters that fit."""
    channels = ctx.shape(node)[1]
    groups = node.attrs["num_groups"] if node.op == "GroupNormalization" else channels
    fits = {(channels,), (groups,)} if ctx.version == 18 else {(channels,)}
    if groups < 1 or channels % groups or any(ctx.shape(node, i) not in fits for i in (1, 2)):
        raise ctx.refuse(node, f"{groups} groups or its parameters do not fit {channels} channels", "export it again")
    ctx.finite(node)
    return node


def _last_norm(ctx: Context, node: Node) -> Node:
    axis = ctx.axis(node, node.attrs.get("axis", -1), len(ctx.shape(node)))
    inside = ctx.shape(node)[axis:]
    for i in range(1, len([n for n in node.inputs if n])):
        if np.broadcast_shapes(ctx.shape(node, i), inside) != inside:
            raise ctx.refuse(node, f"its parameters {ctx.shape(node, i)} do not fit {inside}", "export it again")
    ctx.finite(node)
    return node.with_attrs(axis=axis)


def _lp_norm(ctx: Context, node: Node) -> Node:
    if node.attrs.get("p", 2) not in (1, 2):
        raise ctx.refuse(node, f"norm {node.attrs['p']}", "use the norm 1 or 2")
    return node.with_attrs(axis=ctx.axis(node, node.attrs.get("axis", -1), len(ctx.shape(node))))


def _products(ctx: Context, node: Node) -> Node:
    """Gemm and MatMul."""
    ctx.finite(node)
    for i, name in enumerate(node.inputs[:2]):
        if ctx.dtypes[name] != "float32" and name not in ctx.constants:
            raise ctx.refuse(node, f"input {i} is {ctx.dtypes[name]}", "export the model in float32")
    return node


def _softmax(ctx: Context, node: Node) -> Node:
    """Before opset 13 the axis and all behind it were one: attribute `flatten` where that is another thing."""
    rank = len(ctx.shape(node))
    old = ctx.version < 13
    axis = ctx.axis(node, node.attrs.get("axis", 1 if old else -1), max(rank, 1))
    return Node(node.name, node.op, node.inputs, node.outputs,
                {"axis": axis, **({"flatten": 1} if old and axis != rank - 1 else {})})


def _cast(ctx: Context, node: Node) -> Node:
    from onnx.helper import tensor_dtype_to_np_dtype
    return Node(node.name, "Cast", node.inputs, node.outputs,
                {"to": tensor_dtype_to_np_dtype(node.attrs["to"]).name})


def _transpose(ctx: Context, node: Node) -> Node:
    rank = len(ctx.shape(node))
    perm = tuple(node.attrs.get("perm", reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise ctx.refuse(node, f"order {perm} of {rank} axes", "export the model again")
    return node.with_attrs(perm=perm)


def _axis(default: int | None) -> Callable[[Context, Node], Node]:
    """An axis that exists; None: the attribute must be there."""
    def normalise(ctx: Context, node: Node) -> Node:
        axis = node.attrs["axis"] if default is None else node.attrs.get("axis", default)
        return node.with_attrs(axis=ctx.axis(node, axis, len(ctx.shape(node))))
    return normalise


def _split(ctx: Context, node: Node) -> Node:
    """The sizes of the parts become an input; they fit."""
    node = _attribute_as_input("split")(ctx, _axis(0)(ctx, node))
    size, parts = ctx.shape(node)[node.attrs["axis"]], len(node.outputs)
    sizes = ctx.constant(node, 1, "sizes")
    if sizes is None:
        part = -(-size // parts)
        sizes = np.array([min(part, size - part * i) for i in range(parts)])
    if sizes.sum() != size or sizes.min(initial=0) < 0 or sizes.size != parts:
        raise ctx.refuse(node, f"parts {sizes.tolist()} of an axis of {size}", "export the model again")
    return Node(node.name, "Split", (node.inputs[0], ctx.add(node, "sizes", sizes)), node.outputs,
                {"axis": node.attrs["axis"]})


def _gather(ctx: Context, node: Node) -> Node:
    node = _axis(0)(ctx, node)
    size = ctx.shape(node)[node.attrs["axis"]]
    index = ctx.constants.get(node.inputs[1])
    if index is not None and index.size and not (-size <= index.min() and index.max() < size):
        raise ctx.refuse(node, f"index {int(np.abs(index).max())} of an axis of {size}", "export the model again")
    return node


def _unsqueeze(ctx: Context, node: Node) -> Node:
    node = _attribute_as_input("axes")(ctx, node)
    if len(node.inputs) > 1 and node.inputs[1]:
        axes = ctx.constants[node.inputs[1]].reshape(-1)
        rank = len(ctx.shape(node)) + (axes.size if node.op == "Unsqueeze" else 0)
        for axis in axes:
            ctx.axis(node, int(axis), rank)
    return node


def _constant_of_shape(ctx: Context, node: Node) -> Node:
    return node.with_attrs(value=node.attrs.get("value", np.zeros(1, dtype=np.float32)))


def _gelu(ctx: Context, node: Node) -> Node:
    op = "Gelu" if node.attrs.get("approximate", b"none") == b"none" else "GeluTanh"
    return Node(node.name, op, node.inputs, node.outputs)


def _swish(ctx: Context, node: Node) -> Node:
    if node.attrs.get("alpha", 1.0) != 1.0:
        raise ctx.refuse(node, f"alpha {node.attrs['alpha']}", "export Sigmoid and Mul instead")
    return Node(node.name, "SiLU", node.inputs, node.outputs)


def _reduce(ctx: Context, node: Node) -> Node:
    rank = len(ctx.shape(node))
    axes = node.attrs.get("axes")
    if axes is None:
        found = ctx.constant(node, 1, "axes")
        axes = None if found is None or not found.size else [int(i) for i in found.reshape(-1)]
    if axes is None and node.attrs.get("noop_with_empty_axes"):
        return Node(node.name, "Identity", node.inputs[:1], node.outputs)
    every = range(rank) if axes is None else sorted({ctx.axis(node, i, rank) for i in axes})
    return Node(node.name, node.op, node.inputs[:1], node.outputs,
                {"axes": tuple(every), "keepdims": int(node.attrs.get("keepdims", 1))})


def _blocks(ctx: Context, node: Node) -> Node:
    shape, size = ctx.shape(node), node.attrs["blocksize"]
    if len(shape) != 4 or size < 1 or node.attrs.get("mode", b"DCR") not in (b"DCR", b"CRD"):
        raise ctx.refuse(node, f"blocks of {size} of a tensor of shape {shape}", "only images (N, C, H, W) are taken")
    first, _, _ = block_permutation(node, shape)
    if np.prod(first) != np.prod(shape):
        raise ctx.refuse(node, f"blocks of {size} do not fit {shape}", "export the model again")
    return node


def _lrn(ctx: Context, node: Node) -> Node:
    full = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0, **node.attrs}
    if full["size"] < 1 or len(ctx.shape(node)) < 3:
        raise ctx.refuse(node, f"size {full['size']}", "export the model again")
    return node.with_attrs(**full)


NORMALISERS: dict[str, Callable[[Context, Node], Node]] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool, "Clip": _clip, "Pad": _pad,
    "Resize": resize, "Upsample": resize, "Reshape": _attribute_as_input(), "Expand": _attribute_as_input(),
    "Tile": _attribute_as_input(), "Slice": _attribute_as_input("starts", "ends", "axes"), "Split": _split,
    "Concat": _axis(None), "Squeeze": _unsqueeze, "Unsqueeze": _unsqueeze, "Gelu": _gelu, "Swish": _swish,
    "BatchNormalization": _batch_norm, "InstanceNormalization": _channel_norm, "GroupNormalization": _channel_norm,
    "LayerNormalization": _last_norm, "RMSNormalization": _last_norm, "LpNormalization": _lp_norm, "LRN": _lrn,
    "Dropout": _dropout, "Gemm": _products, "MatMul": _products, "Softmax": _softmax, "LogSoftmax": _softmax,
    "Cast": _cast, "Transpose": _transpose, "ConstantOfShape": _constant_of_shape, "Gather": _gather,
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize,
    "GatherElements": _axis(0), "DepthToSpace": _blocks, "SpaceToDepth": _blocks, **dict.fromkeys(REDUCTIONS, _reduce),
}


def normalise(ctx: Context, node: Node) -> Node:
    """The node in the graph's form. Raises UnsupportedModel."""
    return NORMALISERS[node.op](ctx, node) if node.op in NORMALISERS else node
