"""setp: PTX ISA 8.5, setp, and "Comparisons". The ordered tests are false of a NaN, those ending in u true."""

from __future__ import annotations

from collections.abc import Callable

from driver_calls import Cuda

from isa.batch import Case, check, mixed, written
from isa.exact import F16, F32, F64, Format, decode, less
from isa.integers import WIDTH, number, pool

ORDERED: dict[str, Callable[[bool, bool], bool]] = {
    "eq": lambda below, above: not below and not above,
    "ne": lambda below, above: below or above,
    "lt": lambda below, above: below,
    "le": lambda below, above: not above,
    "gt": lambda below, above: above,
    "ge": lambda below, above: not below,
}
"""Of a and b, neither NaN: whether a is below b, and above it."""
FORMATS = {"f16": ("h", F16), "f32": ("w", F32), "f64": ("d", F64)}


def reals(form: Format) -> list[int]:
    """Zeros, limits, subnormal numbers, neighbours, ones, infinities and NaNs, of both signs."""
    least = 1 << form.fraction_bits
    one = (-form.least_exponent + 1) << form.fraction_bits
    positive = [0, 1, 2, least - 1, least, least + 1, one - 1, one, one + 1, one + least, form.infinity - 1]
    positive += [form.infinity, form.infinity + 1, form.nan]
    return [bits | sign for sign in (0, form.minus) for bits in positive]


def real_test(name: str, form: Format, ftz: bool) -> Callable[[int, int], int]:
    def right(a: int, b: int) -> int:
        x, y = decode(form, a, ftz), decode(form, b, ftz)
        if name in ("num", "nan"):
            return int((x is None or y is None) == (name == "nan"))
        if x is None or y is None:
            return int(name.endswith("u") and name[:-1] in ORDERED)
        ordered = name if name in ORDERED else name[:-1]
        return int(ORDERED[ordered](less(x, y), less(y, x)))

    return right


def cases() -> list[Case]:
    made = []
    for bits, kind in ((b, k) for k, b in WIDTH.items()):
        names = {f"b{bits}": ("eq", "ne"), f"u{bits}": tuple(ORDERED), f"s{bits}": tuple(ORDERED)}
        for type_, tests in names.items():
            signed = type_[0] == "s"
            for test in tests:
                text = f"setp.{test}.{type_}"

                def right(a: int, b: int, bits: int = bits, signed: bool = signed, test: str = test) -> int:
                    x, y = number(a, bits, signed), number(b, bits, signed)
                    return int(ORDERED[test](x < y, x > y))

                rows = mixed(text, [pool(kind)] * 2, kind * 2, 48)
                rows += [(a, a) for a in pool(kind)]
                made.append(Case(text, "p", kind * 2, rows, right))
    for type_, (kind, form) in FORMATS.items():
        for ftz in (False, True) if type_ == "f32" else (False,):
            for test in (*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"):
                text = f"setp.{test}{'.ftz' if ftz else ''}.{type_}"
                rows = mixed(text, [reals(form)] * 2, kind * 2, 36) + [(a, a) for a in reals(form)]
                made.append(Case(text, "p", kind * 2, rows, real_test(test, form, ftz)))
    return made


QUIET, ONE, TWO, MINUS = 0x7FC00000, 0x3F800000, 0x40000000, 0x80000000
BY_HAND = [
    written("setp.lt.s32", "p", "ww", [(0xFFFFFFFF, 0, 1), (0, 0, 0)]),
    written("setp.lt.u32", "p", "ww", [(0xFFFFFFFF, 0, 0)]),
    written("setp.eq.f32", "p", "ww", [(QUIET, QUIET, 0), (0, MINUS, 1)]),
    written("setp.ne.f32", "p", "ww", [(QUIET, ONE, 0), (ONE, TWO, 1)]),
    written("setp.neu.f32", "p", "ww", [(QUIET, ONE, 1)]),
    written("setp.ltu.f32", "p", "ww", [(QUIET, ONE, 1), (TWO, ONE, 0)]),
    written("setp.gt.ftz.f32", "p", "ww", [(1, 0, 0)]),
    written("setp.ge.f16", "p", "hh", [(0x3C00, 0x3C00, 1), (0x7E00, 0x3C00, 0)]),
]


def comparisons(cuda: Cuda) -> None:
    check(cuda, [*cases(), *BY_HAND])


CHECKS = [comparisons]
