"""What unmodified PyCUDA must do on the virtual GPU, one function a subject; run as a script with a function's name.

Started by test_driver_pycuda.py with LD_LIBRARY_PATH set, in a process of its own: a context that is left on the stack
makes PyCUDA end its process by abort.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pycuda.driver as cuda
from driver_calls import REAL
from driver_ptx import KERNELS


@contextmanager
def context() -> Iterator[Any]:
    cuda.init()
    made = cuda.Device(0).make_context()
    try:
        yield made
    finally:
        made.pop()


def kernel(name: str) -> Any:
    return cuda.module_from_buffer(KERNELS.encode()).get_function(name)


def device_and_memory() -> None:
    with context():
        device = cuda.Context.get_device()
        free, total = cuda.mem_get_info()
        if not REAL:
            assert "virtual" in device.name() and device.compute_capability() == (8, 7)
            assert device.get_attribute(cuda.device_attribute.MULTIPROCESSOR_COUNT) == 16
            assert free == total
        assert free <= total == device.total_memory()
        values = np.arange(1000, dtype=np.float32)
        there = cuda.to_device(values)
        assert np.array_equal(cuda.from_device_like(there, values), values)
        other = cuda.mem_alloc(values.nbytes)
        cuda.memcpy_dtod(other, there, values.nbytes)
        assert np.array_equal(cuda.from_device_like(other, values), values)
        pitched, pitch = cuda.mem_alloc_pitch(40, 25, 4)
        copy = cuda.Memcpy2D()
        copy.set_src_host(values)
        copy.src_pitch, copy.width_in_bytes, copy.height = 40 * 4, 40, 25
        copy.set_dst_device(pitched)
        copy.dst_pitch = pitch
        copy(aligned=True)
        row = np.empty(10, np.float32)
        cuda.memcpy_dtoh(row, int(pitched) + 3 * pitch)
        assert np.array_equal(row, values[120:130])
        managed = cuda.managed_empty(8, np.int32, mem_flags=cuda.mem_attach_flags.GLOBAL)
        managed[:] = 3
        kernel("increment")(np.uintp(managed.base.get_device_pointer()), block=(1, 1, 1), grid=(1, 1))
        cuda.Context.synchronize()
        assert list(managed) == [4, *[3] * 7]


def launches_streams_and_events() -> None:
    with context():
        fill = kernel("fill")
        assert fill.max_threads_per_block == 1024 and fill.shared_size_bytes == 0 and fill.local_size_bytes == 0
        mapped = cuda.pagelocked_empty(256, np.uint32, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
        pointer = np.uintp(mapped.base.get_device_pointer())
        stream, begin, end = cuda.Stream(), cuda.Event(), cuda.Event()
        begin.record(stream)
        fill(pointer, np.uint32(7), np.uint32(256), block=(64, 1, 1), grid=(4, 1), stream=stream)
        end.record(stream)
        end.synchronize()
        assert end.query() and stream.is_done() and (mapped == 7).all()
        assert end.time_since(begin) > 0
        fill.prepare("PII")
        fill.prepared_call((4, 1), (64, 1, 1), int(pointer), 8, 256)
        cuda.Context.synchronize()
        assert (mapped == 8).all()
        if not REAL:  # a real driver takes it, and the kernel reads what lies behind
            try:
                fill(pointer, np.uint32(7), block=(64, 1, 1), grid=(4, 1))
            except cuda.LogicError as error:
                assert "invalid argument" in str(error)
            else:
                raise AssertionError("a launch with too few parameter bytes must be refused")


def a_graph_through_ctypes() -> None:
    """The way the executor takes: PyCUDA's handles, the graph functions of the same library."""
    with context():
        driver = ctypes.CDLL("libcuda.so.1")
        increment, stream = kernel("increment"), cuda.Stream()
        out = cuda.to_device(np.zeros(1, np.uint32))
        handle = ctypes.c_void_p(stream.handle)
        assert driver.cuStreamBeginCapture_v2(handle, 0) == 0
        for _ in range(5):
            increment(out, block=(1, 1, 1), grid=(1, 1), stream=stream)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        assert driver.cuStreamEndCapture(handle, ctypes.byref(graph)) == 0
        assert driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)) == 0
        for _ in range(4):
            assert driver.cuGraphLaunch(executable, handle) == 0
        stream.synchronize()
        assert cuda.from_device(out, (1,), np.uint32)[0] == 20
        assert driver.cuGraphExecDestroy(executable) == 0 and driver.cuGraphDestroy(graph) == 0


def errors_are_exceptions() -> None:
    cuda.init()
    primary = cuda.Device(0).retain_primary_context()
    primary.push()
    try:
        try:
            cuda.module_from_buffer(KERNELS.replace("st.global.u32", "st.globular.u32").encode())
        except cuda.Error as error:
            assert "ptxas application ptx input, line" in str(error) and "globular" in str(error), error
        else:
            raise AssertionError("an unknown instruction must be refused")
        try:
            cuda.module_from_buffer(b"\x7fELF" + bytes(64))
        except cuda.Error as error:
            assert "image is invalid" in str(error), error
        else:
            raise AssertionError("an empty ELF file must be refused")
        try:
            cuda.mem_alloc(1 << 50)
        except cuda.MemoryError as error:
            assert "out of memory" in str(error)
        else:
            raise AssertionError("memory has a limit")
        kernel("increment")(np.uintp(64), block=(1, 1, 1), grid=(1, 1))
        try:
            cuda.Context.synchronize()
        except cuda.LogicError as error:
            assert "illegal memory access" in str(error)
        else:
            raise AssertionError("an illegal address is an error")
    finally:
        primary.pop()
        primary.detach()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
