"""One faulty kernel in a process of its own: `fault_codes.py LIBRARY NAME`. Prints the result codes that follow.

Started by test_fault_codes.py: a fault spoils the process, so each needs another. Printed are the codes of the
synchronisation after the launch, of an allocation and of a copy after that, and of creating another context.
"""

from __future__ import annotations

import sys
from ctypes import byref, c_uint64
from pathlib import Path

from driver_calls import Cuda
from driver_ptx import HEADER

ASSERT = """
.extern .func __assertfail
(.param .b64 p0, .param .b64 p1, .param .b32 p2, .param .b64 p3, .param .b64 p4);
.global .align 1 .b8 text[4] = {119, 104, 121, 0};
"""
CALL = """
    mov.u64 %rd1, text;
    cvta.global.u64 %rd1, %rd1;
    { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], 7; st.param.b64 [d], %rd1; st.param.b64 [e], 1;
    call.uni __assertfail, (a, b, c, d, e); }"""
BODIES = {
    "store to an address that nobody has": ("", "mov.u64 %rd1, 4096; st.global.u32 [%rd1], 1;"),
    "load from an address that nobody has": (
        "",
        "mov.u64 %rd1, 4096; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd2], %r1;",
    ),
    "misaligned load": ("", "ld.global.u32 %r1, [%rd2+1]; st.global.u32 [%rd2], %r1;"),
    "misaligned store": ("", "st.global.u32 [%rd2+2], 1;"),
    "store far outside of shared memory": ("", "mov.u32 %r1, 0xffff00; st.shared.u32 [%r1], 1;"),
    "trap": ("", "trap;"),
    "assert": (ASSERT, CALL),
}


def main(library: str, name: str) -> None:
    before, body = BODIES[name]
    ptx = (
        f"{HEADER}{before}.visible .entry k(.param .u64 out)\n{{\n.reg .b32 %r<3>; .reg .b64 %rd<3>;\n"
        f"ld.param.u64 %rd2, [out];\n{body}\nret;\n}}\n"
    )
    cuda = Cuda(Path(library)).initialise()
    cuda.create_context()
    out = cuda.allocate(64)
    function = cuda.function(cuda.module(ptx), "k")
    codes = [cuda.launch(function, out, block=(1, 1, 1)) or cuda.call("cuCtxSynchronize")]
    codes.append(cuda.call("cuMemAlloc_v2", byref(c_uint64()), 64))
    codes.append(cuda.call("cuMemcpyDtoD_v2", out, out + 32, 4))
    codes.append(cuda.call("cuCtxCreate_v2", byref(c_uint64()), 0, 0))
    print(*codes)


if __name__ == "__main__":
    main(*sys.argv[1:])
