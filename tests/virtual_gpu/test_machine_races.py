"""Races in shared memory are told in every order of the warps, legal programs run: by byte, and by who has met."""

from __future__ import annotations

import pytest
from ptx_kernel import LAUNCH_FAILED, Fresh, fault, module, words

ORDERS = ("forward", "reverse", "random")

# The first thread of warp 0, 1 and 2 has predicate %p0, %p1, %p2; the word at 0 is 0, known to all.
WARPS = """
    setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %t, 32; setp.eq.u32 %p2, %t, 64; setp.lt.u32 %p3, %t, 64;
    setp.ge.u32 %p4, %t, 32;
    @%p0 st.shared.v2.u32 [s], {0, 0}; bar.sync 0;"""

RACES = {
    "two writes": "@%p0 st.shared.u32 [s], 1; @%p1 st.shared.u32 [s], 2;",
    "two writes of one byte": "@%p0 st.shared.u32 [s], 1; @%p1 st.shared.u8 [s+3], %h1;",
    "a write and a read of a part": "@%p0 st.shared.v2.u32 [s], {1, 1}; @%p1 ld.shared.u16 %h1, [s+6];",
    "the first of two writers of a word": "@%p0 st.shared.u8 [s], %h1; @%p1 st.shared.u8 [s+1], %h1; "
    "@%p2 ld.shared.u8 %h2, [s];",
    "the first of two readers": "@%p0 ld.shared.u8 %h1, [s]; @%p1 ld.shared.u8 %h1, [s+1]; @%p2 st.shared.u8 [s], %h2;",
    "an atomic and a plain read": "@%p0 ld.shared.u32 %w1, [s]; @%p1 atom.shared.add.u32 %w2, [s], 1;",
    "an atomic and a plain write": "@%p0 st.shared.u32 [s], 1; @%p1 red.shared.add.u32 [s], 1;",
    "the first of two atomics": "@%p0 red.shared.add.u32 [s], 1; @%p1 red.shared.add.u32 [s], 1; "
    "@%p1 ld.shared.u32 %w1, [s];",
    "volatile and plain": "@%p0 st.volatile.shared.u32 [s], 1; @%p1 ld.shared.u32 %w1, [s];",
    "generic and plain": "mov.u64 %d1, s; cvta.shared.u64 %d1, %d1; @%p0 st.u32 [%d1], 1; @%p1 ld.shared.u32 %w1, [s];",
    "hidden by a barrier of the others": "@%p3 bra two; @%p2 st.shared.u32 [s], 1; bra end;"
    "two: bar.sync 1, 64; ld.shared.u32 %w1, [s]; end:",
    "behind a barrier of both": "@!%p3 bra end; bar.sync 1, 64; @%p0 ld.shared.u32 %w1, [s]; @%p1 st.shared.u32 [s], 1;"
    "end:",
    "behind a barrier of one of them": "@!%p3 bra end; bar.sync 1, 64; @%p1 ld.shared.u32 %w1, [s];"
    "end: @%p4 bar.sync 2, 64; @%p0 st.shared.u32 [s], 1;",
}

LEGAL = {
    "each its own byte": "mov.u32 %w1, s; shr.u32 %w2, %t, 5; add.u32 %w1, %w1, %w2; ld.shared.u8 %w3, [%w1]; "
    "add.u32 %w3, %w3, 1; st.shared.u8 [%w1], %w3; bar.sync 0; ld.shared.u32 %w4, [s];",
    "atomics": "atom.shared.add.u32 %w1, [s], 1; ld.volatile.shared.u32 %w2, [s]; bar.sync 0; ld.shared.u32 %w4, [s];",
    "volatile": "@%p0 st.volatile.shared.u32 [s], 5; @%p1 ld.volatile.shared.u32 %w1, [s]; bar.sync 0; "
    "ld.shared.u32 %w4, [s];",
    "handed on from two to two": "@%p0 st.shared.u32 [s], 6; @%p3 bar.sync 1, 64; @%p1 ld.shared.u32 %w4, [s]; "
    "@%p4 bar.sync 2, 64; @%p2 st.shared.u32 [s], 7; bar.sync 0; ld.shared.u32 %w4, [s];",
    "after a warp has ended": "@%p2 st.shared.u32 [s], 8; @!%p3 ret; bar.sync 0; ld.shared.u32 %w4, [s];",
    "words after bytes": "@%p0 st.shared.u8 [s], %h1; @%p1 st.shared.u8 [s+1], %h2; bar.sync 0; "
    "@%p0 st.shared.u32 [s], 3; bar.sync 0; @%p2 st.shared.u8 [s+1], %h1; bar.sync 0; ld.shared.u32 %w4, [s];",
}
LEFT = {"each its own byte": 0x010101, "atomics": 96, "volatile": 5, "handed on from two to two": 7}
LEFT |= {"after a warp has ended": 8, "words after bytes": 0x103}


def kernel(body: str) -> str:
    return module(WARPS + "mov.u16 %h1, 1; mov.u16 %h2, 2;" + body + "st.global.u32 [%o], %w4;", shared=8)


@pytest.mark.virtual
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("race", RACES)
def test_a_race_is_told(fresh: Fresh, race: str, order: str) -> None:
    code, text = fault(fresh(ORDER=order, SEED="2"), kernel(RACES[race]), 96)
    assert code == LAUNCH_FAILED and "race in shared memory at " in text and "with no barrier in between" in text


@pytest.mark.virtual
@pytest.mark.parametrize("order", ORDERS)
def test_legal_programs_run(fresh: Fresh, order: str) -> None:
    cuda = fresh(ORDER=order, SEED="3")
    for name, body in LEGAL.items():
        found = words(cuda, kernel(body), 96)
        assert found[:64] == [LEFT[name]] * 64, name


def test_a_race_is_let_pass_where_nobody_asks(fresh: Fresh) -> None:
    cuda = fresh(CHECKS="initialised")
    words(cuda, kernel(RACES["two writes"]), 96)
