"""Memory of the machine that runs PTX: its checks, atomics, asynchronous copies, what it counts."""

from __future__ import annotations

import random
import struct

import pytest
from driver_calls import Cuda, CudaError
from ptx_kernel import ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED, TIMEOUT, Fresh, fault, module, words


@pytest.fixture
def cuda(cuda_for_kernels: Cuda) -> Cuda:
    return cuda_for_kernels


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
@pytest.mark.parametrize(("to", "start", "size"), [(0, 0, 64), (3, 0, 12), (8, 5, 13), (0, 0, 3)])
def test_a_copy_on_the_device_copies_what_was_never_written_as_such(
    fresh: Fresh, to: int, start: int, size: int
) -> None:
    # bytes that lie behind what was written, over bytes that had been
    body = """
    ld.param.u64 %d1, [in]; cvt.u64.u32 %d2, %t; add.u64 %d1, %d1, %d2; ld.global.u8 %w1, [%d1];
    st.global.u32 [%o], %w1;"""
    cuda = fresh()
    function = cuda.function(cuda.module(module(body, ("out", "in"))), "k")
    source, target, out = cuda.allocate(128), cuda.allocate(128), cuda.allocate(4 * 128)
    cuda.write(source, bytes([5] * (start + size - 1)))
    cuda.write(target, bytes([7] * 128))
    cuda.check("cuMemcpyDtoD_v2", target + to, source + start, size)
    cuda.run(function, out, target, block=(to + size - 1, 1, 1))
    assert cuda.words(out, to + size - 1) == [7] * to + [5] * (size - 1)
    cuda.run(function, out, target + to + size, block=(8, 1, 1))
    assert cuda.words(out, 8) == [7] * 8
    cuda.run(function, out, target + (to + size - 1), block=(1, 1, 1))
    assert cuda.call("cuCtxSynchronize") == LAUNCH_FAILED and "never written" in cuda.last_fault()


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


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("width", "stride", "wavefronts", "least"),
    [(8, 8, 2, 2), (8, 16, 4, 2), (8, 128, 32, 2), (16, 16, 4, 4), (16, 32, 8, 4)],
)
def test_wavefronts_of_wide_accesses(fresh: Fresh, width: int, stride: int, wavefronts: int, least: int) -> None:
    # 8 bytes go in two halves of the lanes, 16 in four quarters: at most 128 bytes at once
    cuda = fresh(COUNT="1")
    registers = ", ".join(f"%w{i + 3}" for i in range(width // 4))
    vector = f"v{width // 4}"
    body = f"""
    mov.u32 %w1, s; mad.lo.u32 %w1, %t, {stride}, %w1; mov.u32 %w3, %t; mov.u32 %w4, %t; mov.u32 %w5, 0; mov.u32 %w6, 0;
    st.shared.{vector}.u32 [%w1], {{{registers}}}; ld.shared.{vector}.u32 {{{registers}}}, [%w1];
    st.global.u32 [%o], %w4;"""
    assert words(cuda, module(body, shared=32 * stride), 32) == list(range(32))
    counted = cuda.counters()["counters"]
    for kind in ("shared_load", "shared_store"):
        found = [counted[f"{kind}_{what}"] for what in ("requests", "wavefronts", "least")]
        assert found == [1, wavefronts, least]
