"""PTX text around the instructions: literals, parameters that say where they point, blocks of a required shape."""

from __future__ import annotations

import struct
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import pytest
from driver_calls import Cuda, CudaError
from driver_ptx import HEADER
from ptx_kernel import module, words

INVALID_VALUE, INVALID_PTX = 1, 218


def single(value: float) -> int:
    return int(struct.unpack("I", struct.pack("f", value))[0])


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("mov.f32 %f1, 1.5;", 1.5),
        ("mov.f32 %f1, -0.1;", -0.1),
        ("mov.f32 %f1, 0d3FB999999999999A;", 0.1),
        ("mov.f32 %f1, 0f3FC00000;", 1.5),
        ("mov.f32 %f1, 0f3F800000; fma.rn.f32 %f1, %f1, 2.5, 1.e1;", 12.5),
        ("ld.global.f32 %f1, [g];", 0.1),
        ("mov.f64 %d1, 0.1; cvt.rn.f32.f64 %f1, %d1;", 0.1),
    ],
)
def test_a_decimal_literal_takes_the_type_of_where_it_stands(cuda_for_kernels: Cuda, body: str, value: float) -> None:
    ptx = module(body + "st.global.f32 [%o], %f1;", before=".global .align 4 .f32 g = 0.1;")
    assert words(cuda_for_kernels, ptx, 1) == [single(value)]


@pytest.mark.virtual  # the words are this machine's
def test_a_decimal_literal_is_no_integer(cuda: Cuda) -> None:
    with pytest.raises(CudaError) as raised:
        cuda.module(module("mov.u32 %w1, 1.5;"))
    assert raised.value.code == INVALID_PTX and "'1.5' does not fit" in cuda.last_fault()


def test_a_parameter_may_say_where_it_points(cuda_for_kernels: Cuda) -> None:
    cuda = cuda_for_kernels
    ptx = HEADER + (
        ".visible .entry k(.param .u32 n, .param .u64 .ptr .global .align 16 p, .param .u64 .ptr .align 1 q)\n{\n"
        ".reg .b64 %d<3>; .reg .b32 %w; ld.param.u32 %w, [n]; ld.param.u64 %d1, [p]; ld.param.u64 %d2, [q];\n"
        "st.global.u32 [%d1], %w; st.global.u32 [%d2], %w; ret;\n}"
    )
    out = cuda.allocate(8)
    cuda.run(cuda.function(cuda.module(ptx), "k"), 7, out, out + 4)
    assert cuda.words(out, 2) == [7, 7]


def test_a_block_of_another_shape_than_required_is_refused(cuda: Cuda) -> None:
    function = cuda.function(cuda.module(HEADER + ".visible .entry k()\n.reqntid 8, 4\n{ ret; }"), "k")
    assert cuda.launch(function, block=(8, 4, 1)) == 0
    for block in ((4, 8, 1), (32, 1, 1), (8, 2, 1), (1, 1, 1)):
        assert cuda.launch(function, block=block) == INVALID_VALUE
    cuda.check("cuCtxSynchronize")


def test_a_variable_of_a_module_is_device_memory(cuda: Cuda) -> None:
    loaded = cuda.module(HEADER + ".global .align 4 .u32 g[4]; .visible .entry k() { ret; }")
    address, size = c_uint64(), c_size_t()
    cuda.check("cuModuleGetGlobal_v2", byref(address), byref(size), loaded, b"g")
    at = address.value + 4
    context = c_void_p()
    cuda.check("cuCtxGetCurrent", byref(context))
    device = 2
    assert cuda.get("cuPointerGetAttribute", 2, at, kind=c_int) == device
    assert cuda.get("cuPointerGetAttribute", 1, at) == context.value
    assert cuda.get("cuPointerGetAttribute", 12, at) >= size.value
    ids = {cuda.get("cuPointerGetAttribute", 7, p) for p in (at, cuda.allocate(4), cuda.allocate(4))}
    assert len(ids) == 3
    assert cuda.call("cuMemFree_v2", address.value) == INVALID_VALUE, "it is the module's"
    cuda.check("cuModuleUnload", loaded)
    assert cuda.call("cuPointerGetAttribute", byref(c_int()), 2, at) == INVALID_VALUE
