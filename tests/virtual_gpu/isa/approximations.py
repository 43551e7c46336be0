"""Approximate instructions: PTX ISA 8.5, "Floating Point Instructions", with the error that it allows each.

The machine rounds the true result; hardware need only come as near as the ISA says. `agree` holds each to its measure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction

from driver_calls import REAL, Cuda

from isa.batch import Case, check, mixed, written
from isa.exact import F32, F64, Real, Value, decode, divide, encode, of, root
from isa.floats import any_nan, pool


def to_float(bits: int) -> float:
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])


def allowed_error(instruction: str, right: float) -> float:
    """How far hardware may be from the right result, which is not 0."""
    name = instruction.split(".")[0]
    if name in ("rcp", "sqrt", "rsqrt", "tanh"):
        return abs(right) * {"rcp": 2.0**-23, "sqrt": 2.0**-23, "rsqrt": 2.0**-22.9, "tanh": 2.0**-11}[name]
    if name in ("ex2", "div"):
        return math.ldexp(2.0, max(math.frexp(right)[1], -125) - 24)  # 2 units in the last place, a subnormal's too
    # absolute: lg2 for operands from 0.5 to 2 (else relative), sin and cos from -2 pi to 2 pi
    return {"lg2": 2.0**-22 * max(abs(right), 1.0), "sin": 2.0**-20.5, "cos": 2.0**-20.5}[name]


def agree(instruction: str, found: int, right: int, real: bool = REAL) -> bool:
    """The virtual GPU rounds every result right; a real one approximates where the ISA says so."""
    special = right in (0, F32.minus) or right & F32.infinity == F32.infinity
    if not real or special or (".approx" not in instruction and ".full" not in instruction):
        return found == right
    return abs(to_float(found) - to_float(right)) <= allowed_error(instruction, to_float(right))


def function(
    compute: Callable[[float], float], at_infinity: tuple[float | None, float | None]
) -> Callable[[Value], Value]:
    """By a double's function, exact enough for float32; the zeros keep what `compute` makes of them."""

    def right(a: Value) -> Value:
        if a is None:
            return None
        if a.infinite:
            limit = at_infinity[a.negative]
        else:
            limit = compute(math.copysign(float(a.magnitude or 0), -1 if a.negative else 1))
        if limit is None or limit != limit:
            return None
        if math.isinf(limit):
            return Real(limit < 0, None)
        return of(Fraction(limit), math.copysign(1, limit) < 0)

    return right


def logarithm(a: float) -> float:
    return math.log2(a) if a > 0 else -math.inf if a == 0 else math.nan


def power_of_two(a: float) -> float:
    return math.inf if a >= 1024 else 2.0**a


SINGLE: dict[str, Callable[[Value], Value]] = {
    "rcp": lambda a: divide(of(1), a),
    "sqrt": root,
    "rsqrt": lambda a: divide(of(1), root(a)),
    "ex2": function(power_of_two, (math.inf, 0.0)),
    "lg2": function(logarithm, (math.inf, None)),
    "sin": function(math.sin, (None, None)),
    "cos": function(math.cos, (None, None)),
}
ANGLES = [encode(F32, of(Fraction(n, 16))) for n in range(-100, 100, 9)]
"""What sin and cos are asked: their error is stated for -2 pi to 2 pi only."""
LARGE = 0x7F000000  # 2^127
HALF = 0xFFFFFFFF << 32


def quotient(a: Value, b: Value) -> Value:
    """div.approx: a * (1 / b), which is 0 where 2^126 < |b| < 2^128."""
    if a is not None and b is not None and b.magnitude is not None and b.magnitude > 2**126:
        return None if a.infinite else Real(a.negative != b.negative, Fraction(0))
    return divide(a, b)


def cases() -> list[Case]:
    made = []

    def case(text: str, count: int, right: Callable[..., Value], inputs: list[int]) -> None:
        ftz = ".ftz" in text

        def bits(*row: int) -> int:
            return encode(F32, right(*(decode(F32, one, ftz) for one in row)), "rn", ftz)

        rows = mixed(text, [inputs] * count, "w" * count)
        if inputs is ANGLES:
            rows = [(angle,) for angle in (*ANGLES, 0, F32.minus, F32.nan, F32.infinity, 1)]
        made.append(Case(text, "w", "w" * count, rows, bits, lambda found, right, t=text: agree(t, found, right)))

    for ftz in ("", ".ftz"):
        for name, right in SINGLE.items():
            case(f"{name}.approx{ftz}.f32", 1, right, ANGLES if name in ("sin", "cos") else pool(F32))
        case(f"div.approx{ftz}.f32", 2, quotient, [*pool(F32), LARGE, LARGE | F32.minus, LARGE - 0x00800000])
        case(f"div.full{ftz}.f32", 2, divide, pool(F32))
    case("tanh.approx.f32", 1, function(math.tanh, (1.0, -1.0)), pool(F32))
    return made


def upper(value: Value) -> int:
    """What is kept of a gross float64: the upper half, no subnormal number, the one NaN."""
    return F64.nan - 0xFFFFFFFF if value is None else encode(F64, value, "rz", ftz=True) & HALF


def reciprocal(a: int) -> int:
    return upper(divide(of(1), decode(F64, a & HALF, ftz=True)))


def gross_root(a: int) -> int:
    return upper(divide(of(1), root(decode(F64, a & HALF, ftz=True))))


def reciprocal_root(a: int) -> int:
    return encode(F64, divide(of(1), root(decode(F64, a))))


def near(relative: Fraction, gross: bool = False) -> Callable[[int, int], bool]:
    """A float64 within that error, whose special values are right; `gross`: the lower half is zero, NaN the one NaN."""
    either = any_nan(F64)

    def fits(found: int, right: int) -> bool:
        a, b = decode(F64, found), decode(F64, right)
        if gross and found & ~HALF:
            return False
        if a is None or b is None or a.magnitude is None or b.magnitude is None or b.zero:
            return found == right if gross else either(found, right)
        return abs(a.signed() - b.signed()) <= relative * b.magnitude

    return fits


def doubles() -> list[Case]:
    """Their error is not stated. Of the gross ones 20 bits are kept; rsqrt.approx.f64 is rounded twice here."""
    rows = mixed("f64", [[*pool(F64), 0x0000000000000001, 0x000FFFFF00000000]], "d")
    gross, fine = near(Fraction(1, 2**19), gross=True), near(Fraction(1, 2**19 if REAL else 2**51))
    return [
        Case("rcp.approx.ftz.f64", "d", "d", rows, reciprocal, gross),
        Case("rsqrt.approx.ftz.f64", "d", "d", rows, gross_root, gross),
        Case("rsqrt.approx.f64", "d", "d", rows, reciprocal_root, fine),
    ]


ONE, TWO, INF, MINUS = 0x3F800000, 0x40000000, 0x7F800000, 0x80000000
BY_HAND = [
    written("ex2.approx.f32", "w", "w", [(0x40400000, 0x41000000), (INF | MINUS, 0)]),
    written("ex2.approx.ftz.f32", "w", "w", [(0xC2FE0000, 0)]),
    written("lg2.approx.f32", "w", "w", [(0x41000000, 0x40400000), (0, INF | MINUS)]),
    written("rsqrt.approx.f32", "w", "w", [(0x40800000, 0x3F000000), (0, INF), (MINUS, INF | MINUS)]),
    written("cos.approx.f32", "w", "w", [(0, ONE), (INF, 0x7FFFFFFF)]),
    written("sin.approx.f32", "w", "w", [(MINUS, MINUS), (INF, 0x7FFFFFFF)]),
    written("tanh.approx.f32", "w", "w", [(INF, ONE), (INF | MINUS, ONE | MINUS)]),
]


def approximations(cuda: Cuda) -> None:
    check(cuda, [*cases(), *doubles(), *BY_HAND])


CHECKS = [approximations]
