"""Integer arithmetic: PTX ISA 8.5, under the names. Python's integers are exact; results are cut to their width."""

from __future__ import annotations

from collections.abc import Callable

from driver_calls import Cuda

from isa.batch import Case, check, mixed, register, written

WIDTH = {"h": 16, "w": 32, "d": 64}
TYPES = {f"{sign}{bits}": kind for kind, bits in WIDTH.items() for sign in "us"}
DOUBLE = {"h": "w", "w": "d"}


def cut(value: int, kind: str) -> int:
    return value & ((1 << WIDTH[kind]) - 1)


def number(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def pool(kind: str) -> list[int]:
    """Limits, small numbers and halves of the width."""
    bits = WIDTH[kind]
    top, half = 1 << (bits - 1), 1 << (bits // 2)
    return [0, 1, 2, 7, half - 1, half, half + 1, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]


def quotient(a: int, b: int) -> int:
    """Towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def typed() -> list[Case]:
    """Each operation in each type that has it."""
    cases = []
    for name, kind in TYPES.items():
        bits, signed = WIDTH[kind], name[0] == "s"

        def of(value: int, bits: int = bits, signed: bool = signed) -> int:
            return number(value, bits, signed)

        def case(
            text: str, count: int, right: Callable[..., int], result: str = kind, kinds: str = kind, many: int = 64
        ) -> None:
            given = kinds if len(kinds) == count else kinds * count
            pools = [pool(k) for k in given]
            rows = mixed(text, pools, given, many)
            cases.append(Case(text, result, given, rows, lambda *row: cut(right(*row), result)))

        case(f"add.{name}", 2, lambda a, b: a + b)
        case(f"sub.{name}", 2, lambda a, b: a - b)
        case(f"mul.lo.{name}", 2, lambda a, b: a * b)
        case(f"mul.hi.{name}", 2, lambda a, b, of=of, bits=bits: of(a) * of(b) >> bits)
        case(f"mad.lo.{name}", 3, lambda a, b, c: a * b + c)
        case(f"mad.hi.{name}", 3, lambda a, b, c, of=of, bits=bits: (of(a) * of(b) >> bits) + c)
        # the ISA leaves division by zero open; the machine's answer is what CUDA's own sequence gives
        case(f"div.{name}", 2, lambda a, b, of=of: quotient(of(a), of(b)) if b else -1)
        case(f"rem.{name}", 2, lambda a, b, of=of: of(a) - of(b) * quotient(of(a), of(b)) if b else a)
        case(f"min.{name}", 2, lambda a, b, of=of: min(of(a), of(b)))
        case(f"max.{name}", 2, lambda a, b, of=of: max(of(a), of(b)))
        case(f"sad.{name}", 3, lambda a, b, c, of=of: c + abs(of(a) - of(b)))
        if signed:
            case(f"abs.{name}", 1, lambda a, of=of: abs(of(a)))
            case(f"neg.{name}", 1, lambda a: -a)
        if kind in DOUBLE:
            wide = DOUBLE[kind]
            case(f"mul.wide.{name}", 2, lambda a, b, of=of: of(a) * of(b), wide)
            case(f"mad.wide.{name}", 3, lambda a, b, c, of=of: of(a) * of(b) + c, wide, kind * 2 + wide)
    return cases


def clamped(value: int) -> int:
    return cut(max(-(2**31), min(2**31 - 1, value)), "w")


def word(value: int) -> int:
    return number(value, 32, True)


def dot(a: int, b: int, c: int, signs: str, a_bits: int, at: int) -> int:
    """c + the sum of a's parts of `a_bits` times b's bytes from `at` on; `signs` of a and b."""
    total = c
    for i in range(32 // a_bits):
        left = number(a >> i * a_bits, a_bits, signs[0] == "s")
        total += left * number(b >> (at + i) * 8, 8, signs[1] == "s")
    return cut(total, "w")


def saturated_and_dots() -> list[Case]:
    words = [pool("w")] * 3
    cases = [
        Case("add.sat.s32", "w", "ww", mixed("add.sat", words[:2], "ww"), lambda a, b: clamped(word(a) + word(b))),
        Case("sub.sat.s32", "w", "ww", mixed("sub.sat", words[:2], "ww"), lambda a, b: clamped(word(a) - word(b))),
    ]
    bytes_of = [0, 0x80808080, 0x7F7F7F7F, 0xFFFFFFFF, 0x01020304, 0xFF800180, 0x8000, 0x7FFF8000]
    for signs in ("ss", "su", "us", "uu"):
        types = f"{signs[0]}32.{signs[1]}32"
        for name, a_bits, at in ((f"dp4a.{types}", 8, 0), (f"dp2a.lo.{types}", 16, 0), (f"dp2a.hi.{types}", 16, 2)):
            rows = mixed(name, [bytes_of, bytes_of, pool("w")], "www")
            cases.append(
                Case(name, "w", "www", rows, lambda a, b, c, s=signs, n=a_bits, at=at: dot(a, b, c, s, n, at))
            )
    return cases


def carries() -> list[Case]:
    """The carry is set by an instruction before, and read by one behind: each of a pair is one under test.

    addc is a + b + CC.CF, subc a - (b + CC.CF), and .cc leaves the carry or the borrow out.
    """
    cases = []
    for sign, kind in (("u", "w"), ("s", "w"), ("u", "d"), ("s", "d")):
        bits = WIDTH[kind]
        name, one = f"{sign}{bits}", 1 << bits
        unused = register(kind, 8)
        # a carry where the last operand is not 0
        last2, last3 = (f"add.cc.{name} {unused}, {{{i}}}, -1" for i in (3, 4))
        take = f"addc.{name} {{0}}, 0, 0"

        def case(text: str, kinds: str, right: Callable[..., int], kind: str = kind) -> None:
            rows = mixed(text, [pool(k) for k in kinds], kinds)
            cases.append(Case(text, kind, kinds, rows, lambda *row: cut(right(*row), kind)))

        products: dict[str, Callable[[int, int], int]] = {"lo": lambda a, b, m=one: a * b % m}
        if sign == "u":
            products["hi"] = lambda a, b, n=bits: a * b >> n
        case(f"add.cc.{name} {unused}, {{1}}, {{2}}; {take}", kind * 2, lambda a, b, m=one: a + b >= m)
        case(f"add.cc.{name} {{0}}, {{1}}, {{2}}", kind * 2, lambda a, b: a + b)
        case(f"{last2}; addc.{name} {{0}}, {{1}}, {{2}}", kind * 3, lambda a, b, c: a + b + (c > 0))
        case(f"{last2}; addc.cc.{name} {{0}}, {{1}}, {{2}}", kind * 3, lambda a, b, c: a + b + (c > 0))
        case(
            f"{last2}; addc.cc.{name} {unused}, {{1}}, {{2}}; {take}",
            kind * 3,
            lambda a, b, c, m=one: a + b + (c > 0) >= m,
        )
        case(f"sub.cc.{name} {{0}}, {{1}}, {{2}}", kind * 2, lambda a, b: a - b)
        borrow = f"subc.{name} {{0}}, 0, 0"
        case(f"sub.cc.{name} {unused}, {{1}}, {{2}}; {borrow}", kind * 2, lambda a, b: -(a < b))
        lend = f"sub.cc.{name} {unused}, 0, {{3}}"
        case(f"{lend}; subc.{name} {{0}}, {{1}}, {{2}}", kind * 3, lambda a, b, c: a - b - (c > 0))
        case(f"{lend}; subc.cc.{name} {{0}}, {{1}}, {{2}}", kind * 3, lambda a, b, c: a - b - (c > 0))
        case(
            f"{lend}; subc.cc.{name} {unused}, {{1}}, {{2}}; {borrow}", kind * 3, lambda a, b, c: -(a < b + (c > 0))
        )
        for part, product in products.items():
            full = "{0}, {1}, {2}, {3}"
            case(f"mad.{part}.cc.{name} {full}", kind * 3, lambda a, b, c, p=product: p(a, b) + c)
            case(
                f"mad.{part}.cc.{name} {unused}, {{1}}, {{2}}, {{3}}; {take}",
                kind * 3,
                lambda a, b, c, p=product, m=one: p(a, b) + c >= m,
            )
            case(f"{last3}; madc.{part}.{name} {full}", kind * 4, lambda a, b, c, d, p=product: p(a, b) + c + (d > 0))
            case(
                f"{last3}; madc.{part}.cc.{name} {full}", kind * 4, lambda a, b, c, d, p=product: p(a, b) + c + (d > 0)
            )
            case(
                f"{last3}; madc.{part}.cc.{name} {unused}, {{1}}, {{2}}, {{3}}; {take}",
                kind * 4,
                lambda a, b, c, d, p=product, m=one: p(a, b) + c + (d > 0) >= m,
            )
    return cases


BY_HAND = [
    written("add.s32", "w", "ww", [(0x7FFFFFFF, 1, 0x80000000), (5, 0xFFFFFFFF, 4)]),
    written("add.sat.s32", "w", "ww", [(0x7FFFFFFF, 1, 0x7FFFFFFF), (0x80000000, 0xFFFFFFFF, 0x80000000), (1, 2, 3)]),
    written("mul.hi.s32", "w", "ww", [(0x80000000, 2, 0xFFFFFFFF), (0x40000000, 4, 1)]),
    written("mul.hi.u32", "w", "ww", [(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFE)]),
    written("mul.wide.s32", "d", "ww", [(0xFFFFFFFF, 2, (1 << 64) - 2)]),
    written("div.s32", "w", "ww", [(0xFFFFFFF9, 2, 0xFFFFFFFD), (0x80000000, 0xFFFFFFFF, 0x80000000)]),
    written("rem.s32", "w", "ww", [(0xFFFFFFF9, 2, 0xFFFFFFFF), (0x80000000, 0xFFFFFFFF, 0)]),
    written("sad.u32", "w", "www", [(3, 10, 100, 107)]),
    written("dp4a.s32.s32", "w", "www", [(0x80808080, 0x7F7F7F7F, 0, 0xFFFF0200), (0xFF010203, 0x01010101, 5, 10)]),
    written("dp4a.u32.s32", "w", "www", [(0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFC04)]),
    written("dp2a.hi.s32.s32", "w", "www", [(0xFFFF0002, 0x04030000, 0, 2)]),
]


def integers(cuda: Cuda) -> None:
    check(cuda, [*typed(), *saturated_and_dots(), *carries(), *BY_HAND])


CHECKS = [integers]
