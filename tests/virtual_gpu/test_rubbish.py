"""Rubbish in a module is refused with the driver's own code and the line; what only looks so is taken.

Which of the two it is was asked of ptxas 12.6 for sm_87 (of 13.0 for static shared memory, as the driver's compiler has
it), but for the bounds of core/limits.h that are this machine's own. 218 is CUDA_ERROR_INVALID_PTX.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from driver_calls import Cuda, CudaError, Fresh
from driver_ptx import HEADER
from ptx_kernel import ILLEGAL_ADDRESS, LAUNCH_FAILED, MISALIGNED, fault, module, words

INVALID_PTX = 218
PRINT = ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);\n"
ASSERT = ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
ARGUMENTS = ".param .b64 p, q; .param .b32 r;"
MANY = ", ".join(["p"] * 400)
CONSTANT = ".const .u32 c = 1;\n"
OLDER = HEADER.replace("8.5", "8.0")
LOC = ".loc 1 2 3"
LABELS = "".join(f"L{i}: trap;" for i in range(11_000))
MOVES = "".join(f"mov.u64 %d, {i};" for i in range(66_000))


def kernel(body: str = "", before: str = "", parameters: str = "", directives: str = "", heading: str = HEADER) -> str:
    """What stands in `body` is on line 6; in `before` on line 4; else on line 4 too, if there is no `before`."""
    return f"{heading}{before}.visible .entry k({parameters}) {directives}\n{{\n{body}\nret;\n}}\n"


def for_target(target: str, version: str = "8.5") -> str:
    return kernel(heading=f".version {version}\n.target {target}\n.address_size 64\n")


def printing_call(what: str) -> str:
    return kernel(f"{ARGUMENTS} call {what};", PRINT)


REFUSED = {
    "target: later": (for_target("sm_90"), 2, "higher than the device's"),
    "target: accelerated": (for_target("sm_100a"), 2, "higher than the device's"),
    "target: unknown": (for_target("rubbish"), 2, "Unsupported .target 'rubbish'"),
    "target: unknown option": (for_target("sm_87, fast"), 2, "Unsupported .target 'fast'"),
    "target: newer than the text": (for_target("sm_87", "7.3"), 2, ".version 7.3 does not support .target sm_87"),
    "target: none": (kernel(heading=".version 8.5\n.address_size 64\n"), 2, "Missing .target"),
    "version: no number": (kernel(heading=".version 8.5x\n.target sm_87\n"), 1, ".version 8.5x is not like 8.5"),
    "version: twice": (kernel(heading=".version 8.5\n.version 8.5\n.target sm_87\n"), 2, "Missing .target"),
    "shared: of an entry": (kernel(".shared .b8 s[49153];"), 6, "too much shared data (0xc001 bytes, 0xc000 max)"),
    "shared: initial value": (kernel(before=".shared .u32 s = 5;\n"), 4, "no initial value"),
    "shared: no size": (kernel(".shared .b8 s[];"), 6, "has no size"),
    "local: initial value": (kernel(".local .u32 s = 5;"), 6, "no initial value"),
    "local: 512 KiB": (kernel(".local .b8 l[524289];"), 6, "too much local memory (0x80001 bytes, 0x80000 max)"),
    "local: negative": (kernel(".local .b8 l[-8];"), 6, "-8 where a number"),
    "local: nothing": (kernel(".local .b8 l[0];"), 6, "0 where a number"),
    "frame: too large": (kernel(".param .b8 p[4294967295];"), 6, "too much local memory"),
    "parameters: too large": (kernel(parameters=".param .b8 p[32765]"), 4, "0x7ffc max"),
    "parameters: before 8.1": (kernel(parameters=".param .b8 p[4353]", heading=OLDER), 4, "0x1100 max"),
    "parameters: no size": (kernel(parameters=".param .b8 p[]"), 4, "has no size"),
    "const: 64 KiB in all": (kernel(before=".const .b8 c[40000]; .const .b8 d[25537];\n"), 4, "65536 bytes of .const"),
    "registers: too many": (kernel(".reg .b32 %r<4000000000>;"), 6, "4000000000 where a number"),
    "registers: too many in two": (kernel(".reg .b32 %r<999999>; .reg .b32 %q<99999>;"), 6, "99999 where a number"),
    "registers: 64 bits of them": (kernel(".reg .pred %p<42949672952>;"), 6, "42949672952 where a number"),
    "registers: negative": (kernel(".reg .b32 %r<-5>;"), 6, "-5 where a number"),
    "registers: in many branches": (kernel(".reg .b32 %r<100000>;" + LABELS), 6, "too many for this machine"),
    "registers: immediates": (kernel(".reg .b64 %d;" + MOVES), 4, "more registers and immediates than this machine"),
    "variable: 64 bits of bytes": (kernel(before=".global .b8 x[1099511627776][16777216];\n"), 4, "x is larger than"),
    "names: register twice": (kernel(".reg .b32 %r<2>; .reg .b64 %r1;"), 6, "'%r1' is declared twice"),
    "names: register and variable": (kernel(".shared .b32 s; .reg .b32 s;"), 6, "'s' is declared twice"),
    "names: variable twice": (kernel(before=".global .b32 g; .global .b32 g;\n"), 4, "'g' is declared twice"),
    "names: parameter twice": (kernel(parameters=".param .b32 a, .param .b32 a"), 4, "'a' is declared twice"),
    "names: in a scope": (kernel("{ .reg .b32 a; .reg .b32 a; }"), 6, "'a' is declared twice"),
    "align: 0": (kernel(before=".shared .align 0 .b32 x;\n"), 4, "0 where a number"),
    "align: 3": (kernel(before=".shared .align 3 .b32 x;\n"), 4, ".align 3 is no power of two"),
    "align: of a parameter": (kernel(parameters=".param .align 0 .b8 x[4]"), 4, "0 where a number"),
    "align: more than is given": (kernel(before=".global .align 1024 .b32 x;\n"), 4, "no more than to 512"),
    "vector: of a vector": (kernel(before=".global .v4 .v4 .b32 x;\n"), 4, "'.v4' in the declaration"),
    "vector: 32 bytes": (kernel(before=".global .v4 .b64 x;\n"), 4, "a vector of 32 bytes"),
    "vector: one initial value": (kernel(before=".global .v4 .b32 x = 5;\n"), 4, "'{' is expected"),
    "values: flat": (kernel(before=".global .b32 x[2][2] = {1, 2, 3, 4};\n"), 4, "'{' is expected"),
    "values: too many": (kernel(before=".global .b32 x[2] = {1, 2, 3};\n"), 4, "more initial values than the 2"),
    "values: too deep": (kernel(before=".global .b32 x[1] = " + "{" * 300_000), 4, "more braces"),
    "values: dimensions": (kernel(before=".global .b32 x" + "[1]" * 300_000 + ";\n"), 4, "more than 16 dimensions"),
    "scopes: too deep": (kernel("{" * 300_000), 6, "more than 200 {"),
    "reqntid: 0": (kernel(directives=".reqntid 0"), 4, "0 where a number"),
    "maxntid: negative": (kernel(directives=".maxntid -5"), 4, "-5 where a number"),
    "maxntid: four": (kernel(directives=".maxntid 2, 2, 2, 2"), 4, "more than three dimensions"),
    "maxntid and reqntid": (kernel(directives=".maxntid 64 .reqntid 64"), 4, "cannot both"),
    "call: vprintf of many": (printing_call(f"(r), vprintf, ({MANY})"), 7, "vprintf takes another number"),
    "call: many results": (printing_call(f"({MANY}), vprintf, (p, q)"), 7, "vprintf takes another number"),
    "call: vprintf of nothing": (printing_call("vprintf"), 7, "vprintf takes another number"),
    "call: vprintf of less": (printing_call("(r), vprintf, (p, r)"), 7, "r has 4 bytes where vprintf has 8"),
    "call: vprintf to more": (printing_call("(p), vprintf, (p, q)"), 7, "p has 8 bytes where vprintf has 4"),
    "call: assert of nothing": (kernel("call __assertfail;", ASSERT), 7, "__assertfail takes another number"),
    "call: of less": (kernel(".param .b8 x; call f, (x);", ".func f(.param .b64 a) {}\n"), 7, "1 bytes where f has 8"),
    "space: const written": (kernel("st.global.u32 [c], 5;", CONSTANT), 7, "'[c]' does not fit"),
    "space: const as generic": (kernel(".reg .b32 %r; ld.u32 %r, [c];", CONSTANT), 7, "'ld.u32' does not take"),
    "space: shared as global": (kernel(".shared .u32 s; st.global.u32 [s], 5;"), 6, "'[s]' does not fit"),
    "space: two": (kernel(".shared .b8 s[16]; cp.async.ca.shared.global [s], [s], 4;"), 6, "'[s]' does not fit"),
    "space: a call's": (kernel(".param .b32 p; .reg .b32 %r; atom.add.u32 %r, [p], 1;"), 6, "'[p]' does not fit"),
    "operands: apart": (kernel(".reg .b32 %r<20>; add.u32 %r1, %r 2, 1;"), 6, "',' is expected behind '%r'"),
    "operands: one missing": (kernel(".reg .b32 %r<20>; add.u32 %r1,, 1;"), 6, "an operand is missing"),
    "operands: comma at the end": (kernel(".reg .b32 %r<20>; add.u32 %r1, %r2, 1,;"), 6, "an operand is missing"),
    "loc: what follows is read": (kernel(".loc 1 2 3 mov.u32 nothing;"), 6, "'mov.u32' does not take"),
    "loc: two numbers": (kernel(".loc 1 2\n"), 8, "a number is expected, not 'ret'"),
    "loc: an unknown word": (kernel(f"{LOC}, somewhere 1"), 6, "'somewhere' in a .loc"),
    "file: no name": (kernel(before=".file 1 name\n"), 4, "'\"' is expected"),
    "linkage of nothing": (kernel(before=".visible .address_size 64\n"), 4, "where a declaration is expected"),
}  # fmt: skip

TAKEN = {
    "target: earlier": for_target("sm_50", "6.0"),
    "target: virtual": for_target("compute_80"),
    "target: option": for_target("sm_87, texmode_independent"),
    "shared: just as much": kernel(".shared .b8 s[49152];"),
    "shared: another entry's": kernel(".shared .b8 s[49152];", ".visible .entry j() { .shared .b8 t[49152]; ret; }\n"),
    "shared: named by nobody": kernel(before=".shared .b8 s[60000];\n"),
    "local: just as much": kernel(".local .b8 l[524288];"),
    "parameters: just as many": kernel(parameters=".param .b8 p[32764]"),
    "const: just as much": kernel(before=".const .b8 c[65536];\n"),
    "names: external": kernel(before=".extern .global .b8 g; .extern .global .b8 g; .visible .global .b8 g = 1;\n"),
    "names: in a scope": kernel(".reg .b32 a; { .reg .b64 a; { .reg .pred a; } }"),
    "names: as of the module": kernel(".shared .b32 s;", ".global .b32 s;\n"),
    "values: 16 bytes": kernel(before=".global .b128 x = 5; .global .v2 .b64 y = {1, 2};\n"),
    "values: none": kernel(before=".global .b8 x[2] = {};\n"),
    "scopes: 200": kernel("{" * 200 + "}" * 200),
    "maxntid": kernel(directives=".maxntid 1, 1, 128 .minnctapersm 2"),
    "immediates: cut": kernel(".reg .b32 %r; .reg .b16 %h; mov.u32 %r, 99999999999; mov.u16 %h, 70000;"),
    "loc": kernel(f'{LOC}\n.loc 1 4 5, function_name $f+1, inlined_at 1 2 3 .pragma "a;", "b";', '.file 1 "a;", 1, 2\n')
    + ".section .debug_str { $f: .b8 97, 98, 0 }\n",
}  # fmt: skip


@pytest.mark.virtual
@pytest.mark.parametrize("case", REFUSED)
def test_a_module_is_refused(cuda: Cuda, case: str) -> None:
    ptx, line, said = REFUSED[case]
    with pytest.raises(CudaError) as raised:
        cuda.module(ptx)
    assert raised.value.code == INVALID_PTX
    assert cuda.last_fault().startswith(f"PTX line {line}: ") and said in cuda.last_fault(), cuda.last_fault()


@pytest.mark.parametrize("case", TAKEN)
def test_a_module_is_taken(cuda: Cuda, case: str) -> None:
    words_of_parameters = 8191 if "parameters" in case else 0
    cuda.run(cuda.function(cuda.module(TAKEN[case]), "k"), *[0] * words_of_parameters, block=(1, 1, 1))
    cuda.check("cuCtxSynchronize")


# ptxas 12.6 takes these (docs/virtual-gpu.md), or wants all memory for them.
NOT_ASKED = {"shared: of an entry", "local: 512 KiB", "frame: too large", "align: more than is given"}
NOT_ASKED |= {case for case in REFUSED if case.startswith(("registers: ", "variable: "))}
NOT_ASKED |= {case for case, (ptx, _, _) in REFUSED.items() if len(ptx) > 100_000}


@pytest.mark.virtual
def test_nvidia_s_own_assembler_refuses_and_takes_the_same(ptxas: Path, tmp_path: Path) -> None:
    asked = {case: ptx for case, (ptx, _, _) in REFUSED.items() if case not in NOT_ASKED}
    assert len(asked) > 50
    source = tmp_path / "k.ptx"
    for case, ptx in (asked | TAKEN).items():
        source.write_text(ptx)
        command = [str(ptxas), "-arch=sm_87", "-O0", "-o", str(tmp_path / "k.cubin"), str(source)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (said.returncode == 0) == (case in TAKEN), (case, said.stderr)


def test_initial_values_stand_where_their_braces_say(cuda_for_kernels: Cuda) -> None:
    before = (
        ".global .u32 x[2][3] = {{1}, {2, 3}}; .global .v2 .u16 y[2] = {{4, 5}, {6}};"
        ".global .u8 z[][2] = {{7}, {8, 9}}; .global .b128 w = 10;"
    )
    places = [*(("x", 4 * n) for n in range(6)), ("y", 0), ("y", 4), ("z", 0), ("w", 0), ("w", 8)]
    loads = "".join(
        f"mov.u64 %d1, {name}; ld.global.u32 %w1, [%d1+{at}]; st.global.u32 [%o+{4 * i}], %w1;"
        for i, (name, at) in enumerate(places)
    )
    ptx = module(f"setp.ne.u32 %p1, %t, 0; @%p1 bra END; {loads} END:", before=before)
    assert words(cuda_for_kernels, ptx, 11) == [1, 0, 0, 2, 3, 0, 0x50004, 6, 0x09080007, 10, 0]


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (".param .b32 x, y; st.param.b32 [x+16], %t;", ILLEGAL_ADDRESS, "4 bytes at 0x10 of a variable"),
        (".param .b32 x, y; st.param.b64 [x], %d1;", ILLEGAL_ADDRESS, "8 bytes at 0x0 of a variable"),
        (".param .b64 x; ld.param.b32 %w1, [x+1000000];", ILLEGAL_ADDRESS, "4 bytes at 0xf4240 of a variable"),
        (".param .b64 x; ld.param.b32 %w1, [x+2];", MISALIGNED, "4 bytes at 0x2 are not aligned"),
        ("mov.u64 %d1, c; st.global.u32 [%d1], %t;", ILLEGAL_ADDRESS, "writes to constant memory"),
        ("mov.u64 %d1, c; atom.global.add.u32 %w1, [%d1], 1;", ILLEGAL_ADDRESS, "writes to constant memory"),
    ],
)
def test_an_access_outside_of_a_variable_or_to_a_constant(fresh: Fresh, body: str, code: int, said: str) -> None:
    found, text = fault(fresh(), module(body, before=".const .u32 c = 1;"), 32)
    assert (found, said in text, "k, PTX line 10 (" in text) == (code, True, True), text


def printing(text: str, *stores: str) -> str:
    """A kernel that prints, and stores what vprintf returns."""
    data = ", ".join(str(byte) for byte in text.encode() + b"\0")
    return module(
        f"{ARGUMENTS} .local .align 8 .b8 v[64]; mov.u64 %d1, f; cvta.global.u64 %d1, %d1; st.param.b64 [p], %d1;\n"
        f"{''.join(store + ';' for store in stores)} mov.u64 %d2, v; cvta.local.u64 %d2, %d2; st.param.b64 [q], %d2;\n"
        "call.uni (r), vprintf, (p, q); ld.param.b32 %w1, [r]; st.global.u32 [%o], %w1;",
        before=f"{PRINT}.global .align 1 .b8 f[{len(text) + 1}] = {{{data}}};",
    )


@pytest.mark.virtual
def test_printf_prints_what_its_conversions_say(cuda_for_kernels: Cuda, capfd: pytest.CaptureFixture[str]) -> None:
    text = "%%|%-5d|%+.3f|%08llx|%c|%*u|%.2s|%hhd|%lu|%p\n"
    mix = ("st.local.u32 [v], -7", "st.local.f64 [v+8], 0d4004000000000000", "st.local.u64 [v+16], 0xabcdef")
    more = ("st.local.u32 [v+24], 65", "st.local.u32 [v+28], 4", "st.local.u32 [v+32], 12")
    string = ("st.local.u64 [v+40], %d1", "st.local.u32 [v+48], 257", "st.local.u64 [v+56], 9")
    ptx = printing(text.replace("|%p", ""), *mix, *more, *string)
    assert words(cuda_for_kernels, ptx, 1) == [9]
    assert capfd.readouterr().out == "%|-7   |+2.500|00abcdef|A|  12|%%|1|9\n"


@pytest.mark.virtual
@pytest.mark.parametrize("conversion", ["%n", "%ln", "%", "%1$d", "%9999d", "%.-3d", "%lld%k", "%hhhd", "%llld"])
def test_printf_gives_the_host_no_other_conversion(fresh: Fresh, conversion: str) -> None:
    code, text = fault(fresh(), printing(conversion, "st.local.u64 [v], 4096"), 1)
    assert (code, "is no conversion that kernels have" in text, "PTX line" in text) == (LAUNCH_FAILED, True, True), text
