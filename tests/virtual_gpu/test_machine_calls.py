"""Functions that call themselves are refused when a module is loaded: their variables have one place a thread."""

from __future__ import annotations

import pytest
from driver_calls import Cuda, CudaError
from ptx_kernel import module, words

INVALID_PTX = 218


def function(name: str, callee: str | None) -> str:
    """A function that halves its argument until it is 0, by calling `callee`."""
    call = f"{{ .param .b32 x, y; st.param.b32 [x], %w; call.uni (y), {callee}, (x); ld.param.b32 %w, [y]; }}"
    return (
        f".func (.param .b32 r) {name}(.param .b32 a) {{ .reg .b32 %w; ld.param.u32 %w, [a]; shr.u32 %w, %w, 1;\n"
        f"{call if callee else ''} st.param.b32 [r], %w; ret; }}\n"
    )


def calling(name: str) -> str:
    return (
        f"{{ .param .b32 x; .param .b32 y; st.param.b32 [x], %t; call.uni (y), {name}, (x); ld.param.b32 %w1, [y]; }}"
        "st.global.u32 [%o], %w1;"
    )


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("callees", "said"),
    [
        ({"a": "a"}, "a calls a: "),
        ({"a": "b", "b": "a"}, "b calls a, which calls b: "),
        ({"a": "b", "b": "c", "c": "b"}, "c calls b, which calls c: "),
    ],
)
def test_recursion_is_refused(cuda: Cuda, callees: dict[str, str], said: str) -> None:
    prototypes = "".join(f".func (.param .b32 r) {name}(.param .b32 a);\n" for name in callees)
    before = prototypes + "".join(function(name, callee) for name, callee in callees.items())
    with pytest.raises(CudaError) as raised:
        cuda.module(module(calling("a"), before=before))
    assert raised.value.code == INVALID_PTX
    assert said in cuda.last_fault() and "call themselves" in cuda.last_fault() and "PTX line" in cuda.last_fault()


def test_a_function_called_on_two_ways_is_no_recursion(cuda_for_kernels: Cuda) -> None:
    before = function("c", None) + function("b", "c") + function("a", "b")
    body = calling("a").replace("st.global", "add.u32 %t, %w1, 64; st.global") + calling("c")
    assert words(cuda_for_kernels, module(body, before=before), 64) == [(t // 8 + 64) // 2 for t in range(64)]
