"""Sizes so large that a sum or product of them wraps are refused: none may come out small and pass."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64
from typing import Any

import pytest
from driver_calls import Cuda
from driver_ptx import HEADER
from test_driver_memory import DEVICE, HOST, INVALID_VALUE, OUT_OF_MEMORY, Copy2D, Copy3D

MAX_DYNAMIC = 8
SHARED = HEADER + ".visible .entry k() { .shared .align 4 .b8 b[1024]; .reg .b32 %r; mov.u32 %r, b; ret; }"
TOP = 1 << 64


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_fills_of_more_than_64_bits_of_bytes(cuda: Cuda, bits: int) -> None:
    address = cuda.allocate(4096)
    for pitch, width, height in ((1 << 62, 16, 5), (1 << 63, 4, 3), (TOP - 64, 16, 2), (64, 16, 1 << 60)):
        assert cuda.call(f"cuMemsetD2D{bits}_v2", address, c_uint64(pitch), 1, c_uint64(width), c_uint64(height)) == 1
    assert cuda.call(f"cuMemsetD{bits}_v2", address, 0, c_uint64(TOP * 8 // bits - 1)) == INVALID_VALUE
    cuda.check(f"cuMemsetD2D{bits}_v2", address, c_uint64(TOP - 4), 0, 4, 1)  # one row has no pitch


@pytest.mark.parametrize(
    "wrapping",
    [
        {"dstPitch": 1 << 62, "height": 5},
        {"dstPitch": 1 << 62, "dstY": 4},
        {"dstX": TOP - 1},
        {"dstX": TOP - 64, "width": 64},
        {"dstY": TOP - 1, "dstPitch": 64},
        {"srcPitch": 1 << 62, "height": 5},
        {"height": TOP - 1},
    ],
)
def test_windows_of_more_than_64_bits_of_bytes(cuda: Cuda, wrapping: dict[str, int]) -> None:
    address, host = cuda.allocate(4096), (ctypes.c_ubyte * 4096)()
    sizes: dict[str, Any] = {"width": 16, "height": 1, **wrapping}
    flat = Copy2D(srcType=HOST, srcHost=ctypes.addressof(host), dstType=DEVICE, dstDevice=address, **sizes)
    assert cuda.call("cuMemcpy2D_v2", byref(flat)) == INVALID_VALUE
    box = Copy3D(srcType=HOST, srcHost=ctypes.addressof(host), dstType=DEVICE, dstDevice=address, depth=1, **sizes)
    assert cuda.call("cuMemcpy3D_v2", byref(box)) == INVALID_VALUE


@pytest.mark.parametrize("wrapping", [{"dstHeight": 1 << 62}, {"depth": 1 << 62}, {"dstZ": 1 << 62}])
def test_boxes_of_more_than_64_bits_of_bytes(cuda: Cuda, wrapping: dict[str, int]) -> None:
    address, host = cuda.allocate(4096), (ctypes.c_ubyte * 4096)()
    sizes: dict[str, Any] = {"width": 16, "height": 1, "depth": 5, "srcHeight": 4, "dstHeight": 4, **wrapping}
    box = Copy3D(srcType=HOST, srcHost=ctypes.addressof(host), dstType=DEVICE, dstDevice=address, **sizes)
    assert cuda.call("cuMemcpy3D_v2", byref(box)) == INVALID_VALUE


@pytest.mark.virtual  # another driver has its own code for it
def test_a_row_of_more_than_there_is(cuda: Cuda) -> None:
    pitch = c_size_t()
    for width in (TOP - 1, TOP - 512):
        code = cuda.call("cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), c_uint64(width), c_uint64(1 << 20), 4)
        assert code == OUT_OF_MEMORY


def test_more_shared_memory_than_a_number_can_say(cuda: Cuda) -> None:
    function = cuda.function(cuda.module(SHARED), "k")
    assert cuda.call("cuFuncSetAttribute", function, MAX_DYNAMIC, 0x7FFFFFFF) == INVALID_VALUE
    blocks = c_int()
    cuda.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), c_uint64(function), 32, c_uint64(TOP - 8))
    assert blocks.value == 0
