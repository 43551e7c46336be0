"""Modules and launches: what is refused, with the code and log of the real driver, and what is passed on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

import pytest
from driver_calls import REAL, Address, Cuda, Fresh, packed
from driver_ptx import HEADER, KERNELS

INVALID_VALUE, INVALID_IMAGE, NO_BINARY, INVALID_PTX, UNSUPPORTED_VERSION = 1, 200, 209, 218, 222
FILE_NOT_FOUND, INVALID_HANDLE, NOT_FOUND, OUT_OF_RESOURCES, NOT_SUPPORTED = 301, 400, 500, 701, 801
LOG, LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE = 3, 4, 5, 6
MAX_THREADS, STATIC_SHARED, MAX_DYNAMIC = 0, 1, 8
OPT_IN_SHARED = 97  # of the device
Kernels = Callable[[str], int]
SHARED = (
    HEADER
    + """
.visible .entry with_shared()
{
    .shared .align 4 .b8 buffer[1024];
    .reg .b32 %r<2>;
    mov.u32 %r1, buffer;
    st.shared.u32 [%r1], %r1;
    ret;
}
"""
)
UNKNOWN_INSTRUCTION = HEADER + ".visible .entry bad()\n{\n    .reg .b32 %r<3>;\n    bogus.instruction.u32 %r1;\n}\n"


def newer_ptx(cuda: Cuda) -> str:
    """A PTX version that this driver cannot know: the next major one. CUDA 12 came with PTX 8, CUDA 13 with PTX 9."""
    return f"{cuda.get('cuDriverGetVersion', kind=c_int) // 1000 - 3}.0"


def refusal(cuda: Cuda, image: bytes) -> tuple[int, str]:
    """The code of a module that is refused, and its error log."""
    logs = [ctypes.create_string_buffer(b"\xff" * 512, 512) for _ in range(2)]
    options = (c_int * 4)(LOG, LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE)
    values = (c_void_p * 4)(ctypes.addressof(logs[0]), 512, ctypes.addressof(logs[1]), 512)
    image += bytes(64)  # an image has no length
    code = cuda.call("cuModuleLoadDataEx", byref(c_uint64()), c_char_p(image), 4, options, values)
    assert (values[1] or 0, logs[0].value) == (0, b""), "sizes are written back, buffers end with a NUL"
    assert (values[3] or 0) == len(logs[1].value)
    return code, logs[1].value.decode()


@pytest.mark.parametrize(
    "image",
    [b"\x7fELF", b"\x50\xed\x55\xba", b"\x01\x02\x03\x04", b"hello"],
    ids=["ELF", "fat binary", "binary", "text"],
)
def test_what_is_no_image_is_refused(cuda: Cuda, image: bytes) -> None:
    code, log = refusal(cuda, image)
    assert code == INVALID_IMAGE
    if image == b"\x01\x02\x03\x04" or not REAL:
        assert log == "error   : Binary format for key='0', ident='' is not recognized"


def test_a_refused_instruction_is_named_with_its_line(cuda: Cuda) -> None:
    code, log = refusal(cuda, UNKNOWN_INSTRUCTION.encode())
    assert code == INVALID_PTX
    assert log.startswith("ptxas application ptx input, line 7; error   : ") and "bogus" in log
    assert log.endswith("\nptxas fatal   : Ptx assembly aborted due to errors")
    if not REAL:
        assert "bogus.instruction.u32" in cuda.last_fault()


def test_ptx_that_is_too_new_is_refused(cuda: Cuda) -> None:
    version = newer_ptx(cuda)
    code, log = refusal(cuda, KERNELS.replace(".version 8.5", f".version {version}").encode())
    assert code == UNSUPPORTED_VERSION
    assert f"line 1; fatal   : Unsupported .version {version}; current version is " in log


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("image", "says"),
    [
        (b"\x7fELF\x02" + bytes(13) + b"\xbe\0", "cubin"),
        (b"\x50\xed\x55\xba\x01\0\x10\0", "fat binary"),
        (b"\xb1\x43\x62\x46\x01\0\0\0", "fat binary"),
    ],
    ids=["cubin", "fat binary", "its wrapper"],
)
def test_a_compiled_image_is_for_another_gpu(cuda: Cuda, image: bytes, says: str) -> None:
    """As a real driver says of a cubin for another architecture: the executor then lets it compile PTX."""
    code, log = refusal(cuda, image)
    assert code == NO_BINARY and says in log


def test_a_log_is_cut_to_its_buffer(cuda: Cuda) -> None:
    log, image = ctypes.create_string_buffer(b"\xff" * 16, 16), c_char_p(b"\x01\x02\x03\x04")
    options, values = (c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE), (c_void_p * 2)(ctypes.addressof(log), 8)
    assert cuda.call("cuModuleLoadDataEx", byref(c_uint64()), image, 2, options, values) == INVALID_IMAGE
    assert values[1] == 7 and log.raw[7:] == b"\0" + b"\xff" * 8


@pytest.mark.virtual
def test_the_linker_says_in_its_log_that_there_is_none(cuda: Cuda) -> None:
    log = ctypes.create_string_buffer(b"\xff" * 128, 128)
    options, values = (c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE), (c_void_p * 2)(ctypes.addressof(log), 128)
    assert cuda.call("cuLinkCreate_v2", 2, options, values, byref(c_uint64())) == NOT_SUPPORTED
    assert b"does not link" in log.value and values[1] == len(log.value)


@pytest.mark.virtual
def test_too_many_registers_for_the_block(cuda: Cuda) -> None:
    """100 values alive at once in 1024 threads are more than the 65,536 registers of a multiprocessor.

    A real driver compiles for fewer, in another order or with some of them in local memory.
    """
    lines = [f"    ld.global.u32 %r{i}, [%rd2+{4 * i}];" for i in range(100)]
    lines += [f"    add.s32 %r0, %r0, %r{i};" for i in range(1, 100)]
    body = "    ld.param.u64 %rd1, [wide_at];\n    cvta.to.global.u64 %rd2, %rd1;\n" + "\n".join(lines)
    registers = "    .reg .b32 %r<100>;\n    .reg .b64 %rd<3>;\n"
    ptx = f"{HEADER}.visible .entry wide(.param .u64 wide_at)\n{{\n{registers}{body}\n"
    wide = cuda.function(cuda.module(ptx + "    st.global.u32 [%rd2], %r0;\n    ret;\n}\n"), "wide")
    out = cuda.allocate(400)
    most = cuda.get("cuFuncGetAttribute", MAX_THREADS, wide, kind=c_int)
    assert 256 <= most < 1024 and most % 32 == 0
    assert cuda.launch(wide, out, block=(most + 1, 1, 1)) == OUT_OF_RESOURCES
    cuda.check("cuMemsetD32_v2", out, 2, 100)
    cuda.run(wide, out, block=(1, 1, 1))
    assert cuda.words(out, 2) == [200, 2]


@pytest.mark.virtual
def test_the_driver_version_says_which_ptx_it_takes(fresh: Fresh) -> None:
    cuda = fresh(DRIVER_VERSION="12020")
    assert cuda.call("cuModuleLoadData", byref(c_uint64()), c_char_p(KERNELS.encode())) == UNSUPPORTED_VERSION
    assert cuda.get("cuDriverGetVersion", kind=c_int) == 12020


def test_names_are_looked_up_in_the_module(cuda: Cuda, tmp_path: Path) -> None:
    path = tmp_path / "kernels.ptx"
    path.write_text(KERNELS)
    module = cuda.get("cuModuleLoad", c_char_p(str(path).encode()))
    assert cuda.call("cuModuleLoad", byref(c_uint64()), c_char_p(b"/nowhere.ptx")) == FILE_NOT_FOUND
    assert cuda.call("cuModuleGetFunction", byref(c_uint64()), module, c_char_p(b"missing")) == NOT_FOUND
    address, size = c_uint64(), c_size_t()
    cuda.check("cuModuleGetGlobal_v2", byref(address), byref(size), module, c_char_p(b"counter"))
    assert size.value == 16
    cuda.write(address.value, bytes(range(16)))
    assert cuda.read(address.value, 16) == bytes(range(16))
    for name, code in ((b"missing", NOT_FOUND), (b"fill", INVALID_VALUE)):  # the second is a kernel
        assert cuda.call("cuModuleGetGlobal_v2", byref(address), byref(size), module, c_char_p(name)) == code
    cuda.check("cuModuleUnload", module)


@pytest.mark.virtual
def test_stale_handles_of_modules_are_refused(cuda: Cuda) -> None:
    module = cuda.module(KERNELS)
    function = cuda.function(module, "nothing")
    cuda.check("cuModuleUnload", module)
    assert cuda.launch(function) == INVALID_HANDLE
    assert cuda.call("cuModuleUnload", module) == INVALID_HANDLE
    assert cuda.launch(4096) == INVALID_HANDLE


@pytest.mark.parametrize(
    ("grid", "block", "dynamic", "code"),
    [
        ((1, 1, 1), (1, 1, 1), 0, 0),
        ((1, 1, 1), (1024, 1, 1), 0, 0),
        ((0, 1, 1), (1, 1, 1), 0, INVALID_VALUE),
        ((1, 1, 1), (1, 0, 1), 0, INVALID_VALUE),
        ((1, 65536, 1), (1, 1, 1), 0, INVALID_VALUE),
        ((1, 1, 65536), (1, 1, 1), 0, INVALID_VALUE),
        ((2**31, 1, 1), (1, 1, 1), 0, INVALID_VALUE),
        ((1, 1, 1), (1025, 1, 1), 0, INVALID_VALUE),
        ((1, 1, 1), (32, 33, 1), 0, INVALID_VALUE),
        ((1, 1, 1), (1, 1, 65), 0, INVALID_VALUE),
        ((1, 1, 1), (1, 1, 1), 48 << 10, 0),
        ((1, 1, 1), (1, 1, 1), (48 << 10) + 1, INVALID_VALUE),
    ],
)
def test_limits_of_a_launch(
    cuda: Cuda, kernels: Kernels, grid: tuple[int, ...], block: tuple[int, ...], dynamic: int, code: int
) -> None:
    assert cuda.launch(kernels("nothing"), grid=grid, block=block, shared=dynamic) == code
    cuda.check("cuCtxSynchronize")  # a refused launch leaves no trace


def test_more_shared_memory_must_be_asked_for(cuda: Cuda) -> None:
    function = cuda.function(cuda.module(SHARED), "with_shared")
    assert cuda.get("cuFuncGetAttribute", STATIC_SHARED, function, kind=c_int) == 1024
    assert cuda.get("cuFuncGetAttribute", MAX_DYNAMIC, function, kind=c_int) == 47 << 10
    assert cuda.launch(function, shared=(47 << 10) + 4) == INVALID_VALUE
    most = cuda.attribute(OPT_IN_SHARED)
    assert cuda.call("cuFuncSetAttribute", function, MAX_DYNAMIC, most) == INVALID_VALUE, "with the static part"
    cuda.check("cuFuncSetAttribute", function, MAX_DYNAMIC, most - 1024)
    assert cuda.launch(function, shared=most - 1024) == 0
    assert cuda.launch(function, shared=most - 1024 + 4) == INVALID_VALUE
    cuda.check("cuCtxSynchronize")


def test_maxntid_bounds_the_block(cuda: Cuda, kernels: Kernels) -> None:
    assert cuda.get("cuFuncGetAttribute", MAX_THREADS, kernels("bounded"), kind=c_int) == 64
    assert cuda.launch(kernels("bounded"), block=(64, 1, 1)) == 0
    assert cuda.launch(kernels("bounded"), block=(65, 1, 1)) == INVALID_VALUE


def test_parameters_come_one_by_one_or_in_a_buffer(cuda: Cuda, kernels: Kernels) -> None:
    fill, out = kernels("fill"), cuda.allocate(64)
    values = (c_uint64(out), c_uint(11), c_uint(4))
    pointers = (c_void_p * 3)(*(ctypes.addressof(v) for v in values))
    sizes = [c_uint(n) for n in (1, 1, 1, 32, 1, 1, 0)]
    assert cuda.library.cuLaunchKernel(c_uint64(fill), *sizes, None, pointers, None) == 0
    assert cuda.words(out, 4) == [11] * 4
    cuda.run(fill, out, 12, 4)
    assert cuda.words(out, 4) == [12] * 4
    extra = (c_void_p * 1)(0)
    assert cuda.library.cuLaunchKernel(c_uint64(fill), *sizes, None, pointers, extra) == INVALID_VALUE, "both"


@pytest.mark.virtual
def test_parameters_of_another_size_are_refused(cuda: Cuda, kernels: Kernels) -> None:
    """A real driver takes too short a buffer, and the kernel reads what lies behind it."""
    fill, out = kernels("fill"), cuda.allocate(64)
    assert cuda.launch(fill, out, 12) == INVALID_VALUE, "too few bytes"
    assert cuda.launch(fill, out, 12, 4, Address(0)) == INVALID_VALUE, "too many"
    sizes = [c_uint(n) for n in (1, 1, 1, 32, 1, 1, 0)]
    assert cuda.library.cuLaunchKernel(c_uint64(fill), *sizes, None, None, None) == INVALID_VALUE, "none"
    cuda.check("cuParamSetv", fill, 0, c_char_p(packed(out, 21)), 12)
    cuda.check("cuParamSeti", fill, 12, 16)
    assert cuda.call("cuLaunchGrid", fill, 2, 1) == INVALID_VALUE, "the size is not set"


def test_the_old_launch_interface(cuda: Cuda, kernels: Kernels) -> None:
    fill, out = kernels("fill"), cuda.allocate(64)
    data = packed(out, 21)
    cuda.check("cuFuncSetBlockShape", fill, 8, 1, 1)
    cuda.check("cuFuncSetSharedSize", fill, 0)
    cuda.check("cuParamSetv", fill, 0, c_char_p(data), len(data))
    cuda.check("cuParamSeti", fill, 12, 16)
    cuda.check("cuParamSetSize", fill, 16)
    cuda.check("cuLaunchGrid", fill, 2, 1)
    assert cuda.words(out, 16) == [21] * 16


@pytest.mark.virtual
def test_occupancy_is_that_of_an_orin(cuda: Cuda, kernels: Kernels) -> None:
    nothing = kernels("nothing")

    def blocks(threads: int, shared: int = 0) -> int:
        return cuda.get("cuOccupancyMaxActiveBlocksPerMultiprocessor", nothing, threads, shared, kind=c_int)

    assert (blocks(32), blocks(1024), blocks(512), blocks(2048)) == (16, 1, 3, 0)
    assert (blocks(32, 40 << 10), blocks(32, 81 << 10), blocks(32, 163 << 10)) == (4, 2, 1)
