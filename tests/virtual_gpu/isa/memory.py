"""ld and st of every space, type, vector and register width: PTX ISA 8.5, under these names.

A load reads a thread's 32 bytes, a store writes into its 32 bytes of zeros; a register wider than the type is extended
by the type's sign, and cut when stored ("Operand Size Exceeding Instruction-Type Size"). Everything runs once in all
lanes and once in the odd ones only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from driver_calls import Cuda

from isa.batch import KINDS, THREADS, UNTOUCHED, launch

CELL = 32
"""Bytes of a thread."""
DATA = random.Random("memory").randbytes(CELL * THREADS)
KIND = {2: "h", 4: "w", 8: "d"}
BYTES = {"h": 2, "w": 4, "d": 8}
TYPES = [f"{letter}{bits}" for bits in (8, 16, 32, 64) for letter in "bus"] + ["f32", "f64"]

LOADS = {
    "global": ["ld.global", "ld.volatile.global", *(f"ld.global.{c}" for c in ("nc", "ca", "cg", "cs", "lu", "cv"))],
    "shared": ["ld.shared", "ld.volatile.shared"],
    "local": ["ld.local"],
    "const": ["ld.const"],
    "param": ["ld.param"],
}
GENERIC_LOADS, GENERIC_STORES = ["ld", "ld.volatile"], ["st", "st.volatile"]
"""Run in the global, the shared and the local window."""
STORES = {
    "global": ["st.global", "st.volatile.global", *(f"st.global.{cache}" for cache in ("wb", "cg", "cs", "wt"))],
    "shared": ["st.shared", "st.volatile.shared"],
    "local": ["st.local"],
}


def forms() -> Iterator[tuple[str, int, str]]:
    """Type, registers and the kind of each: a vector's are as wide as its type, one alone may be wider."""
    for type_ in TYPES:
        size = int(type_[1:]) // 8
        least = max(size, 2)
        for kind, width in BYTES.items():
            if width >= least:
                yield type_, 1, kind
        yield type_, 2, KIND[least]
        if size < 8:
            yield type_, 4, KIND[least]


def spelled(head: str, type_: str, count: int) -> str:
    return f"{head}.{type_}" if count == 1 else f"{head}.v{count}.{type_}"


def registers(kind: str, count: int) -> tuple[list[str], str]:
    names = [f"%{kind}{i}" for i in range(count)]
    return names, names[0] if count == 1 else "{" + ", ".join(names) + "}"


ADDRESSES = {
    "shared": "mov.u64 %at, s; mad.wide.u32 %at, %t, 32, %at;",
    "local": "mov.u64 %at, l;",
    "const": "mov.u64 %at, c; mad.wide.u32 %at, %t, 32, %at;",
    "param": "mov.b64 %at, p;",
}


def kernel(space: str, address: str, body: Sequence[str], generic: bool) -> str:
    """`address` puts into %at where the thread's bytes are in global memory."""
    constants = ", ".join(map(str, DATA))
    before = f".const .align 32 .b8 c[{len(DATA)}] = {{{constants}}};" if space == "const" else ""
    window = f"cvta.{space}.u64 %at, %at;" if generic and space != "global" else ""
    parameter = ", .param .align 32 .b8 p[32]" if space == "param" else ""
    own = {"shared": f".shared .align 32 .b8 s[{CELL * THREADS}];", "local": f".local .align 32 .b8 l[{CELL}];"}
    return (
        f".version 8.5\n.target sm_87\n.address_size 64\n{before}\n"
        f".visible .entry k(.param .u64 in, .param .u64 out{parameter})\n{{\n{own.get(space, '')}\n"
        ".reg .pred %odd; .reg .b16 %h<5>; .reg .b32 %t, %w<5>; .reg .b64 %in, %out, %first, %at, %d<5>, %s<4>;\n"
        "mov.u32 %t, %tid.x; and.b32 %w0, %t, 1; setp.ne.u32 %odd, %w0, 0; ld.param.u64 %first, [in];\n"
        "mad.wide.u32 %in, %t, 32, %first; ld.param.u64 %first, [out]; mad.wide.u32 %out, %t, 8, %first;\n"
        + ADDRESSES.get(space, address)
        + window
        + "\n"
        + "\n".join(body)
        + "\nret;\n}\n"
    )


Loaded = tuple[str, str, int, str, int]
"""A loaded register: the text, its type, which of the vector's, its kind, and its cell for all lanes."""


def load_kernel(space: str, heads: Sequence[str], generic: bool = False) -> tuple[str, list[Loaded]]:
    body, told, cell = [], [], 0
    if space in ("shared", "local"):
        fill = "ld.global.v2.u64 {%s0, %s1}, [%in]; ld.global.v2.u64 {%s2, %s3}, [%in+16];"
        where = "st" if generic else f"st.{space}"
        body.append(f"{fill} {where}.v2.u64 [%at], {{%s0, %s1}}; {where}.v2.u64 [%at+16], {{%s2, %s3}};")
    for head in heads:
        for type_, count, kind in forms():
            names, listed = registers(kind, count)
            text = spelled(head, type_, count)
            offset = 16 if type_[0] == "s" else 0  # the second half for some
            for guard in ("", "@%odd "):
                if guard:
                    body += [f"mov.{KINDS[kind][0]} {name}, {UNTOUCHED};" for name in names]
                body.append(f"{guard}{text} {listed}, [%at+{offset}];")
                for i, name in enumerate(names):
                    body.append(f"st.global.{KINDS[kind][0]} [%out+{8 * THREADS * (cell + i)}], {name};")
                if not guard:
                    told += [(text, type_, i, kind, cell + i) for i in range(count)]
                cell += count
    return kernel(space, "mov.u64 %at, %in;", body, generic), told


def loaded(data: bytes, type_: str, which: int, kind: str) -> int:
    size = int(type_[1:]) // 8
    start = (16 if type_[0] == "s" else 0) + which * size
    value = int.from_bytes(data[start : start + size], "little", signed=type_[0] == "s")
    return value & ((1 << 8 * BYTES[kind]) - 1)


def check_loads(cuda: Cuda, space: str, heads: Sequence[str], generic: bool = False) -> None:
    ptx, told = load_kernel(space, heads, generic)
    counts = {}
    for text, _, which, kind, _ in told:
        counts[text, kind] = which + 1
    parameter = DATA[:CELL] if space == "param" else b""
    found = launch(cuda, ptx, DATA, 2 * len(told), parameter)
    wrong = []
    for text, type_, which, kind, cell in told:
        second = cell + counts[text, kind]
        for t in range(THREADS):
            data = DATA[:CELL] if space == "param" else DATA[CELL * t : CELL * (t + 1)]
            right = loaded(data, type_, which, kind)
            whole, some = found[cell * THREADS + t], found[second * THREADS + t]
            if whole != right or some != (right if t & 1 else UNTOUCHED):
                shown = f"{right:#x} is right, found {whole:#x}, {some:#x} under a guard"
                wrong.append(f"{text} into {kind}, part {which}: {shown}")
                break
    assert not wrong, "\n".join(wrong)


def check_stores(cuda: Cuda, space: str, heads: Sequence[str], generic: bool = False) -> None:
    """Each store into a cleared cell of 32 bytes, of which all are read back."""
    told: list[tuple[str, str, int, str, bool]] = []
    body = []
    body.append("ld.global.v2.u64 {%d0, %d1}, [%in]; ld.global.v2.u64 {%d2, %d3}, [%in+16];")
    where = "st" if generic else f"st.{space}"
    back = where.replace("st", "ld")
    for i in range(4):
        body.append(f"cvt.u32.u64 %w{i}, %d{i}; cvt.u16.u64 %h{i}, %d{i};")
    for head in heads:
        for type_, count, kind in forms():
            _, listed = registers(kind, count)
            text = spelled(head, type_, count)
            offset = 16 if type_[0] == "s" else 0
            for guard in ("", "@%odd "):
                body.append(f"{where}.v2.u64 [%at], {{0, 0}}; {where}.v2.u64 [%at+16], {{0, 0}};")
                body.append(f"{guard}{text} [%at+{offset}], {listed};")
                body.append(f"{back}.v2.u64 {{%s0, %s1}}, [%at]; {back}.v2.u64 {{%s2, %s3}}, [%at+16];")
                for i in range(4):
                    body.append(f"st.global.u64 [%out+{8 * THREADS * (4 * len(told) + i)}], %s{i};")
                told.append((text, type_, count, kind, bool(guard)))
    # in global memory the cells lie behind the results
    address = f"mad.wide.u32 %at, %t, 32, %first; add.u64 %at, %at, {CELL * THREADS * len(told)};"
    found = launch(cuda, kernel(space, address, body, generic), DATA, 4 * len(told) + 4)
    wrong = []
    for number, (text, type_, count, kind, guarded) in enumerate(told):
        size = int(type_[1:]) // 8
        start = 16 if type_[0] == "s" else 0
        for t in range(THREADS):
            right = bytearray(CELL)
            if not guarded or t & 1:
                for i in range(count):
                    at = CELL * t + 8 * i
                    right[start + size * i : start + size * (i + 1)] = DATA[at : at + size]
            words = [found[(4 * number + i) * THREADS + t] for i in range(4)]
            if b"".join(word.to_bytes(8, "little") for word in words) != right:
                wrong.append(f"{text} from {kind}{' under a guard' if guarded else ''}: {[f'{w:#x}' for w in words]}")
                break
    assert not wrong, "\n".join(wrong)


def loads(cuda: Cuda) -> None:
    for space, heads in LOADS.items():
        check_loads(cuda, space, heads)
    for space in ("global", "shared", "local"):
        check_loads(cuda, space, GENERIC_LOADS, generic=True)


def stores(cuda: Cuda) -> None:
    for space, heads in STORES.items():
        check_stores(cuda, space, heads)
    for space in ("global", "shared", "local"):
        check_stores(cuda, space, GENERIC_STORES, generic=True)


CHECKS = [loads, stores]
