"""Logic, shifts, bit fields, moves and choices: PTX ISA 8.5, under their names."""

from __future__ import annotations

from collections.abc import Callable

from driver_calls import Cuda

from isa.batch import Case, check, mixed, written
from isa.integers import WIDTH, cut, number, pool

SHIFTS = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0x80000000, 0xFFFFFFFF]
FIELDS = [0, 1, 4, 8, 15, 28, 31, 32, 33, 63, 64, 128, 255, 256, 257, 0xFFFFFF04]
PATTERNS = [0x12345678, 0xABCD1234, 0x80000000, 0x80808080, 0x7F00FF01, 0xFFFFFFFF]


def logic() -> list[Case]:
    cases = []
    for kind, bits in WIDTH.items():
        two = [pool(kind)] * 2
        operations: dict[str, Callable[[int, int], int]] = {
            "and": lambda a, b: a & b,
            "or": lambda a, b: a | b,
            "xor": lambda a, b: a ^ b,
        }
        for name, right in operations.items():
            text = f"{name}.b{bits}"
            cases.append(Case(text, kind, kind * 2, mixed(text, two, kind * 2), right))
        flip = mixed(f"not.b{bits}", two[:1], kind)
        cases.append(Case(f"not.b{bits}", kind, kind, flip, lambda a, k=kind: cut(~a, k)))
        for letter in "bus":
            text = f"selp.{letter}{bits}"
            rows = mixed(text, [*two, [0, 1]], kind * 2 + "p")
            cases.append(Case(text, kind, kind * 2 + "p", rows, lambda a, b, c: a if c else b))
        text = f"selp.f{bits}"
        if bits > 16:
            cases.append(Case(text, kind, kind * 2 + "p", mixed(text, [*two, [0, 1]], kind * 2 + "p"), choose))
    both = [(a, b) for a in (0, 1) for b in (0, 1)]
    cases += [
        Case("and.pred", "p", "pp", both, lambda a, b: a & b),
        Case("or.pred", "p", "pp", both, lambda a, b: a | b),
        Case("xor.pred", "p", "pp", both, lambda a, b: a ^ b),
        Case("not.pred", "p", "p", [(0,), (1,)], lambda a: 1 - a),
        Case("mov.pred", "p", "p", [(0,), (1,)], lambda a: a),
    ]
    return cases


def choose(a: int, b: int, c: int) -> int:
    return a if c else b


def shifts() -> list[Case]:
    """By the width or more: 0, or all sign bits. shf.clamp stops at 32, .wrap takes the amount modulo 32."""
    cases = []
    for kind, bits in WIDTH.items():
        for text, right in (
            (f"shl.b{bits}", lambda a, n, k=kind: cut(a << min(n, 64), k)),
            (f"shr.b{bits}", lambda a, n: a >> min(n, 64)),
            (f"shr.u{bits}", lambda a, n: a >> min(n, 64)),
            (f"shr.s{bits}", lambda a, n, k=kind, b=bits: cut(number(a, b, True) >> min(n, 64), k)),
        ):
            cases.append(Case(text, kind, kind + "w", mixed(text, [pool(kind), SHIFTS], kind + "w"), right))
    for text, left, amount in (
        ("shf.l.wrap.b32", True, lambda c: c & 31),
        ("shf.l.clamp.b32", True, lambda c: min(c, 32)),
        ("shf.r.wrap.b32", False, lambda c: c & 31),
        ("shf.r.clamp.b32", False, lambda c: min(c, 32)),
    ):
        rows = mixed(text, [PATTERNS, PATTERNS, SHIFTS], "www")

        def funnel(a: int, b: int, c: int, left: bool = left, amount: Callable[[int], int] = amount) -> int:
            both = b << 32 | a
            return both << amount(c) >> 32 & 0xFFFFFFFF if left else both >> amount(c) & 0xFFFFFFFF

        cases.append(Case(text, "w", "www", rows, funnel))
    return cases


def extract(a: int, position: int, length: int, bits: int, signed: bool) -> int:
    """A field of a; beyond it, and where it leaves the word, zeros or a's bit at the field's end."""
    position, length = position & 255, length & 255
    sign = a >> min(position + length - 1, bits - 1) & 1 if signed and length else 0
    found = 0
    for i in range(bits):
        found |= (a >> (position + i) & 1 if i < length and position + i < bits else sign) << i
    return found


def insert(a: int, b: int, position: int, length: int, bits: int) -> int:
    position, length = position & 255, length & 255
    mask = (((1 << length) - 1) << position) & ((1 << bits) - 1)
    return (b & ~mask) | (a << position & mask)


def leading(a: int, bits: int, signed: bool, shift: bool) -> int:
    """The highest bit that is not the sign; all ones where there is none."""
    found = (a if not signed or not a >> (bits - 1) else ~a & ((1 << bits) - 1)).bit_length() - 1
    return 0xFFFFFFFF if found < 0 else bits - 1 - found if shift else found


def fields() -> list[Case]:
    cases = []
    for kind, bits in (("w", 32), ("d", 64)):
        for sign in "us":
            text, signed = f"bfe.{sign}{bits}", sign == "s"
            rows = mixed(text, [[*pool(kind), *PATTERNS], FIELDS, FIELDS], kind + "ww")
            cases.append(Case(text, kind, kind + "ww", rows, lambda a, p, n, b=bits, s=signed: extract(a, p, n, b, s)))
            for shift in ("", ".shiftamt"):
                text = f"bfind{shift}.{sign}{bits}"
                one = mixed(text, [[*pool(kind), *(1 << i for i in range(0, bits, 5))]], kind)
                cases.append(
                    Case(text, "w", kind, one, lambda a, b=bits, s=signed, n=bool(shift): leading(a, b, s, n))
                )
        rows = mixed(f"bfi.b{bits}", [pool(kind), pool(kind), FIELDS, FIELDS], kind * 2 + "ww")
        cases.append(
            Case(f"bfi.b{bits}", kind, kind * 2 + "ww", rows, lambda a, b, p, n, w=bits: insert(a, b, p, n, w))
        )
        one = mixed(f"brev.b{bits}", [pool(kind)], kind)
        cases += [
            Case(f"brev.b{bits}", kind, kind, one, lambda a, b=bits: int(f"{a:0{b}b}"[::-1], 2)),
            Case(f"clz.b{bits}", "w", kind, one, lambda a, b=bits: b - a.bit_length()),
            Case(f"popc.b{bits}", "w", kind, one, lambda a: a.bit_count()),
        ]
    return cases


def permuted(a: int, b: int, c: int) -> int:
    """Four selectors of four bits: a byte of b:a, or eight times its sign."""
    both, found = b << 32 | a, 0
    for i in range(4):
        selector = c >> 4 * i & 15
        byte = both >> 8 * (selector & 7) & 255
        found |= (255 * (byte >> 7) if selector & 8 else byte) << 8 * i
    return found


def any_logic() -> list[Case]:
    """lop3: the bit of the table that a, b and c's bits count to, a's highest."""
    tables = [0x00, 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xE8, 0x96, 0xC0, 0xFC, 0xCA]
    selectors = [0x3210, 0x7531, 0x5410, 0x000A, 0xFEDC, 0xBA98, 0x7632]
    cases = [Case("prmt.b32", "w", "www", mixed("prmt", [PATTERNS, PATTERNS, selectors], "www"), permuted)]
    for table in tables:

        def looked_up(a: int, b: int, c: int, table: int = table) -> int:
            return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))

        text = f"lop3.b32 {{0}}, {{1}}, {{2}}, {{3}}, {table:#x}"
        cases.append(Case(text, "w", "www", mixed(text, [PATTERNS] * 3, "www", 8), looked_up))
    return cases


def moves() -> list[Case]:
    cases = []
    for kind, bits in WIDTH.items():
        for letter in "bus":
            cases.append(Case(f"mov.{letter}{bits}", kind, kind, mixed(letter, [pool(kind)], kind), lambda a: a))
    for kind, name in (("w", "f32"), ("d", "f64")):
        cases.append(Case(f"mov.{name}", kind, kind, mixed(name, [pool(kind)], kind), lambda a: a))
    two = mixed("pack", [pool("h")] * 2, "hh")
    four = mixed("pack", [pool("h")] * 4, "hhhh")
    words, doubles = mixed("pack", [pool("w")] * 2, "ww"), mixed("pack", [pool("d")], "d")
    whole = "{{{1}, {2}}}"
    cases += [
        Case(f"mov.b32 {{0}}, {whole}", "w", "hh", two, lambda a, b: b << 16 | a),
        Case(f"mov.b64 {{0}}, {whole}", "d", "ww", words, lambda a, b: b << 32 | a),
        Case(
            "mov.b64 {0}, {{{1}, {2}, {3}, {4}}}", "d", "hhhh", four, lambda a, b, c, d: d << 48 | c << 32 | b << 16 | a
        ),
    ]
    for i in range(2):
        parts = ["%h9", "%h8"]
        parts[i] = "{0}"
        text = "mov.b32 {{" + ", ".join(parts) + "}}, {1}"
        cases.append(Case(text, "h", "w", [(w,) for w, _ in words], lambda a, i=i: a >> 16 * i & 0xFFFF))
        parts = ["%w9", "%w8"]
        parts[i] = "{0}"
        text = "mov.b64 {{" + ", ".join(parts) + "}}, {1}"
        cases.append(Case(text, "w", "d", doubles, lambda a, i=i: a >> 32 * i & 0xFFFFFFFF))
    for i in range(4):
        parts = ["%h9", "%h8", "%h7", "%h6"]
        parts[i] = "{0}"
        text = "mov.b64 {{" + ", ".join(parts) + "}}, {1}"
        cases.append(Case(text, "h", "d", doubles, lambda a, i=i: a >> 16 * i & 0xFFFF))
    return cases


BY_HAND = [
    written("shl.b32", "w", "ww", [(1, 31, 0x80000000), (1, 32, 0), (1, 0xFFFFFFFF, 0)]),
    written("shr.s32", "w", "ww", [(0x80000000, 4, 0xF8000000), (0x80000000, 32, 0xFFFFFFFF), (0x7FFFFFFF, 99, 0)]),
    written("shf.l.wrap.b32", "w", "www", [(0x11223344, 0x55667788, 8, 0x66778811), (1, 2, 32, 2)]),
    written("shf.r.clamp.b32", "w", "www", [(0x11223344, 0x55667788, 8, 0x88112233), (1, 2, 40, 2)]),
    written("bfe.u32", "w", "www", [(0xABCD1234, 8, 8, 0x12), (0xABCD1234, 28, 16, 0xA), (1, 40, 4, 0)]),
    written("bfi.b32", "w", "wwww", [(0xFF, 0, 4, 4, 0xF0), (0xFF, 0x12345678, 28, 8, 0xF2345678)]),
    written("bfind.s32", "w", "w", [(0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFE, 0), (0x7FFFFFFF, 30)]),
    written("prmt.b32", "w", "www", [(0x33221100, 0x77665544, 0x7531, 0x77553311), (0x00800000, 0, 0xA, 0xFF)]),
    written("lop3.b32 {0}, {1}, {2}, {3}, 0x96", "w", "www", [(0b1100, 0b1010, 0b1001, 0b1111)]),
]


def bits(cuda: Cuda) -> None:
    check(cuda, [*logic(), *shifts(), *fields(), *any_logic(), *moves(), *BY_HAND])


CHECKS = [bits]
