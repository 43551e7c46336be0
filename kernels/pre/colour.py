"""Colour in whole numbers: YUV to RGB and RGB to luma in 2^14 fixed point, rounded half up, clamped to 0..255.

Called by the samplers of pre/sample.py. Invariant: the coefficients are rounded once from the matrix's definition
(ITU-R BT.601 and BT.709: Kr, Kb), so that a second implementation derives the same integers.
"""

from __future__ import annotations

from dataclasses import dataclass

BITS = 14
ONE = 1 << BITS
HALF = 1 << (BITS - 1)
# Kr, Kb of ITU-R BT.601-7 section 2.5.1 and BT.709-6 section 3
WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}


@dataclass(frozen=True, slots=True)
class YuvToRgb:
    """channel = (luma * (Y - offset) + u[c] * (U - 128) + v[c] * (V - 128) + 2^13) >> 14, clamped; c = R, G, B.

    `offset` is 16 for limited range (Y 16..235, chroma 16..240), else 0; for full range `luma` is 2^14 exactly.
    """

    offset: int
    luma: int
    u: tuple[int, int, int]
    v: tuple[int, int, int]


def yuv_to_rgb(matrix: str, range_: str) -> YuvToRgb:
    """The coefficients of `matrix` (bt601, bt709) and `range_` (limited, full)."""
    red, blue = WEIGHTS[matrix]
    green = 1.0 - red - blue
    limited = range_ == "limited"
    luma, chroma = (255.0 / 219.0, 255.0 / 224.0) if limited else (1.0, 1.0)

    def fixed(value: float) -> int:
        return round(value * chroma * ONE)

    return YuvToRgb(
        offset=16 if limited else 0,
        luma=round(luma * ONE),
        u=(0, fixed(-2.0 * (1.0 - blue) * blue / green), fixed(2.0 * (1.0 - blue))),
        v=(fixed(2.0 * (1.0 - red)), fixed(-2.0 * (1.0 - red) * red / green), 0),
    )


def rgb_to_luma(matrix: str) -> tuple[int, int, int]:
    """luma = (r * R + g * G + b * B + 2^13) >> 14, full range; the three sum to 2^14, so that grey stays grey."""
    red, blue = (round(weight * ONE) for weight in WEIGHTS[matrix])
    return red, ONE - red - blue, blue
