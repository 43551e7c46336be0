"""Operators that slide a window or sample positions, in plain NumPy for any number of axes. Caller: `reference.py`.

Attributes are in the importer's form: `kernel_shape`, `strides`, `dilations`, `pads` (begins, then ends) are complete;
`counted` of an average pool is (below, above) each axis: how many padding places count as elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .graph import Node

Array = npt.NDArray[Any]
Attrs = Mapping[str, Any]


def windows(x: Array, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
            fill: float) -> Array:
    """(N, C, *out, *kernel) windows of (N, C, *size)."""
    n = len(kernel)
    padded = np.pad(x, ((0, 0), (0, 0), *((pads[i], pads[n + i]) for i in range(n))),
                    constant_values=x.dtype.type(fill))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view: Array = np.lib.stride_tricks.sliding_window_view(padded, span, axis=tuple(range(2, 2 + n)))
    every = slice(None)
    return view[(every, every, *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]


def convolve(x: Array, w: Array, bias: Array | None, attrs: Attrs) -> Array:
    n = w.ndim - 2
    view = windows(x, w.shape[2:], attrs["strides"], attrs["pads"], attrs["dilations"], 0)
    groups = attrs.get("group", 1)
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    sums = [np.tensordot(view[:, g * per_in:(g + 1) * per_in], w[g * per_out:(g + 1) * per_out],
                         ((1, *range(2 + n, 2 + 2 * n)), tuple(range(1, 2 + n)))) for g in range(groups)]
    y = np.moveaxis(np.concatenate(sums, -1), -1, 1)
    return np.asarray(y if bias is None else y + bias.reshape(-1, *[1] * n), dtype=np.result_type(x, w))


def stuffed(x: Array, attrs: Attrs, kernel: Sequence[int]) -> tuple[Array, list[int]]:
    """The zero-stuffed input of a transposed convolution, and the pads of the convolution that it then is.

    A negative pad (of a transposed convolution that crops more than its kernel reaches) is cut off here.
    """
    n = len(kernel)
    size = x.shape[2:]
    wide = np.zeros((*x.shape[:2], *((s - 1) * a + 1 for s, a in zip(size, attrs["strides"], strict=True))), x.dtype)
    every = (slice(None), slice(None))
    wide[(*every, *(slice(None, None, s) for s in attrs["strides"]))] = x
    pads = []
    for end in (0, 1):
        for i in range(n):
            extra = attrs["output_padding"][i] if end else 0
            pads.append((kernel[i] - 1) * attrs["dilations"][i] - attrs["pads"][end * n + i] + extra)
    cut = tuple(slice(max(0, -pads[i]), wide.shape[2 + i] - max(0, -pads[n + i])) for i in range(n))
    return wide[(*every, *cut)], [max(p, 0) for p in pads]


def swapped_weight(w: Array, groups: int) -> Array:
    """(C, M / groups, *kernel) of a transposed convolution to (M, C / groups, *kernel) of the equal convolution."""
    c, m, *kernel = w.shape
    turned = w.reshape(groups, c // groups, m, *kernel).swapaxes(1, 2).reshape(groups * m, c // groups, *kernel)
    return np.flip(turned, tuple(range(2, w.ndim)))


def zero_stuff(node: Node, x: Array) -> Array:
    """Attributes `strides` and `crop` (top, left, bottom, right)."""
    (sy, sx), (top, left, bottom, right) = node.attrs["strides"], node.attrs["crop"]
    wide = np.zeros((*x.shape[:2], (x.shape[2] - 1) * sy + 1, (x.shape[3] - 1) * sx + 1), x.dtype)
    wide[:, :, ::sy, ::sx] = x
    return wide[:, :, top:wide.shape[2] - bottom, left:wide.shape[3] - right]


def conv(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    return convolve(x, w, b, node.attrs)


def conv_transpose(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    a = node.attrs
    wide, pads = stuffed(x, a, w.shape[2:])
    ones = (1,) * (w.ndim - 2)
    return convolve(wide, swapped_weight(w, a["group"]), b,
                    {"strides": ones, "pads": pads, "dilations": a["dilations"], "group": a["group"]})


def max_pool(node: Node, x: Array) -> Array:
    a = node.attrs
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    view = windows(x, a["kernel_shape"], a["strides"], a["pads"], a["dilations"], least)
    return np.asarray(view.max(tuple(range(-len(a["kernel_shape"]), 0))))


def element_counts(node: Node, size: Sequence[int], out: Sequence[int]) -> npt.NDArray[np.float64]:
    """How many elements each place of an average pool divides by; shape `out`."""
    a = node.attrs
    n = len(size)
    below, above = a.get("counted", ((0,) * n, (0,) * n))
    total: Any = np.float64(1)
    for i in range(n):
        places = np.arange(out[i])[:, None] * a["strides"][i] - a["pads"][i] \
            + np.arange(a["kernel_shape"][i]) * a["dilations"][i]
        inside = (places >= -below[i]) & (places < size[i] + above[i])
        total = np.multiply.outer(total, inside.sum(1).astype(np.float64))
    return np.asarray(np.maximum(total, 1))


def average_pool(node: Node, x: Array) -> Array:
    a = node.attrs
    n = len(a["kernel_shape"])
    sums = windows(x, a["kernel_shape"], a["strides"], a["pads"], a["dilations"], 0).sum(tuple(range(-n, 0)))
    return np.asarray(sums / element_counts(node, x.shape[2:], sums.shape[2:]), dtype=x.dtype)


def resize(node: Node, x: Array) -> Array:
    """`factors`: rows, columns repeated. Else `positions`, (axis, low, high, f) each: x[low] + f (x[high] - x[low])."""
    if "factors" in node.attrs:
        fy, fx = node.attrs["factors"]
        return x.repeat(fy, 2).repeat(fx, 3)
    for axis, low, high, fraction in node.attrs["positions"]:
        part = np.asarray(fraction, dtype=x.dtype).reshape(-1, *[1] * (x.ndim - axis - 1))
        first = x.take(low, axis)
        x = first + (x.take(high, axis) - first) * part if part.any() else first
    return x


def local_response(node: Node, x: Array) -> Array:
    a, c = node.attrs, x.shape[1]
    band = channel_band(c, a["size"])
    sums = np.tensordot(band, x.astype(np.float64) ** 2, (1, 1)).swapaxes(0, 1)
    return np.asarray(x / (a["bias"] + a["alpha"] / a["size"] * sums) ** a["beta"], dtype=x.dtype)


def channel_band(channels: int, size: int) -> npt.NDArray[np.float32]:
    """(C, C) of 0 and 1: row c sums the `size` channels around c."""
    distance = np.arange(channels)[None] - np.arange(channels)[:, None]
    return ((distance >= -((size - 1) // 2)) & (distance <= size // 2)).astype(np.float32)
