"""float16 arithmetic, one and two at a time: PTX ISA 8.5, "Half Precision Floating Point Instructions"."""

from __future__ import annotations

from collections.abc import Callable

from driver_calls import Cuda

from isa.batch import Case, check, mixed, written
from isa.exact import F16, Real, Value, decode, encode
from isa.floats import any_nan, arithmetic, extreme, pool, saturated


def one(text: str, right: Callable[..., Value]) -> Callable[..., int]:
    def bits(*row: int) -> int:
        value = right(*(decode(F16, a) for a in row))
        if ".sat" in text:
            value = saturated(value)
        found = encode(F16, value)
        # .relu: what is negative becomes 0
        return 0 if ".relu" in text and found & F16.minus else found

    return bits


def both(right: Callable[..., int]) -> Callable[..., int]:
    """The same of each half of a word."""
    return lambda *row: right(*(a >> 16 for a in row)) << 16 | right(*(a & 0xFFFF for a in row))


def either(agree: Callable[[int, int], bool]) -> Callable[[int, int], bool]:
    return lambda found, right: agree(found >> 16, right >> 16) and agree(found & 0xFFFF, right & 0xFFFF)


def cases() -> list[Case]:
    made = []
    halves = pool(F16)
    words = [high << 16 | low for high, low in zip(halves, [*halves[5:], *halves[:5]], strict=True)]

    def case(text: str, count: int, right: Callable[..., Value], open_nan: bool = False) -> None:
        exact = one(text, right)
        agree = any_nan(F16) if open_nan else lambda found, right: found == right
        made.append(Case(f"{text}.f16", "h", "h" * count, mixed(text, [halves] * count, "h" * count), exact, agree))
        rows = mixed(f"{text} two", [words] * count, "w" * count)
        made.append(Case(f"{text}.f16x2", "w", "w" * count, rows, both(exact), either(agree)))

    for name, (count, right) in arithmetic("rn").items():
        for rn in (".rn",) if name == "fma" else ("", ".rn"):
            for ending in ("", ".sat", ".relu") if name == "fma" else ("", ".sat"):
                case(f"{name}{rn}{ending}", count, right)
    for name, least in (("min", True), ("max", False)):
        case(name, 2, lambda a, b, n=least: extreme(a, b, n))
        case(f"{name}.NaN", 2, lambda a, b, n=least: extreme(a, b, n) if a and b else None)
    case("neg", 1, lambda a: a and a.negated(), open_nan=True)
    case("abs", 1, lambda a: a and Real(False, a.magnitude), open_nan=True)
    return made


BY_HAND = [
    written("add.f16", "h", "hh", [(0x6800, 0x3C00, 0x6800), (0x6800, 0x4200, 0x6802), (0x7C00, 0xFC00, 0x7FFF)]),
    written("mul.f16", "h", "hh", [(0x5C00, 0x5C00, 0x7C00), (0x0400, 0x3800, 0x0200)]),
    written("fma.rn.f16", "h", "hhh", [(0x3C01, 0x3C01, 0xBC00, 0x1800), (0x0C00, 0x0800, 0x3C00, 0x3C00)]),
    written("fma.rn.relu.f16", "h", "hhh", [(0x3C00, 0xBC00, 0, 0)]),
    written("sub.f16", "h", "hh", [(0x4400, 0x4000, 0x4000), (0x3C00, 0x3C00, 0)]),
    written("max.f16x2", "w", "ww", [(0x7E008000, 0x3C000000, 0x3C000000)]),
]


def halves(cuda: Cuda) -> None:
    check(cuda, [*cases(), *BY_HAND])


CHECKS = [halves]
