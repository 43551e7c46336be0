"""cp.async: PTX ISA 8.5, under its name and those that begin with it. Sizes, zeros behind a shorter source, groups."""

from __future__ import annotations

from driver_calls import Cuda

from isa.batch import THREADS, launch
from isa.memory import CELL, DATA

SIZES = {"ca": (4, 8, 16), "cg": (16,)}
FORMS = [(cache, prefetch, size) for cache in SIZES for prefetch in ("", ".L2::128B") for size in SIZES[cache]]


def copies(cuda: Cuda) -> None:
    """Each copy into 16 bytes of ones; then all of them are read."""
    body: list[str] = []
    told: list[tuple[str, int, int]] = []

    def one(instruction: str, right_size: int, zeros: int, wait: str) -> None:
        body.append(f"st.shared.v2.u64 [%at], {{-1, -1}}; {instruction}; {wait};")
        body.append("ld.shared.v2.u64 {%d0, %d1}, [%at];")
        for i in range(2):
            body.append(f"st.global.u64 [%out+{8 * THREADS * (2 * len(told) + i)}], %d{i};")
        told.append((instruction, right_size, zeros))

    waits = ["cp.async.wait_all", "cp.async.commit_group; cp.async.wait_group 0"]
    for number, (cache, prefetch, size) in enumerate(FORMS):
        name = f"cp.async.{cache}.shared.global{prefetch}"
        one(f"{name} [%at], [%in], {size}", size, 0, waits[number % 2])
        for length in (0, 1, size // 2, size):
            one(f"mov.u32 %w1, {length}; {name} [%at], [%in], {size}, %w1", length, size - length, waits[length % 2])
    # two groups: when all but one are waited for, the older is there
    one(
        "cp.async.ca.shared.global [%at], [%in], 4; cp.async.commit_group; "
        "cp.async.ca.shared.global [%at+2048], [%in], 4; cp.async.commit_group",
        4,
        0,
        "cp.async.wait_group 1",
    )
    ptx = (
        ".version 8.5\n.target sm_87\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n"
        f".shared .align 16 .b8 s[{32 * THREADS}];\n"
        ".reg .b32 %t, %w<2>; .reg .b64 %in, %out, %at, %d<2>;\n"
        "mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; mad.wide.u32 %in, %t, 32, %in;\n"
        "ld.param.u64 %out, [out]; mad.wide.u32 %out, %t, 8, %out; mov.u64 %at, s; mad.wide.u32 %at, %t, 16, %at;\n"
        + "\n".join(body) + "\ncp.async.wait_all;\nret; }\n"
    )
    found = launch(cuda, ptx, DATA, 2 * len(told))
    for number, (instruction, size, zeros) in enumerate(told):
        for t in range(THREADS):
            right = DATA[CELL * t : CELL * t + size] + bytes(zeros) + b"\xff" * (16 - size - zeros)
            words = [found[(2 * number + i) * THREADS + t] for i in range(2)]
            assert b"".join(word.to_bytes(8, "little") for word in words) == right, instruction


CHECKS = [copies]
