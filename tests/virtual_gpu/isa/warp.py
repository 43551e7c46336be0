"""shfl, vote, match, redux, activemask: PTX ISA 8.5, under these names.

Every instruction is run by whole warps, and by the odd lanes, which the membermask then names; each of four warps has
values of its own.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driver_calls import Cuda

from isa.batch import THREADS, UNTOUCHED, launch
from isa.integers import number, pool

WHOLE, ODD = 0xFFFFFFFF, 0xAAAAAAAA
Lanes = dict[int, int]
"""What the executing lanes hold."""
Result = tuple[int | None, int | None]
"""Of the register and of the predicate, where there is one."""


@dataclass(frozen=True)
class Shared:
    """An instruction with its result in %w0 and %p0, its operand in %w1, %d1 or %p1; and what it gives a lane."""

    text: str
    operand: str
    right: Callable[[Lanes, int], Result]
    guarded: bool = True


def shuffle(mode: str, b: int, c: int) -> Callable[[Lanes, int], Result]:
    """As the ISA's own pseudocode has it."""

    def right(held: Lanes, lane: int) -> Result:
        b_value, clamp, segment = b & 31, c & 31, c >> 8 & 31
        most, least = lane & segment | clamp & ~segment, lane & segment
        if mode == "up":
            j, inside = lane - b_value, lane - b_value >= most
        elif mode == "down":
            j, inside = lane + b_value, lane + b_value <= most
        elif mode == "bfly":
            j, inside = lane ^ b_value, (lane ^ b_value) <= most
        else:
            j = least | b_value & ~segment
            inside = j <= most
        return held[j if inside else lane], int(inside)

    return right


def shuffles() -> list[Shared]:
    cases = []
    # clamp and segment masks as __shfl_*_sync make them for widths of 32, 16 and 8, and a clamp of its own
    for mode, low in (("up", 0), ("down", 31), ("bfly", 31), ("idx", 31)):
        for b in (0, 1, 2, 3, 6, 16, 30, 31, 34):
            for c in (low, low | 16 << 8, low | 24 << 8, 5):
                source = (mode == "idx" and b % 2 == 0) or (mode != "idx" and b % 2 == 1)
                for tell in (False, True):
                    text = f"shfl.sync.{mode}.b32 %w0{'|%p0' if tell else ''}, %w1, {b}, {c}, {{mask}}"
                    answer = shuffle(mode, b, c)

                    def right(
                        held: Lanes, lane: int, answer: Callable[[Lanes, int], Result] = answer, tell: bool = tell
                    ) -> Result:
                        value, inside = answer(held, lane)
                        return value, inside if tell else None

                    cases.append(Shared(text, "w", right, guarded=not source))  # an odd lane must read an odd one
    return cases


def votes() -> list[Shared]:
    cases = []
    for mode, holds in (
        ("all", lambda held: all(held.values())),
        ("any", lambda held: any(held.values())),
        ("uni", lambda held: len(set(held.values())) == 1),
    ):
        for negated in ("", "!"):

            def vote(
                held: Lanes, lane: int, holds: Callable[[Lanes], bool] = holds, negated: str = negated
            ) -> Result:
                return None, int(holds({k: v ^ (negated == "!") for k, v in held.items()}))

            cases.append(Shared(f"vote.sync.{mode}.pred %p0, {negated}%p1, {{mask}}", "p", vote))
    for negated in ("", "!"):

        def ballot(held: Lanes, lane: int, negated: str = negated) -> Result:
            return sum((v ^ (negated == "!")) << k for k, v in held.items()), None

        cases.append(Shared(f"vote.sync.ballot.b32 %w0, {negated}%p1, {{mask}}", "p", ballot))
    return cases


def matches() -> list[Shared]:
    def any_of(held: Lanes, lane: int) -> Result:
        return sum(1 << k for k, v in held.items() if v == held[lane]), None

    def all_of(held: Lanes, lane: int) -> Result:
        same = len(set(held.values())) == 1
        return sum(1 << k for k in held) if same else 0, int(same)

    cases = []
    for kind, bits in (("w", 32), ("d", 64)):
        cases.append(Shared(f"match.any.sync.b{bits} %w0, %{kind}1, {{mask}}", kind, any_of))
        cases.append(Shared(f"match.all.sync.b{bits} %w0|%p0, %{kind}1, {{mask}}", kind, all_of))
    return cases


def reductions() -> list[Shared]:
    cases = []
    for name, fold, signed in (
        ("add.u32", operator.add, False),
        ("add.s32", operator.add, True),
        ("min.u32", min, False),
        ("min.s32", min, True),
        ("max.u32", max, False),
        ("max.s32", max, True),
        ("and.b32", operator.and_, False),
        ("or.b32", operator.or_, False),
        ("xor.b32", operator.xor, False),
    ):

        def reduced(
            held: Lanes, lane: int, fold: Callable[[int, int], int] = fold, signed: bool = signed
        ) -> Result:
            return functools.reduce(fold, (number(v, 32, signed) for v in held.values())) & WHOLE, None

        cases.append(Shared(f"redux.sync.{name} %w0, %w1, {{mask}}", "w", reduced))
    cases.append(Shared("activemask.b32 %w0", "w", lambda held, lane: (sum(1 << k for k in held), None)))
    cases.append(Shared("bar.warp.sync {mask}; mov.u32 %w0, %w1", "w", lambda held, lane: (held[lane], None)))
    return cases


def values(kind: str) -> list[int]:
    """Of all threads: random, few, all the same, and all but one the same, a warp each."""
    numbers = random.Random(f"warp {kind}")
    if kind == "p":
        warps = [[numbers.getrandbits(1) for _ in range(32)], [0] * 32, [1] * 32, [int(i != 9) for i in range(32)]]
    else:
        choices = pool(kind)
        warps = [[numbers.choice(choices) for _ in range(32)], [numbers.choice(choices[:3]) for _ in range(32)]]
        warps += [[choices[-2]] * 32, [choices[3] if i != 9 else choices[-1] for i in range(32)]]
    return [value for warp in warps for value in warp]


def warps(cuda: Cuda) -> None:
    cases = [*shuffles(), *votes(), *matches(), *reductions()]
    held = {kind: values(kind) for kind in "wdp"}
    source = b"".join(value.to_bytes(8, "little") for kind in "wdp" for value in held[kind])
    body: list[str] = []
    told: list[tuple[Shared, int]] = []
    for case in cases:
        for mask in (WHOLE, ODD) if case.guarded else (WHOLE,):
            guard = "" if mask == WHOLE else "@%odd "
            text = case.text.format(mask=f"{mask:#x}").replace("; ", f"; {guard}")
            at = 16 * THREADS * len(told)
            body.append(
                f"mov.u32 %w0, {UNTOUCHED}; setp.ne.u32 %p0, 0, 0; {guard}{text}; st.global.u32 [%out+{at}], %w0;\n"
                f"selp.u32 %w2, 1, 0, %p0; st.global.u32 [%out+{at + 8 * THREADS}], %w2;"
            )
            told.append((case, mask))
    ptx = (
        ".version 8.5\n.target sm_87\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n"
        ".reg .pred %odd, %p<3>; .reg .b32 %t, %w<4>; .reg .b64 %in, %out, %d<3>;\n"
        "mov.u32 %t, %tid.x; and.b32 %w0, %t, 1; setp.ne.u32 %odd, %w0, 0; ld.param.u64 %in, [in];\n"
        "mad.wide.u32 %in, %t, 8, %in; ld.param.u64 %out, [out]; mad.wide.u32 %out, %t, 8, %out;\n"
        f"ld.global.u32 %w1, [%in]; ld.global.u64 %d1, [%in+{8 * THREADS}];\n"
        f"ld.global.u32 %w3, [%in+{16 * THREADS}]; setp.ne.u32 %p1, %w3, 0;\n" + "\n".join(body) + "\nret; }\n"
    )
    found = launch(cuda, ptx, source, 2 * len(told))
    wrong = []
    for number_, (case, mask) in enumerate(told):
        for t in range(THREADS):
            first = t & ~31
            lanes = {i: held[case.operand][first + i] for i in range(32) if mask >> i & 1}
            word, predicate = case.right(lanes, t & 31) if t & 31 in lanes else (UNTOUCHED, 0)
            right = (UNTOUCHED if word is None else word, predicate or 0)
            got = tuple(found[(2 * number_ + i) * THREADS + t] for i in (0, 1))
            if got != right:
                wrong.append(f"{case.text.format(mask=hex(mask))}, thread {t}: {right} is right, found {got}")
                break
    assert not wrong, "\n".join(wrong)


CHECKS: Sequence[Callable[[Cuda], None]] = [warps]
