"""cvt and cvt.pack: PTX ISA 8.5, under these names. Every pair of types, in registers of every width that fits."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from driver_calls import Cuda

from isa.batch import Case, check, mixed, written
from isa.comparisons import reals
from isa.exact import F16, F32, F64, Format, Real, Value, decode, encode, of, whole_number
from isa.floats import any_nan, saturated
from isa.floats import pool as real_pool
from isa.integers import number, pool

REALS = {"f16": ("h", F16), "f32": ("w", F32), "f64": ("d", F64)}
INTEGERS = [f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "us"]
WIDTHS = {"h": 16, "w": 32, "d": 64}


def limits(type_: str) -> tuple[int, int]:
    bits = int(type_[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)


def holders(type_: str, source: bool) -> list[str]:
    """Registers that may hold an integer: of its width or wider; the machine takes a narrow result up to 32 bits."""
    bits = int(type_[1:])
    least = max(bits, 16)
    return [kind for kind, width in WIDTHS.items() if width >= least and (source or width == least or width == 32)]


def narrow(value: int, type_: str, kind: str) -> int:
    """As the register holds it: cut to the type, its sign extended ("Operand Size Exceeding Instruction-Type Size")."""
    return number(value, int(type_[1:]), type_[0] == "s") & ((1 << WIDTHS[kind]) - 1)


def between_integers() -> list[Case]:
    cases = []

    def case(text: str, to: str, source: str, right: Callable[[int], int]) -> None:
        for kind in holders(source, True):
            for result in holders(to, False):
                numbers = [*pool(kind), 0x7F, 0x80, 0x81, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF]

                def bits(a: int, result: str = result) -> int:
                    return narrow(right(number(a, int(source[1:]), source[0] == "s")), to, result)

                cases.append(Case(text, result, kind, mixed(text, [numbers], kind, 24), bits))

    for source in INTEGERS:
        for to in INTEGERS:
            case(f"cvt.{to}.{source}", to, source, lambda a: a)
    for to in ("s8", "u8", "s16", "u16"):
        low, high = limits(to)
        case(f"cvt.sat.{to}.s32", to, "s32", lambda a, low=low, high=high: max(low, min(high, a)))
    return cases


HALFWAY = [(1 << 24) + 1, (1 << 24) + 3, (1 << 53) + 1, (1 << 40) + (1 << 16) + 1, 65519, 65520, 2049, 2051]
"""Integers that lie between two numbers of one of the formats, or at their end."""


def to_reals() -> list[Case]:
    cases = []
    for source in INTEGERS:
        for type_, (result, form) in REALS.items():
            modes = ("rn", "rz", "rm", "rp") if type_ == "f32" and int(source[1:]) <= 32 else ("rn",)
            for mode in modes:
                for kind in holders(source, True):
                    text = f"cvt.{mode}.{type_}.{source}"
                    numbers = [*pool(kind), *(n & ((1 << WIDTHS[kind]) - 1) for n in HALFWAY)]

                    def bits(a: int, form: Format = form, mode: str = mode, source: str = source) -> int:
                        return encode(form, of(number(a, int(source[1:]), source[0] == "s")), mode)

                    cases.append(Case(text, result, kind, mixed(text, [numbers], kind, 32), bits))
    return cases


def edges(form: Format) -> list[int]:
    """Halves, and both sides of every integer type's limits."""
    found = []
    for bits in (8, 16, 32, 64):
        for limit in (1 << (bits - 1), 1 << bits):
            middle = encode(form, of(limit))
            found += [middle - 1, middle, middle + 1]
    for halves in (1, 3, 5, 7, 255, 511):
        found.append(encode(form, Real(False, of(halves).signed() / 2)))
    found = [bits for bits in found if bits <= form.nan]
    return [*reals(form), *found, *(bits | form.minus for bits in found)]


def to_integer(value: Value, to: str, mode: str, wide: bool) -> int:
    """Clamped. NaN: 0, but where either is of 64 bits the highest bit (PTX ISA 9.0; 8.5 said 0 of all)."""
    bits = int(to[1:])
    low, high = limits(to)
    if value is None:
        return 1 << (bits - 1) if wide or bits == 64 else 0
    if value.infinite:
        return low if value.negative else high
    return max(low, min(high, whole_number(value.signed(), mode)))


def to_integers() -> list[Case]:
    cases = []
    for source, (kind, form) in REALS.items():
        for to in INTEGERS:
            if int(to[1:]) < 32 and source != "f16":
                continue
            for result in holders(to, False):
                for mode in ("rni", "rzi", "rmi", "rpi"):
                    for ftz in ("", ".ftz") if source == "f32" and mode in ("rni", "rzi") else ("",):
                        text = f"cvt.{mode}{ftz}.{to}.{source}"

                        def bits(
                            a: int,
                            form: Format = form,
                            to: str = to,
                            mode: str = mode,
                            result: str = result,
                            ftz: bool = bool(ftz),
                        ) -> int:
                            found = to_integer(decode(form, a, ftz), to, mode, form is F64)
                            return narrow(found, to, result)

                        cases.append(Case(text, result, kind, mixed(text, [edges(form)], kind), bits))
    return cases


def between_reals() -> list[Case]:
    cases = []
    pairs = [("f16", "f32", mode) for mode in ("rn", "rz", "rm", "rp")]
    pairs += [("f32", "f64", mode) for mode in ("rn", "rz", "rm", "rp")]
    pairs += [("f16", "f64", "rn"), ("f32", "f16", ""), ("f64", "f16", ""), ("f64", "f32", "")]
    for to, source, mode in pairs:
        (result, form), (kind, given) = REALS[to], REALS[source]
        text = f"cvt{'.' if mode else ''}{mode}.{to}.{source}"
        rows = mixed(text, [[*boundaries(form, given), *real_pool(given)]], kind)

        def bits(a: int, form: Format = form, given: Format = given, mode: str = mode) -> int:
            return encode(form, decode(given, a), mode or "rn")

        cases.append(Case(text, result, kind, rows, bits, any_nan(form) if to == "f64" else None))
    for type_, (kind, form) in REALS.items():
        for mode in ("rni", "rzi", "rmi", "rpi"):
            text = f"cvt.{mode}.{type_}.{type_}"

            def whole(a: int, form: Format = form, mode: str = mode) -> int:
                value = decode(form, a)
                if value is None or value.infinite:
                    return encode(form, value)
                return encode(form, of(whole_number(value.signed(), mode), value.negative))

            agree = any_nan(form) if type_ == "f64" else None
            cases.append(Case(text, kind, kind, mixed(text, [edges(form)], kind), whole, agree))
    rows = mixed("sat", [real_pool(F32)], "w")
    cases.append(Case("cvt.sat.f32.f32", "w", "w", rows, lambda a: encode(F32, saturated(decode(F32, a)))))
    pairs_of = mixed("two", [boundaries(F16, F32), boundaries(F16, F32)], "ww")
    cases.append(
        Case(
            "cvt.rn.f16x2.f32",
            "w",
            "ww",
            pairs_of,
            lambda a, b: encode(F16, decode(F32, a)) << 16 | encode(F16, decode(F32, b)),
        )
    )
    return cases


def boundaries(form: Format, given: Format) -> list[int]:
    """Bits of the wider format that lie at, half between and next to numbers of the narrower one."""
    if given.fraction_bits <= form.fraction_bits:
        return reals(given)
    found = []
    least = 1 << form.fraction_bits
    for bits in (0, 1, 2, least - 1, least, form.infinity // 2, form.infinity - 1):
        low = decode(form, bits)
        high = decode(form, bits + 1) if bits + 1 < form.infinity else None
        assert low is not None and low.magnitude is not None
        unit = (high.magnitude or 0) - low.magnitude if high is not None else low.magnitude - lower(form, bits)
        middle = encode(given, of(low.magnitude + unit / 2))
        found += [encode(given, low), middle - 1, middle, middle + 1]
    return [*found, *(bits | given.minus for bits in found), given.infinity, given.nan]


def lower(form: Format, bits: int) -> Fraction:
    value = decode(form, bits - 1)
    assert value is not None and value.magnitude is not None
    return value.magnitude


def packed() -> list[Case]:
    """The first operand is the upper of the two, each clamped; a third moves up."""
    cases = []
    numbers = [*pool("w"), 127, 128, 255, 256, 32767, 32768, 65535, 65536]
    numbers += [0xFFFFFF80, 0xFFFFFF7F, 0xFFFF8000, 0xFFFF7FFF]
    for to in ("s8", "u8", "s16", "u16"):
        low, high = limits(to)
        bits = int(to[1:])

        def one(a: int, low: int = low, high: int = high, bits: int = bits) -> int:
            return max(low, min(high, number(a, 32, True))) & ((1 << bits) - 1)

        if bits == 8:
            text = f"cvt.pack.sat.{to}.s32.b32"
            rows = mixed(text, [numbers] * 3, "www")
            right = lambda a, b, c, one=one: (c << 16 | one(a) << 8 | one(b)) & 0xFFFFFFFF  # noqa: E731
            cases.append(Case(text, "w", "www", rows, right))
        else:
            text = f"cvt.pack.sat.{to}.s32"
            rows = mixed(text, [numbers] * 2, "ww")
            cases.append(Case(text, "w", "ww", rows, lambda a, b, one=one: one(a) << 16 | one(b)))
    return cases


QUIET, INF = 0x7FC00000, 0x7F800000
DOUBLE_NAN, HIGH = 0x7FF8000000000000, 1 << 63
BY_HAND = [
    written("cvt.rni.s32.f32", "w", "w", [(0x3F000000, 0), (0x40200000, 2), (QUIET, 0), (INF, 0x7FFFFFFF)]),
    written("cvt.rzi.u32.f32", "w", "w", [(0xBF800000, 0), (0x4F9502F9, 0xFFFFFFFF), (QUIET, 0)]),
    # NaN and 64 bits: PTX ISA 9.0
    written("cvt.rzi.s64.f32", "d", "w", [(QUIET, HIGH)]),
    written("cvt.rzi.u64.f16", "d", "h", [(0x7FFF, HIGH)]),
    written("cvt.rzi.s32.f64", "w", "d", [(DOUBLE_NAN, 0x80000000)]),
    written("cvt.rzi.u32.f64", "w", "d", [(DOUBLE_NAN, 0x80000000)]),
    written("cvt.rzi.s64.f64", "d", "d", [(DOUBLE_NAN, HIGH)]),
    written("cvt.rn.f16.f32", "h", "w", [(0x477FEF00, 0x7BFF), (0x477FF000, 0x7C00), (0x33000000, 0), (QUIET, 0x7FFF)]),
    written("cvt.rz.f16.f32", "h", "w", [(0x477FF000, 0x7BFF), (0x4E6E6B28, 0x7BFF), (0x45003000, 0x6801)]),
    written("cvt.rp.f16.f32", "h", "w", [(0x477FE001, 0x7C00), (0x32800000, 1), (0xB2800000, 0x8000)]),
    # 1e-50 and -1e-50: a zero of their sign, or the least number
    written("cvt.rz.f32.f64", "w", "d", [(0x358DEE7A4AD4B81F, 0), (0xB58DEE7A4AD4B81F, 1 << 31)]),
    written("cvt.rp.f32.f64", "w", "d", [(0x358DEE7A4AD4B81F, 1), (0xB58DEE7A4AD4B81F, 1 << 31)]),
    written("cvt.rm.f32.f64", "w", "d", [(0x358DEE7A4AD4B81F, 0), (0xB58DEE7A4AD4B81F, 1 << 31 | 1)]),
    written("cvt.sat.f32.f32", "w", "w", [(0x40000000, 0x3F800000), (QUIET, 0), (0x3F000000, 0x3F000000)]),
    written("cvt.pack.sat.s8.s32.b32", "w", "www", [(200, 0xFFFFFF00, 0x1234, 0x12347F80)]),
]


def conversions(cuda: Cuda) -> None:
    check(cuda, [*between_integers(), *to_reals(), *to_integers(), *between_reals(), *packed(), *BY_HAND])


CHECKS = [conversions]
