"""Branches, calls, barriers and what a driver provides to kernels: PTX ISA 8.5, under their names."""

from __future__ import annotations

import os
import sys
import tempfile

from driver_calls import Cuda
from ptx_kernel import module, words

CALLEE = """
.func (.param .b32 r) third(.param .b32 a) {
    .reg .b32 %w<3>; .reg .pred %p<2>; ld.param.u32 %w1, [a]; setp.lt.u32 %p1, %w1, 9; @%p1 bra low;
    mul.lo.u32 %w2, %w1, 3; st.param.b32 [r], %w2; ret;
low: st.param.b32 [r], %w1; ret; }"""
CALL = "{{ .param .b32 x; .param .b32 y; st.param.b32 [x], %t; {call} (y), third, (x); ld.param.b32 %w1, [y]; }}"


def branches(cuda: Cuda) -> None:
    """Every spelling of a branch, a call and an end, where all lanes agree and, but for .uni, where they do not."""
    for index, uniform in (("rem.u32 %w1, %t, 3", ""), ("mov.u32 %w1, 2", ".uni")):
        body = f"""
        setp.lt.u32 %p1, %t, 40; {index};
ts:     .branchtargets a, b, c;
        brx.idx{uniform} %w1, ts;
a:      st.global.u32 [%o], 10; bra end;
b:      @%p1 bra b2; st.global.u32 [%o], 20; bra.uni end;
b2:     st.global.u32 [%o], 25; exit;
c:      st.global.u32 [%o], 30; @%p1 ret; st.global.u32 [%o], 35;
end:    membar.cta; membar.gl; membar.sys; nanosleep.u32 10;"""

        def right(t: int, uniform: str = uniform) -> int:
            return {0: 10, 1: 25 if t < 40 else 20, 2: 30 if t < 40 else 35}[2 if uniform else t % 3]

        assert words(cuda, module(body), 64) == [right(t) for t in range(64)]
    for call in ("call", "call.uni"):
        body = f"{CALL.format(call=call)} st.global.u32 [%o], %w1;"
        assert words(cuda, module(body, before=CALLEE), 32) == [t if t < 9 else 3 * t for t in range(32)], call


def barriers(cuda: Cuda) -> None:
    """An exchange between warps is right behind every spelling of the barrier; what its reductions count."""
    exchange = """
    mov.u32 %w1, s; mad.lo.u32 %w2, %t, 4, %w1; st.shared.u32 [%w2], %t; {barrier};
    xor.b32 %w3, %t, 63; mad.lo.u32 %w3, %w3, 4, %w1; ld.shared.u32 %w4, [%w3]; st.global.u32 [%o], %w4;"""
    for name in ("bar.sync", "barrier.sync", "barrier.sync.aligned"):
        for text in (f"{name} 3", f"{name} 3, 64", f"mov.u32 %w5, 64; {name} 15, %w5"):
            ptx = module(exchange.format(barrier=text), shared=256)
            assert words(cuda, ptx, 64) == [t ^ 63 for t in range(64)], text
    body = """
    setp.lt.u32 %p1, %t, {count}; bar.red.popc.u32 %w1, 0, %p1; bar.red.popc.u32 %w2, 0, !%p1;
    bar.red.and.pred %p2, 0, %p1; selp.u32 %w3, 1, 0, %p2; bar.red.and.pred %p2, 0, !%p1; selp.u32 %w4, 2, 0, %p2;
    bar.red.or.pred %p2, 0, %p1; selp.u32 %w5, 4, 0, %p2; bar.red.or.pred %p2, 0, !%p1; selp.u32 %w6, 8, 0, %p2;
    or.b32 %w3, %w3, %w4; or.b32 %w3, %w3, %w5; or.b32 %w3, %w3, %w6; mad.lo.u32 %w1, %w1, 1000, %w2;
    mad.lo.u32 %w1, %w1, 16, %w3; st.global.u32 [%o], %w1;"""
    for count in (0, 1, 70, 96):
        flags = (count == 96) + 2 * (count == 0) + 4 * (count > 0) + 8 * (count < 96)
        assert words(cuda, module(body.format(count=count)), 96) == [(1000 * count + 96 - count) * 16 + flags] * 96


PRINT = """
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[{size}] = {{{text}}}; .global .align 1 .b8 word[5] = {{119, 111, 114, 100, 0}};"""
FORMAT = "%d|%u|%5d|%-5d|%05d|%+d|%x|%X|%o|%c|%8.3f|%.2e|%g|%s|%10s|%lld|%llx|%hd|100%%|\n"
PRINTED = (
    "-7|4294967289|   42|42   |00042|+42|beef|BEEF|17|!|"
    "   2.500|-1.25e+01|0.5|word|      word|-9000000000|1ffffffff|-2|100%|\n"
)
WORDS = [0xFFFFFFF9, 0xFFFFFFF9, 42, 42, 42, 42, 0xBEEF, 0xBEEF, 15, 33]
DOUBLES = [0x4004000000000000, 0xC029000000000000, 0x3FE0000000000000]
ARGUMENTS: list[tuple[str, int]] = [
    *(("u32", word) for word in WORDS),
    *(("u64", double) for double in DOUBLES),
    *(("string", 0), ("string", 0), ("u64", -9_000_000_000 & (1 << 64) - 1), ("u64", 0x1FFFFFFFF), ("u32", 0xFFFFFFFE)),
]
"""What the compiler stores: 4 bytes for an int, 8 for all else, each aligned to its size."""


def printf(cuda: Cuda) -> None:
    """The text that lanes print, and the result: how many arguments there were (CUDA C++ guide, "Formatted output")."""
    stores, at = [], 0
    for kind, value in ARGUMENTS:
        size = 4 if kind == "u32" else 8
        at = (at + size - 1) // size * size
        if kind == "string":
            stores.append(f"mov.u64 %d1, word; cvta.global.u64 %d1, %d1; st.local.u64 [l+{at}], %d1;")
        else:
            stores.append(f"st.local.{kind} [l+{at}], {value};")
        at += size
    body = f"""
    .local .align 8 .b8 l[{at}]; {" ".join(stores)}
    mov.u64 %d1, text; cvta.global.u64 %d1, %d1; mov.u64 %d2, l; cvta.local.u64 %d2, %d2;
    setp.ge.u32 %p1, %t, 2; mov.u32 %w1, 99; @%p1 bra quiet;
    {{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %d1; st.param.b64 [a], %d2;
    call.uni (r), vprintf, (f, a); ld.param.b32 %w1, [r]; }}
quiet: st.global.u32 [%o], %w1;"""
    text = [*FORMAT.encode(), 0]
    before = PRINT.format(size=len(text), text=", ".join(map(str, text)))
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            results = words(cuda, module(body, before=before), 4)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        printed = file.read().decode()
    assert printed == 2 * PRINTED, printed
    assert results == [len(ARGUMENTS)] * 2 + [99] * 2


def faults_that_do_not_happen(cuda: Cuda) -> None:
    """trap and a failed assertion in lanes that there are none of; that they end a launch is test_fault_codes.py's."""
    before = """
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);"""
    body = """
    setp.gt.u32 %p1, %t, 99; @%p1 trap; @!%p1 bra fine; mov.u64 %d1, 0;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %d1;
    st.param.b64 [b], %d1; st.param.b32 [c], %t; st.param.b64 [d], %d1; st.param.b64 [e], %d1;
    call.uni __assertfail, (a, b, c, d, e); }
fine: st.global.u32 [%o], %t;"""
    assert words(cuda, module(body, before=before), 32) == list(range(32))


CHECKS = [branches, barriers, printf, faults_that_do_not_happen]
