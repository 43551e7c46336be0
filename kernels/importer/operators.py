"""Brings an ONNX node of any opset to the one form that the graph knows; refuses what the compiler does not take.

Caller: `onnx_model.py`. After this, pads are explicit, sizes and axes are inputs, Resize has integer factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.errors import UnsupportedModel, refuse
from ..ir.graph import Node
from ..ir.reference import OPERATORS

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class Context:
    """What a normaliser may ask for and add: constants by name, shapes by name, the file name."""

    def __init__(self, file: str, opset: int, constants: dict[str, Array], shapes: dict[str, Shape]) -> None:
        self.file = file
        self.opset = opset
        self.constants = constants
        self.shapes = shapes

    def add(self, node: Node, what: str, value: Array) -> str:
        name = f"{node.name}/{what}"
        self.constants[name] = value
        return name

    def constant(self, node: Node, index: int, what: str) -> Array | None:
        """Input `index` as an array; None if it is left out; refused if it is computed at run time."""
        if index >= len(node.inputs) or not node.inputs[index]:
            return None
        value = self.constants.get(node.inputs[index])
        if value is None:
            raise self.refuse(node, f"its {what} is computed at run time", "export with fixed shapes and constants")
        return value

    def refuse(self, node: Node, why: str, remedy: str) -> UnsupportedModel:
        return refuse(self.file, node.name, node.op, why, remedy)


def _spatial(ctx: Context, node: Node, kernel: Shape) -> Node:
    shape = ctx.shapes[node.inputs[0]]
    if len(shape) != 4 or len(kernel) != 2:
        raise ctx.refuse(node, f"input of {len(shape)} dimensions", "only 2-d images (N, C, H, W) are taken")
    strides = tuple(node.attrs.get("strides", (1, 1)))
    dilations = tuple(node.attrs.get("dilations", (1, 1)))
    pads = tuple(node.attrs.get("pads", (0, 0, 0, 0)))
    if (len(strides), len(dilations), len(pads)) != (2, 2, 4) or min((*strides, *dilations, *kernel)) < 1:
        raise ctx.refuse(node, f"strides {strides}, dilations {dilations}, pads {pads} or kernel {kernel} make no "
                         "sense", "export the model again")
    auto = node.attrs.get("auto_pad", b"NOTSET").decode()
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        total = [max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
                 for size, s, k, d in zip(shape[2:], strides, kernel, dilations, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    if min(pads) < 0:
        raise ctx.refuse(node, f"negative pads {pads}", "export with a Slice instead")
    return node.with_attrs(kernel_shape=kernel, strides=strides, dilations=dilations, pads=pads)


def _check_finite(ctx: Context, node: Node) -> None:
    for name in node.inputs[1:]:
        if name in ctx.constants and not np.isfinite(ctx.constants[name]).all():
            raise ctx.refuse(node, "its weights hold NaN or infinity", "train or export the model again")


def _conv(ctx: Context, node: Node) -> Node:
    weight = ctx.constant(node, 1, "weight")
    if weight is None:
        raise ctx.refuse(node, "has no weight", "export the model with its weights")
    ctx.constant(node, 2, "bias")
    _check_finite(ctx, node)
    node = _spatial(ctx, node, tuple(weight.shape[2:]))
    channels, groups = ctx.shapes[node.inputs[0]][1], node.attrs.get("group", 1)
    if weight.shape[1] * groups != channels or weight.shape[0] % groups:
        raise ctx.refuse(node, f"weight {weight.shape} with group {groups} does not fit {channels} input channels",
                         "export the model again")
    return node.with_attrs(group=groups)


def _pool(ctx: Context, node: Node) -> Node:
    if len(node.outputs) > 1 and node.outputs[1]:
        raise ctx.refuse(node, "asks for the indices of the maxima", "use pooling without indices")
    node = _spatial(ctx, node, tuple(node.attrs["kernel_shape"]))
    if not node.attrs.get("ceil_mode"):
        return node
    a, size = node.attrs, ctx.shapes[node.inputs[0]][2:]
    span = [(k - 1) * d + 1 for k, d in zip(a["kernel_shape"], a["dilations"], strict=True)]
    pads = list(a["pads"])
    for i in (0, 1):
        whole = -(-(size[i] + pads[i] + pads[i + 2] - span[i]) // a["strides"][i]) * a["strides"][i] + span[i]
        extra = whole - size[i] - pads[i] - pads[i + 2]
        if whole - span[i] >= size[i] + pads[i]:       # the last window would start in the padding: it is left out
            extra = 0
        if extra and node.op == "AveragePool":
            raise ctx.refuse(node, "ceil_mode with a partial window", "use ceil_mode=0")
        pads[i + 2] += extra
    return node.with_attrs(pads=tuple(pads), ceil_mode=0)


def _clip(ctx: Context, node: Node) -> Node:
    if ctx.opset >= 11:
        for index, what in ((1, "minimum"), (2, "maximum")):
            ctx.constant(node, index, what)
        return node
    low, high = node.attrs.get("min", -3.4e38), node.attrs.get("max", 3.4e38)
    names = [ctx.add(node, w, np.array(v, dtype=np.float32)) for w, v in (("min", low), ("max", high))]
    return Node(node.name, "Clip", (node.inputs[0], *names), node.outputs)


def _attribute_as_input(*attrs: str) -> Callable[[Context, Node], Node]:
    """For operators whose int lists were attributes in old opsets and are inputs since."""
    def normalise(ctx: Context, node: Node) -> Node:
        if not any(a in node.attrs for a in attrs):
            return node
        names = [ctx.add(node, a, np.array(node.attrs[a], dtype=np.int64)) if a in node.attrs else "" for a in attrs]
        rest = {k: v for k, v in node.attrs.items() if k not in attrs}
        return Node(node.name, node.op, (node.inputs[0], *names), node.outputs, rest)
    return normalise


def _pad(ctx: Context, node: Node) -> Node:
    if node.attrs.get("mode", b"constant") != b"constant":
        raise ctx.refuse(node, f"mode {node.attrs['mode'].decode()}", "use constant padding")
    if "pads" in node.attrs:
        value = np.array(node.attrs.get("value", 0.0), dtype=np.float32)
        names = (ctx.add(node, "pads", np.array(node.attrs["pads"], dtype=np.int64)), ctx.add(node, "value", value))
        node = Node(node.name, "Pad", (node.inputs[0], *names), node.outputs)
    pads = ctx.constant(node, 1, "padding")
    if pads is not None and pads.min(initial=0) < 0:
        raise ctx.refuse(node, "negative padding", "export with a Slice instead")
    ctx.constant(node, 2, "padding value")
    return node


def _resize(ctx: Context, node: Node) -> Node:
    mode = node.attrs.get("mode", b"nearest").decode()
    transform = node.attrs.get("coordinate_transformation_mode", b"half_pixel" if ctx.opset >= 11 else b"asymmetric")
    shape = ctx.shapes[node.inputs[0]]
    scales = ctx.constant(node, 1 if node.op == "Upsample" or ctx.opset < 11 else 2, "scales")
    sizes = ctx.constant(node, 3, "sizes") if ctx.opset >= 11 else None
    if sizes is not None and sizes.size:
        scales = sizes / np.array(shape)
    elif "scales" in node.attrs:
        scales = np.array(node.attrs["scales"])
    if mode != "nearest" or scales is None or scales.size != 4:
        raise ctx.refuse(node, f"mode {mode}", "use nearest upsampling by a whole factor")
    whole = np.rint(scales).astype(int)
    if not np.array_equal(whole, scales) or (whole < 1).any() or (whole[:2] != 1).any():
        raise ctx.refuse(node, f"scales {scales.tolist()}", "use nearest upsampling of H and W by whole factors")
    rounding = node.attrs.get("nearest_mode", b"round_prefer_floor").decode()
    repeats = (transform == b"asymmetric" and rounding == "floor") or transform == b"half_pixel" \
        or transform == b"pytorch_half_pixel" or node.op == "Upsample" \
        or (transform == b"asymmetric" and (whole[2:] <= 2).all() and rounding == "round_prefer_floor")
    if not repeats:
        raise ctx.refuse(node, f"coordinate mode {transform.decode()} with {rounding}", "use asymmetric with floor")
    return Node(node.name, "Resize", (node.inputs[0],), node.outputs, {"factors": (int(whole[2]), int(whole[3]))})


def _reshape(ctx: Context, node: Node) -> Node:
    ctx.constant(node, 1, "shape")
    return node


def _int_inputs(ctx: Context, node: Node) -> Node:
    for index in range(1, len(node.inputs)):
        ctx.constant(node, index, f"input {index}")
    return node


def _first_output(ctx: Context, node: Node) -> Node:
    return Node(node.name, node.op, node.inputs, node.outputs[:1], node.attrs)


def _batch_norm(ctx: Context, node: Node) -> Node:
    if node.attrs.get("training_mode"):
        raise ctx.refuse(node, "is in training mode", "export the model for inference")
    _check_finite(ctx, node)
    return _first_output(ctx, node)


def _gemm(ctx: Context, node: Node) -> Node:
    if node.attrs.get("transA") or len(ctx.shapes[node.inputs[0]]) != 2:
        raise ctx.refuse(node, "transposed or non-matrix first operand", "export a plain fully connected layer")
    _int_inputs(ctx, node)
    _check_finite(ctx, node)
    return node


def _matmul(ctx: Context, node: Node) -> Node:
    if node.inputs[1] not in ctx.constants or ctx.constants[node.inputs[1]].ndim != 2:
        raise ctx.refuse(node, "product of two computed tensors (attention)", "this orind takes constant weights only")
    if len(ctx.shapes[node.inputs[0]]) != 2:
        raise ctx.refuse(node, f"first operand of shape {ctx.shapes[node.inputs[0]]}", "only (N, K) is taken")
    return node


def _softmax(ctx: Context, node: Node) -> Node:
    rank = len(ctx.shapes[node.inputs[0]])
    axis = node.attrs.get("axis", -1 if ctx.opset >= 13 else 1) % rank
    if ctx.opset < 13 and axis != rank - 1:
        raise ctx.refuse(node, f"axis {axis} of {rank} in opset {ctx.opset} (flattening form)", "export opset >= 13")
    return node.with_attrs(axis=axis)


def _cast(ctx: Context, node: Node) -> Node:
    from onnx.helper import tensor_dtype_to_np_dtype
    return Node(node.name, "Cast", node.inputs, node.outputs, {"to": tensor_dtype_to_np_dtype(node.attrs["to"]).name})


def _transpose(ctx: Context, node: Node) -> Node:
    rank = len(ctx.shapes[node.inputs[0]])
    return node.with_attrs(perm=tuple(node.attrs.get("perm", reversed(range(rank)))))


def _axis(ctx: Context, node: Node) -> Node:
    """Concat and Split: an axis that exists."""
    rank = len(ctx.shapes[node.inputs[0]])
    axis = node.attrs["axis"] if node.op == "Concat" else node.attrs.get("axis", 0)
    if not -rank <= axis < rank:
        raise ctx.refuse(node, f"axis {axis} of a tensor of {rank} dimensions", "export the model again")
    return _SPLIT(ctx, node) if node.op == "Split" else node


def _constant_of_shape(ctx: Context, node: Node) -> Node:
    return node.with_attrs(value=node.attrs.get("value", np.zeros(1, dtype=np.float32)))


def _approximate(ctx: Context, node: Node) -> Node:
    if node.attrs.get("approximate", b"none") != b"none":
        raise ctx.refuse(node, "tanh approximation", "export with approximate='none'")
    return node


_SPLIT = _attribute_as_input("split")
NORMALISERS: dict[str, Callable[[Context, Node], Node]] = {
    "Conv": _conv, "MaxPool": _pool, "AveragePool": _pool, "Clip": _clip, "Pad": _pad, "Resize": _resize,
    "Upsample": _resize, "Reshape": _reshape, "Slice": _attribute_as_input("starts", "ends", "axes"),
    "Split": _axis, "Concat": _axis, "Squeeze": _attribute_as_input("axes"), "Gelu": _approximate,
    "Unsqueeze": _attribute_as_input("axes"), "BatchNormalization": _batch_norm, "Dropout": _first_output,
    "Gemm": _gemm, "MatMul": _matmul, "Softmax": _softmax, "Cast": _cast, "Transpose": _transpose,
    "ConstantOfShape": _constant_of_shape,
}


def normalise(ctx: Context, node: Node) -> Node:
    """The node in the graph's form. Raises UnsupportedModel."""
    if node.op not in OPERATORS and node.op != "Upsample":
        raise ctx.refuse(node, "this operator is not supported", "export the model without it, or cut it off")
    return NORMALISERS[node.op](ctx, node) if node.op in NORMALISERS else node
