"""Steps that place an image's pixels on another grid. Caller: `steps.py`, whose rules hold here too."""

from __future__ import annotations

from dataclasses import dataclass

from .step import Step

WEIGHT_UNIT = 1 << 11
"""Integer bilinear weights are whole parts of this (CONTRACT.md)."""


@dataclass(frozen=True, slots=True)
class Stuff(Step):
    """x with `stride` - 1 zeros between its pixels, then `crop` (top, left, bottom, right) cut off; scale kept.

    A transposed convolution is this and a convolution.
    """

    x: str
    y: str
    stride: tuple[int, int]
    crop: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ResampleF32(Step):
    """Rows first, then columns: v = x[low], y = v + part * (x[high] - v).

    `rows`, `columns` name (2, size of y) int64 constants of (low, high), `row_parts`, `column_parts` float32 ones.
    """

    x: str
    y: str
    rows: str
    row_parts: str
    columns: str
    column_parts: str


@dataclass(frozen=True, slots=True)
class ResampleF16(ResampleF32):
    """As ResampleF32 with x and y in float16."""


@dataclass(frozen=True, slots=True)
class ResampleI8(ResampleF32):
    """Integer weights over 2^11: w1 from the parts, w0 = 2^11 - w1; q = RNE(clamp(fmul(f32(sum), multiplier))).

    The sum is int32, over four pixels; `row_parts`, `column_parts` name int32 constants; multiplier is
    s_in / (2^22 s_out).
    """

    multiplier: float = 0.0


GRID_STEPS: tuple[type[Step], ...] = (Stuff, ResampleF32, ResampleF16, ResampleI8)
