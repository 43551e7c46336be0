"""What must hold for each kind of step on images, so that an executor may run it. Caller: `validate.py`.

A rule compares tensors, fields and constants of one step, in the order in which the step's docstring names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .elementwise import ACTIVATIONS
from .grid_steps import ResampleF32, ResampleI8, Stuff
from .look import Look
from .program import Tensor
from .steps import (
    ActivationF32,
    AddF32,
    AddI8,
    AveragePoolI8,
    Convert,
    ConvF32,
    ConvI8,
    Copy,
    FromFlat,
    MaxPool,
    MulF32,
    MulI8,
    RequantiseI8,
    TableI8,
    ToFlat,
    Upsample,
)

IMAGE_TYPES = ("int8", "uint8", "float16", "float32")


SUFFIXES = {"I8": "int8", "F16": "float16", "F32": "float32"}


def _type_of(look: Look) -> str:
    """The storage type that a step's name ends in."""
    kind = type(look.step).__name__
    return next(dtype for suffix, dtype in SUFFIXES.items() if kind.endswith(suffix))


def _channels_reach(look: Look, x: Tensor, y: Tensor) -> None:
    """y holds x's channels where x has them; what y has behind them is cleared."""
    look.need(x.shape[2] == y.shape[2] and x.span <= y.span and x.segments == y.segments,
              f"takes the channels of '{x.name}' to those of '{y.name}', which lie otherwise")


def _convolution(look: Look, step: Any, x: Tensor, y: Tensor) -> None:
    """What the convolutions of all types have in common; the weight's type is the step's."""
    depthwise = type(step).__name__.startswith("Depthwise")
    kind = _type_of(look)
    if depthwise:
        look.need((x.shape[2], x.segments, x.span) == (y.shape[2], y.segments, y.span),
                  f"takes '{x.name}' to '{y.name}', whose channels lie otherwise")
        look.constant(step.weight, kind, (*step.kernel, y.span))
    else:
        plain = step.groups == 1 or (step.groups > 1 and all(
            sum(t.segments[-1]) == t.shape[2] and t.shape[2] % step.groups == 0 for t in (x, y)))
        look.need(plain, f"has {step.groups} groups, '{x.name}' {x.shape[2]} channels")
        look.constant(step.weight, kind, (*step.kernel, x.span if step.groups == 1 else x.shape[2] // step.groups,
                                          y.span))
    look.constant(step.bias, "int32" if kind == "int8" else "float32", (y.span,))
    look.window(x.shape[:2], y.shape[:2], step.kernel, step.stride, step.pads, step.dilation)
    if step.residual:
        residual = look.image(step.residual, y.dtype)
        look.same_shape(residual, y)
        look.need(residual.span == y.span and residual.segments == y.segments,
                  f"adds '{residual.name}', whose channels lie otherwise")


def conv_i8(look: Look, step: ConvI8) -> None:
    x, y = look.image(step.x, "int8", "uint8"), look.image(step.y, "int8", "float32")
    _convolution(look, step, x, y)
    look.constant(step.multiplier, "float32", (y.span,))
    look.codes(step.low, step.high)
    look.gain(step.residual_multiplier)
    if step.table:
        look.constant(step.table, "int8", (1024,))
    look.need(y.dtype == "int8" or not (step.table or step.residual), "ends in float32, but has a table or a residual")


def conv_f32(look: Look, step: ConvF32) -> None:
    half = type(step).__name__.endswith("F16")
    x = look.image(step.x, *(("float16",) if half else ("float32", "uint8", "int8")))
    y = look.image(step.y, *(("float16", "float32") if half else ("float32",)))
    _convolution(look, step, x, y)
    look.need(step.activation in ("", *ACTIVATIONS), f"ends in the unknown activation '{step.activation}'")


def max_pool(look: Look, step: MaxPool) -> None:
    x = look.image(step.x, *IMAGE_TYPES)
    y = look.image(step.y, x.dtype)
    _channels_reach(look, x, y)
    look.window(x.shape[:2], y.shape[:2], step.kernel, step.stride, step.pads, step.dilation)


def average_pool(look: Look, step: AveragePoolI8) -> None:
    kind = _type_of(look)
    x, y = look.image(step.x, *(("int8", "uint8") if kind == "int8" else (kind,))), look.image(step.y, kind)
    _channels_reach(look, x, y)
    look.window(x.shape[:2], y.shape[:2], step.kernel, step.stride, step.pads, (1, 1))
    look.constant(step.multiplier, "float32", y.shape[:2])


def upsample(look: Look, step: Upsample) -> None:
    x = look.image(step.x, *IMAGE_TYPES)
    y = look.image(step.y, x.dtype)
    _channels_reach(look, x, y)
    look.need(min(step.factors) >= 1 and y.shape[:2] == (x.shape[0] * step.factors[0], x.shape[1] * step.factors[1]),
              f"takes {x.shape} to {y.shape} by {step.factors}")


def _pair(look: Look, step: AddI8 | AddF32 | MulI8 | MulF32, gate: bool) -> None:
    kind = _type_of(look)
    a, b, y = look.image(step.a, kind), look.image(step.b, kind), look.image(step.y, kind)
    look.same_shape(a, y)
    _channels_reach(look, a, y)
    look.need(a.span == b.span and a.segments == b.segments,
              f"joins '{a.name}' and '{b.name}', whose channels lie otherwise")
    look.need(b.shape == a.shape or (gate and b.shape[:2] == (1, 1)), f"joins {a.shape} and {b.shape}")


def add_i8(look: Look, step: AddI8) -> None:
    _pair(look, step, gate=False)
    look.gain(step.a_multiplier, step.b_multiplier)
    look.codes(step.low, step.high)


def add_f32(look: Look, step: AddF32) -> None:
    _pair(look, step, gate=False)
    look.need(step.sign in (1.0, -1.0), f"has the sign {step.sign}")


def mul_i8(look: Look, step: MulI8) -> None:
    _pair(look, step, gate=True)
    look.gain(step.multiplier)
    look.codes(step.low, step.high)


def mul_f32(look: Look, step: MulF32) -> None:
    _pair(look, step, gate=True)


def _element_wise(look: Look, x: Tensor, y: Tensor) -> None:
    look.same_shape(x, y)
    _channels_reach(look, x, y)


def table_i8(look: Look, step: TableI8) -> None:
    _element_wise(look, look.image(step.x, "int8"), look.image(step.y, "int8"))
    look.constant(step.table, "int8", (256,))


def requantise_i8(look: Look, step: RequantiseI8) -> None:
    _element_wise(look, look.image(step.x, "int8", "uint8"), look.image(step.y, "int8"))
    look.gain(step.multiplier)
    look.codes(step.low, step.high)


def activation_f32(look: Look, step: ActivationF32) -> None:
    kind = _type_of(look)
    _element_wise(look, look.image(step.x, kind), look.image(step.y, kind))
    look.need(step.activation in ("", *ACTIVATIONS), f"is the unknown activation '{step.activation}'")


def convert(look: Look, step: Convert) -> None:
    _element_wise(look, look.image(step.x, *IMAGE_TYPES), look.image(step.y, "int8", "float16", "float32"))
    look.gain(step.multiplier)


def copy(look: Look, step: Copy) -> None:
    x = look.image(step.x, *IMAGE_TYPES)
    y = look.image(step.y, x.dtype)
    row, column = step.corner
    look.need(row >= 0 and column >= 0 and row + x.shape[0] <= y.shape[0] and column + x.shape[1] <= y.shape[1]
              and (step.clear or x.shape[:2] == y.shape[:2]), f"puts {x.shape} at {step.corner} of {y.shape}")
    for source, target, count in step.runs:
        look.need(min(source, target) >= 0 and count >= 1 and source + count <= x.span and target + count <= y.span,
                  f"copies {count} channels from {source} to {target}")


def to_flat(look: Look, step: ToFlat) -> None:
    x, y = look.image(step.x, *IMAGE_TYPES), look.flat(step.y)
    look.need(y.shape == (1, x.shape[2], *x.shape[:2]), f"takes {x.shape} to {y.shape}")


def from_flat(look: Look, step: FromFlat) -> None:
    x, y = look.flat(step.x), look.image(step.y, "float32")
    look.need(x.shape == (1, y.shape[2], *y.shape[:2]), f"takes {x.shape} to {y.shape}")


def stuff(look: Look, step: Stuff) -> None:
    x = look.image(step.x, *IMAGE_TYPES)
    y = look.image(step.y, x.dtype)
    _channels_reach(look, x, y)
    look.need(min(step.stride) >= 1 and min(step.crop) >= 0, f"has stride {step.stride} and crop {step.crop}")
    size = tuple((x.shape[i] - 1) * step.stride[i] + 1 - step.crop[i] - step.crop[2 + i] for i in (0, 1))
    look.need(size == y.shape[:2], f"takes {x.shape} to {y.shape} with stride {step.stride} and crop {step.crop}")


def resample(look: Look, step: ResampleF32) -> None:
    kind = _type_of(look)
    x, y = look.image(step.x, kind), look.image(step.y, kind)
    _channels_reach(look, x, y)
    for axis, (index, parts) in enumerate(((step.rows, step.row_parts), (step.columns, step.column_parts))):
        places = look.constant(index, "int64", (2, y.shape[axis]))
        look.need(places.min() >= 0 and places.max() < x.shape[axis], f"'{index}' reaches out of {x.shape}")
        look.constant(parts, "int32" if kind == "int8" else "float32", (y.shape[axis],))
    if isinstance(step, ResampleI8):
        look.gain(step.multiplier)


IMAGE_RULES: dict[str, Callable[[Look, Any], None]] = {
    "ConvI8": conv_i8, "DepthwiseI8": conv_i8, "ConvF32": conv_f32, "DepthwiseF32": conv_f32, "ConvF16": conv_f32,
    "DepthwiseF16": conv_f32, "MaxPool": max_pool, "AveragePoolI8": average_pool, "AveragePoolF32": average_pool,
    "AveragePoolF16": average_pool, "Upsample": upsample, "AddI8": add_i8, "AddF32": add_f32, "AddF16": add_f32,
    "MulI8": mul_i8, "MulF32": mul_f32, "MulF16": mul_f32, "TableI8": table_i8, "RequantiseI8": requantise_i8,
    "ActivationF32": activation_f32, "ActivationF16": activation_f32, "Copy": copy, "ToFlat": to_flat,
    "FromFlat": from_flat, "Convert": convert, "Stuff": stuff, "ResampleF32": resample, "ResampleF16": resample,
    "ResampleI8": resample}
