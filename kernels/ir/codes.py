"""QuantizeLinear, DequantizeLinear and both together, in plain NumPy. Callers: `reference.py`, the importer.

A pair of QuantizeLinear and DequantizeLinear on a computed tensor is one node of the graph, FakeQuantise: y =
clip(rint(x / alpha), low, low + 255) * alpha in float32, where `alpha` is the scale and `low` the least code less the
zero point. Attribute `exact`: the codes are int8 with zero point 0, which our arithmetic keeps bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .graph import Node

Array = npt.NDArray[Any]
CODES = 255


def fake_quantise(x: Array, alpha: float, low: int) -> Array:
    """Float32 in, float32 out."""
    codes = np.clip(np.rint(x / np.float32(alpha)), np.float32(low), np.float32(low + CODES))
    return np.asarray(codes * np.float32(alpha), dtype=np.float32)


def _side(node: Node, value: Array, rank: int) -> Array:
    """One number a channel, shaped to be broadcast along the node's axis."""
    if value.size == 1:
        return value.reshape(())
    return value.reshape([-1 if i == node.attrs["axis"] else 1 for i in range(rank)])


def quantize_linear(node: Node, x: Array, scale: Array, zero: Array) -> Array:
    """Codes of the type of `zero`, an integer of 8 bits; one scale, or one a channel of the attribute `axis`."""
    info = np.iinfo(zero.dtype)
    codes = np.rint(x / _side(node, scale, x.ndim)) + _side(node, zero, x.ndim).astype(np.float32)
    return np.asarray(np.clip(codes, info.min, info.max)).astype(zero.dtype)


def whole_codes(node: Node, codes: Array, zero: Array) -> npt.NDArray[np.int64]:
    """Codes less the zero point."""
    return np.asarray(codes.astype(np.int64) - _side(node, zero, codes.ndim).astype(np.int64))


def dequantize_linear(node: Node, codes: Array, scale: Array, zero: Array) -> Array:
    """Float32 of integer codes."""
    factor = _side(node, scale, codes.ndim).astype(np.float64)
    return np.asarray(whole_codes(node, codes, zero) * factor, dtype=np.float32)
