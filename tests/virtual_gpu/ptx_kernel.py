"""Small kernels in PTX and what they leave: for the tests of the machine that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driver_calls import Cuda, CudaError

Fresh = Callable[..., Cuda]
ILLEGAL_ADDRESS, MISALIGNED, LAUNCH_FAILED, TIMEOUT = 700, 716, 719, 702


def module(body: str, parameters: Sequence[str] = ("out",), before: str = "", shared: int = 0) -> str:
    """A kernel `k` of 64-bit parameters; %t is the thread, %o the address of its 32-bit word of the first parameter."""
    listed = ", ".join(f".param .u64 {name}" for name in parameters)
    variable = f".shared .align 16 .b8 s[{shared}];" if shared else ""
    return (
        f".version 8.5\n.target sm_87\n.address_size 64\n{before}\n.visible .entry k({listed})\n{{\n{variable}\n"
        ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %w<40>, %t; .reg .f32 %f<9>; .reg .b64 %d<9>, %o;\n"
        f"mov.u32 %t, %tid.x; ld.param.u64 %o, [{parameters[0]}]; mad.wide.u32 %o, %t, 4, %o;\n{body}\nret;\n}}\n"
    )


def words(cuda: Cuda, ptx: str, count: int, *inputs: bytes, grid: int = 1, shared: int = 0) -> list[int]:
    """The words that `count` threads a block leave in the output; further parameters are buffers of these bytes."""
    out = cuda.allocate(4 * count * grid)
    cuda.write(out, bytes(4 * count * grid))
    addresses = []
    for data in inputs:
        addresses.append(cuda.allocate(len(data)))
        cuda.write(addresses[-1], data)
    function = cuda.function(cuda.module(ptx), "k")
    cuda.run(function, out, *addresses, grid=(grid, 1, 1), block=(count, 1, 1), shared=shared)
    return cuda.words(out, count * grid)


def fault(cuda: Cuda, ptx: str, count: int, *inputs: bytes, **options: Any) -> tuple[int, str]:
    """The code and the text of the fault that a launch ends with; the instance is of no use afterwards."""
    with pytest.raises(CudaError) as raised:
        words(cuda, ptx, count, *inputs, **options)
    return raised.value.code, cuda.last_fault()
