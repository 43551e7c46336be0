"""ld.param and st.param of a call's arguments and results: PTX ISA 8.5, call, and "Parameter State Space".

The caller stores a register by the form under test, the callee hands all 32 bytes back, the caller loads the register.
"""

from __future__ import annotations

from driver_calls import Cuda

from isa.batch import KINDS, THREADS, launch
from isa.memory import CELL, DATA, KIND, TYPES, loaded, registers, spelled

BACK = """
.func (.param .align 16 .b8 r[32]) back(.param .align 16 .b8 a[32]) {
    .reg .b64 %x<4>; ld.param.b64 %x0, [a]; ld.param.b64 %x1, [a+8]; ld.param.b64 %x2, [a+16]; ld.param.b64 %x3, [a+24];
    st.param.b64 [r], %x0; st.param.b64 [r+8], %x1; st.param.b64 [r+16], %x2; st.param.b64 [r+24], %x3; ret; }
"""


def forms() -> list[tuple[str, int, str]]:
    found = []
    for type_ in TYPES:
        size = int(type_[1:]) // 8
        for kind in (KIND[max(size, 2)], *(("w",) if size == 1 else ())):
            found += [(type_, count, kind) for count in (1, 2, 4) if size * count <= 16]
    return found


def arguments(cuda: Cuda) -> None:
    body, told, cell = [], [], 0
    for type_, count, kind in forms():
        offset = 16 if type_[0] == "s" else 0
        names, listed = registers(kind, count)
        for i, name in enumerate(names):
            body.append(f"ld.global.{KINDS[kind][0]} {name}, [%in+{offset + 4 * i if count > 2 else offset + 8 * i}];")
        clear = " ".join(f"st.param.b64 [a+{8 * i}], %zero;" for i in range(4))
        body.append(
            f"{{ .param .align 16 .b8 a[32]; .param .align 16 .b8 r[32]; {clear}\n"
            f"{spelled('st.param', type_, count)} [a+{offset}], {listed};\ncall.uni (r), back, (a);\n"
            f"{spelled('ld.param', type_, count)} {listed}, [r+{offset}];\n"
            "ld.param.v2.b64 {%s0, %s1}, [r]; ld.param.v2.b64 {%s2, %s3}, [r+16]; }"
        )
        stored = [(f"%s{i}", "u64") for i in range(4)] + [(name, KINDS[kind][0]) for name in names]
        for i, (name, store) in enumerate(stored):
            body.append(f"st.global.{store} [%out+{8 * THREADS * (cell + i)}], {name};")
        told.append((type_, count, kind, cell))
        cell += len(stored)
    ptx = (
        ".version 8.5\n.target sm_87\n.address_size 64\n" + BACK + "\n"
        ".visible .entry k(.param .u64 in, .param .u64 out) {\n"
        ".reg .b16 %h<4>; .reg .b32 %t, %w<4>; .reg .b64 %in, %out, %d<4>, %s<4>, %zero; mov.u64 %zero, 0;\n"
        "mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; mad.wide.u32 %in, %t, 32, %in;\n"
        "ld.param.u64 %out, [out]; mad.wide.u32 %out, %t, 8, %out;\n" + "\n".join(body) + "\nret; }\n"
    )
    found = launch(cuda, ptx, DATA, cell)
    for type_, count, kind, cell in told:
        size, start = int(type_[1:]) // 8, 16 if type_[0] == "s" else 0
        for t in range(THREADS):
            mine = DATA[CELL * t : CELL * (t + 1)]
            right = bytearray(CELL)
            for i in range(count):
                at = start + (4 if count > 2 else 8) * i
                right[start + size * i : start + size * (i + 1)] = (mine + bytes(8))[at : at + size]
            words = [found[(cell + i) * THREADS + t] for i in range(4 + count)]
            text = f"{spelled('.param', type_, count)} of {kind}"
            assert b"".join(word.to_bytes(8, "little") for word in words[:4]) == right, text
            assert words[4:] == [loaded(bytes(right), type_, i, kind) for i in range(count)], text


CHECKS = [arguments]
