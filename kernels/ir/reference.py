"""What every operator of a graph means, in plain NumPy on ONNX's layout: slow, short and without any sharing.

Callers: constant folding and shape inference (through `evaluate`), tests of passes (`run_graph` before and after).
Never used for serving. Besides ONNX's operators it knows SiLU, and Conv's fused form: attribute `activation` (applied
to the sum), a fourth input (residual, added after the activation) and `bounds` (clip of the result).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .graph import Graph, Node

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]


def sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x.astype(np.float64))), dtype=x.dtype)


def softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x.astype(np.float64)), dtype=x.dtype)


def gelu(x: Array) -> Array:
    from math import erf
    wide = x.astype(np.float64)
    return np.asarray(wide * 0.5 * (1 + np.vectorize(erf, otypes=[np.float64])(wide / np.sqrt(2))), dtype=x.dtype)


ACTIVATIONS: dict[str, Callable[[Array, Attrs], Array]] = {
    "Relu": lambda x, a: np.maximum(x, x.dtype.type(0)),
    "Sigmoid": lambda x, a: sigmoid(x),
    "SiLU": lambda x, a: x * sigmoid(x),
    "Tanh": lambda x, a: np.tanh(x),
    "LeakyRelu": lambda x, a: np.where(x < 0, x * x.dtype.type(a.get("alpha", 0.01)), x),
    "HardSigmoid": lambda x, a: np.clip(x * x.dtype.type(a.get("alpha", 0.2)) + x.dtype.type(a.get("beta", 0.5)), 0, 1),
    "HardSwish": lambda x, a: x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1),
    "Gelu": lambda x, a: gelu(x),
}
"""Element-wise functions that a convolution can end in; each (x, attributes) -> y of x's dtype."""


def windows(x: Array, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
            fill: float) -> Array:
    """(N, C, Ho, Wo, kh, kw) windows of (N, C, H, W); pads are ONNX's (top, left, bottom, right)."""
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=x.dtype.type(fill))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view: Array = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(2, 3))
    return view[:, :, ::strides[0], ::strides[1], ::dilations[0], ::dilations[1]]


def convolve(x: Array, w: Array, bias: Array | None, attrs: Attrs) -> Array:
    kernel = w.shape[2:]
    view = windows(x, kernel, attrs.get("strides", (1, 1)), attrs.get("pads", (0, 0, 0, 0)),
                   attrs.get("dilations", (1, 1)), 0)
    groups = attrs.get("group", 1)
    n, c, ho, wo = view.shape[:4]
    view = view.reshape(n, groups, c // groups, ho, wo, *kernel)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y = np.einsum("ngchwrs,gocrs->ngohw", view, split, optimize=True).reshape(n, w.shape[0], ho, wo)
    return np.asarray(y if bias is None else y + bias[:, None, None], dtype=np.result_type(x, w))


def _conv(node: Node, x: Array, w: Array, b: Array | None = None, residual: Array | None = None) -> Array:
    y: Array = convolve(x, w, b, node.attrs)
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


def _max_pool(node: Node, x: Array) -> Array:
    a = node.attrs
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    return np.asarray(windows(x, a["kernel_shape"], a["strides"], a["pads"], a["dilations"], least).max((4, 5)))


def _average_pool(node: Node, x: Array) -> Array:
    a = node.attrs

    def sums(v: Array) -> Array:
        return np.asarray(windows(v, a["kernel_shape"], a["strides"], a["pads"], (1, 1), 0).sum((4, 5)))
    count = float(np.prod(a["kernel_shape"])) if a.get("count_include_pad") else sums(np.ones_like(x[:1, :1]))
    return np.asarray(sums(x) / count, dtype=x.dtype)


def _pad(node: Node, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    where = range(x.ndim) if axes is None else [int(i) % x.ndim for i in axes]
    widths = [(0, 0)] * x.ndim
    half = len(pads) // 2
    for i, axis in enumerate(where):
        widths[axis] = (int(pads[i]), int(pads[half + i]))
    return np.pad(x, widths, constant_values=0 if value is None else value.reshape(()))


def _slice(node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None,
           steps: Array | None = None) -> Array:
    index: list[slice] = [slice(None)] * x.ndim
    for i in range(len(starts)):
        axis = i if axes is None else int(axes[i])
        step = 1 if steps is None else int(steps[i])
        end = int(ends[i])
        index[axis] = slice(int(starts[i]), None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(index)]


def _split(node: Node, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = node.attrs.get("axis", 0)
    if sizes is None:
        part = -(-x.shape[axis] // len(node.outputs))
        cuts = [part * i for i in range(1, len(node.outputs))]
    else:
        cuts = np.cumsum(sizes)[:-1].tolist()
    return tuple(np.split(x, cuts, axis))


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    sizes = [int(s) if s or node.attrs.get("allowzero") else x.shape[i] for i, s in enumerate(shape)]
    return x.reshape(sizes)


def _resize(node: Node, x: Array, *_: Array | None) -> Array:
    fy, fx = node.attrs["factors"]
    return x.repeat(fy, 2).repeat(fx, 3)


def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze() if axes is None else x.squeeze(tuple(int(i) for i in axes))


def _unsqueeze(node: Node, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(i) for i in axes))


def _softmax(node: Node, x: Array) -> Array:
    e: Array = np.exp(x - x.max(node.attrs.get("axis", -1), keepdims=True))
    return np.asarray(e / e.sum(node.attrs.get("axis", -1), keepdims=True))


def _divide(node: Node, a: Array, b: Array) -> Array:
    return a / b if a.dtype.kind == "f" else np.asarray(np.trunc(a / b), dtype=a.dtype)


def _clip(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    return x if low is None and high is None else np.clip(x, low, high)


def _flatten(node: Node, x: Array) -> Array:
    axis = node.attrs.get("axis", 1)
    return x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)


OPERATORS: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "Conv": _conv, "Gemm": _gemm, "MatMul": lambda n, a, b: a @ b, "BatchNormalization": _batch_norm,
    "MaxPool": _max_pool, "AveragePool": _average_pool, "GlobalAveragePool": lambda n, x: x.mean((2, 3), keepdims=True),
    "Add": lambda n, a, b: a + b, "Sub": lambda n, a, b: a - b, "Mul": lambda n, a, b: a * b, "Div": _divide,
    "Sqrt": lambda n, x: np.sqrt(x), "Exp": lambda n, x: np.exp(x), "Neg": lambda n, x: -x, "Clip": _clip,
    "Softplus": lambda n, x: softplus(x), "Softmax": _softmax, "Identity": lambda n, x: x, "Dropout": lambda n, x: x,
    "Concat": lambda n, *xs: np.concatenate(xs, n.attrs["axis"]), "Split": _split, "Slice": _slice, "Pad": _pad,
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": lambda n, x: x.transpose(n.attrs["perm"]),
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Resize": _resize,
    "Cast": lambda n, x: x.astype(n.attrs["to"]), "Shape": lambda n, x: np.array(x.shape, dtype=np.int64),
    "Gather": lambda n, x, i: np.take(x, i, n.attrs.get("axis", 0)),
    "ConstantOfShape": lambda n, s: np.full(s.tolist(), n.attrs["value"].reshape(()), n.attrs["value"].dtype),
    "Expand": lambda n, x, s: x * np.ones(s.tolist(), dtype=x.dtype),
    "Range": lambda n, a, b, c: np.arange(a.item(), b.item(), c.item(), dtype=a.dtype),
    **{name: (lambda n, x, f=f: f(x, n.attrs)) for name, f in ACTIVATIONS.items()},
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
