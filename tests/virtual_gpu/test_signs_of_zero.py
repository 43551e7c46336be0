"""Results too small for their type keep their sign: they are a zero, or, rounded away from it, the least number."""

from __future__ import annotations

import struct

import pytest
import snippet
from driver_calls import Cuda

PLUS, MINUS, LEAST = 0, 1 << 31, 1  # LEAST: 2^-149, or with MINUS its opposite


def single(value: float) -> int:
    return int(struct.unpack("I", struct.pack("f", value))[0])


def double(value: float) -> int:
    return int(struct.unpack("Q", struct.pack("d", value))[0])


ROUNDED = {"rz": (PLUS, MINUS), "rp": (LEAST, MINUS), "rm": (PLUS, MINUS | LEAST)}  # of a positive, of a negative


@pytest.mark.parametrize("rounding", ROUNDED)
def test_directed_rounding_of_what_is_too_small(cuda_for_kernels: Cuda, rounding: str) -> None:
    def found(instruction: str, operands: str, *rows: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(snippet.run(cuda_for_kernels, instruction, "w", operands, rows))

    expected = ROUNDED[rounding]
    least = single(1e-30)
    assert found(f"cvt.{rounding}.f32.f64", "d", (double(1e-50),), (double(-1e-50),)) == expected
    assert found(f"mul.{rounding}.f32", "ww", (least, least), (least, single(-1e-30))) == expected
    rows = ((least, least, single(0.0)), (least, single(-1e-30), single(-0.0)))
    assert found(f"fma.{rounding}.f32", "www", *rows) == expected
