"""Many instructions in one launch: each with rows of operands, a thread a row, once by all lanes and once by some.

Operands and results are bits: ints of 16 ("h"), 32 ("w") or 64 ("d") bits, or 0 / 1 for a predicate ("p").
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driver_calls import Address, Cuda

THREADS = 128
"""Four warps: what is written in one lane's place of another warp is seen."""
UNTOUCHED = 7
"""In the result's register of the lanes that a guard leaves out."""
CELL = "Q"
KINDS = {"h": ("u16", 16), "w": ("u32", 32), "d": ("u64", 64), "p": ("u32", 1)}
Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Case:
    """`text` has a place {0} for the result and {1}.. for the operands; without any it is a mnemonic.

    `right` gives the result of a row's operands, and `agree`, where there is one, whether the found result (first) will
    do for the right one.
    """

    text: str
    result: str
    operands: str
    rows: Rows
    right: Callable[..., int]
    agree: Callable[[int, int], bool] | None = None

    @property
    def instruction(self) -> str:
        places = "" if "{0}" in self.text else " {0}" + "".join(f", {{{i + 1}}}" for i in range(len(self.operands)))
        return self.text + places


def written(text: str, result: str, operands: str, rows: Rows) -> Case:
    """A case whose rows end with the right result, written down by hand."""
    answers = {tuple(row[:-1]): row[-1] for row in rows}
    return Case(text, result, operands, [row[:-1] for row in rows], lambda *row: answers[row])


def mixed(text: str, pools: Sequence[Sequence[int]], kinds: str, count: int = THREADS) -> list[tuple[int, ...]]:
    """Rows of numbers out of the pools, a third of them random bits: the same rows for the same text."""
    numbers = random.Random(text)

    def one(pool: Sequence[int], kind: str) -> int:
        return numbers.choice(pool) if numbers.random() < 0.7 else numbers.getrandbits(KINDS[kind][1])

    return [tuple(one(pool, kind) for pool, kind in zip(pools, kinds, strict=True)) for _ in range(count)]


def register(kind: str, number: int) -> str:
    return f"%{kind}{number}"


def kernel(cases: Sequence[Case]) -> str:
    """PTX of a kernel that runs all cases, each a second time by the odd lanes only."""
    body, source, target = [], 0, 0
    for case in cases:
        names = [register(kind, i + 1) for i, kind in enumerate(case.operands)]
        for name, kind in zip(names, case.operands, strict=True):
            loaded = "%s" if kind == "p" else name
            body.append(f"ld.global.{KINDS[kind][0]} {loaded}, [%in+{source}];")
            if kind == "p":
                body.append(f"setp.ne.u32 {name}, %s, 0;")
            source += 8 * THREADS
        to = register(case.result, 0)
        instruction = case.instruction.format(to, *names)
        move = "setp.ne.u32" if case.result == "p" else f"mov.{KINDS[case.result][0]}"
        cleared = "0, 0" if case.result == "p" else str(UNTOUCHED)
        stored, value = (f"selp.u32 %s, 1, 0, {to};", "%s") if case.result == "p" else ("", to)
        for before, guard in (("", ""), (f"{move} {to}, {cleared};", "@%odd ")):
            last = instruction.rsplit(";", 1)
            guarded = "; ".join([*last[:-1], guard + last[-1].strip()])
            body.append(f"{before} {guarded}; {stored} st.global.{KINDS[case.result][0]} [%out+{target}], {value};")
            target += 8 * THREADS
    registers = " ".join(f".reg .{t} %{k}<10>;" for k, t in zip("phwd", ("pred", "b16", "b32", "b64"), strict=True))
    return (
        ".version 8.5\n.target sm_87\n.address_size 64\n"
        f".visible .entry k(.param .u64 in, .param .u64 out)\n{{\n{registers}\n"
        ".reg .pred %odd; .reg .b32 %t, %s; .reg .b64 %in, %out;\n"
        "mov.u32 %t, %tid.x; and.b32 %s, %t, 1; setp.ne.u32 %odd, %s, 0;\n"
        "ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n"
        "mad.wide.u32 %in, %t, 8, %in; mad.wide.u32 %out, %t, 8, %out;\n" + "\n".join(body) + "\nret;\n}\n"
    )


def launch(cuda: Cuda, ptx: str, source: bytes, results: int, parameter: bytes = b"") -> list[int]:
    """The cells that the kernel `k` leaves: `results` times THREADS of them. `parameter`: a third one, by value."""
    module, size = cuda.module(ptx), 8 * THREADS * results
    into, out = cuda.allocate(max(len(source), 8)), cuda.allocate(size)
    cuda.write(into, source or bytes(8))
    cuda.write(out, bytes(size))
    # by value: 32 bytes, aligned to them
    more = [Address(0), Address(0), *map(Address, struct.unpack("4Q", parameter))] if parameter else []
    cuda.run(cuda.function(module, "k"), into, out, *more, block=(THREADS, 1, 1))
    found = list(struct.unpack(f"{results * THREADS}{CELL}", cuda.read(out, size)))
    for address in (into, out):
        cuda.check("cuMemFree_v2", address)
    cuda.check("cuModuleUnload", module)
    return found


def check(cuda: Cuda, cases: Sequence[Case]) -> None:
    """Runs them all; AssertionError lists each instruction that gave something wrong, with the first such row."""
    source, rows = [], []
    for case in cases:
        repeated = [case.rows[i % len(case.rows)] for i in range(THREADS)]
        rows.append(repeated)
        for i in range(len(case.operands)):
            source.append(struct.pack(f"{THREADS}{CELL}", *(row[i] for row in repeated)))
    found = launch(cuda, kernel(cases), b"".join(source), 2 * len(cases))
    wrong = []
    for number, (case, given) in enumerate(zip(cases, rows, strict=True)):
        answers = {tuple(row): case.right(*row) for row in given}
        at = 2 * number * THREADS
        for t, row in enumerate(given):
            right, whole, some = answers[tuple(row)], found[at + t], found[at + THREADS + t]
            untouched = 0 if case.result == "p" else UNTOUCHED
            fits = case.agree or (lambda one, other: one == other)
            if not fits(whole, right) or (not fits(some, right) if t & 1 else some != untouched):
                shown = ", ".join(hex(value) for value in row)
                wrong.append(f"{case.text} of {shown}: {right:#x} is right, found {whole:#x}, {some:#x} under a guard")
                break
    assert not wrong, "\n".join(wrong)
