"""Convolutions and poolings of any opset in the graph's form: pads, strides, dilations complete.

Caller: `operators.py`.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Node
from .context import Context, Shape

LARGEST_PADDED = 1 << 28
"""Elements of one channel of a padded input: what is above is a damaged file, not a model."""
LARGEST_STRIDE = 1 << 24


def _spatial(ctx: Context, node: Node, kernel: Shape) -> Node:
    """Adds the complete attributes. `auto_pad` is resolved."""
    shape = ctx.shape(node)
    n = len(shape) - 2
    if n < 1 or len(kernel) != n:
        raise ctx.refuse(node, f"input of {len(shape)} dimensions with a kernel of {len(kernel)}",
                         "images (N, C, H, W), rows (N, C, W) and volumes (N, C, D, H, W) are taken")
    strides = tuple(node.attrs.get("strides") or (1,) * n)
    dilations = tuple(node.attrs.get("dilations") or (1,) * n)
    pads = tuple(node.attrs.get("pads") or (0,) * 2 * n)
    if (len(strides), len(dilations), len(pads)) != (n, n, 2 * n) or min((*strides, *dilations, *kernel)) < 1 \
            or max(strides) > LARGEST_STRIDE:
        raise ctx.refuse(node, f"strides {strides}, dilations {dilations}, pads {pads} or kernel {kernel} make no "
                         "sense", "export the model again")
    auto = node.attrs.get("auto_pad", b"NOTSET").decode()
    if auto == "VALID":
        pads = (0,) * 2 * n
    elif auto in ("SAME_UPPER", "SAME_LOWER") and node.op != "ConvTranspose":
        total = [max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
                 for size, s, k, d in zip(shape[2:], strides, kernel, dilations, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    elif auto not in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
        raise ctx.refuse(node, f"auto_pad {auto}", "export with explicit pads")
    if min(pads) < 0:
        raise ctx.refuse(node, f"negative pads {pads}", "export with a Slice instead")
    if np.prod([float(size + pads[i] + pads[n + i]) for i, size in enumerate(shape[2:])]) > LARGEST_PADDED \
            or np.prod([float((k - 1) * d + 1) for k, d in zip(kernel, dilations, strict=True)]) > LARGEST_PADDED:
        raise ctx.refuse(node, f"pads {pads} or a kernel {kernel} of impossible size", "export the model again")
    rest = {k: v for k, v in node.attrs.items() if k != "auto_pad"}
    return Node(node.name, node.op, node.inputs, node.outputs,
                {**rest, "kernel_shape": tuple(kernel), "strides": strides, "dilations": dilations, "pads": pads})


def _weight(ctx: Context, node: Node, outputs: int) -> tuple[Node, Shape]:
    """The node with complete attributes, and its weight's shape; `outputs` is the axis of the bias in the weight."""
    shape = ctx.shape(node)
    weight = ctx.constant(node, 1, "weight")
    if weight is None:
        raise ctx.refuse(node, "has no weight", "export the model with its weights")
    bias = ctx.constant(node, 2, "bias")
    ctx.finite(node)
    if weight.dtype.name != "float32" or (bias is not None and bias.dtype.name != "float32"):
        raise ctx.refuse(node, f"its weights are {weight.dtype.name}", "export the model in float32")
    given = tuple(node.attrs.get("kernel_shape") or weight.shape[2:])
    if given != weight.shape[2:]:
        raise ctx.refuse(node, f"kernel_shape {given} is not that of its weight {weight.shape}",
                         "export the model again")
    node = _spatial(ctx, node, tuple(weight.shape[2:]))
    groups = node.attrs.get("group", 1)
    if groups < 1 or weight.ndim != len(shape) or min(weight.shape) < 1 or shape[1] % groups \
            or weight.shape[0] % groups:
        raise ctx.refuse(node, f"weight {weight.shape} with group {groups} does not fit {shape[1]} input channels",
                         "export the model again")
    channels = weight.shape[outputs] * (groups if outputs else 1)
    if bias is not None and bias.shape != (channels,):
        raise ctx.refuse(node, f"bias {bias.shape} does not fit {channels} channels", "export the model again")
    return node.with_attrs(group=groups), tuple(weight.shape)


def conv(ctx: Context, node: Node) -> Node:
    node, weight = _weight(ctx, node, 0)
    if weight[1] * node.attrs["group"] != ctx.shape(node)[1]:
        raise ctx.refuse(node, f"weight {weight} with group {node.attrs['group']} does not fit {ctx.shape(node)[1]} "
                         "input channels", "export the model again")
    return node


def conv_transpose(ctx: Context, node: Node) -> Node:
    """`output_shape` and `auto_pad` become pads; `output_padding` is complete."""
    auto = node.attrs.get("auto_pad", b"NOTSET").decode()
    given = node.attrs.get("output_shape")
    node, weight = _weight(ctx, node, 1)
    shape, a = ctx.shape(node), node.attrs
    if weight[0] != shape[1]:
        raise ctx.refuse(node, f"weight {weight} does not fit {shape[1]} input channels", "export the model again")
    n = len(shape) - 2
    extra = tuple(a.get("output_padding") or (0,) * n)
    if len(extra) != n or min(extra) < 0 or any(e >= max(s, d) for e, s, d in
                                                zip(extra, a["strides"], a["dilations"], strict=True)):
        raise ctx.refuse(node, f"output_padding {extra}", "it must be less than the stride: export the model again")
    span = [(k - 1) * d + 1 for k, d in zip(a["kernel_shape"], a["dilations"], strict=True)]
    pads = a["pads"]
    if given is not None or auto.startswith("SAME"):
        wanted = given[-n:] if given is not None else [shape[2 + i] * a["strides"][i] for i in range(n)]
        total = [a["strides"][i] * (shape[2 + i] - 1) + extra[i] + span[i] - wanted[i] for i in range(n)]
        if min(total) < 0:                             # the output is longer than the input reaches: zeros at the end
            extra = tuple(e + max(0, -t) for e, t in zip(extra, total, strict=True))
            total = [max(0, t) for t in total]
        half, rest = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*rest, *half) if auto == "SAME_LOWER" else (*half, *rest)
    clean = {k: v for k, v in a.items() if k != "output_shape"}
    return Node(node.name, node.op, node.inputs, node.outputs, {**clean, "pads": pads, "output_padding": extra})


def pool(ctx: Context, node: Node) -> Node:
    """`ceil_mode` becomes further pads at the end, which an average does not count (`counted`)."""
    if len(node.outputs) > 1 and node.outputs[1]:
        raise ctx.refuse(node, "asks for the indices of the maxima", "use pooling without indices")
    node = _spatial(ctx, node, tuple(node.attrs["kernel_shape"]))
    a, size = node.attrs, ctx.shape(node)[2:]
    n = len(size)
    pads = list(a["pads"])
    if any(pads[i] >= (a["kernel_shape"][i % n] - 1) * a["dilations"][i % n] + 1 for i in range(2 * n)):
        raise ctx.refuse(node, f"pads {a['pads']} as large as the kernel {a['kernel_shape']}", "export the model again")
    counts = (tuple(pads[:n]), tuple(pads[n:])) if a.get("count_include_pad") else ((0,) * n, (0,) * n)
    for i in range(n if a.get("ceil_mode") else 0):
        span = (a["kernel_shape"][i] - 1) * a["dilations"][i] + 1
        whole = -(-(size[i] + pads[i] + pads[n + i] - span) // a["strides"][i]) * a["strides"][i] + span
        if whole - span < size[i] + pads[i]:           # a last window that would start in the padding is left out
            pads[n + i] += max(0, whole - size[i] - pads[i] - pads[n + i])
    for i in range(n if node.op == "MaxPool" else 0):
        start, step, taps = -pads[i], a["strides"][i], range(a["kernel_shape"][i])
        last = size[i] + pads[n + i] - (a["kernel_shape"][i] - 1) * a["dilations"][i]
        if any(all(not 0 <= at + k * a["dilations"][i] < size[i] for k in taps) for at in range(start, last, step)):
            raise ctx.refuse(node, f"a window of {a['kernel_shape']} with dilations {a['dilations']} lies in the "
                             f"padding of {size} altogether: nothing has a maximum there",
                             "use smaller pads, or a larger input")
    return Node(node.name, node.op, node.inputs, node.outputs[:1], {
        **{k: a[k] for k in ("kernel_shape", "strides", "dilations")}, "pads": tuple(pads),
        **({"counted": counts} if node.op == "AveragePool" else {})})


def window_shape(ctx: Context, node: Node) -> Shape:
    """Output shape of Conv, MaxPool, AveragePool, ConvTranspose in the graph's form."""
    n, channels, *size = ctx.shape(node)
    a, d = node.attrs, len(size)
    out = []
    for i in range(d):
        span = (a["kernel_shape"][i] - 1) * a["dilations"][i] + 1
        pads = a["pads"][i] + a["pads"][d + i]
        if node.op == "ConvTranspose":
            out.append((size[i] - 1) * a["strides"][i] + a["output_padding"][i] + span - pads)
        else:
            out.append((size[i] + pads - span) // a["strides"][i] + 1)
    if min(out) < 1:
        raise ctx.refuse(node, f"its window is larger than the input {size}", "use a larger input")
    if node.op == "Conv":
        channels = ctx.shape(node, 1)[0]
    elif node.op == "ConvTranspose":
        channels = ctx.shape(node, 1)[1] * a["group"]
    return (n, channels, *out)
