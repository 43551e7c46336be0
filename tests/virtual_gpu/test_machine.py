"""The machine that runs PTX: warps that part and meet, calls, barriers, races, shuffles, matches."""

from __future__ import annotations

import pytest
from driver_calls import Cuda, ends
from ptx_kernel import LAUNCH_FAILED, Fresh, fault, module, words


@pytest.fixture
def cuda(cuda_for_kernels: Cuda) -> Cuda:
    return cuda_for_kernels


# control flow


def test_lanes_part_and_meet(cuda: Cuda) -> None:
    # Collatz: every lane leaves the loop at another time; the ballot after it must see all of them
    body = """
    add.u32 %w1, %t, 1; mov.u32 %w2, 0;
loop: setp.eq.u32 %p1, %w1, 1; @%p1 bra done;
    and.b32 %w3, %w1, 1; setp.eq.u32 %p2, %w3, 0; @%p2 bra even;
    mad.lo.u32 %w1, %w1, 3, 1; bra.uni count;
even: shr.u32 %w1, %w1, 1;
count: add.u32 %w2, %w2, 1; bra.uni loop;
done: vote.sync.ballot.b32 %w4, 1, -1; popc.b32 %w5, %w4; mad.lo.u32 %w2, %w5, 1000, %w2; st.global.u32 [%o], %w2;"""

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n & 1 else n // 2), count + 1
        return count

    assert words(cuda, module(body), 96) == [32_000 + steps(t + 1) for t in range(96)]


def test_lanes_that_leave_do_not_come_back(cuda: Cuda) -> None:
    body = """
    setp.lt.u32 %p1, %t, 5; @%p1 exit;
    and.b32 %w1, %t, 1; setp.eq.u32 %p2, %w1, 0; @%p2 bra skip; st.global.u32 [%o], 1; ret;
skip: st.global.u32 [%o], 2;"""
    assert words(cuda, module(body), 40) == [0 if t < 5 else 2 - t % 2 for t in range(40)]


def test_indexed_branch(cuda: Cuda) -> None:
    body = """
    rem.u32 %w1, %t, 3;
ts: .branchtargets a, b, c;
    brx.idx %w1, ts;
a:  st.global.u32 [%o], 10; bra.uni end;
b:  st.global.u32 [%o], 20; bra.uni end;
c:  st.global.u32 [%o], 30;
end:"""
    assert words(cuda, module(body), 33) == [10 * (t % 3 + 1) for t in range(33)]


CALLEES = """
.func (.param .b32 r) twice(.param .b32 a) {
    .reg .b32 %w<3>; ld.param.u32 %w1, [a]; add.u32 %w2, %w1, %w1; st.param.b32 [r], %w2; ret; }
.func (.param .b32 r) odd_or_four_times(.param .b32 a) {
    .reg .b32 %w<4>; .reg .pred %p<2>; ld.param.u32 %w1, [a]; and.b32 %w2, %w1, 1; setp.ne.u32 %p1, %w2, 0;
    @%p1 bra odd;
    { .param .b32 x; .param .b32 y; st.param.b32 [x], %w1; call.uni (y), twice, (x); ld.param.b32 %w3, [y]; }
    { .param .b32 x; .param .b32 y; st.param.b32 [x], %w3; call.uni (y), twice, (x); ld.param.b32 %w3, [y]; }
    st.param.b32 [r], %w3; ret;
odd: st.param.b32 [r], %w1; ret; }"""


def test_calls_within_calls_and_in_some_lanes_only(cuda: Cuda) -> None:
    body = """
    setp.lt.u32 %p1, %t, 20; @!%p1 bra other;
    { .param .b32 x; .param .b32 y; st.param.b32 [x], %t; call.uni (y), odd_or_four_times, (x); ld.param.b32 %w1, [y]; }
    bra.uni store;
other: { .param .b32 x; .param .b32 y; st.param.b32 [x], %t; call.uni (y), twice, (x); ld.param.b32 %w1, [y]; }
store: st.global.u32 [%o], %w1;"""
    expected = [(t if t % 2 else 4 * t) if t < 20 else 2 * t for t in range(64)]
    assert words(cuda, module(body, before=CALLEES), 64) == expected


def test_local_memory_and_generic_addresses(cuda: Cuda) -> None:
    body = """
    .local .align 8 .b8 l[16]; .reg .b64 %SP;
    mov.u64 %SP, l; cvta.local.u64 %d1, %SP; st.u32 [%d1+8], %t; ld.local.u32 %w1, [%SP+8];
    mov.u64 %d2, s; cvta.shared.u64 %d3, %d2; mad.wide.u32 %d4, %t, 4, %d3; st.u32 [%d4], %w1; ld.u32 %w2, [%d4];
    isspacep.shared %p1, %d4; isspacep.local %p2, %d1; isspacep.global %p3, %o;
    and.pred %p1, %p1, %p2; and.pred %p1, %p1, %p3; selp.u32 %w3, 1000, 0, %p1; add.u32 %w2, %w2, %w3;
    st.u32 [%o], %w2;"""
    assert words(cuda, module(body, shared=256), 64) == [1000 + t for t in range(64)]


def test_module_variables(cuda: Cuda) -> None:
    before = """
    .global .align 4 .u32 g = 7; .const .align 4 .b8 c[8] = {1, 2, 3, 4, 0xff}; .global .align 8 .u64 p = generic(g);"""
    body = """
    mov.u64 %d1, c; ld.const.u8 %w1, [%d1+3]; ld.const.u8 %w2, [c+4]; ld.global.u64 %d2, [p]; ld.u32 %w3, [%d2];
    atom.global.add.u32 %w4, [g], 1; add.u32 %w1, %w1, %w2; add.u32 %w1, %w1, %w3; st.global.u32 [%o], %w1;"""
    assert words(cuda, module(body, before=before), 1) == [4 + 255 + 7]


def test_special_registers(cuda: Cuda) -> None:
    body = """
    mov.u32 %w1, %ctaid.x; mov.u32 %w2, %laneid; mov.u32 %w3, %warpid; mov.u32 %w4, %ntid.x; mov.u32 %w5, %nctaid.x;
    mov.u32 %w6, %lanemask_lt; popc.b32 %w6, %w6;
    mad.lo.u32 %w7, %w1, %w4, %t; mad.wide.u32 %d1, %w1, %w4, 0; shl.b64 %d1, %d1, 2; add.u64 %o, %o, %d1;
    sub.u32 %w8, %w2, %w6; shl.b32 %w8, %w8, 30; mad.lo.u32 %w9, %w3, 32, %w2; sub.u32 %w9, %w9, %t;
    shl.b32 %w9, %w9, 20;
    add.u32 %w7, %w7, %w8; add.u32 %w7, %w7, %w9; mad.lo.u32 %w7, %w5, 1000, %w7; st.global.u32 [%o], %w7;"""
    assert words(cuda, module(body), 40, grid=3) == [3000 + i for i in range(120)]


def test_carries(cuda: Cuda) -> None:
    body = """
    add.cc.u32 %w1, %t, 0xfffffff0; addc.u32 %w2, 0, 5; sub.cc.u32 %w3, %t, 8; subc.u32 %w4, 100, 0;
    mad.lo.u32 %w5, %w2, 1000, %w4; st.global.u32 [%o], %w5;"""
    assert words(cuda, module(body), 32) == [(6 if t >= 16 else 5) * 1000 + (100 if t >= 8 else 99) for t in range(32)]


# barriers and warps

EXCHANGE = """
    mov.u32 %w1, s; mad.lo.u32 %w2, %t, 4, %w1; st.shared.u32 [%w2], %t; {barrier}
    sub.u32 %w3, 127, %t; mad.lo.u32 %w3, %w3, 4, %w1; ld.shared.u32 %w4, [%w3]; st.global.u32 [%o], %w4;"""


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_barrier_makes_an_exchange_right_in_every_order(fresh: Fresh, order: str) -> None:
    cuda = fresh(ORDER=order, SEED="3")
    assert words(cuda, module(EXCHANGE.format(barrier="bar.sync 0;"), shared=512), 128) == [127 - t for t in range(128)]


@pytest.mark.virtual
@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_missing_barrier_is_a_race_in_every_order(fresh: Fresh, order: str) -> None:
    # in one order the reader finds poison, in the other its word is overwritten later: both are told
    code, text = fault(fresh(ORDER=order, SEED="5"), module(EXCHANGE.format(barrier=""), shared=512), 128)
    assert code == LAUNCH_FAILED and ("race in shared memory" in text or "never written" in text)
    assert "k, PTX line" in text and "block (0, 0, 0)" in text and "warp" in text


def test_votes_at_a_barrier(cuda: Cuda) -> None:
    body = """
    setp.lt.u32 %p1, %t, 70; bar.red.popc.u32 %w1, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1;
    bar.red.popc.u32 %w2, 0, !%p1;
    selp.u32 %w3, 1, 0, %p2; selp.u32 %w4, 2, 0, %p3; add.u32 %w3, %w3, %w4; mad.lo.u32 %w1, %w1, 1000, %w3;
    mad.lo.u32 %w1, %w2, 100000, %w1; st.global.u32 [%o], %w1;"""
    assert words(cuda, module(body), 96) == [26 * 100_000 + 70_002] * 96


def test_barriers_of_some_warps(cuda: Cuda) -> None:
    body = """
    mov.u32 %w1, s; mad.lo.u32 %w2, %t, 4, %w1; setp.ge.u32 %p1, %t, 64; @%p1 bra rest;
    st.shared.u32 [%w2], %t; bar.sync 1, 64; xor.b32 %w3, %t, 32; mad.lo.u32 %w3, %w3, 4, %w1; ld.shared.u32 %w4, [%w3];
    st.global.u32 [%o], %w4; ret;
rest: st.global.u32 [%o], 99;"""
    assert words(cuda, module(body, shared=512), 96) == [t ^ 32 if t < 64 else 99 for t in range(96)]


@pytest.mark.virtual
def test_a_barrier_that_some_lanes_miss(fresh: Fresh) -> None:
    code, text = fault(fresh(), module("setp.lt.u32 %p1, %t, 5; @%p1 bra skip; bar.sync 0; skip:"), 32)
    assert code == LAUNCH_FAILED and "some lanes" in text


@pytest.mark.virtual
def test_warps_that_wait_at_different_barriers_are_told(fresh: Fresh) -> None:
    body = "setp.lt.u32 %p1, %t, 32; @%p1 bra a;\nbar.sync 1; ret;\na: bar.sync 2, 64; ret;"
    code, text = fault(fresh(), module(body), 64)
    lines = module(body).splitlines()
    first, second = (lines.index(line) + 1 for line in ("a: bar.sync 2, 64; ret;", "bar.sync 1; ret;"))
    assert code == LAUNCH_FAILED and text.startswith(f"k, PTX line {first} (bar.sync), block (0, 0, 0), warp 0: ")
    assert f"warp 0 waits at barrier 2 for 64 threads (PTX line {first})" in text
    assert f"warp 1 waits at barrier 1 (PTX line {second})" in text


@pytest.mark.virtual
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_fault_in_one_block_ends_a_launch_whose_other_blocks_wait_for_it(fresh: Fresh, order: str) -> None:
    # each block but the bad one waits for a word that nobody writes
    body = """
    mov.u32 %w1, %ctaid.x; setp.eq.u32 %p1, %w1, 1; @%p1 trap;
again: ld.volatile.global.u32 %w2, [%o]; setp.eq.u32 %p2, %w2, 0; @%p2 bra again;"""
    cuda = fresh(ORDER=order, INSTRUCTION_LIMIT="20000000000")  # so that it ends, minutes later, where this fails
    out = cuda.allocate(8)
    cuda.write(out, bytes(8))
    cuda.run(cuda.function(cuda.module(module(body)), "k"), out, grid=(2, 1, 1), block=(1, 1, 1))
    ends(cuda, 0)
    assert cuda.call("cuStreamQuery", 0) == LAUNCH_FAILED
    assert "block (1, 0, 0)" in cuda.last_fault() and "trap is executed" in cuda.last_fault()


def test_shuffles(cuda: Cuda) -> None:
    body = """
    shfl.sync.bfly.b32 %w1, %t, 1, 31, -1; shfl.sync.up.b32 %w2|%p1, %t, 3, 0, -1;
    shfl.sync.down.b32 %w3|%p2, %t, 2, 0x181f, -1;
    shfl.sync.idx.b32 %w4, %t, 5, 0x181f, -1; selp.u32 %w5, 1, 0, %p1; selp.u32 %w6, 1, 0, %p2;
    shl.b32 %w1, %w1, 0; shl.b32 %w2, %w2, 6; shl.b32 %w3, %w3, 12; shl.b32 %w4, %w4, 18; shl.b32 %w5, %w5, 24;
    shl.b32 %w6, %w6, 25;
    or.b32 %w1, %w1, %w2; or.b32 %w1, %w1, %w3; or.b32 %w1, %w1, %w4; or.b32 %w1, %w1, %w5; or.b32 %w1, %w1, %w6;
    st.global.u32 [%o], %w1;"""

    def expected(t: int) -> int:
        up = t - 3 if t >= 3 else t  # segments of 8 lanes for down and idx
        down = t + 2 if t % 8 + 2 < 8 else t
        return t ^ 1 | up << 6 | down << 12 | (t // 8 * 8 + 5) << 18 | (t >= 3) << 24 | (t % 8 < 6) << 25

    assert words(cuda, module(body), 32) == [expected(t) for t in range(32)]


@pytest.mark.virtual
def test_shuffling_with_a_lane_that_has_ended_is_told(fresh: Fresh) -> None:
    body = (
        "setp.lt.u32 %p1, %t, 5; @%p1 bra skip; shfl.sync.bfly.b32 %w1, %t, 1, 31, -1; skip: st.global.u32 [%o], %w1;"
    )
    code, text = fault(fresh(), module(body), 32)
    assert code == LAUNCH_FAILED and "lane 5 reads lane 4, which does not execute it" in text


def test_matches_and_reductions(cuda: Cuda) -> None:
    body = """
    and.b32 %w1, %t, 3; match.any.sync.b32 %w2, %w1, -1; popc.b32 %w3, %w2; redux.sync.add.u32 %w4, %t, -1;
    redux.sync.max.s32 %w5, %t, -1; activemask.b32 %w6; popc.b32 %w6, %w6; mad.lo.u32 %w3, %w4, 1000, %w3;
    add.u32 %w3, %w3, %w5; add.u32 %w3, %w3, %w6; st.global.u32 [%o], %w3;"""
    assert words(cuda, module(body), 32) == [496_000 + 8 + 31 + 32] * 32
