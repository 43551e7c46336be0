"""The steps of a program, one frozen dataclass each; an executor has a function of the same name for each.

`x`, `a`, `b`, `residual` and `y` name tensors of the program; `weight`, `bias`, `multiplier`, `table` and `constant`
name tensors of the plan. Windows are given as (height, width), pads as (top, left, bottom, right). The arithmetic of
the steps that end in I8 is CONTRACT.md's.
"""

from __future__ import annotations

from dataclasses import dataclass

from .flat_steps import FLAT_STEPS
from .grid_steps import GRID_STEPS
from .step import Step as Step


@dataclass(frozen=True, slots=True)
class ConvI8(Step):
    """weight (kh, kw, span of x / groups, span of y) int8, bias (span of y) int32, multiplier (span of y) float32.

    y int8: q = RNE(clamp(v, low, high)), v = fmul(f32(acc), multiplier), with `table` (1,024 int8) in between and
    `residual` added as CONTRACT.md says. y float32: y = fmul(f32(acc), multiplier), the end of the integers.
    y may lie in the bytes of `residual`: each number of it is read before that of y is written.
    """

    x: str
    y: str
    weight: str
    bias: str
    multiplier: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int = 1
    low: int = -128
    high: int = 127
    table: str = ""
    residual: str = ""
    residual_multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class DepthwiseI8(ConvI8):
    """As ConvI8, one input channel an output channel: weight (kh, kw, span) int8; x and y have the same channel map."""


@dataclass(frozen=True, slots=True)
class ConvF32(Step):
    """weight (kh, kw, span of x / groups, span of y), bias (span of y), both float32.

    y = clip(activation(sum + bias) + residual, low, high); None is no bound; `alpha`, `beta` belong to `activation`.
    y may lie in the bytes of `residual`, as in ConvI8.
    """

    x: str
    y: str
    weight: str
    bias: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int = 1
    activation: str = ""
    alpha: float = 0.0
    beta: float = 0.0
    residual: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class DepthwiseF32(ConvF32):
    """As ConvF32 with weight (kh, kw, span); x and y have the same channel map."""


@dataclass(frozen=True, slots=True)
class MaxPool(Step):
    """Any type, scale kept; the border is the type's least value."""

    x: str
    y: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AveragePoolI8(Step):
    """int32 sum over the valid elements, then fmul by multiplier (Ho, Wo): s_in / (n s_out) for each place's n."""

    x: str
    y: str
    multiplier: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class AveragePoolF32(AveragePoolI8):
    """As AveragePoolI8 with multiplier 1 / n, in float32."""


@dataclass(frozen=True, slots=True)
class Upsample(Step):
    """Nearest, by whole factors (height, width); any type, scale kept."""

    x: str
    y: str
    factors: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AddI8(Step):
    """v = fadd(fmul(f32(a), a_multiplier), fmul(f32(b), b_multiplier)); q = RNE(clamp(v, low, high))."""

    a: str
    b: str
    y: str
    a_multiplier: float
    b_multiplier: float
    low: int = -128
    high: int = 127


@dataclass(frozen=True, slots=True)
class AddF32(Step):
    """y = clip(a + sign * b, low, high)."""

    a: str
    b: str
    y: str
    sign: float = 1.0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class MulI8(Step):
    """v = fmul(f32(a * b), multiplier); b may be one pixel (a channel gate)."""

    a: str
    b: str
    y: str
    multiplier: float
    low: int = -128
    high: int = 127


@dataclass(frozen=True, slots=True)
class MulF32(Step):
    """y = a * b; b may be one pixel (a channel gate)."""

    a: str
    b: str
    y: str


@dataclass(frozen=True, slots=True)
class TableI8(Step):
    """y = table[x + 128], 256 entries."""

    x: str
    y: str
    table: str


@dataclass(frozen=True, slots=True)
class RequantiseI8(Step):
    """v = fmul(f32(x), multiplier); q = RNE(clamp(v, low, high))."""

    x: str
    y: str
    multiplier: float
    low: int = -128
    high: int = 127


@dataclass(frozen=True, slots=True)
class ActivationF32(Step):
    """An element-wise function of an image in the float body; tolerance, not bits (see Unary for the tail)."""

    x: str
    y: str
    activation: str
    alpha: float = 0.0
    beta: float = 0.0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Copy(Step):
    """Channel runs (from, to, count), relative to the views' starts, put at `corner` (row, column) of y.

    `clear`: all the rest of y becomes 0 (a Pad); else only the pads of the segments that it writes do. A Concat part
    that could not be made in place is one Copy.
    """

    x: str
    y: str
    runs: tuple[tuple[int, int, int], ...]
    corner: tuple[int, int] = (0, 0)
    clear: bool = False


@dataclass(frozen=True, slots=True)
class ToFlat(Step):
    """NHWC image to float32 in ONNX's logical order (1, C, H, W): y = fmul(f32(x), scale of x)."""

    x: str
    y: str


@dataclass(frozen=True, slots=True)
class FromFlat(Step):
    """float32 in ONNX's logical order to an NHWC image of float32."""

    x: str
    y: str


@dataclass(frozen=True, slots=True)
class ConvF16(ConvF32):
    """As ConvF32 with x, residual, y and weight in float16: sums and what follows in float32, one rounding at the end.

    y float32: the end of the body. A float16 step that overflows is an error of that frame.
    """


@dataclass(frozen=True, slots=True)
class DepthwiseF16(DepthwiseF32):
    """As ConvF16 with weight (kh, kw, span); x and y have the same channel map."""


@dataclass(frozen=True, slots=True)
class AveragePoolF16(AveragePoolF32):
    """As AveragePoolF32 with x and y in float16."""


@dataclass(frozen=True, slots=True)
class AddF16(AddF32):
    """As AddF32 with a, b and y in float16."""


@dataclass(frozen=True, slots=True)
class MulF16(MulF32):
    """As MulF32 with a, b and y in float16."""


@dataclass(frozen=True, slots=True)
class ActivationF16(ActivationF32):
    """As ActivationF32 with x and y in float16."""


@dataclass(frozen=True, slots=True)
class Convert(Step):
    """Another type. To float16: y = f16(fmul(f32(x), multiplier)), multiplier = scale of x.

    To int8: y = RNE(clamp(fmul(f32(x), multiplier), -128, 127)), multiplier = f32(1 / scale of y).
    """

    x: str
    y: str
    multiplier: float


STEPS: dict[str, type[Step]] = {kind.__name__: kind for kind in (
    ConvI8, DepthwiseI8, ConvF32, DepthwiseF32, MaxPool, AveragePoolI8, AveragePoolF32, Upsample, AddI8, AddF32, MulI8,
    MulF32, TableI8, RequantiseI8, ActivationF32, Copy, ToFlat, FromFlat, ConvF16, DepthwiseF16,
    AveragePoolF16, AddF16, MulF16, ActivationF16, Convert, *GRID_STEPS, *FLAT_STEPS)}
