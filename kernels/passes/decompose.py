"""Pass: operators that executors do not know become ones that they know, with the same meaning. Caller: `pipeline.py`.

Sums and extremes of many, norms, reductions with a function inside, reflected borders, tiles, blocks, resizing of
anything but an image, products that are no dense layer. After it the graph has the operators of `lower_flat.py` and the
image nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir.graph import Array, Graph, Node
from ..ir.movement import block_permutation
from .decompose_norms import batch_norm, group_norm, layer_norm, lrn, mean_norms, softmax
from .rewriter import Rewriter

CHAINS = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}


def _chain(out: Rewriter, node: Node) -> None:
    """Sum, Mean, Max, Min of any number."""
    names, shape = list(node.inputs), out.graph.shape(node.output)
    x = names[0]
    if len(names) == 1:
        out.add("Identity", (x,), shape, True)
        return
    for i, name in enumerate(names[1:]):
        last = i == len(names) - 2 and node.op != "Mean"
        partial = tuple(np.broadcast_shapes(out.shape(x), out.shape(name)))
        x = out.add(CHAINS[node.op], (x, name), partial, last)
    if node.op == "Mean":
        out.add("Mul", (x, out.number(1 / len(names))), shape, True)


def _clip(out: Rewriter, node: Node) -> None:
    """Bounds that are computed, or not one number."""
    bounds = [(op, name) for op, name in zip(("Max", "Min"), node.inputs[1:], strict=False) if name]
    x, shape = node.inputs[0], out.graph.shape(node.output)
    for i, (op, name) in enumerate(bounds):
        x = out.add(op, (x, name), shape, i == len(bounds) - 1)


def _global(out: Rewriter, node: Node) -> None:
    """GlobalMaxPool; GlobalAveragePool of anything but an image."""
    shape = out.graph.shape(node.inputs[0])
    n = len(shape) - 2
    if n == 2 and node.op == "GlobalMaxPool":
        out.add("MaxPool", node.inputs[:1], (), True, kernel_shape=shape[2:], strides=(1, 1), pads=(0,) * 4,
                dilations=(1, 1))
        return
    op = "ReduceMax" if node.op == "GlobalMaxPool" else "ReduceMean"
    out.add(op, node.inputs[:1], (), True, axes=tuple(range(2, 2 + n)), keepdims=1)


def _reduction(out: Rewriter, node: Node) -> None:
    x, shape, full = node.inputs[0], out.graph.shape(node.output), out.graph.shape(node.inputs[0])
    reduce = dict(node.attrs)
    if node.op in ("ReduceL1", "ReduceLogSum"):
        inner = out.add("Abs", (x,), full) if node.op == "ReduceL1" else x
        total = out.add("ReduceSum", (inner,), shape, node.op == "ReduceL1", **reduce)
        if node.op == "ReduceLogSum":
            out.add("Log", (total,), shape, True)
    elif node.op in ("ReduceL2", "ReduceSumSquare"):
        square = out.add("Mul", (x, x), full)
        total = out.add("ReduceSum", (square,), shape, node.op == "ReduceSumSquare", **reduce)
        if node.op == "ReduceL2":
            out.add("Sqrt", (total,), shape, True)
    else:
        kept = tuple(1 if i in reduce["axes"] else n for i, n in enumerate(full))
        top = out.add("ReduceMax", (x,), kept, **{**reduce, "keepdims": 1})
        total = out.add("ReduceSum", (out.add("Exp", (out.add("Sub", (x, top), full),), full),), kept,
                        **{**reduce, "keepdims": 1})
        out.reshape(out.add("Add", (out.add("Log", (total,), kept), top), kept), shape, True)


def _image_mean(out: Rewriter, node: Node) -> None:
    """A mean or maximum over the whole image is a global pool."""
    x = node.inputs[0]
    shape = out.graph.shape(x)
    pooled = (*shape[:2], 1, 1)
    keep = bool(node.attrs["keepdims"])
    if node.op == "ReduceMean":
        y = out.add("GlobalAveragePool", (x,), pooled, keep)
    else:
        y = out.add("MaxPool", (x,), pooled, keep, kernel_shape=shape[2:], strides=(1, 1), pads=(0,) * 4,
                    dilations=(1, 1))
    if not keep:
        out.reshape(y, shape[:2], True)


def _gemm(out: Rewriter, node: Node) -> None:
    a, b = node.inputs[:2]
    shape = out.graph.shape(node.output)
    for key, name in (("transA", a), ("transB", b)):
        if node.attrs.get(key):
            turned = out.shape(name)[::-1]
            if name in out.graph.constants:
                name = out.constant(out.graph.constants[name].T)
            else:
                name = out.add("Transpose", (name,), turned, perm=(1, 0))
            a, b = (name, b) if key == "transA" else (a, name)
    third = node.inputs[2] if len(node.inputs) > 2 else ""
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    y = out.add("MatMul", (a, b), shape, not third and alpha == 1)
    if alpha != 1:
        y = out.add("Mul", (y, out.number(alpha)), shape, not third)
    if third:
        if beta != 1:
            third = out.add("Mul", (third, out.number(beta)), out.shape(third)) if third not in out.graph.constants \
                else out.constant(out.graph.constants[third] * np.float32(beta))
        out.add("Add", (y, third), shape, True)


def _take(out: Rewriter, x: str, axis: int, index: Array, last: bool = False) -> str:
    shape = out.shape(x)
    name = out.constant(np.asarray(index, dtype=np.int64))
    return out.add("Gather", (x, name), (*shape[:axis], len(index), *shape[axis + 1:]), last, axis=axis)


def _pad(out: Rewriter, node: Node) -> None:
    """Negative pads cut off; other modes than constant choose elements."""
    shape, mode = out.graph.shape(node.inputs[0]), node.attrs.get("mode", "constant")
    pads = out.graph.constants[node.inputs[1]].reshape(2, -1)
    x, n = node.inputs[0], len(shape)
    rest = np.maximum(pads, 0)
    for axis in range(n):
        begin, end = (int(v) for v in pads[:, axis])
        index = np.arange(max(0, -begin), shape[axis] - max(0, -end))
        if mode != "constant":
            index = np.pad(index, (max(begin, 0), max(end, 0)), mode=mode)
        if begin or end:
            x = _take(out, x, axis, index)
    if mode == "constant":
        out.add("Pad", (x, out.constant(rest.reshape(-1)), *node.inputs[2:]), (), True)
    else:
        out.add("Identity", (x,), (), True)


def _tile(out: Rewriter, node: Node) -> None:
    x, shape = node.inputs[0], out.graph.shape(node.inputs[0])
    for axis, times in enumerate(out.graph.constants[node.inputs[1]].tolist()):
        if times > 1:
            x = _take(out, x, axis, np.tile(np.arange(shape[axis]), times))
    out.add("Identity", (x,), (), True)


def _blocks(out: Rewriter, node: Node) -> None:
    first, order, last = block_permutation(node, out.graph.shape(node.inputs[0]))
    turned = out.add("Transpose", (out.reshape(node.inputs[0], first),), tuple(first[i] for i in order), perm=order)
    out.reshape(turned, last, True)


def _resize(out: Rewriter, node: Node) -> None:
    x = node.inputs[0]
    for axis, low, high, part in node.attrs["positions"]:
        first = _take(out, x, axis, np.array(low))
        if any(part):
            shape = out.shape(first)
            side = np.array(part, dtype=np.float32).reshape(-1, *[1] * (len(shape) - axis - 1))
            step = out.add("Sub", (_take(out, x, axis, np.array(high)), first), shape)
            first = out.add("Add", (first, out.add("Mul", (step, out.constant(side)), shape)), shape)
        x = first
    out.add("Identity", (x,), (), True)


def _rule(graph: Graph, node: Node) -> Callable[[Rewriter, Node], None] | None:
    """What rewrites this node; None if it stays."""
    shape = graph.shape(node.inputs[0]) if node.inputs and node.inputs[0] else ()
    if node.op in CHAINS and (len(node.inputs) != 2 or node.op in ("Sum", "Mean")):
        return _chain
    if node.op in ("ReduceMean", "ReduceMax") and len(shape) == 4 and node.attrs["axes"] == (2, 3):
        return _image_mean
    if node.op == "Clip":
        free = any(n and (n not in graph.constants or graph.constants[n].size != 1) for n in node.inputs[1:])
        return _clip if free else None
    if node.op == "Gemm":
        dense = shape[:1] == (1,) and not node.attrs.get("transA") and node.inputs[0] not in graph.constants \
            and all(not n or n in graph.constants for n in node.inputs[1:])
        return None if dense else _gemm
    if node.op == "Pad":
        return _pad if node.attrs or graph.constants[node.inputs[1]].min(initial=0) < 0 else None
    if node.op == "Resize":
        image = len(shape) == 4 and all(p[0] > 1 for p in node.attrs.get("positions", ()))
        return None if image else _resize
    if node.op == "GlobalAveragePool" and len(shape) == 4:
        return None
    if node.op == "Softmax" and not node.attrs.get("flatten"):
        return None
    if node.op == "LayerNormalization":
        return layer_norm if len(node.outputs) > 1 else None
    if node.op == "BatchNormalization" and len(shape) == 4:
        return None
    return RULES.get(node.op)


RULES: dict[str, Callable[[Rewriter, Node], None]] = {
    "GlobalMaxPool": _global, "GlobalAveragePool": _global, "Softmax": softmax, "LogSoftmax": softmax,
    "InstanceNormalization": group_norm, "GroupNormalization": group_norm, "BatchNormalization": batch_norm,
    "RMSNormalization": mean_norms, "LpNormalization": mean_norms, "MeanVarianceNormalization": mean_norms,
    "LRN": lrn, "Tile": _tile, "DepthToSpace": _blocks, "SpaceToDepth": _blocks,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), _reduction)}


def decompose(graph: Graph) -> Graph:
    out = Rewriter(graph)
    for node in graph.nodes:
        rule = _rule(graph, node)
        if rule is None:
            out.nodes.append(node)
        else:
            out.node = node
            rule(out, node)
    return out.finish()
