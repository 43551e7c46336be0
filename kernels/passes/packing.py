"""Weights and channel vectors in the executors' form: physical channels, pads 0, groups large enough to be worth it.

Callers: the `Numbers` of each precision, `lower_images.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.program import UNIT, Tensor

Array = npt.NDArray[Any]


def runs(x: Tensor, y: Tensor, at: int, order: tuple[int, ...] | None = None) -> tuple[tuple[int, int, int], ...]:
    """Physical channel runs (from, to, count) that put x's channels, in `order`, at y's from `at` on.

    A run ends with y's segment: executors and the validator find the segments that a Copy writes by where runs start.
    """
    found: list[tuple[int, int, int]] = []
    starts = {start for start, _ in y.segments}
    for source, target in zip(x.channels()[list(order)] if order else x.channels(), y.channels()[at:], strict=False):
        if found and found[-1][0] + found[-1][2] == source and found[-1][1] + found[-1][2] == target \
                and target not in starts:
            found[-1] = (found[-1][0], found[-1][1], found[-1][2] + 1)
        else:
            found.append((int(source), int(target), 1))
    return tuple(found)


def merged_groups(groups: int, channels: int) -> int:
    """Fewer, larger groups: at least 16 channels each, so that a group is worth a matrix product."""
    per = channels // groups
    for joined in range(1, groups + 1):
        if groups % joined == 0 and joined * per >= UNIT:
            return groups // joined
    return 1


def pack_weight(weight: Array, x: Tensor, y: Tensor, groups: int) -> tuple[Array, int]:
    """(M, C / groups, kh, kw) to (kh, kw, physical input channels of a group, y.span), and the groups it needs.

    Pads are 0. Groups whose channels do not lie together, or that are small, are written out into larger ones.
    """
    m, per, kh, kw = weight.shape
    xs, ys = x.channels(), y.channels()
    lies_plain = np.array_equal(xs, np.arange(len(xs))) and np.array_equal(ys, np.arange(len(ys)))
    count = merged_groups(groups, len(xs)) if groups > 1 and lies_plain else 1
    x_span = x.span if count == 1 else len(xs) // count
    packed = np.zeros((kh, kw, x_span, y.span), dtype=weight.dtype)
    for row in range(m):
        first = row // (m // groups) * per
        rows = xs[first:first + per] - (0 if count == 1 else row // (m // count) * x_span)
        packed[:, :, rows, ys[row]] = weight[row].transpose(1, 2, 0)
    return packed, count


def pack_channels(values: Array, y: Tensor) -> Array:
    """(C,) or (kh, kw, C) logical to physical, pads 0."""
    packed = np.zeros((*values.shape[:-1], y.span), dtype=values.dtype)
    packed[..., y.channels()] = values
    return packed


def is_depthwise(weight: Array, groups: int) -> bool:
    return groups > 1 and weight.shape[0] == groups and weight.shape[1] == 1
