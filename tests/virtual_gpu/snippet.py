"""One PTX instruction over rows of operands: what the tests of the instruction handlers call.

Operands are bits: ints of 16 ("h"), 32 ("w") or 64 ("d") bits, or 0 / 1 for a predicate ("p"). A thread a row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from driver_calls import Cuda

MEMORY = {"h": ("u16", "H"), "w": ("u32", "I"), "d": ("u64", "Q"), "p": ("u32", "I")}
REGISTER = {"h": "%h", "w": "%w", "d": "%d", "p": "%p"}


def kernel(instruction: str, result: str, operands: str) -> str:
    """PTX of a kernel that loads its operands, executes `instruction` and stores the result.

    `instruction` has a place {0} for the result and {1}.. for the operands; without any it is a mnemonic.
    """
    if "{0}" not in instruction:
        instruction += " {0}" + "".join(f", {{{i + 1}}}" for i in range(len(operands)))
    names = [f"{REGISTER[kind]}{i + 1}" for i, kind in enumerate(operands)]
    body = []
    for i, kind in enumerate(operands):
        memory, code = MEMORY[kind]
        body.append(f"ld.param.u64 %a, [in{i}]; mad.wide.u32 %a, %t, {struct.calcsize(code)}, %a;")
        if kind == "p":
            body.append(f"ld.global.u32 %s, [%a]; setp.ne.u32 {names[i]}, %s, 0;")
        else:
            body.append(f"ld.global.{memory} {names[i]}, [%a];")
    target = f"{REGISTER[result]}0"
    body.append(instruction.format(target, *names) + ";")
    memory, code = MEMORY[result]
    body.append(f"ld.param.u64 %a, [out]; mad.wide.u32 %a, %t, {struct.calcsize(code)}, %a;")
    if result == "p":
        body.append(f"selp.u32 %s, 1, 0, {target}; st.global.u32 [%a], %s;")
    else:
        body.append(f"st.global.{memory} [%a], {target};")
    parameters = ", ".join(f".param .u64 {name}" for name in (*(f"in{i}" for i in range(len(operands))), "out"))
    return (
        ".version 8.5\n.target sm_87\n.address_size 64\n"
        f".visible .entry k({parameters})\n{{\n"
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %w<9>, %t, %s; .reg .b64 %d<9>, %a;\n"
        "mov.u32 %t, %tid.x;\n" + "\n".join(body) + "\nret;\n}\n"
    )


def run(cuda: Cuda, instruction: str, result: str, operands: str, rows: Sequence[Sequence[int]]) -> list[int]:
    """The result's bits for each row of operands (at most 1,024 rows)."""
    module = cuda.module(kernel(instruction, result, operands))
    inputs = []
    for i, kind in enumerate(operands):
        data = struct.pack(f"{len(rows)}{MEMORY[kind][1]}", *(row[i] for row in rows))
        address = cuda.allocate(len(data))
        cuda.write(address, data)
        inputs.append(address)
    code = MEMORY[result][1]
    size = struct.calcsize(code) * len(rows)
    out = cuda.allocate(size)
    cuda.run(cuda.function(module, "k"), *inputs, out, block=(len(rows), 1, 1))
    found = list(struct.unpack(f"{len(rows)}{code}", cuda.read(out, size)))
    for address in (*inputs, out):
        cuda.check("cuMemFree_v2", address)
    cuda.check("cuModuleUnload", module)
    return found
