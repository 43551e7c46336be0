"""What every operator of a graph means, in plain NumPy on ONNX's layout: slow, short and without any sharing.

Callers: constant folding and shape inference (through `evaluate`), tests of passes (`run_graph` before and after).
Never used for serving. Besides ONNX's operators it knows SiLU, GeluTanh, FakeQuantise, ChannelGather, ZeroStuff,
Conv's fused form (attribute `activation`, applied to the sum; a fourth input, the residual, added after it; `bounds`,
the clip of the result) and LayerNormalization without a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import windowed
from .codes import dequantize_linear, quantize_linear
from .elementwise import ACTIVATIONS, ELEMENTWISE
from .graph import Graph, Node
from .movement import MOVEMENT

Array = npt.NDArray[Any]
__all__ = ["ACTIVATIONS", "OPERATORS", "evaluate", "run_graph"]


def _conv(node: Node, x: Array, w: Array, b: Array | None = None, residual: Array | None = None) -> Array:
    y: Array = windowed.conv(node, x, w, b)
    if node.attrs.get("activation"):
        y = ACTIVATIONS[node.attrs["activation"]](y, node.attrs.get("activation_attrs", {}))
    if residual is not None:
        y = y + residual
    low, high = node.attrs.get("bounds", (None, None))
    return y if low is None and high is None else np.clip(y, low, high)


def _gemm(node: Node, a: Array, b: Array, c: Array | None = None) -> Array:
    y: Array = (a.T if node.attrs.get("transA") else a) @ (b.T if node.attrs.get("transB") else b)
    y = y * y.dtype.type(node.attrs.get("alpha", 1.0))
    return y if c is None else y + c * y.dtype.type(node.attrs.get("beta", 1.0))


def _batch_norm(node: Node, x: Array, scale: Array, b: Array, mean: Array, var: Array) -> Array:
    side = (1, -1) + (1,) * (x.ndim - 2)
    k = scale / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    return np.asarray((x - mean.reshape(side)) * k.reshape(side) + b.reshape(side), dtype=x.dtype)


def _normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred ** 2).mean(axes, keepdims=True) + epsilon), dtype=x.dtype)


def _layer_norm(node: Node, x: Array, scale: Array | None = None,
                bias: Array | None = None) -> Array | tuple[Array, ...]:
    axes, epsilon = tuple(range(node.attrs.get("axis", -1) % x.ndim, x.ndim)), node.attrs.get("epsilon", 1e-5)
    y = _normalised(x, axes, epsilon)
    y = y if scale is None else y * scale
    y = y if bias is None else y + bias
    if len(node.outputs) == 1:
        return y
    wide = x.astype(np.float64)
    inverse = 1 / np.sqrt(wide.var(axes, keepdims=True) + epsilon)
    return y, wide.mean(axes, keepdims=True).astype(x.dtype), inverse.astype(x.dtype)


def _rms_norm(node: Node, x: Array, scale: Array) -> Array:
    axes = tuple(range(node.attrs.get("axis", -1) % x.ndim, x.ndim))
    mean = (x.astype(np.float64) ** 2).mean(axes, keepdims=True)
    return np.asarray(x / np.sqrt(mean + node.attrs.get("epsilon", 1e-5)) * scale, dtype=x.dtype)


def _group_norm(node: Node, x: Array, scale: Array, bias: Array) -> Array:
    """InstanceNormalization is the form with a group a channel."""
    n, c, *rest = x.shape
    groups = node.attrs.get("num_groups", c)
    y = _normalised(x.reshape(n, groups, -1), (2,), node.attrs.get("epsilon", 1e-5)).reshape(x.shape)
    side = (1, c) + (1,) * len(rest)
    gain, shift = (np.repeat(v, c // len(v)).reshape(side) for v in (scale, bias))
    return np.asarray(y * gain + shift)


def _mean_variance(node: Node, x: Array) -> Array:
    axes = tuple(node.attrs.get("axes", (0, 2, 3)))
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / (np.sqrt((centred ** 2).mean(axes, keepdims=True)) + 1e-9), dtype=x.dtype)


def _lp_norm(node: Node, x: Array) -> Array:
    norm = np.linalg.norm(x, node.attrs.get("p", 2), node.attrs.get("axis", -1), keepdims=True)
    return np.asarray(x / np.where(norm == 0, 1, norm), dtype=x.dtype)


def _softmax(node: Node, x: Array) -> Array:
    axis = node.attrs.get("axis", -1)
    if node.attrs.get("flatten"):
        axis %= x.ndim
        return _softmax(node.with_attrs(flatten=0, axis=1),
                        x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)).reshape(x.shape)
    shifted = x - x.max(axis, keepdims=True)
    if node.op == "LogSoftmax":
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))
    e: Array = np.exp(shifted)
    return np.asarray(e / e.sum(axis, keepdims=True))


def _least(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _most(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _log_sum_exp(x: Array, axes: tuple[int, ...], keep: bool) -> Array:
    top = x.max(axes, keepdims=True, initial=-np.inf)
    y = np.log(np.exp(x - top).sum(axes, keepdims=True)) + top
    return np.asarray(y if keep else y.squeeze(axes))


REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...], bool], Array]] = {
    "ReduceSum": lambda x, a, k: x.sum(a, keepdims=k), "ReduceMean": lambda x, a, k: x.mean(a, keepdims=k),
    "ReduceMax": lambda x, a, k: x.max(a, keepdims=k, initial=_least(x.dtype)),
    "ReduceMin": lambda x, a, k: x.min(a, keepdims=k, initial=_most(x.dtype)),
    "ReduceProd": lambda x, a, k: x.prod(a, keepdims=k), "ReduceL1": lambda x, a, k: np.abs(x).sum(a, keepdims=k),
    "ReduceL2": lambda x, a, k: np.sqrt((x * x).sum(a, keepdims=k)),
    "ReduceSumSquare": lambda x, a, k: (x * x).sum(a, keepdims=k),
    "ReduceLogSum": lambda x, a, k: np.log(x.sum(a, keepdims=k)), "ReduceLogSumExp": _log_sum_exp,
}
"""(x, axes, keep dimensions) -> y; the attributes `axes` (complete, not negative) and `keepdims` are the importer's."""


def _reduce(node: Node, x: Array) -> Array:
    found = REDUCTIONS[node.op](x, tuple(node.attrs["axes"]), bool(node.attrs.get("keepdims", 1)))
    return np.asarray(found, dtype=x.dtype)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


OPERATORS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    **ELEMENTWISE, **MOVEMENT, **dict.fromkeys(REDUCTIONS, _reduce),
    "Conv": _conv, "ConvTranspose": windowed.conv_transpose, "Gemm": _gemm, "MatMul": lambda n, a, b: a @ b,
    "MaxPool": windowed.max_pool, "AveragePool": windowed.average_pool, "Resize": windowed.resize,
    "ZeroStuff": windowed.zero_stuff,
    "GlobalAveragePool": lambda n, x: x.mean(_spatial(x), keepdims=True),
    "GlobalMaxPool": lambda n, x: x.max(_spatial(x), keepdims=True), "LRN": windowed.local_response,
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm,
    "InstanceNormalization": _group_norm, "GroupNormalization": _group_norm, "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance, "Softmax": _softmax, "LogSoftmax": _softmax,
    "QuantizeLinear": quantize_linear, "DequantizeLinear": dequantize_linear,
}
"""Operator name -> (node, inputs...) -> output or tuple of outputs. Also the list of what the importer takes."""


def evaluate(node: Node, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Outputs of one node. Raises ValueError, TypeError or IndexError on inputs that the operator cannot take."""
    result = OPERATORS[node.op](node, *inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    return tuple(np.asarray(o) for o in outputs)


def run_graph(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of the graph for these inputs (logical layout of `graph.inputs`), by name."""
    values: dict[str, Array] = {**graph.constants, **feeds}
    for node in graph.nodes:
        inputs = [values[name] if name else None for name in node.inputs]
        values.update(zip(node.outputs, evaluate(node, inputs), strict=False))
    return values
