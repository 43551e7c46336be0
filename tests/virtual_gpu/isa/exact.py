"""Binary floating point in exact arithmetic: bits to rational numbers and back, rounded once, in any direction.

Written from IEEE 754 and the PTX ISA 8.5, "Floating Point Instructions"; shares nothing with the C++ that it judges. A
value is a `Real`, or None for NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    fraction_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def minus(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def nan(self) -> int:
        """The NaN that PTX gives: all ones but the sign (.f64 leaves it open)."""
        return self.minus - 1

    @property
    def least_exponent(self) -> int:
        return 2 - (1 << (self.exponent_bits - 1))


F16, F32, F64 = Format(5, 10), Format(8, 23), Format(11, 52)


@dataclass(frozen=True)
class Real:
    """A number with a sign of its own, which zero has too; `magnitude` None is infinity."""

    negative: bool
    magnitude: Fraction | None

    @property
    def infinite(self) -> bool:
        return self.magnitude is None

    @property
    def zero(self) -> bool:
        return self.magnitude == 0

    def signed(self) -> Fraction:
        assert self.magnitude is not None
        return -self.magnitude if self.negative else self.magnitude

    def negated(self) -> Real:
        return Real(not self.negative, self.magnitude)


Value = Real | None
INFINITY = Real(False, None)


def power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def of(number: Fraction | int, negative_zero: bool = False) -> Real:
    return Real(number < 0 or (number == 0 and negative_zero), Fraction(abs(number)))


def decode(form: Format, bits: int, ftz: bool = False) -> Value:
    """The value of the bits; `ftz` takes a subnormal one for a zero of its sign."""
    negative, rest = bool(bits & form.minus), bits & (form.minus - 1)
    if rest > form.infinity:
        return None
    if rest == form.infinity:
        return Real(negative, None)
    exponent, fraction = rest >> form.fraction_bits, rest & ((1 << form.fraction_bits) - 1)
    if exponent == 0:
        if ftz:
            fraction = 0
    else:
        fraction |= 1 << form.fraction_bits
    unit = power_of_two(form.least_exponent + max(exponent, 1) - 1 - form.fraction_bits)
    return Real(negative, fraction * unit)


def encode(form: Format, value: Value, mode: str = "rn", ftz: bool = False) -> int:
    """The bits nearest to the value in the direction `mode`: rn to even, rz, rm down, rp up."""
    if value is None:
        return form.nan
    sign = form.minus if value.negative else 0
    if value.magnitude is None:
        return sign | form.infinity
    if value.magnitude == 0:
        return sign
    top = value.magnitude.numerator.bit_length() - value.magnitude.denominator.bit_length()
    exponent = top if value.magnitude >= power_of_two(top) else top - 1
    exponent = max(exponent, form.least_exponent)
    unit = power_of_two(exponent - form.fraction_bits)
    whole, rest = divmod(value.magnitude, unit)
    away = {"rz": False, "rm": value.negative, "rp": not value.negative}
    if mode == "rn":
        whole += rest * 2 > unit or (rest * 2 == unit and whole & 1)
    else:
        whole += away[mode] and rest > 0
    bits = ((exponent - form.least_exponent) << form.fraction_bits) + int(whole)
    if bits >= form.infinity:
        bits = form.infinity if mode == "rn" or away[mode] else form.infinity - 1
    if ftz and bits < 1 << form.fraction_bits:
        bits = 0
    return sign | bits


def add(a: Value, b: Value, mode: str = "rn") -> Value:
    if a is None or b is None or (a.infinite and b.infinite and a.negative != b.negative):
        return None
    if a.infinite or b.infinite:
        return a if a.infinite else b
    total = a.signed() + b.signed()
    # a sum of opposite numbers is +0, but -0 when rounding down (IEEE 754, section 6.3)
    return of(total, (a.negative and b.negative) or (a.negative != b.negative and mode == "rm"))


def multiply(a: Value, b: Value) -> Value:
    if a is None or b is None or (a.infinite and b.zero) or (a.zero and b.infinite):
        return None
    negative = a.negative != b.negative
    if a.magnitude is None or b.magnitude is None:
        return Real(negative, None)
    return Real(negative, a.magnitude * b.magnitude)


def divide(a: Value, b: Value) -> Value:
    if a is None or b is None or (a.infinite and b.infinite) or (a.zero and b.zero):
        return None
    negative = a.negative != b.negative
    if a.magnitude is None or b.zero:
        return Real(negative, None)
    if b.magnitude is None:
        return Real(negative, Fraction(0))
    return Real(negative, a.magnitude / b.magnitude)


def root(a: Value) -> Value:
    """The square root, exact or so close that no rounding to these formats sees the difference."""
    if a is None or (a.negative and not a.zero):
        return None
    if a.magnitude is None or a.zero:
        return a
    shift = 2400  # bits behind the point: more than any format has, with those below its least number
    scaled, rest = divmod(a.magnitude.numerator << shift, a.magnitude.denominator)
    whole = math.isqrt(scaled)
    inexact = rest != 0 or whole * whole != scaled
    return Real(False, Fraction(2 * whole + inexact, 2 << (shift // 2)))


def less(a: Real, b: Real) -> bool:
    """Whether a < b, infinities and all; the zeros are equal."""
    if a.infinite or b.infinite:
        left = 0 if not a.infinite else -1 if a.negative else 1
        right = 0 if not b.infinite else -1 if b.negative else 1
        return left < right
    return a.signed() < b.signed()


def whole_number(a: Fraction, mode: str) -> int:
    """Rounded to an integer: rni to even, rzi, rmi down, rpi up."""
    whole = {"rni": round(a), "rzi": math.trunc(a), "rmi": math.floor(a), "rpi": math.ceil(a)}
    return whole[mode]
