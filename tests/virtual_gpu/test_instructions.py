"""Each family of instruction handlers against values written from the PTX ISA: limits, NaN, denormals, wide shifts."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

import pytest
import snippet
from driver_calls import REAL, Cuda, CudaError

NAN, QUIET = 0x7FFFFFFF, 0x7FC00000
INF, MINUS = 0x7F800000, 0x80000000
TINY, LEAST_NORMAL = 0x00000001, 0x00800000
ONE, TWO, HALF = 0x3F800000, 0x40000000, 0x3F000000


@pytest.fixture
def cuda(cuda_for_kernels: Cuda) -> Cuda:
    return cuda_for_kernels


def f32(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def f64(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def f16(value: float) -> int:
    return int.from_bytes(struct.pack("<e", value), "little")


# instruction, result and operands, then rows of (operands..., result)
CASES: list[tuple[str, str, str, list[tuple[int, ...]]]] = [
    ("add.s32", "w", "ww", [(0x7FFFFFFF, 1, 0x80000000), (5, 0xFFFFFFFF, 4)]),
    ("add.sat.s32", "w", "ww", [(0x7FFFFFFF, 1, 0x7FFFFFFF), (0x80000000, 0xFFFFFFFF, 0x80000000), (1, 2, 3)]),
    ("sub.u16", "h", "hh", [(0, 1, 0xFFFF)]),
    ("mul.lo.s32", "w", "ww", [(0x10000, 0x10000, 0), (0xFFFFFFFF, 7, 0xFFFFFFF9)]),
    ("mul.hi.s32", "w", "ww", [(0x80000000, 2, 0xFFFFFFFF), (0x40000000, 4, 1)]),
    ("mul.hi.u32", "w", "ww", [(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE)]),
    ("mul.hi.u64", "d", "dd", [(1 << 63, 4, 2)]),
    ("mul.wide.s32", "d", "ww", [(0xFFFFFFFF, 2, (1 << 64) - 2)]),
    ("mul.wide.u16", "w", "hh", [(0xFFFF, 0xFFFF, 0xFFFE0001)]),
    ("mad.lo.s32", "w", "www", [(3, 0xFFFFFFFF, 10, 7)]),
    ("mad.hi.u32", "w", "www", [(0x80000000, 6, 5, 8)]),
    ("mad.wide.s32", "d", "wwd", [(0xFFFFFFFE, 3, 1, (1 << 64) - 5)]),
    ("div.s32", "w", "ww", [(0xFFFFFFF9, 2, 0xFFFFFFFD), (0x80000000, 0xFFFFFFFF, 0x80000000)]),
    ("rem.s32", "w", "ww", [(0xFFFFFFF9, 2, 0xFFFFFFFF), (0x80000000, 0xFFFFFFFF, 0)]),
    ("div.u64", "d", "dd", [((1 << 64) - 1, 10, ((1 << 64) - 1) // 10)]),
    ("abs.s32", "w", "w", [(0xFFFFFFFB, 5), (0x80000000, 0x80000000)]),
    ("min.s32", "w", "ww", [(0xFFFFFFFF, 0, 0xFFFFFFFF)]),
    ("min.u32", "w", "ww", [(0xFFFFFFFF, 0, 0)]),
    ("sad.u32", "w", "www", [(3, 10, 100, 107)]),
    (
        "dp4a.s32.s32",
        "w",
        "www",
        [(0x80808080, 0x7F7F7F7F, 0, (4 * -128 * 127) & 0xFFFFFFFF), (0xFF010203, 0x01010101, 5, 10)],
    ),
    ("dp4a.u32.u32", "w", "www", [(0xFFFFFFFF, 0xFFFFFFFF, 1, 4 * 255 * 255 + 1)]),
    ("dp4a.u32.s32", "w", "www", [(0xFFFFFFFF, 0xFFFFFFFF, 0, (-4 * 255) & 0xFFFFFFFF)]),
    ("dp2a.lo.s32.s32", "w", "www", [(0xFFFF0002, 0x00000403, 0, 2)]),
    ("dp2a.hi.s32.s32", "w", "www", [(0xFFFF0002, 0x04030000, 0, 2)]),
    # shifts by the width or more
    ("shl.b32", "w", "ww", [(1, 31, 0x80000000), (1, 32, 0), (1, 0xFFFFFFFF, 0)]),
    ("shr.u32", "w", "ww", [(0x80000000, 31, 1), (0x80000000, 32, 0), (0xFFFFFFFF, 200, 0)]),
    ("shr.s32", "w", "ww", [(0x80000000, 4, 0xF8000000), (0x80000000, 32, 0xFFFFFFFF), (0x7FFFFFFF, 99, 0)]),
    ("shl.b64", "d", "dw", [(1, 63, 1 << 63), (1, 64, 0)]),
    ("shr.s64", "d", "dw", [(1 << 63, 70, (1 << 64) - 1)]),
    ("shl.b16", "h", "hw", [(1, 15, 0x8000), (1, 16, 0)]),
    ("shf.l.wrap.b32", "w", "www", [(0x11223344, 0x55667788, 8, 0x66778811), (1, 2, 32, 2)]),
    ("shf.r.clamp.b32", "w", "www", [(0x11223344, 0x55667788, 8, 0x88112233), (1, 2, 40, 2)]),
    ("shf.r.wrap.b32", "w", "www", [(1, 2, 32, 1)]),
    (
        "bfe.u32",
        "w",
        "www",
        [(0xABCD1234, 8, 8, 0x12), (0xABCD1234, 28, 16, 0xA), (0xABCD1234, 0, 0, 0), (1, 40, 4, 0)],
    ),
    (
        "bfe.s32",
        "w",
        "www",
        [(0x0000F000, 12, 4, 0xFFFFFFFF), (0x80000000, 24, 16, 0xFFFFFF80), (0x80000000, 40, 4, 0xFFFFFFFF)],
    ),
    ("bfi.b32", "w", "wwww", [(0xFF, 0, 4, 4, 0xF0), (0xFF, 0x12345678, 28, 8, 0xF2345678)]),
    ("bfind.u32", "w", "w", [(0, 0xFFFFFFFF), (0x10, 4)]),
    ("bfind.s32", "w", "w", [(0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFE, 0), (0x7FFFFFFF, 30)]),
    ("bfind.shiftamt.u32", "w", "w", [(0x10, 27)]),
    ("brev.b32", "w", "w", [(1, 0x80000000), (0x12345678, 0x1E6A2C48)]),
    ("clz.b32", "w", "w", [(0, 32), (1, 31), (0x80000000, 0)]),
    ("clz.b64", "w", "d", [(0, 64), (1, 63)]),
    ("popc.b64", "w", "d", [((1 << 64) - 1, 64)]),
    (
        "prmt.b32",
        "w",
        "www",
        [
            (0x33221100, 0x77665544, 0x7531, 0x77553311),
            (0x00800000, 0, 0x000A, 0x000000FF),
            (0x44332211, 0x88776655, 0x5410, 0x66552211),
        ],
    ),
    ("prmt.b32.f4e", "w", "www", [(0x33221100, 0x77665544, 1, 0x44332211)]),
    ("lop3.b32 {0}, {1}, {2}, {3}, 0x96", "w", "www", [(0b1100, 0b1010, 0b1001, 0b1111)]),
    ("lop3.b32 {0}, {1}, {2}, {3}, 0xE8", "w", "www", [(0b1100, 0b1010, 0b1001, 0b1000)]),
    # floats
    (
        "add.f32",
        "w",
        "ww",
        [
            (f32(1.0), f32(2.0**-24), f32(1.0)),
            (f32(1.0), f32(2.0**-23), 0x3F800001),
            (INF, INF | MINUS, NAN),
            (TINY, TINY, 2),
            (QUIET, ONE, NAN),
        ],
    ),
    ("add.ftz.f32", "w", "ww", [(TINY, TINY, 0), (LEAST_NORMAL, TINY, LEAST_NORMAL)]),
    ("sub.f32", "w", "ww", [(ONE, ONE, 0)]),
    ("mul.f32", "w", "ww", [(LEAST_NORMAL, HALF, 0x00400000), (0, INF, NAN), (MINUS, TWO, MINUS)]),
    ("mul.ftz.f32", "w", "ww", [(LEAST_NORMAL, HALF, 0), (LEAST_NORMAL | MINUS, HALF, MINUS)]),
    ("mul.sat.f32", "w", "ww", [(TWO, TWO, ONE), (TWO, TWO | MINUS, 0), (QUIET, ONE, 0)]),
    (
        "fma.rn.f32",
        "w",
        "www",
        [(f32(1 + 2**-12), f32(1 + 2**-12), f32(-1.0), f32(2**-11 + 2**-24)), (INF, 0, ONE, NAN)],
    ),
    ("min.f32", "w", "ww", [(QUIET, ONE, ONE), (QUIET, QUIET, NAN), (0, MINUS, MINUS), (MINUS, 0, MINUS)]),
    ("max.f32", "w", "ww", [(ONE, QUIET, ONE), (0, MINUS, 0), (MINUS, 0, 0)]),
    ("min.NaN.f32", "w", "ww", [(QUIET, ONE, NAN)]),
    ("abs.f32", "w", "w", [(MINUS | ONE, ONE)]),
    ("neg.f32", "w", "w", [(0, MINUS)]),
    ("div.rn.f32", "w", "ww", [(ONE, f32(3.0), 0x3EAAAAAB), (ONE, 0, INF), (0, 0, NAN)]),
    ("rcp.rn.f32", "w", "w", [(MINUS, INF | MINUS), (f32(3.0), 0x3EAAAAAB)]),
    ("sqrt.rn.f32", "w", "w", [(TWO, 0x3FB504F3), (MINUS, MINUS), (MINUS | ONE, NAN)]),
    ("ex2.approx.f32", "w", "w", [(f32(3.0), f32(8.0)), (INF | MINUS, 0), (f32(-126.5), f32(2**-126.5))]),
    ("ex2.approx.ftz.f32", "w", "w", [(f32(-127.0), 0)]),
    ("lg2.approx.f32", "w", "w", [(f32(8.0), f32(3.0)), (0, INF | MINUS)]),
    ("rsqrt.approx.f32", "w", "w", [(f32(4.0), HALF), (0, INF)]),
    ("copysign.f32", "w", "ww", [(MINUS, ONE, MINUS | ONE)]),
    ("add.f64", "d", "dd", [(f64(1.0), f64(2.0**-53), f64(1.0))]),
    ("fma.rn.f64", "d", "ddd", [(f64(1 + 2**-30), f64(1 + 2**-30), f64(-1.0), f64(2**-29 + 2**-60))]),
    # rounded in a direction
    (
        "add.rz.f32",
        "w",
        "ww",
        [(ONE, f32(2.0**-24), ONE), (ONE, f32(-(2.0**-26)), 0x3F7FFFFF), (ONE, f32(-(2.0**-90)), 0x3F7FFFFF)],
    ),
    (
        "add.rm.f32",
        "w",
        "ww",
        [(ONE, f32(-(2.0**-90)), 0x3F7FFFFF), (ONE, MINUS | ONE, MINUS), (0, MINUS, MINUS), (0, 0, 0)],
    ),
    ("add.rp.f32", "w", "ww", [(ONE, f32(2.0**-90), 0x3F800001), (MINUS | ONE, f32(2.0**-90), 0xBF7FFFFF)]),
    ("sub.rp.f32", "w", "ww", [(ONE, f32(-(2.0**-30)), 0x3F800001)]),
    ("mul.rz.f32", "w", "ww", [(0x3F800001, 0x3F800001, 0x3F800002), (0x7F7FFFFF, TWO, 0x7F7FFFFF), (INF, TWO, INF)]),
    ("mul.rp.f32", "w", "ww", [(0x3F800001, 0x3F800001, 0x3F800003), (0x7F7FFFFF, TWO, INF)]),
    (
        "fma.rm.f32",
        "w",
        "www",
        [(0x3F800001, 0x3F800001, 0, 0x3F800002), (ONE, ONE, f32(-(2.0**-80)), 0x3F7FFFFF), (QUIET, 0, 0, NAN)],
    ),
    # halves
    (
        "add.f16",
        "h",
        "hh",
        [(f16(2048), f16(1), f16(2048)), (f16(2048), f16(3), f16(2052)), (0x7C00, 0xFC00, 0x7FFF), (1, 1, 2)],
    ),
    ("mul.f16", "h", "hh", [(f16(256), f16(256), 0x7C00), (f16(2**-14), f16(0.5), 0x0200)]),
    (
        "fma.rn.f16",
        "h",
        "hhh",
        [
            (f16(1 + 2**-10), f16(1 + 2**-10), f16(-1), f16(2**-9 + 2**-20)),
            (f16(2**-12), f16(2**-13), f16(1.0), f16(1.0)),
            (f16(-(2**-12)), f16(2**-13), 0x3C01, 0x3C01),
        ],
    ),
    ("fma.rn.relu.f16", "h", "hhh", [(f16(1), f16(-1), 0, 0)]),
    ("add.f16x2", "w", "ww", [(f16(1) << 16 | f16(2), f16(3) << 16 | f16(4), f16(4) << 16 | f16(6))]),
    ("max.f16x2", "w", "ww", [(0x7E00 << 16 | 0x8000, f16(1) << 16 | 0, f16(1) << 16 | 0)]),
    ("neg.f16x2", "w", "w", [(0x00008000, 0x80000000)]),
    # comparisons
    ("setp.lt.s32", "p", "ww", [(0xFFFFFFFF, 0, 1), (0, 0, 0)]),
    ("setp.lt.u32", "p", "ww", [(0xFFFFFFFF, 0, 0)]),
    ("setp.hi.u32", "p", "ww", [(0xFFFFFFFF, 0, 1)]),
    ("setp.eq.f32", "p", "ww", [(QUIET, QUIET, 0), (0, MINUS, 1)]),
    ("setp.ne.f32", "p", "ww", [(QUIET, ONE, 0), (ONE, TWO, 1)]),
    ("setp.neu.f32", "p", "ww", [(QUIET, ONE, 1)]),
    ("setp.ltu.f32", "p", "ww", [(QUIET, ONE, 1), (TWO, ONE, 0)]),
    ("setp.num.f32", "p", "ww", [(QUIET, ONE, 0), (ONE, ONE, 1)]),
    ("setp.nan.f32", "p", "ww", [(QUIET, ONE, 1)]),
    ("setp.gt.ftz.f32", "p", "ww", [(TINY, 0, 0)]),
    ("setp.ge.f16", "p", "hh", [(f16(1), f16(1), 1), (0x7E00, f16(1), 0)]),
    ("setp.lt.and.s32 {0}, {1}, {2}, {3}", "p", "wwp", [(1, 2, 1, 1), (1, 2, 0, 0)]),
    ("setp.lt.or.s32 {0}, {1}, {2}, !{3}", "p", "wwp", [(2, 1, 0, 1), (2, 1, 1, 0)]),
    ("setp.lt.xor.s32 {0}, {1}, {2}, {3}", "p", "wwp", [(1, 2, 1, 0), (2, 1, 1, 1)]),
    ("setp.lt.s32 %p8|{0}, {1}, {2}", "p", "ww", [(1, 2, 0), (2, 1, 1)]),
    ("setp.lt.and.s32 %p8|{0}, {1}, {2}, {3}", "p", "wwp", [(2, 1, 1, 1), (2, 1, 0, 0)]),
    ("set.gt.u32.s32", "w", "ww", [(1, 0, 0xFFFFFFFF), (0, 1, 0)]),
    ("set.gt.f32.f32", "w", "ww", [(TWO, ONE, ONE), (QUIET, ONE, 0)]),
    ("selp.b32", "w", "wwp", [(7, 8, 1, 7), (7, 8, 0, 8)]),
    ("slct.u32.s32", "w", "www", [(7, 8, 0, 7), (7, 8, 0xFFFFFFFF, 8)]),
    # conversions
    ("cvt.s32.s8", "w", "w", [(0x1FF, 0xFFFFFFFF), (0x17F, 0x7F)]),
    ("cvt.u16.u8", "h", "h", [(0xABCD, 0xCD)]),
    ("cvt.u32.u16", "w", "h", [(0xFFFF, 0xFFFF)]),
    ("cvt.s64.s32", "d", "w", [(0xFFFFFFFF, (1 << 64) - 1)]),
    ("cvt.u32.u64", "w", "d", [(0x1_2345_6789, 0x23456789)]),
    ("cvt.sat.s8.s32", "w", "w", [(200, 127), (0xFFFFFF00, 0xFFFFFF80), (5, 5)]),
    ("cvt.sat.u8.s32", "w", "w", [(300, 255), (0xFFFFFFFF, 0)]),
    (
        "cvt.rni.s32.f32",
        "w",
        "w",
        [
            (f32(0.5), 0),
            (f32(1.5), 2),
            (f32(2.5), 2),
            (f32(-2.5), 0xFFFFFFFE),
            (QUIET, 0),
            (INF, 0x7FFFFFFF),
            (f32(3e9), 0x7FFFFFFF),
            (f32(-3e9), 0x80000000),
        ],
    ),
    ("cvt.rzi.s32.f32", "w", "w", [(f32(-1.9), 0xFFFFFFFF), (f32(1.9), 1)]),
    ("cvt.rmi.s32.f32", "w", "w", [(f32(-1.1), 0xFFFFFFFE)]),
    ("cvt.rpi.s32.f32", "w", "w", [(f32(1.1), 2)]),
    ("cvt.rzi.u32.f32", "w", "w", [(f32(-1.0), 0), (f32(5e9), 0xFFFFFFFF)]),
    (
        "cvt.rn.f32.s32",
        "w",
        "w",
        [(16777217, f32(16777216.0)), (16777219, f32(16777220.0)), (0x80000000, f32(-(2.0**31)))],
    ),
    ("cvt.rz.f32.s32", "w", "w", [(16777219, f32(16777218.0))]),
    ("cvt.rp.f32.s32", "w", "w", [(16777217, f32(16777218.0))]),
    ("cvt.rn.f32.u64", "w", "d", [((1 << 64) - 1, f32(2.0**64)), ((1 << 40) + (1 << 16) + 1, f32(2.0**40 + 2.0**17))]),
    (
        "cvt.rn.f16.f32",
        "h",
        "w",
        [
            (f32(65519.0), 0x7BFF),
            (f32(65520.0), 0x7C00),
            (f32(2.0**-25), 0),
            (f32(2.0**-25 * 1.0001), 1),
            (QUIET, 0x7FFF),
            (f32(2049.0), f16(2048)),
        ],
    ),
    ("cvt.rz.f16.f32", "h", "w", [(f32(65520.0), 0x7BFF), (f32(1e9), 0x7BFF), (f32(2051.0), f16(2050))]),
    ("cvt.f32.f16", "w", "h", [(1, f32(2.0**-24)), (0x7C00, INF), (0xFC00, INF | MINUS)]),
    ("cvt.rn.f16x2.f32", "w", "ww", [(ONE, TWO, f16(1) << 16 | f16(2))]),
    ("cvt.rn.f32.f64", "w", "d", [(f64(1 + 2.0**-24), ONE), (f64(1e300), INF)]),
    ("cvt.rm.f32.f64", "w", "d", [(f64(1e300), 0x7F7FFFFF), (f64(-1e300), INF | MINUS)]),
    ("cvt.rni.f32.f32", "w", "w", [(f32(2.5), f32(2.0)), (f32(-0.2), MINUS)]),
    ("cvt.sat.f32.f32", "w", "w", [(TWO, ONE), (QUIET, 0), (HALF, HALF)]),
    ("cvt.pack.sat.s8.s32.b32", "w", "www", [(200, 0xFFFFFF00, 0x1234, 0x12347F80), (1, 2, 0xABCD0304, 0x03040102)]),
    ("cvt.pack.sat.u8.s32.b32", "w", "www", [(300, 0xFFFFFFFF, 0, 0xFF00)]),
    ("cvt.pack.sat.s16.s32", "w", "ww", [(40000, 0xFFFF0000, 0x7FFF8000)]),
    ("mov.b32 {0}, {{{1}, {2}}}", "w", "hh", [(0x1111, 0x2222, 0x22221111)]),
    ("mov.b64 {0}, {{{1}, {2}}}", "d", "ww", [(1, 2, 2 << 32 | 1)]),
    ("mov.b32 {{{0}, %h8}}, {1}", "h", "w", [(0x22221111, 0x1111)]),
    ("mov.b32 {{%h8, {0}}}, {1}", "h", "w", [(0x22221111, 0x2222)]),
]


def allowed_error(instruction: str, right: float) -> float:
    """How far hardware may be from the right result of an approximate instruction: PTX ISA 8.5, section 9.7.3."""
    if instruction.startswith("ex2"):
        return math.ldexp(2.0, max(math.frexp(right)[1], -125) - 24)  # 2 units in the last place, a subnormal's too
    if instruction.startswith("lg2"):
        return 2.0**-22 * max(abs(right), 1.0)  # absolute for operands from 0.5 to 2, else relative
    assert instruction.startswith("rsqrt"), "look its error up"
    return math.pow(2.0, -22.9) * abs(right)


def agree(instruction: str, found: int, right: int, real: bool = REAL) -> bool:
    """The virtual GPU rounds every result right; a real one approximates where the ISA says so."""
    if not real or ".approx" not in instruction or right in (0, INF, INF | MINUS):
        return found == right
    return abs(of32(found) - of32(right)) <= allowed_error(instruction, of32(right))


@pytest.mark.parametrize(
    ("instruction", "right", "most"),
    [
        ("ex2.approx.f32", f32(2**-126.5), 2),
        ("ex2.approx.f32", ONE, 2),
        ("ex2.approx.ftz.f32", 0, 0),
        ("lg2.approx.f32", f32(3.0), 3),
        ("rsqrt.approx.f32", HALF, 1),
        ("add.f32", ONE, 0),
    ],
)
def test_how_many_units_hardware_may_be_off(instruction: str, right: int, most: int) -> None:
    assert [agree(instruction, right + units, right, real=True) for units in range(5)] == [u <= most for u in range(5)]
    assert not agree(instruction, NAN, right, real=True) and not agree(instruction, right, INF, real=True)
    assert not agree(instruction, right + 1, right, real=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_by_the_isa(cuda: Cuda, case: tuple[str, str, str, list[tuple[int, ...]]]) -> None:
    instruction, result, operands, rows = case
    # 32 rows and more: the vectorised loop and, in the rest, lanes that are not there
    many = [rows[i % len(rows)] for i in range(len(rows) + 32)]
    found = snippet.run(cuda, instruction, result, operands, [row[:-1] for row in many])
    wrong = [(*row, value) for row, value in zip(many, found, strict=True) if not agree(instruction, value, row[-1])]
    assert not [[hex(value) for value in row] for row in wrong], "operands, the right result, the one found"


@pytest.mark.parametrize("case", [c for c in CASES if "|" not in c[0]][::7], ids=lambda case: case[0])
def test_a_guarded_instruction_leaves_the_other_lanes_alone(
    cuda: Cuda, case: tuple[str, str, str, list[tuple[int, ...]]]
) -> None:
    instruction, result, operands, rows = case
    text = (
        instruction
        if "{0}" in instruction
        else instruction + " {0}" + "".join(f", {{{i + 1}}}" for i in range(len(operands)))
    )
    clear = {"h": "mov.u16 {0}, 7", "w": "mov.u32 {0}, 7", "d": "mov.u64 {0}, 7", "p": "setp.ne.u32 {0}, 0, 0"}[result]
    guarded = f"{clear}; and.b32 %w8, %t, 1; setp.eq.u32 %p7, %w8, 1; @%p7 {text}"
    many = [rows[i % len(rows)] for i in range(40)]
    found = snippet.run(cuda, guarded, result, operands, [row[:-1] for row in many])
    untouched = 0 if result == "p" else 7
    for i, row in enumerate(many):
        assert agree(instruction, found[i], row[-1]) if i & 1 else found[i] == untouched, hex(found[i])


def fma16(a: float, b: float, c: float) -> float:
    return float(a * b + c)  # halves: exact in double unless exponents are far apart, which the rows avoid


RANDOM: list[tuple[str, str, str, Callable[..., int], Callable[[random.Random], tuple[int, ...]]]] = [
    (
        "mad.lo.u64",
        "d",
        "ddd",
        lambda a, b, c: (a * b + c) % 2**64,
        lambda r: (r.getrandbits(64), r.getrandbits(64), r.getrandbits(64)),
    ),
    (
        "mul.hi.s64",
        "d",
        "dd",
        lambda a, b: (((a ^ 2**63) - 2**63) * ((b ^ 2**63) - 2**63) >> 64) % 2**64,
        lambda r: (r.getrandbits(64), r.getrandbits(64)),
    ),
    (
        "cvt.rn.f16.f32",
        "h",
        "w",
        lambda a: half_of(a),
        lambda r: (f32(math.ldexp(r.uniform(-1, 1), r.randint(-26, 15))),),
    ),
    (
        "add.f16",
        "h",
        "hh",
        lambda a, b: f16(of16(a) + of16(b)),
        lambda r: (f16(r.uniform(-9, 9)), f16(r.uniform(-9, 9))),
    ),
    (
        "fma.rn.f16",
        "h",
        "hhh",
        lambda a, b, c: f16(fma16(of16(a), of16(b), of16(c))),
        lambda r: tuple(f16(r.uniform(-3, 3)) for _ in range(3)),
    ),
    (
        "mul.f32",
        "w",
        "ww",
        lambda a, b: f32(of32(a) * of32(b)),
        lambda r: (f32(r.uniform(-9, 9)), f32(r.uniform(-9, 9))),
    ),
]


def of16(bits: int) -> float:
    return float(struct.unpack("<e", bits.to_bytes(2, "little"))[0])


def of32(bits: int) -> float:
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def half_of(bits: int) -> int:
    return f16(of32(bits))


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case[0])
def test_against_python_s_own_arithmetic(
    cuda: Cuda, case: tuple[str, str, str, Callable[..., int], Callable[[random.Random], tuple[int, ...]]]
) -> None:
    instruction, result, operands, right, make = case
    numbers = random.Random(7)
    rows = [make(numbers) for _ in range(1024)]
    assert snippet.run(cuda, instruction, result, operands, rows) == [right(*row) for row in rows]


@pytest.mark.virtual
def test_a_modifier_that_is_not_known_is_refused_by_name(cuda: Cuda) -> None:
    for instruction in (
        "div.rz.f32",
        "cvt.pack.sat.s4.s32.b32",
        "ld.global.nc.L3::64B.u32",
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32",
    ):
        with pytest.raises(CudaError) as refusal:
            cuda.module(snippet.kernel(instruction, "w", "ww"))
        assert refusal.value.code == 218 and instruction in cuda.last_fault()


@pytest.mark.virtual
def test_operands_that_do_not_fit_are_refused(cuda: Cuda) -> None:
    for text in (
        "add.s32 %w0, %d1, %w2",
        "add.s32 %w0, %w1",
        "add.s32 %p0, %w1, %w2",
        "add.s32 %w0, %nowhere, %w2",
        "setp.lt.s32 %w0, %w1, %w2",
    ):
        with pytest.raises(CudaError):
            cuda.module(snippet.kernel(text + "; mov.u32 {0}, {1}", "w", "ww"))
        assert "line" in cuda.last_fault()
