"""Allocation, limits, copies in one to three dimensions, fills, page-locked memory, pointer attributes."""

from __future__ import annotations

import ctypes
import mmap
import struct
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import pytest
from driver_calls import Cuda, Fresh

INVALID_VALUE, OUT_OF_MEMORY, NOT_FOUND, ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED = 1, 2, 500, 712, 713, 801
MIB = 1 << 20
HOST, DEVICE, ARRAY = 1, 2, 3


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("srcX", c_size_t), ("srcY", c_size_t), ("srcType", c_int), ("srcHost", c_void_p), ("srcDevice", c_uint64),
        ("srcArray", c_void_p), ("srcPitch", c_size_t),
        ("dstX", c_size_t), ("dstY", c_size_t), ("dstType", c_int), ("dstHost", c_void_p), ("dstDevice", c_uint64),
        ("dstArray", c_void_p), ("dstPitch", c_size_t), ("width", c_size_t), ("height", c_size_t),
    ]


class Copy3D(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        ("srcX", c_size_t), ("srcY", c_size_t), ("srcZ", c_size_t), ("srcLOD", c_size_t), ("srcType", c_int),
        ("srcHost", c_void_p), ("srcDevice", c_uint64), ("srcArray", c_void_p), ("reserved0", c_void_p),
        ("srcPitch", c_size_t), ("srcHeight", c_size_t),
        ("dstX", c_size_t), ("dstY", c_size_t), ("dstZ", c_size_t), ("dstLOD", c_size_t), ("dstType", c_int),
        ("dstHost", c_void_p), ("dstDevice", c_uint64), ("dstArray", c_void_p), ("reserved1", c_void_p),
        ("dstPitch", c_size_t), ("dstHeight", c_size_t), ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
    ]


def info(cuda: Cuda) -> tuple[int, int]:
    free, total = c_uint64(), c_uint64()
    cuda.check("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


@pytest.mark.virtual
def test_memory_has_a_limit_and_is_given_back(fresh: Fresh) -> None:
    cuda = fresh(MEMORY_MIB="8")
    free, total = info(cuda)
    assert free == total == 8 * MIB
    address = cuda.allocate(6 * MIB)
    assert info(cuda)[0] == 2 * MIB
    assert cuda.call("cuMemAlloc_v2", byref(c_uint64()), 3 * MIB) == OUT_OF_MEMORY
    cuda.check("cuMemFree_v2", address)
    assert info(cuda)[0] == free
    assert cuda.call("cuMemFree_v2", address) == INVALID_VALUE
    assert cuda.call("cuMemAlloc_v2", byref(c_uint64()), 0) == INVALID_VALUE
    cuda.check("cuMemFree_v2", 0)
    cuda.pinned(4 * MIB)
    assert info(cuda)[0] == free, "page-locked memory is the host's"
    cuda.get("cuMemAllocManaged", 4 * MIB, 1)
    assert info(cuda)[0] == 4 * MIB


def test_copies_are_checked_against_the_allocation(cuda: Cuda) -> None:
    address = cuda.allocate(100)
    data = bytes(range(100))
    cuda.write(address, data)
    assert cuda.read(address, 100) == data
    assert cuda.read(address + 90, 10) == data[90:]
    assert cuda.call("cuMemcpyHtoD_v2", address + 1, c_char_p(data), 100) == INVALID_VALUE
    assert cuda.call("cuMemcpyDtoH_v2", ctypes.create_string_buffer(200), address, 101) == INVALID_VALUE
    assert cuda.call("cuMemcpyHtoD_v2", 0, c_char_p(data), 1) == INVALID_VALUE
    assert cuda.call("cuMemcpyHtoD_v2", 4096, c_char_p(data), 1) == INVALID_VALUE
    other = cuda.allocate(100)
    cuda.check("cuMemcpyDtoD_v2", other, address + 50, 50)
    assert cuda.read(other, 50) == data[50:]
    assert cuda.call("cuMemcpyDtoD_v2", other, address, 101) == INVALID_VALUE
    cuda.check("cuMemcpyDtoH_v2", c_void_p(other), address + 8, 8)  # one address space: it may be the device's
    assert cuda.read(other, 8) == data[8:16]
    assert cuda.call("cuMemcpyDtoH_v2", c_void_p(other + 96), address, 8) == INVALID_VALUE, "in part outside"
    cuda.check("cuMemcpy", other, address, 8)
    assert cuda.read(other, 8) == data[:8]
    cuda.check("cuMemcpyHtoD_v2", 0, c_char_p(b""), 0)
    cuda.check("cuMemFree_v2", address)
    assert cuda.call("cuMemcpyDtoH_v2", ctypes.create_string_buffer(8), address, 8) == INVALID_VALUE, "it was freed"


@pytest.mark.parametrize(("bits", "code"), [(8, "B"), (16, "H"), (32, "I")])
def test_fills(cuda: Cuda, bits: int, code: str) -> None:
    size, count = bits // 8, 24
    address = cuda.allocate(size * count)
    cuda.check(f"cuMemsetD{bits}_v2", address, 0, count)
    value = 0xA1B2C3D4 & (1 << bits) - 1
    stream = cuda.stream()
    cuda.check(f"cuMemsetD{bits}Async", address + size, value, 3, stream)
    cuda.check("cuStreamSynchronize", stream)
    got = struct.unpack(f"{count}{code}", cuda.read(address, size * count))
    assert got == (0, value, value, value, *[0] * 20)
    cuda.check(f"cuMemsetD2D{bits}_v2", address, 8 * size, 1, 2, 3)
    got = struct.unpack(f"{count}{code}", cuda.read(address, size * count))
    assert [i for i, v in enumerate(got) if v == 1] == [0, 1, 8, 9, 16, 17]
    assert cuda.call(f"cuMemsetD{bits}_v2", address, 0, count + 1) == INVALID_VALUE
    assert cuda.call(f"cuMemsetD2D{bits}_v2", address, 8 * size, 1, 9, 2) == INVALID_VALUE, "rows overlap"
    if size > 1:
        assert cuda.call(f"cuMemsetD{bits}_v2", address + 1, 0, 1) == INVALID_VALUE, "not aligned to the value"


def test_a_pitched_copy_takes_a_window(cuda: Cuda) -> None:
    pitch = c_size_t()
    address = cuda.get("cuMemAllocPitch_v2", byref(pitch), 100, 6, 4)
    assert pitch.value % 512 == 0 and pitch.value >= 100
    cuda.check("cuMemsetD8_v2", address, 0, 6 * pitch.value)
    host = (ctypes.c_ubyte * 60)(*range(60))  # 6 rows of 10
    there = Copy2D(srcX=2, srcY=1, srcType=HOST, srcHost=ctypes.addressof(host), srcPitch=10, dstX=7, dstY=2,
                   dstType=DEVICE, dstDevice=address, dstPitch=pitch.value, width=5, height=3)
    cuda.check("cuMemcpy2D_v2", byref(there))
    for row in range(3):
        got = cuda.read(address + (2 + row) * pitch.value + 7, 5)
        assert list(got) == [10 * (1 + row) + 2 + i for i in range(5)]
    back = (ctypes.c_ubyte * 15)()
    here = Copy2D(srcX=7, srcY=2, srcType=DEVICE, srcDevice=address, srcPitch=pitch.value, dstType=HOST,
                  dstHost=ctypes.addressof(back), dstPitch=5, width=5, height=3)
    cuda.check("cuMemcpy2DAsync_v2", byref(here), 0)
    assert list(back) == [10 * (1 + row) + 2 + i for row in range(3) for i in range(5)]
    there.dstY = 4
    assert cuda.call("cuMemcpy2D_v2", byref(there)) == INVALID_VALUE, "the last row is outside"
    there.dstY, there.dstPitch = 2, 8
    assert cuda.call("cuMemcpy2D_v2", byref(there)) == INVALID_VALUE, "the pitch is less than a row"
    there.dstType = ARRAY
    assert cuda.call("cuMemcpy2D_v2", byref(there)) == INVALID_VALUE, "no array"


@pytest.mark.virtual
def test_there_are_no_arrays(cuda: Cuda) -> None:
    address, some = cuda.allocate(64), 4096
    flat = Copy2D(srcType=DEVICE, srcDevice=address, dstType=ARRAY, dstArray=some, width=4, height=4)
    assert cuda.call("cuMemcpy2D_v2", byref(flat)) == NOT_SUPPORTED
    box: Any = Copy3D(srcType=ARRAY, srcArray=some, dstType=DEVICE, dstDevice=address, width=4, height=4, depth=1)
    assert cuda.call("cuMemcpy3D_v2", byref(box)) == NOT_SUPPORTED
    box.srcArray = None
    assert cuda.call("cuMemcpy3D_v2", byref(box)) == INVALID_VALUE


def test_a_box_is_copied_slice_by_slice(cuda: Cuda) -> None:
    address = cuda.allocate(4 * 5 * 6)
    cuda.check("cuMemsetD8_v2", address, 0, 4 * 5 * 6)
    host = (ctypes.c_ubyte * 24)(*range(1, 25))  # 2 slices of 3 rows of 4
    box: Any = Copy3D(srcType=HOST, srcHost=ctypes.addressof(host), srcPitch=4, srcHeight=3, dstX=1, dstY=1, dstZ=1,
                      dstType=DEVICE, dstDevice=address, dstPitch=6, dstHeight=5, width=4, height=3,
                      depth=2)
    cuda.check("cuMemcpy3D_v2", byref(box))
    got = cuda.read(address, 4 * 5 * 6)
    want = bytearray(4 * 5 * 6)
    for z in range(2):
        for y in range(3):
            at = ((z + 1) * 5 + y + 1) * 6 + 1
            want[at : at + 4] = bytes(host)[(z * 3 + y) * 4 :][:4]
    assert got == bytes(want)
    box.depth = 4
    assert cuda.call("cuMemcpy3D_v2", byref(box)) == INVALID_VALUE


def test_page_locked_memory_is_mapped(cuda: Cuda) -> None:
    address, words = cuda.pinned(64)
    assert cuda.get("cuMemHostGetDevicePointer_v2", c_void_p(address), 0) == address
    assert cuda.get("cuMemHostGetFlags", c_void_p(address)) & 2
    words[3] = 77
    device = cuda.allocate(64)
    cuda.check("cuMemcpyHtoD_v2", device, c_void_p(address), 64)
    assert cuda.words(device, 4)[3] == 77
    assert cuda.call("cuMemFree_v2", address) == INVALID_VALUE, "freed by its own function only"
    cuda.check("cuMemFreeHost", c_void_p(address))
    assert cuda.call("cuMemFreeHost", c_void_p(device)) == INVALID_VALUE


def test_host_memory_is_registered_where_it_is(cuda: Cuda) -> None:
    pages = mmap.mmap(-1, 8192)
    view = (ctypes.c_ubyte * 8192).from_buffer(pages)
    address = ctypes.addressof(view)
    assert cuda.call("cuMemHostGetDevicePointer_v2", byref(c_uint64()), c_void_p(address), 0) == INVALID_VALUE
    cuda.check("cuMemHostRegister_v2", c_void_p(address), 4096, 2)
    assert cuda.get("cuMemHostGetDevicePointer_v2", c_void_p(address + 100), 0) == address + 100
    assert cuda.call("cuMemHostRegister_v2", c_void_p(address + 1024), 4096, 0) == ALREADY_REGISTERED
    device = cuda.allocate(64)
    view[5] = 9
    cuda.check("cuMemcpyDtoD_v2", device, address, 64)
    assert cuda.read(device, 8)[5] == 9
    assert cuda.call("cuMemcpyDtoD_v2", device, address + 4090, 64) == INVALID_VALUE, "past what is registered"
    cuda.check("cuMemHostUnregister", c_void_p(address))
    assert cuda.call("cuMemHostUnregister", c_void_p(address)) == NOT_REGISTERED
    del view
    pages.close()


def test_what_a_pointer_is(cuda: Cuda) -> None:
    device, (pinned, _words) = cuda.allocate(256), cuda.pinned(64)
    managed = cuda.get("cuMemAllocManaged", 64, 1)
    kinds = [cuda.get("cuPointerGetAttribute", 2, p, kind=c_int) for p in (device + 4, pinned, managed)]
    assert kinds == [DEVICE, HOST, DEVICE]
    assert [cuda.get("cuPointerGetAttribute", 8, p, kind=c_int) for p in (device, managed)] == [0, 1]
    assert cuda.call("cuPointerGetAttribute", byref(c_int()), 2, 4096) == INVALID_VALUE
    assert cuda.get("cuPointerGetAttribute", 11, device + 4) == device
    base, size = c_uint64(), c_size_t()
    cuda.check("cuMemGetAddressRange_v2", byref(base), byref(size), device + 200)
    assert (base.value, size.value) == (device, 256)
    assert cuda.call("cuMemGetAddressRange_v2", byref(base), byref(size), 4096) == NOT_FOUND
    ctypes.memset(managed, 5, 64)
    assert cuda.read(managed, 64) == bytes([5] * 64), "managed memory is the host's too"


def test_a_copy_from_pageable_memory_has_read_it_when_it_returns(cuda: Cuda, gate: Any) -> None:
    stream = cuda.stream()
    pageable, (pinned, words) = ctypes.create_string_buffer(b"before", 8), cuda.pinned(8)
    words[0] = 1
    device = cuda.allocate(16)
    with gate(stream):
        cuda.check("cuMemcpyHtoDAsync_v2", device, pageable, 8, stream)
        cuda.check("cuMemcpyHtoDAsync_v2", device + 8, c_void_p(pinned), 8, stream)
        pageable.raw = b"after\0\0\0"
        words[0] = 2
    cuda.check("cuStreamSynchronize", stream)
    assert cuda.read(device, 6) == b"before"
    assert cuda.words(device + 8, 1) == [2], "page-locked memory is read when the copy's turn comes"
