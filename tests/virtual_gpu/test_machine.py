"""The machine that runs PTX: warps that part and meet, barriers, calls, memory checks, races, matrices, schedules."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driver_calls import Cuda, CudaError

Fresh = Callable[..., Cuda]

ILLEGAL_ADDRESS, ASSERT, MISALIGNED, LAUNCH_FAILED, TIMEOUT = 700, 710, 716, 719, 702


@pytest.fixture
def cuda(cuda_for_kernels: Cuda) -> Cuda:
    return cuda_for_kernels


def module(body: str, parameters: Sequence[str] = ("out",), before: str = "", shared: int = 0) -> str:
    """A kernel `k` of 64-bit parameters; %t is the thread, %o the address of its 32-bit word of the first parameter."""
    listed = ", ".join(f".param .u64 {name}" for name in parameters)
    variable = f".shared .align 16 .b8 s[{shared}];" if shared else ""
    return (
        f".version 8.5\n.target sm_87\n.address_size 64\n{before}\n.visible .entry k({listed})\n{{\n{variable}\n"
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %w<40>, %t; .reg .f32 %f<9>; .reg .b64 %d<9>, %o;\n"
        f"mov.u32 %t, %tid.x; ld.param.u64 %o, [{parameters[0]}]; mad.wide.u32 %o, %t, 4, %o;\n{body}\nret;\n}}\n"
    )


def words(cuda: Cuda, ptx: str, count: int, *inputs: bytes, grid: int = 1, shared: int = 0) -> list[int]:
    """The words that `count` threads a block leave in the output; further parameters are buffers of these bytes."""
    out = cuda.allocate(4 * count * grid)
    cuda.write(out, bytes(4 * count * grid))
    addresses = []
    for data in inputs:
        addresses.append(cuda.allocate(len(data)))
        cuda.write(addresses[-1], data)
    function = cuda.function(cuda.module(ptx), "k")
    cuda.run(function, out, *addresses, grid=(grid, 1, 1), block=(count, 1, 1), shared=shared)
    return cuda.words(out, count * grid)


def fault(cuda: Cuda, ptx: str, count: int, *inputs: bytes, **options: Any) -> tuple[int, str]:
    """The code and the text of the fault that a launch ends with; the instance is of no use afterwards."""
    with pytest.raises(CudaError) as raised:
        words(cuda, ptx, count, *inputs, **options)
    return raised.value.code, cuda.last_fault()


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
    code, text = fault(fresh(), module("setp.lt.u32 %p1, %t, 32; @%p1 bra a; bar.sync 1; ret; a: bar.sync 2;"), 64)
    assert code == LAUNCH_FAILED and "hangs" in text


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
def test_shuffling_with_a_lane_that_went_elsewhere_is_told(fresh: Fresh) -> None:
    body = (
        "setp.lt.u32 %p1, %t, 5; @%p1 bra skip; shfl.sync.bfly.b32 %w1, %t, 1, 31, -1; skip: st.global.u32 [%o], %w1;"
    )
    code, text = fault(fresh(), module(body), 32)
    assert code == LAUNCH_FAILED and "membermask" in text


def test_matches_and_reductions(cuda: Cuda) -> None:
    body = """
    and.b32 %w1, %t, 3; match.any.sync.b32 %w2, %w1, -1; popc.b32 %w3, %w2; redux.sync.add.u32 %w4, %t, -1;
    redux.sync.max.s32 %w5, %t, -1; activemask.b32 %w6; popc.b32 %w6, %w6; mad.lo.u32 %w3, %w4, 1000, %w3;
    add.u32 %w3, %w3, %w5; add.u32 %w3, %w3, %w6; st.global.u32 [%o], %w3;"""
    assert words(cuda, module(body), 32) == [496_000 + 8 + 31 + 32] * 32


# memory


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("ld.global.u32 %w1, [%o+256]; st.global.u32 [%o], %w1;", ILLEGAL_ADDRESS, "past the end of allocation"),
        ("ld.global.u32 %w1, [%o+1]; st.global.u32 [%o], %w1;", MISALIGNED, "not aligned"),
        ("mov.u64 %d1, 64; st.global.u32 [%d1], %t;", ILLEGAL_ADDRESS, "no allocation is there"),
        ("st.shared.u32 [s+64], %t;", ILLEGAL_ADDRESS, "outside of the block's 64 bytes"),
        ("ld.shared.u32 %w1, [s]; st.global.u32 [%o], %w1;", LAUNCH_FAILED, "never written"),
        ("trap;", LAUNCH_FAILED, "trap"),
    ],
)
def test_bad_accesses(fresh: Fresh, body: str, code: int, said: str) -> None:
    found, text = fault(fresh(), module(body, shared=64), 16)
    assert (found, said in text, "PTX line" in text) == (code, True, True), text


@pytest.mark.virtual
def test_reading_what_nobody_wrote(fresh: Fresh) -> None:
    cuda = fresh()
    ptx = module("ld.param.u64 %d1, [in]; ld.global.u32 %w1, [%d1]; st.global.u32 [%o], %w1;", ("out", "in"))
    function, out, unwritten = cuda.function(cuda.module(ptx), "k"), cuda.allocate(4), cuda.allocate(64)
    with pytest.raises(CudaError) as raised:
        cuda.run(function, out, unwritten, block=(1, 1, 1))
        cuda.check("cuCtxSynchronize")
    assert raised.value.code == LAUNCH_FAILED and "never written" in cuda.last_fault()
    forgiving = fresh(CHECKS="none")
    function, out, unwritten = (
        forgiving.function(forgiving.module(ptx), "k"),
        forgiving.allocate(4),
        forgiving.allocate(64),
    )
    forgiving.run(function, out, unwritten, block=(1, 1, 1))
    forgiving.check("cuCtxSynchronize")


@pytest.mark.virtual
def test_using_memory_after_it_is_freed(fresh: Fresh) -> None:
    cuda = fresh()
    function, out = cuda.function(cuda.module(module("st.global.u32 [%o], %t;")), "k"), cuda.allocate(128)
    cuda.check("cuMemFree_v2", out)
    with pytest.raises(CudaError) as raised:
        cuda.run(function, out)
        cuda.check("cuCtxSynchronize")
    assert raised.value.code == ILLEGAL_ADDRESS and "freed" in cuda.last_fault()


@pytest.mark.virtual
def test_an_endless_kernel_is_ended_where_a_limit_is_set(fresh: Fresh) -> None:
    code, text = fault(fresh(INSTRUCTION_LIMIT="100000"), module("again: bra.uni again;"), 32)
    assert code == TIMEOUT and "100000 instructions" in text


def test_atomics_of_many_blocks(cuda: Cuda) -> None:
    body = """
    ld.param.u64 %d1, [in]; atom.global.add.u32 %w1, [%d1], 1; red.global.max.u32 [%d1+4], %w1;
    atom.global.cas.b32 %w2, [%d1+8], 0, 77; atom.global.inc.u32 %w3, [%d1+12], 9;
    red.global.add.f32 [%d1+16], 0f3F000000;"""
    state = cuda.allocate(20)
    cuda.write(state, bytes(20))
    function, out = cuda.function(cuda.module(module(body, ("out", "in"))), "k"), cuda.allocate(512)
    cuda.run(function, out, state, grid=(50, 1, 1), block=(64, 1, 1))
    added, most, swapped, wrapped, total = struct.unpack("<4If", cuda.read(state, 20))
    assert (added, most, swapped, wrapped, total) == (3200, 3199, 77, 3200 % 10, 1600.0)


def test_vector_loads_of_narrow_types(cuda: Cuda) -> None:
    body = """
    ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, 4, %d1; ld.global.nc.v4.s8 {%h1, %h2, %h3, %h4}, [%d1];
    cvt.s32.s16 %w1, %h1; cvt.s32.s16 %w2, %h2; cvt.s32.s16 %w3, %h3; cvt.s32.s16 %w4, %h4;
    mad.lo.s32 %w1, %w2, 256, %w1; mad.lo.s32 %w1, %w3, 65536, %w1; mad.lo.s32 %w1, %w4, 16777216, %w1;
    st.global.u32 [%o], %w1;"""
    data = random.Random(1).randbytes(4 * 32)
    signed = struct.unpack("128b", data)
    expected = [sum(signed[4 * t + i] << 8 * i for i in range(4)) % 2**32 for t in range(32)]
    assert words(cuda, module(body, ("out", "in")), 32, data) == expected


# cp.async

COPY = """
    ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, 16, %d1; mov.u32 %w1, s; mad.lo.u32 %w2, %t, 16, %w1;
    {copies} {wait} bar.sync 0; xor.b32 %w3, %t, 33; mad.lo.u32 %w3, %w3, 16, %w1;
    ld.shared.u32 %w4, [%w3+{read}]; st.global.u32 [%o], %w4;"""
ONE_COPY = "cp.async.cg.shared.global.L2::128B [%w2], [%d1], 16; cp.async.commit_group;"


@pytest.mark.parametrize("copies", ["eager", "deferred"])
def test_asynchronous_copies(fresh: Fresh, copies: str) -> None:
    cuda = fresh(COPIES=copies)
    data = struct.pack("256I", *range(256))
    ptx = module(COPY.format(copies=ONE_COPY, wait="cp.async.wait_group 0;", read=8), ("out", "in"), shared=1024)
    assert words(cuda, ptx, 64, data) == [4 * (t ^ 33) + 2 for t in range(64)]
    short = "cp.async.ca.shared.global [%w2], [%d1], 16, 8; cp.async.commit_group;"
    for read, expected in ((4, [4 * (t ^ 33) + 1 for t in range(64)]), (8, [0] * 64)):
        ptx = module(COPY.format(copies=short, wait="cp.async.wait_all;", read=read), ("out", "in"), shared=1024)
        assert words(cuda, ptx, 64, data) == expected


@pytest.mark.virtual
@pytest.mark.parametrize("copies", ["eager", "deferred"])
@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_a_wait_that_is_missing_or_too_short(fresh: Fresh, copies: str, wait: str) -> None:
    ptx = module(COPY.format(copies=ONE_COPY, wait=wait, read=0), ("out", "in"), shared=1024)
    code, text = fault(fresh(COPIES=copies), ptx, 64, bytes(1024))
    assert code == LAUNCH_FAILED and "cp.async is still writing" in text


# matrices


def fragments(rows: list[list[int]], registers: int) -> list[list[int]]:
    """Registers of an 8- or 16-row operand whose rows are bytes, by the layout of PTX ISA 8.5, section 9.7.14.5.10."""
    tall = len(rows) // 8
    found = []
    for lane in range(32):
        group, part = divmod(lane, 4)
        mine = []
        for r in range(registers):
            row, start = rows[group + 8 * (r % tall)], 16 * (r // tall) + 4 * part
            mine.append(int.from_bytes(bytes(b & 255 for b in row[start : start + 4]), "little"))
        found.append(mine)
    return found


def multiply(
    cuda: Cuda, instruction: str, a: list[list[int]], b: list[list[int]], c: list[list[int]], counts: Sequence[int]
) -> list[int]:
    """The 4 accumulator registers of each lane, after one mma of `counts` registers for a, b and c."""
    na, nb, nc = counts
    data = []
    for lane in range(32):
        group, part = divmod(lane, 4)
        accumulators = [c[group + 8 * (i // 2)][2 * part + i % 2] & 0xFFFFFFFF for i in range(nc)]
        data += [*fragments(a, na)[lane], *fragments(b, nb)[lane], *accumulators]
    total = na + nb + nc
    loads = " ".join(f"ld.global.u32 %w{i}, [%d1+{4 * i}];" for i in range(total))

    def group_of(first: int, count: int) -> str:
        return "{" + ", ".join(f"%w{first + i}" for i in range(count)) + "}"

    body = f"""ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, {4 * total}, %d1; {loads}
    {instruction} {group_of(30, nc)}, {group_of(0, na)}, {group_of(na, nb)}, {group_of(na + nb, nc)};
    mul.wide.u32 %d2, %t, {4 * (nc - 1)}; add.u64 %o, %o, %d2;
    """ + " ".join(f"st.global.u32 [%o+{4 * i}], %w{30 + i};" for i in range(nc))
    out = cuda.allocate(4 * nc * 32)
    source = cuda.allocate(4 * len(data))
    cuda.write(source, struct.pack(f"{len(data)}I", *data))
    cuda.run(cuda.function(cuda.module(module(body, ("out", "in"))), "k"), out, source)
    return cuda.words(out, nc * 32)


def layout(product: Callable[[int, int], int], count: int) -> list[int]:
    return [
        product(lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2) & 0xFFFFFFFF
        for lane in range(32)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("signs", "low_a", "low_b"), [("s8.s8", -128, -128), ("u8.s8", 0, -128), ("s8.u8", -128, 0), ("u8.u8", 0, 0)]
)
@pytest.mark.parametrize(
    ("shape", "rows", "depth", "counts"),
    [("m16n8k32", 16, 32, (4, 2, 4)), ("m16n8k16", 16, 16, (2, 1, 4)), ("m8n8k16", 8, 16, (1, 1, 2))],
)
def test_integer_matrix_products(
    cuda: Cuda, signs: str, low_a: int, low_b: int, shape: str, rows: int, depth: int, counts: Sequence[int]
) -> None:
    numbers = random.Random(depth)
    a = [[numbers.randint(low_a, low_a + 255) for _ in range(depth)] for _ in range(rows)]
    b = [[numbers.randint(low_b, low_b + 255) for _ in range(depth)] for _ in range(8)]
    c = [[numbers.choice((-(2**31), 2**31 - 1, numbers.randint(-9, 9))) for _ in range(8)] for _ in range(rows)]

    def exact(i: int, j: int) -> int:
        return c[i][j] + sum(x * y for x, y in zip(a[i], b[j], strict=True))

    head = f"mma.sync.aligned.{shape}.row.col"
    assert multiply(cuda, f"{head}.s32.{signs}.s32", a, b, c, counts) == layout(exact, counts[2])
    clamped = layout(lambda i, j: max(-(2**31), min(2**31 - 1, exact(i, j))), counts[2])
    assert multiply(cuda, f"{head}.satfinite.s32.{signs}.s32", a, b, c, counts) == clamped


@pytest.mark.parametrize("result", ["f32", "f16"])
@pytest.mark.parametrize(("depth", "counts"), [(16, (4, 2)), (8, (2, 1))])
def test_half_matrix_products(cuda: Cuda, result: str, depth: int, counts: tuple[int, int]) -> None:
    numbers = random.Random(4)
    # small whole numbers: every sum is exact, so every order of summing gives the same bits
    a = [[float(numbers.randint(-8, 8)) for _ in range(depth)] for _ in range(16)]
    b = [[float(numbers.randint(-8, 8)) for _ in range(depth)] for _ in range(8)]
    raw_a, raw_b = ([list(struct.pack(f"<{depth}e", *row)) for row in m] for m in (a, b))

    def start(i: int, j: int) -> float:
        return i - j

    def end(i: int, j: int) -> float:
        return start(i, j) + sum(x * y for x, y in zip(a[i], b[j], strict=True))

    def bits(value: Callable[[int, int], float]) -> Callable[[int, int], int]:
        """Of the accumulator at row i, column j; float16: two columns of row i, or where j is odd of the 8th below."""

        def one(i: int, j: int) -> int:
            if result == "f32":
                return int.from_bytes(struct.pack("<f", value(i, j)), "little")
            row, column = i + 8 * (j % 2), j // 2 * 2
            return int.from_bytes(struct.pack("<2e", value(row, column), value(row, column + 1)), "little")

        return one

    registers = 4 if result == "f32" else 2
    c = [[bits(start)(i, j) for j in range(8)] for i in range(16 if result == "f32" else 8)]
    instruction = f"mma.sync.aligned.m16n8k{depth}.row.col.{result}.f16.f16.{result}"
    assert multiply(cuda, instruction, raw_a, raw_b, c, (*counts, registers)) == layout(bits(end), registers)


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(cuda: Cuda, transposed: bool) -> None:
    trans = ".trans" if transposed else ""
    body = f"""
    ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, 16, %d1; mov.u32 %w1, s; mad.lo.u32 %w2, %t, 16, %w1;
    ld.global.v4.u32 {{%w4, %w5, %w6, %w7}}, [%d1]; st.shared.v4.u32 [%w2], {{%w4, %w5, %w6, %w7}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%w10, %w11, %w12, %w13}}, [%w2];
    mul.wide.u32 %d2, %t, 12; add.u64 %o, %o, %d2;
    st.global.u32 [%o], %w10; st.global.u32 [%o+4], %w11; st.global.u32 [%o+8], %w12; st.global.u32 [%o+12], %w13;"""
    source, out = cuda.allocate(512), cuda.allocate(512)
    cuda.write(source, struct.pack("256H", *range(256)))
    cuda.run(cuda.function(cuda.module(module(body, ("out", "in"), shared=512)), "k"), out, source)

    def element(matrix: int, row: int, column: int) -> int:
        return matrix * 64 + (column * 8 + row if transposed else row * 8 + column)

    expected = [
        element(m, lane // 4, 2 * (lane % 4)) | element(m, lane // 4, 2 * (lane % 4) + 1) << 16
        for lane in range(32)
        for m in range(4)
    ]
    assert cuda.words(out, 128) == expected


# counters


@pytest.mark.virtual
@pytest.mark.parametrize(("stride", "sectors", "conflicts"), [(4, 4, 1), (8, 8, 2), (32, 32, 8), (128, 32, 32)])
def test_sectors_and_bank_conflicts(fresh: Fresh, stride: int, sectors: int, conflicts: int) -> None:
    cuda = fresh(COUNT="1")
    body = f"""
    ld.param.u64 %d1, [in]; mad.wide.u32 %d1, %t, {stride}, %d1; ld.global.u32 %w1, [%d1];
    mov.u32 %w2, s; mad.lo.u32 %w2, %t, {stride}, %w2; st.shared.u32 [%w2], %w1; ld.shared.u32 %w3, [%w2];
    st.global.u32 [%o], %w3;"""
    words(cuda, module(body, ("out", "in"), shared=32 * stride), 32, bytes(32 * stride))
    counted = cuda.counters()["counters"]
    assert (counted["global_load_requests"], counted["global_load_sectors"], counted["global_store_sectors"]) == (
        1,
        sectors,
        4,
    )
    assert (counted["shared_load_wavefronts"], counted["shared_load_least"]) == (conflicts, 1)
    assert counted["mix"]["ld.global.u32"] == 1
