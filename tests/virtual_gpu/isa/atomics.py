"""atom and red: PTX ISA 8.5, under these names. Each thread has a word of its own; what it held, what it holds.

That many threads share a word is another test's (test_machine_memory.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from driver_calls import Cuda

from isa.batch import KINDS, THREADS, UNTOUCHED, launch, mixed
from isa.exact import F16, F32, F64, Format, add, decode, encode
from isa.floats import any_nan
from isa.floats import pool as real_pool
from isa.integers import WIDTH, cut, number, pool

Change = Callable[[int, int], int]


@dataclass(frozen=True)
class Operation:
    name: str
    kind: str
    change: Change
    pool: list[int]
    real: Format | None = None


def total(form: Format, ftz: bool = False) -> Change:
    return lambda old, b: encode(form, add(decode(form, old, ftz), decode(form, b, ftz)), "rn", ftz)


def two_halves(old: int, b: int) -> int:
    one = total(F16)
    return one(old >> 16, b >> 16) << 16 | one(old & 0xFFFF, b & 0xFFFF)


def operations(shared: bool) -> list[Operation]:
    """add.f32 flushes subnormal numbers in global memory and keeps them in shared memory."""
    found = [
        Operation("add.f32", "w", total(F32, ftz=not shared), real_pool(F32), F32),
        Operation("add.f64", "d", total(F64), real_pool(F64), F64),
        Operation("add.noftz.f16", "h", total(F16), real_pool(F16), F16),
        Operation("add.noftz.f16x2", "w", two_halves, [h << 16 | h ^ 0x8001 for h in real_pool(F16)]),
        Operation("inc.u32", "w", lambda old, b: 0 if old >= b else old + 1, pool("w")),
        Operation("dec.u32", "w", lambda old, b: b if old == 0 or old > b else old - 1, pool("w")),
    ]
    for kind in "wd":
        bits = WIDTH[kind]
        for type_ in (f"u{bits}", *(("s32",) if bits == 32 else ())):
            found.append(Operation(f"add.{type_}", kind, lambda old, b, k=kind: cut(old + b, k), pool(kind)))
        bitwise: dict[str, Change] = {
            "and": lambda old, b: old & b,
            "or": lambda old, b: old | b,
            "xor": lambda old, b: old ^ b,
            "exch": lambda old, b: b,
        }
        found += [Operation(f"{name}.b{bits}", kind, change, pool(kind)) for name, change in bitwise.items()]
        for sign in "us":

            def least(old: int, b: int, bits: int = bits, signed: bool = sign == "s") -> int:
                return min(old, b, key=lambda value: number(value, bits, signed))

            def most(old: int, b: int, bits: int = bits, signed: bool = sign == "s") -> int:
                return max(old, b, key=lambda value: number(value, bits, signed))

            found += [Operation(f"min.{sign}{bits}", kind, least, pool(kind))]
            found += [Operation(f"max.{sign}{bits}", kind, most, pool(kind))]
    return found


def check_space(cuda: Cuda, heads: list[str], shared: bool) -> None:
    """`heads`: what stands between atom and the operation."""
    body, source, told, cell = [], [], [], 0

    def one(text: str, kind: str, rows: list[tuple[int, ...]], change: Callable[..., int], real: Format | None) -> None:
        """The rows hold what is in memory and the operands; guarded, the even lanes leave their word alone."""
        nonlocal cell
        count = len(rows[0]) - 1
        width = KINDS[kind][0]
        for i in range(count + 1):
            body.append(f"ld.global.{width} %{kind}{i}, [%in+{8 * THREADS * (len(source) + i)}];")
        source.extend(struct.pack(f"{THREADS}Q", *(row[i] for row in rows)) for i in range(count + 1))
        operands = ", ".join(f"%{kind}{i + 1}" for i in range(count))
        returns = text.startswith("atom")
        for guard in ("", "@%odd "):
            at = "%at" if shared else f"%out+{8 * THREADS * cell}"
            space = ".shared" if ".shared" in text else ""
            body.append(f"st{space}.{width} [{at}], %{kind}0; mov.{width} %{kind}9, {UNTOUCHED};")
            body.append(f"{guard}{text} {f'%{kind}9, ' if returns else ''}[{at}], {operands};")
            if shared:
                held = f"%out+{8 * THREADS * cell}"
                body.append(f"ld.{width} %{kind}8, [%generic]; st.global.{width} [{held}], %{kind}8;")
            body.append(f"st.global.{width} [%out+{8 * THREADS * (cell + 1)}], %{kind}9;")
            told.append((text, rows, change, bool(guard), returns, real, cell))
            cell += 2

    for head in heads:
        for operation in operations(shared):
            kind = operation.kind
            for mnemonic in ("atom", "red"):
                if mnemonic == "red" and operation.name.startswith("exch"):
                    continue
                text = f"{mnemonic}{head}.{operation.name}"
                rows = mixed(text, [operation.pool] * 2, kind * 2, THREADS)
                one(text, kind, rows, operation.change, operation.real)
        for kind, bits in WIDTH.items():
            text = f"atom{head}.cas.b{bits}"
            rows = mixed(text, [pool(kind)] * 3, kind * 3, THREADS)
            rows = [row if i & 2 else (row[0], row[0], row[2]) for i, row in enumerate(rows)]  # half of them swap
            one(text, kind, rows, lambda old, b, c: c if old == b else old, None)
    window = "mov.u64 %at, s; mad.wide.u32 %at, %t, 8, %at; cvta.shared.u64 %generic, %at;" if shared else ""
    if shared and ".shared" not in heads[0]:
        window += "mov.u64 %at, %generic;"
    ptx = (
        ".version 8.5\n.target sm_87\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n"
        f"{f'.shared .align 8 .b8 s[{8 * THREADS}];' if shared else ''}\n"
        ".reg .pred %odd; .reg .b16 %h<10>; .reg .b32 %t, %s, %w<10>; .reg .b64 %in, %out, %at, %generic, %d<10>;\n"
        "mov.u32 %t, %tid.x; and.b32 %s, %t, 1; setp.ne.u32 %odd, %s, 0; ld.param.u64 %in, [in];\n"
        "mad.wide.u32 %in, %t, 8, %in; ld.param.u64 %out, [out]; mad.wide.u32 %out, %t, 8, %out;\n"
        + window + "\n".join(body) + "\nret; }\n"
    )
    found = launch(cuda, ptx, b"".join(source), cell)
    wrong = []
    for text, rows, change, guarded, returns, real, cell in told:
        for t, (old, *operands) in enumerate(rows):
            acts = not guarded or t & 1
            right = change(old, *operands) if acts else old
            held, returned = found[cell * THREADS + t], found[(cell + 1) * THREADS + t]
            fits = any_nan(real) if real is F64 else lambda one, other: one == other
            if not fits(held, right) or returned != (old if acts and returns else UNTOUCHED):
                given = ", ".join(hex(value) for value in (old, *operands))
                wrong.append(f"{text} of {given}: {right:#x} is right, {held:#x} is there, {returned:#x} came back")
                break
    assert not wrong, "\n".join(wrong)


SCOPES = ("", ".cta", ".sys")


def atomics(cuda: Cuda) -> None:
    check_space(cuda, [f".global{scope}" for scope in SCOPES], shared=False)
    check_space(cuda, list(SCOPES), shared=False)
    check_space(cuda, [f".shared{scope}" for scope in SCOPES], shared=True)
    check_space(cuda, list(SCOPES), shared=True)


CHECKS = [atomics]
