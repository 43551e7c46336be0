"""Who waits for whom: lanes at collectives and barriers; lanes, warps and blocks in loops, in every order."""

from __future__ import annotations

import pytest
from driver_calls import Cuda
from ptx_kernel import LAUNCH_FAILED, Fresh, fault, module, words

ORDERS = ("forward", "reverse", "random")
BOUND = {"INSTRUCTION_LIMIT": "3000000"}  # what waits for ever ends with a time-out
SQUARE = """
.func (.param .b32 r) square(.param .b32 a) {
    .reg .b32 %w; ld.param.u32 %w, [a]; mul.lo.u32 %w, %w, %w; st.param.b32 [r], %w; ret; }"""
CALL = "{ .param .b32 x, y; st.param.b32 [x], %t; call.uni (y), square, (x); ld.param.b32 %w1, [y]; }"

# Each leaves a word a thread; 32 threads but where there are more.
MEETINGS = {
    "a call in some lanes, then a barrier": (
        "mov.u32 %w1, %t; setp.ge.u32 %p1, %t, 16; @%p1 bra over;" + CALL + """
over: mov.u32 %w2, s; mad.lo.u32 %w2, %t, 4, %w2; st.shared.u32 [%w2], %w1; bar.sync 0;
    mov.u32 %w2, s; sub.u32 %w3, 31, %t; mad.lo.u32 %w2, %w3, 4, %w2; ld.shared.u32 %w1, [%w2];""",
        [31 - t if t < 16 else (31 - t) ** 2 for t in range(32)],
    ),
    "a call in some lanes, then a vote at the barrier": (
        "mov.u32 %w1, 0; setp.ge.u32 %p1, %t, 16; @%p1 bra over;" + CALL + """
over: setp.gt.u32 %p2, %w1, 10; bar.red.popc.u32 %w1, 0, %p2;""",
        [12] * 32,
    ),
    "a block of code behind the join": (
        """
    mov.u32 %w1, %t; setp.ge.u32 %p1, %t, 16; @%p1 bra far;
back: shfl.sync.bfly.b32 %w1, %w1, 31, 31, -1; bra.uni end;
far: add.u32 %w1, %w1, 100; bra.uni back;
end:""",
        [131 - t if t < 16 else 31 - t for t in range(32)],
    ),
    "halves with masks of their own": (
        """
    setp.lt.u32 %p1, %t, 16; selp.b32 %w2, 0xffff, 0xffff0000, %p1; shfl.sync.bfly.b32 %w1, %t, 1, 31, %w2;
    redux.sync.add.u32 %w3, %t, %w2; vote.sync.ballot.b32 %w4, 1, %w2; match.any.sync.b32 %w5, 7, %w2;
    setp.eq.u32 %p2, %w4, %w2; setp.eq.u32 %p3, %w5, %w2; and.pred %p2, %p2, %p3; bar.warp.sync %w2;
    mad.lo.u32 %w1, %w3, 100, %w1; selp.u32 %w1, %w1, 0, %p2;""",
        [100 * sum(range(t // 16 * 16, t // 16 * 16 + 16)) + (t ^ 1) for t in range(32)],
    ),
    "halves at places of their own": (
        """
    setp.lt.u32 %p1, %t, 16; @%p1 bra low; shfl.sync.bfly.b32 %w1, %t, 1, 31, 0xffff0000; bra.uni end;
low: shfl.sync.bfly.b32 %w1, %t, 2, 31, 0xffff;
end: shfl.sync.idx.b32 %w2, %w1, 31, 31, -1; add.u32 %w1, %w1, %w2;""",
        [(t ^ 2 if t < 16 else t ^ 1) + 30 for t in range(32)],
    ),
    "lanes that have ended are not waited for": (
        """
    setp.lt.u32 %p1, %t, 4; @%p1 bra end; redux.sync.add.u32 %w1, %t, -1; barrier.sync 0;
end: setp.ge.u32 %p1, %t, 4; @%p1 bra store; mov.u32 %w1, 9; st.global.u32 [%o], %w1; ret; store:""",
        [9] * 4 + [sum(range(4, 32))] * 28,
    ),
    "a barrier at two places": (
        """
    setp.lt.u32 %p1, %t, 40; setp.lt.u32 %p2, %t, 5; mov.u32 %w2, s; mad.lo.u32 %w2, %t, 4, %w2;
    st.shared.u32 [%w2], %t; @%p2 bra a; barrier.sync 0; bra.uni e; a: barrier.sync 0;
e:  mov.u32 %w2, s; sub.u32 %w3, 63, %t; mad.lo.u32 %w2, %w3, 4, %w2; ld.shared.u32 %w1, [%w2];""",
        [63 - t for t in range(64)],
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_wait_for_those_they_belong_to(fresh: Fresh, order: str) -> None:
    cuda = fresh(ORDER=order, SEED="4", **BOUND)
    for name, (body, expected) in MEETINGS.items():
        ptx = module(body + "st.global.u32 [%o], %w1;", before=SQUARE, shared=256)
        assert words(cuda, ptx, len(expected)) == expected, name


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "setp.lt.u32 %p1, %t, 5; @%p1 bra a; shfl.sync.bfly.b32 %w1, %t, 1, 31, -1; bra.uni e;"
            "a: shfl.sync.bfly.b32 %w1, %t, 1, 31, -1; e:",
            "the membermask names lanes 0xffffffff, lanes 0x",
        ),
        ("vote.sync.ballot.b32 %w1, 1, 0xfffffffe;", "lanes 0x00000001 are not in their own membermask, 0xfffffffe"),
        ("setp.lt.u32 %p1, %t, 5; @%p1 bra a; bar.sync 0; bra.uni e; a: bar.sync 0; e:", "by some lanes of the warp"),
        ("setp.lt.u32 %p1, %t, 5; @%p1 bra a; barrier.sync 0; bra.uni e; a: barrier.sync 1; e:", "by some lanes of"),
        ("setp.lt.u32 %p1, %t, 5; @%p1 bra e; barrier.sync.aligned 0; e:", "of the warp only (0xffffffe0"),
        ("setp.lt.u32 %p1, %t, 5; @%p1 bra a; barrier.sync 0; bra.uni e; a: bar.warp.sync -1; e:", "membermask names"),
    ],
)
def test_lanes_that_wait_for_ever_are_told(fresh: Fresh, body: str, said: str) -> None:
    code, text = fault(fresh(**BOUND), module(body), 32)
    assert code == LAUNCH_FAILED and said in text and "k, PTX line" in text, text


@pytest.mark.parametrize("order", ORDERS)
def test_a_warp_waits_for_another_in_a_loop(fresh: Fresh, order: str) -> None:
    body = """
    setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; setp.ge.u32 %p2, %t, {first};
    setp.lt.u32 %p3, %t, {last}; and.pred %p2, %p2, %p3; @%p2 bra set;
again: ld.volatile.shared.u32 %w1, [s]; setp.eq.u32 %p1, %w1, 0; @%p1 bra again; bra.uni store;
set: st.volatile.shared.u32 [s], 5; mov.u32 %w1, 6;
store: st.global.u32 [%o], %w1;"""
    cuda = fresh(ORDER=order, SEED="1", **BOUND)
    for first in (0, 32, 64):
        ptx = module(body.format(first=first, last=first + 32), shared=4)
        assert words(cuda, ptx, 96) == [6 if first <= t < first + 32 else 5 for t in range(96)]


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_wait_for_all_others_in_a_loop(fresh: Fresh, order: str) -> None:
    body = """
    atom.global.add.u32 %w1, [begun], 1;
again: ld.volatile.global.u32 %w2, [begun]; setp.lt.u32 %p1, %w2, 4; @%p1 bra again;
    mov.u32 %w3, %ctaid.x; mad.wide.u32 %o, %w3, 4, %o; st.global.u32 [%o], %w2;"""
    cuda = fresh(ORDER=order, THREADS="1", INSTRUCTION_LIMIT="60000000")
    assert words(cuda, module(body, before=".global .align 4 .u32 begun = 0;"), 1, grid=4) == [4] * 4


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_take_a_lock_in_turn(fresh: Fresh, order: str) -> None:
    # what the lock guards takes several basic blocks; the lanes that want it run in a loop meanwhile
    body = """
take: atom.global.cas.b32 %w1, [lock], 0, 1; setp.ne.u32 %p1, %w1, 0; @%p1 bra take;
    ld.volatile.global.u32 %w2, [sum]; mov.u32 %w3, 0;
more: add.u32 %w2, %w2, %t; add.u32 %w3, %w3, 1; setp.lt.u32 %p2, %w3, 3; @%p2 bra more;
    st.volatile.global.u32 [sum], %w2; membar.gl; atom.global.exch.b32 %w1, [lock], 0;
    bar.sync 0; ld.volatile.global.u32 %w1, [sum]; st.global.u32 [%o], %w1;"""
    cuda = fresh(ORDER=order, SEED="6", **BOUND)
    before = ".global .align 4 .u32 lock = 0; .global .align 4 .u32 sum = 0;"
    assert words(cuda, module(body, before=before), 40) == [3 * sum(range(40))] * 40


def test_groups_of_lanes_that_wait_for_one_another_all_have_their_turn(cuda_for_kernels: Cuda) -> None:
    # lane n waits for lane n + 1, the last for nobody: in a loop of its own each
    body = "ld.param.u64 %d1, [out]; setp.eq.u32 %p2, %t, 7; mad.wide.u32 %d2, %t, 4, %d1;\n"
    for lane in range(7):
        body += f"setp.eq.u32 %p1, %t, {lane}; @!%p1 bra past{lane};\n"
        body += f"again{lane}: ld.volatile.global.u32 %w1, [%d2+4]; setp.eq.u32 %p1, %w1, 0; @%p1 bra again{lane};\n"
        body += f"past{lane}:\n"
    body += "st.volatile.global.u32 [%o], 1;"
    assert words(cuda_for_kernels, module(body), 8) == [1] * 8
