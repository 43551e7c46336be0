"""float32 and float64 arithmetic rounded right: PTX ISA 8.5, under the names. Every direction, .ftz and .sat."""

from __future__ import annotations

from collections.abc import Callable

from driver_calls import Cuda

from isa.batch import Case, check, mixed, written
from isa.comparisons import reals
from isa.exact import F32, F64, Format, Real, Value, add, decode, divide, encode, less, multiply, of, root

FORMATS = {"f32": ("w", F32), "f64": ("d", F64)}


def same(form: Format) -> Callable[[int, int], bool]:
    """A float32 NaN that arithmetic makes is 0x7fffffff; of float64 the ISA says nothing."""

    def agree(found: int, right: int) -> bool:
        return found == right or (form is F64 and decode(form, found) is None and decode(form, right) is None)

    return agree


def any_nan(form: Format) -> Callable[[int, int], bool]:
    """For instructions whose NaN the ISA leaves open: neg and abs."""
    return lambda found, right: found == right or (decode(form, found) is None and decode(form, right) is None)


def pool(form: Format) -> list[int]:
    """Limits, and numbers that lie a half unit, a little more and far less from each other."""
    one = (-form.least_exponent + 1) << form.fraction_bits
    unit = 1 << form.fraction_bits

    def power(exponent: int, fraction: int = 0) -> int:
        return one + exponent * unit + fraction

    f = form.fraction_bits
    near = [power(1), power(-1), power(0, 3), power(-f), power(-f - 1), power(-f - 1, 1), power(-f - 2), power(-f * 3)]
    near += [power(0, unit // 2), power(3, 5), power(f, 1), power(f + 1, 3), power(-1, unit - 1)]
    near += [one // 2, one // 2 + unit]
    near = [bits for bits in near if 0 < bits < form.infinity]
    return [*reals(form), *near, *(bits | form.minus for bits in near)]


def saturated(value: Value) -> Value:
    """Clamped to [0, 1]; NaN becomes +0."""
    if value is None or value.negative or value.zero:
        return of(0)
    return of(1) if value.infinite or less(of(1), value) else value


def extreme(a: Value, b: Value, least: bool) -> Value:
    """min and max: a number wins over NaN, and -0 is less than +0."""
    if a is None or b is None:
        return b if a is None else a
    if a.zero and b.zero:
        return of(0, (a.negative or b.negative) if least else (a.negative and b.negative))
    return a if less(a, b) == least else b


def arithmetic(mode: str) -> dict[str, tuple[int, Callable[..., Value]]]:
    return {
        "add": (2, lambda a, b: add(a, b, mode)),
        "sub": (2, lambda a, b: add(a, b and b.negated(), mode)),
        "mul": (2, multiply),
        "fma": (3, lambda a, b, c: add(multiply(a, b), c, mode)),
    }


def case(text: str, type_: str, count: int, right: Callable[..., Value], mode: str = "rn", many: int = 64) -> Case:
    """Of operands and result of one type; .ftz and .sat are read off the text."""
    kind, form = FORMATS[type_]
    ftz, sat = ".ftz" in text, ".sat" in text

    def bits(*row: int) -> int:
        value = right(*(decode(form, one, ftz) for one in row))
        return encode(form, saturated(value) if sat else value, mode, ftz)

    rows = mixed(text, [pool(form)] * count, kind * count, many)
    return Case(f"{text}.{type_}", kind, kind * count, rows, bits, same(form))


def nearest() -> list[Case]:
    cases = []
    for type_, ftz in (("f32", ""), ("f32", ".ftz"), ("f64", "")):
        for name, (count, right) in arithmetic("rn").items():
            for rn in (".rn",) if name == "fma" else ("", ".rn"):
                for sat in ("", ".sat") if type_ == "f32" else ("",):
                    cases.append(case(f"{name}{rn}{ftz}{sat}", type_, count, right))
        cases += [
            case(f"div.rn{ftz}", type_, 2, divide),
            case(f"rcp.rn{ftz}", type_, 1, lambda a: divide(of(1), a)),
            case(f"sqrt.rn{ftz}", type_, 1, root),
            case(f"min{ftz}", type_, 2, lambda a, b: extreme(a, b, True)),
            case(f"max{ftz}", type_, 2, lambda a, b: extreme(a, b, False)),
        ]
        if type_ == "f32":
            for name, least in (("min", True), ("max", False)):
                cases.append(
                    case(f"{name}{ftz}.NaN", type_, 2, lambda a, b, n=least: extreme(a, b, n) if a and b else None)
                )
        kind, form = FORMATS[type_]
        for name in ("abs", "neg"):
            text = f"{name}{ftz}.{type_}"

            def right_(a: int, form: Format = form, ftz: bool = bool(ftz), name: str = name) -> int:
                value = decode(form, a, ftz)
                return encode(form, value and (Real(False, value.magnitude) if name == "abs" else value.negated()))

            cases.append(Case(text, kind, kind, mixed(text, [pool(form)], kind), right_, any_nan(form)))
    return cases


def directed() -> list[Case]:
    cases = []
    for mode in ("rz", "rm", "rp"):
        for ftz in ("", ".ftz"):
            for name, (count, right) in arithmetic(mode).items():
                cases.append(case(f"{name}.{mode}{ftz}", "f32", count, right, mode))
    return cases


NAN, QUIET, INF, MINUS, TINY, LEAST = 0x7FFFFFFF, 0x7FC00000, 0x7F800000, 0x80000000, 0x00000001, 0x00800000
ONE, TWO, HALF = 0x3F800000, 0x40000000, 0x3F000000

BY_HAND = [
    written("add.f32", "w", "ww", [(ONE, 0x33800000, ONE), (INF, INF | MINUS, NAN), (TINY, TINY, 2)]),
    written("add.f32", "w", "ww", [(QUIET, ONE, NAN)]),
    written("add.ftz.f32", "w", "ww", [(TINY, TINY, 0), (LEAST, TINY, LEAST)]),
    written("mul.f32", "w", "ww", [(LEAST, HALF, 0x00400000), (0, INF, NAN), (MINUS, TWO, MINUS)]),
    written("mul.ftz.f32", "w", "ww", [(LEAST, HALF, 0), (LEAST | MINUS, HALF, MINUS)]),
    written("mul.sat.f32", "w", "ww", [(TWO, TWO, ONE), (TWO, TWO | MINUS, 0), (QUIET, ONE, 0)]),
    written("fma.rn.f32", "w", "www", [(0x3F800800, 0x3F800800, ONE | MINUS, 0x3A000400), (INF, 0, ONE, NAN)]),
    written("min.f32", "w", "ww", [(QUIET, ONE, ONE), (QUIET, QUIET, NAN), (0, MINUS, MINUS), (MINUS, 0, MINUS)]),
    written("max.f32", "w", "ww", [(ONE, QUIET, ONE), (0, MINUS, 0), (MINUS, 0, 0)]),
    written("div.rn.f32", "w", "ww", [(ONE, 0x40400000, 0x3EAAAAAB), (ONE, 0, INF), (0, 0, NAN)]),
    written("sqrt.rn.f32", "w", "w", [(TWO, 0x3FB504F3), (MINUS, MINUS), (MINUS | ONE, NAN)]),
    written("add.rm.f32", "w", "ww", [(ONE, 0x92800000, 0x3F7FFFFF), (ONE, MINUS | ONE, MINUS), (0, 0, 0)]),
    written("add.rp.ftz.f32", "w", "ww", [(ONE, 0x12800000, 0x3F800001), (ONE, TINY, ONE)]),
    written("mul.rz.f32", "w", "ww", [(0x3F800001, 0x3F800001, 0x3F800002), (0x7F7FFFFF, TWO, 0x7F7FFFFF)]),
    written("fma.rp.f32", "w", "www", [(ONE, ONE, 0x17800000, 0x3F800001)]),
    # a result too small is flushed before it is clamped, and in every direction
    written("add.ftz.sat.f32", "w", "ww", [(LEAST + 1, LEAST | MINUS, 0), (ONE, ONE, ONE)]),
    written("sub.ftz.sat.f32", "w", "ww", [(LEAST + 1, LEAST, 0), (TINY, ONE, 0)]),
    written("mul.ftz.sat.f32", "w", "ww", [(LEAST, HALF, 0), (HALF, HALF, 0x3E800000)]),
    written("fma.rn.ftz.sat.f32", "w", "www", [(LEAST, HALF, 0, 0), (HALF, HALF, HALF, 0x3F400000)]),
    *(
        written(f"fma.{mode}.ftz.f32", "w", "www", [(LEAST, HALF, 0, 0), (LEAST | MINUS, HALF, MINUS, MINUS)])
        for mode in ("rn", "rz", "rm", "rp")
    ),
    # products too small for the type: a zero of their sign, or the least number
    written("mul.rz.f32", "w", "ww", [(0x0DA24260, 0x0DA24260, 0), (0x0DA24260, 0x8DA24260, MINUS)]),
    written("mul.rp.f32", "w", "ww", [(0x0DA24260, 0x0DA24260, TINY), (0x0DA24260, 0x8DA24260, MINUS)]),
    written("mul.rm.f32", "w", "ww", [(0x0DA24260, 0x0DA24260, 0), (0x0DA24260, 0x8DA24260, MINUS | TINY)]),
    written("fma.rz.f32", "w", "www", [(0x0DA24260, 0x0DA24260, 0, 0), (0x0DA24260, 0x8DA24260, MINUS, MINUS)]),
]


def floats(cuda: Cuda) -> None:
    check(cuda, [*nearest(), *directed(), *BY_HAND])


CHECKS = [floats]
