"""Resize and Upsample of any opset as positions: for each axis, which input places an output place reads, and how.

Caller: `operators.py`. Nearest and linear in ONNX's coordinate modes; what downstream sees has no modes any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.graph import Node
from .context import Context

Array = npt.NDArray[Any]
TIE = np.float32(1e-6)
"""As in ONNX Runtime: a coordinate this near to the middle between two pixels is a tie where ties go up."""


def _nearest_up(x: Array) -> Array:
    below = np.floor(x)
    return np.asarray(np.where(np.abs(x - below - np.float32(0.5)) <= TIE, below + 1, np.floor(x + np.float32(0.5))))


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": _nearest_up, "floor": lambda x: np.floor(x),
    "ceil": lambda x: np.ceil(x)}
REMEDY = "use nearest or linear, without antialias, in a coordinate mode of ONNX"


def _coordinates(transform: str, size: int, out: int, scale: np.float32) -> npt.NDArray[np.float32] | None:
    """The input coordinate of each output place, with ONNX Runtime's roundings; None for an unknown transform."""
    place = np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    if transform == "align_corners":
        return place * np.float32(size - 1) / np.float32(out - 1) if out > 1 else place * 0
    if transform == "asymmetric":
        return place / scale
    if transform == "pytorch_half_pixel" and out == 1:
        return place * 0
    if transform in ("half_pixel", "pytorch_half_pixel"):
        return (place + half) / scale - half
    if transform == "half_pixel_symmetric":
        shift = np.float32(size / 2) * (np.float32(1) - np.float32(out) / (scale * np.float32(size)))
        return np.asarray(shift + (place + 0.5) / np.float64(scale) - 0.5, dtype=np.float32)
    return None


def _targets(ctx: Context, node: Node, axes: list[int]) -> tuple[list[np.float32], list[int]]:
    """(scale, output size) of each of `axes`."""
    shape = [ctx.shape(node)[i] for i in axes]
    old = ctx.version < 11
    scales = np.asarray(node.attrs["scales"]) if "scales" in node.attrs else \
        ctx.constant(node, 1 if old else 2, "scales")
    sizes = None if old else ctx.constant(node, 3, "sizes")
    if sizes is not None and sizes.size:
        wanted = [int(v) for v in sizes.reshape(-1)]
        if len(wanted) != len(axes) or min(wanted) < 1:
            raise ctx.refuse(node, f"sizes {wanted} for {len(axes)} axes", "export the model again")
        policy = node.attrs.get("keep_aspect_ratio_policy", b"stretch").decode()
        if policy != "stretch":
            choose = min if policy == "not_larger" else max
            scale = choose(w / s for w, s in zip(wanted, shape, strict=True))
            return [np.float32(scale)] * len(axes), [int(np.floor(scale * s + 0.5)) for s in shape]
        return [np.float32(w / s) for w, s in zip(wanted, shape, strict=True)], wanted
    if scales is None or scales.size != len(axes) or not np.isfinite(scales).all() or not (scales > 0).all():
        raise ctx.refuse(node, f"scales {None if scales is None else scales.tolist()} for {len(axes)} axes",
                         "export the model again")
    values = [np.float32(v) for v in scales.reshape(-1)]
    return values, [int(np.floor(v * np.float32(s))) for v, s in zip(values, shape, strict=True)]


def _crop(ctx: Context, node: Node, index: int, count: int, out: int) -> npt.NDArray[np.float32]:
    """Coordinates of a crop given by the input `roi` (starts, then ends, as parts of each axis)."""
    region = ctx.constant(node, 1, "region")
    size = ctx.shape(node)[node.attrs.get("axes", range(count))[index]]
    if region is None or region.size != 2 * count:
        raise ctx.refuse(node, "has no region to crop", "export the model again")
    start, end = (np.float32(v) for v in region.reshape(2, count)[:, index])
    if min(start, end) < 0 or max(start, end) > 1:
        raise ctx.refuse(node, f"crops from {start} to {end}, outside of the image", "crop within the image")
    last = np.float32(size - 1)
    if out == 1:
        return np.array([(start + end) * last / 2], dtype=np.float32)
    return np.asarray(start * last + np.arange(out, dtype=np.float32) * (end - start) * last / np.float32(out - 1))


def _by_sizes(ctx: Context, node: Node) -> bool:
    sizes = None if ctx.version < 11 else ctx.constant(node, 3, "sizes")
    return sizes is not None and sizes.size > 0


def resize(ctx: Context, node: Node) -> Node:
    """Attributes: `factors` (rows, columns repeated) where that is all; else `positions` (kernels/ir/windowed.py)."""
    rank = len(ctx.shape(node))
    mode = node.attrs.get("mode", b"nearest").decode()
    old = ctx.version < 11
    transform = "asymmetric" if old else node.attrs.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = "floor" if old else node.attrs.get("nearest_mode", b"round_prefer_floor").decode()
    if mode not in ("nearest", "linear", "bilinear") or rounding not in ROUNDINGS:
        raise ctx.refuse(node, f"mode {mode} with {transform}, {rounding}", REMEDY)
    axes = [ctx.axis(node, i, rank) for i in node.attrs.get("axes", range(rank))]
    scales, sizes = _targets(ctx, node, axes)
    if node.attrs.get("antialias") and mode != "nearest" and min(scales) < 1:
        raise ctx.refuse(node, "antialias while it shrinks", "export without antialias")
    positions = []
    for axis, scale, out in zip(axes, scales, sizes, strict=True):
        size = ctx.shape(node)[axis]
        if out < 1 or out > 1 << 20:
            raise ctx.refuse(node, f"axis {axis} of {size} becomes {out}", "use a larger input, or export again")
        if out == size and scale == 1 and transform != "tf_crop_and_resize":
            continue
        if transform == "align_corners" and float(scale) * size != out and not _by_sizes(ctx, node):
            raise ctx.refuse(node, f"align_corners with {float(scale)} times {size}, which is no whole size",
                             "export it with sizes instead of scales: runtimes disagree on this")
        at = _crop(ctx, node, axes.index(axis), len(axes), out) if transform == "tf_crop_and_resize" else \
            _coordinates(transform, size, out, scale)
        if at is None:
            raise ctx.refuse(node, f"coordinate mode {transform}", REMEDY)
        if mode == "nearest":
            low = np.clip(ROUNDINGS[rounding](at), 0, size - 1).astype(np.int64)
            positions.append((axis, tuple(low.tolist()), tuple(low.tolist()), (0.0,) * out))
            continue
        at = np.clip(at, 0, size - 1)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, size - 1)
        positions.append((axis, tuple(low.tolist()), tuple(high.tolist()), tuple((at - low).astype(float).tolist())))
    x = (node.inputs[0],)
    factors = _repeats(ctx.shape(node), positions)
    attrs = {"factors": factors} if factors else {"positions": tuple(positions)}
    return Node(node.name, "Resize", x, node.outputs, attrs)


def _repeats(shape: tuple[int, ...], positions: list[tuple[int, Any, Any, Any]]) -> tuple[int, int] | None:
    """(rows, columns) where all that happens to an image is that each is repeated so many times."""
    if len(shape) != 4:
        return None
    factors = {2: 1, 3: 1}
    for axis, low, _, fraction in positions:
        times, rest = divmod(len(low), shape[axis])
        if axis < 2 or rest or any(fraction) or not np.array_equal(low, np.arange(shape[axis]).repeat(times)):
            return None
        factors[axis] = times
    return factors[2], factors[3]
