"""Operators that move, select or make values, in plain NumPy. Caller: `reference.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .graph import Node

Array = npt.NDArray[Any]


SCATTERS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _pad(node: Node, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None) -> Array:
    where = range(x.ndim) if axes is None else [int(i) % x.ndim for i in axes]
    widths = [(0, 0)] * x.ndim
    half = len(pads) // 2
    for i, axis in enumerate(where):
        widths[axis] = (int(pads[i]), int(pads[half + i]))
    cut = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape, widths, strict=True))
    widths = [(max(a, 0), max(b, 0)) for a, b in widths]
    mode = node.attrs.get("mode", "constant")
    if mode != "constant":
        return np.pad(x[cut], widths, mode=mode)
    return np.pad(x[cut], widths, constant_values=0 if value is None else value.reshape(()))


def slices(shape: tuple[int, ...], starts: Array, ends: Array, axes: Array | None, steps: Array | None) -> list[slice]:
    """The slice of each axis, as ONNX's Slice means it."""
    index: list[slice] = [slice(None)] * len(shape)
    for i in range(len(starts)):
        axis = i if axes is None else int(axes[i])
        step = 1 if steps is None else int(steps[i])
        end = int(ends[i])
        index[axis] = slice(int(starts[i]), None if step < 0 and end < -shape[axis] else end, step)
    return index


def _slice(node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None,
           steps: Array | None = None) -> Array:
    return x[tuple(slices(x.shape, starts, ends, axes, steps))]


def _split(node: Node, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = node.attrs.get("axis", 0)
    if sizes is None:
        part = -(-x.shape[axis] // len(node.outputs))
        sizes = np.minimum(part, x.shape[axis] - part * np.arange(len(node.outputs)))
    if sizes.sum() != x.shape[axis] or (sizes < 0).any() or len(sizes) != len(node.outputs):
        raise ValueError(f"parts {sizes.tolist()} of an axis of {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1].tolist(), axis))


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    sizes = [int(s) if s or node.attrs.get("allowzero") else x.shape[i] for i, s in enumerate(shape)]
    return x.reshape(sizes)


def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    return x.squeeze() if axes is None else x.squeeze(tuple(int(i) for i in axes.reshape(-1)))


def _unsqueeze(node: Node, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(i) for i in axes.reshape(-1)))


def _flatten(node: Node, x: Array) -> Array:
    axis = node.attrs.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape(int(np.prod(x.shape[:axis], dtype=int)), -1)


def _scatter_nd(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    reduction = node.attrs.get("reduction", b"none").decode()
    y, where = x.copy(), tuple(np.moveaxis(indices, -1, 0))
    if reduction == "none":
        y[where] = updates
    else:
        SCATTERS[reduction].at(y, where, updates)
    return y


def _one_hot(node: Node, indices: Array, depth: Array, values: Array) -> Array:
    count = int(depth.reshape(-1)[0])
    whole = indices.astype(np.int64)
    hot = np.where(whole < 0, whole + count, whole)[..., None] == np.arange(count)
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, node.attrs.get("axis", -1))


def _cumulative(node: Node, x: Array, axis: Array) -> Array:
    if node.attrs.get("exclusive") or node.attrs.get("reverse"):
        raise ValueError("exclusive or reverse sums are not taken")
    return np.asarray(np.cumsum(x, int(axis.reshape(-1)[0])), dtype=x.dtype)


def _triangle(node: Node, x: Array, k: Array | None = None) -> Array:
    offset = 0 if k is None else int(k.reshape(-1)[0])
    return np.triu(x, offset) if node.attrs.get("upper", 1) else np.tril(x, offset)


def block_permutation(node: Node, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """DepthToSpace and SpaceToDepth as (shape to take x in, order of its axes, shape of y)."""
    n, c, h, w = shape
    b = node.attrs["blocksize"]
    if node.op == "SpaceToDepth" and node.attrs.get("mode", b"DCR") == b"CRD":
        return (n, c, h // b, b, w // b, b), (0, 1, 3, 5, 2, 4), (n, c * b * b, h // b, w // b)
    if node.op == "SpaceToDepth":
        return (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4), (n, c * b * b, h // b, w // b)
    out = (n, c // (b * b), h * b, w * b)
    if node.attrs.get("mode", b"DCR") == b"CRD":
        return (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3), out
    return (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2), out


def _blocks(node: Node, x: Array) -> Array:
    first, order, last = block_permutation(node, x.shape)
    return x.reshape(first).transpose(order).reshape(last)


MOVEMENT: dict[str, Callable[..., Array | tuple[Array, ...]]] = {
    "Concat": lambda n, *xs: np.concatenate(xs, n.attrs["axis"]), "Split": _split, "Slice": _slice, "Pad": _pad,
    "Reshape": _reshape, "Flatten": _flatten, "Transpose": lambda n, x: x.transpose(n.attrs["perm"]),
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Shape": lambda n, x: np.array(x.shape, dtype=np.int64),
    "Size": lambda n, x: np.array(x.size, dtype=np.int64),
    "Gather": lambda n, x, i: np.take(x, i, n.attrs.get("axis", 0)),
    "GatherND": lambda n, x, i: x[tuple(np.moveaxis(i, -1, 0))],
    "GatherElements": lambda n, x, i: np.take_along_axis(x, i, n.attrs.get("axis", 0)),
    "ScatterND": _scatter_nd, "OneHot": _one_hot, "CumSum": _cumulative, "Trilu": _triangle,
    "NonZero": lambda n, x: np.array(np.nonzero(x), dtype=np.int64),
    "ConstantOfShape": lambda n, s: np.full(s.tolist(), n.attrs["value"].reshape(()), n.attrs["value"].dtype),
    "Expand": lambda n, x, s: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(s.tolist()))),
    "Tile": lambda n, x, r: np.tile(x, r.tolist()),
    "Range": lambda n, a, b, c: np.arange(a.item(), b.item(), c.item(), dtype=a.dtype),
    "DepthToSpace": _blocks, "SpaceToDepth": _blocks,
    "ChannelGather": lambda n, x: x[:, list(n.attrs["channels"])],
}
"""Operator name -> (node, inputs...) -> output or outputs. Ours: ChannelGather (y[:, i] = x[:, channels[i]])."""
