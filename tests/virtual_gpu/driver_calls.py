"""The driver API through ctypes, as the driver's tests call it: no PyCUDA, no NumPy.

Used by the tests in this folder. `Cuda.call` gives a result code, `Cuda.check` raises unless it is 0; helpers build on
these two, so that a test shows which driver functions it enters.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

REAL = os.environ.get("ORIND_REAL_GPU") == "1"
"""The tests run on the machine's own driver and GPU, not on the virtual one."""

NOT_READY = 600


class CudaError(Exception):
    """A driver function gave a result code other than 0."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function}: {code}")
        self.code = code


def packed(*arguments: int | float) -> bytes:
    """Kernel parameters: a float is .f32, an int above 32 bits or marked by `Address` .u64, any other .u32."""
    data = b""
    for argument in arguments:
        code = "f" if isinstance(argument, float) else "Q" if isinstance(argument, Address) else "I"
        size = struct.calcsize(code)
        data += bytes(-len(data) % size) + struct.pack(code, argument)
    return data


class Address(int):
    """A device or host address, 64 bits."""

    def __add__(self, offset: int) -> Address:
        return Address(int(self) + offset)


class Cuda:
    """A libcuda.so.1. Only the virtual GPU's has `counters` and `last_fault`: what needs them is marked `virtual`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.virtual = hasattr(self.library, "virtual_gpu_counters")
        if self.virtual:
            for name in ("virtual_gpu_counters", "virtual_gpu_last_fault"):
                getattr(self.library, name).restype = c_char_p

    def call(self, function: str, *arguments: Any) -> int:
        """The result code. Whole numbers go as 64 bits, which on these machines suits any integer parameter."""
        return int(self.library[function](*(c_uint64(a) if isinstance(a, int) else a for a in arguments)))

    def check(self, function: str, *arguments: Any) -> None:
        code = self.call(function, *arguments)
        if code:
            raise CudaError(function, code)

    def get(self, function: str, *arguments: Any, kind: Any = c_uint64) -> int:
        """The value that a function puts where its first argument points."""
        value = kind()
        self.check(function, byref(value), *arguments)
        return int(value.value or 0)

    def initialise(self) -> Cuda:
        self.check("cuInit", 0)
        return self

    def create_context(self) -> int:
        return self.get("cuCtxCreate_v2", 0, 0)

    def allocate(self, size: int) -> Address:
        return Address(self.get("cuMemAlloc_v2", size))

    def pinned(self, size: int) -> tuple[Address, ctypes.Array[c_uint]]:
        """Mapped host memory, as an address and as 32-bit words."""
        address = Address(self.get("cuMemHostAlloc", size, 2))
        words = (c_uint * (size // 4)).from_address(address)
        return address, words

    def write(self, address: int, data: bytes) -> None:
        self.check("cuMemcpyHtoD_v2", address, c_char_p(data), len(data))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.check("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    def words(self, address: int, count: int) -> list[int]:
        return list(struct.unpack(f"{count}I", self.read(address, 4 * count)))

    def module(self, ptx: str) -> int:
        return self.get("cuModuleLoadData", c_char_p(ptx.encode()))

    def function(self, module: int, name: str) -> int:
        return self.get("cuModuleGetFunction", module, c_char_p(name.encode()))

    def launch(
        self,
        function: int,
        *arguments: int | float,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (32, 1, 1),
        shared: int = 0,
        stream: int = 0,
    ) -> int:
        """The result code of cuLaunchKernel with the parameters in one buffer, as PyCUDA passes them."""
        data = packed(*arguments)
        buffer, size = ctypes.create_string_buffer(data, len(data)), ctypes.c_size_t(len(data))
        extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
        sizes = [c_uint(n) for n in (*grid, *block, shared)]
        return int(self.library.cuLaunchKernel(c_uint64(function), *sizes, c_uint64(stream), None, extra))

    def run(self, function: int, *arguments: int | float, **options: Any) -> None:
        code = self.launch(function, *arguments, **options)
        if code:
            raise CudaError("cuLaunchKernel", code)

    def stream(self, flags: int = 0) -> int:
        return self.get("cuStreamCreate", flags)

    def event(self, flags: int = 0) -> int:
        return self.get("cuEventCreate", flags)

    def attribute(self, number: int) -> int:
        return self.get("cuDeviceGetAttribute", number, 0, kind=c_int)

    def counters(self) -> dict[str, Any]:
        self.call("cuCtxSynchronize")
        return dict(json.loads(self.library.virtual_gpu_counters()))

    def last_fault(self) -> str:
        return str(self.library.virtual_gpu_last_fault().decode()) if self.virtual else ""


Fresh = Callable[..., Cuda]  # the fixture of that name


def in_a_thread_of_its_own(test: Callable[..., None]) -> Callable[..., None]:
    """For a test that needs an empty stack of contexts: each thread has its own."""

    @functools.wraps(test)
    def wrapped(**fixtures: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, **fixtures).result()

    return wrapped


@contextmanager
def held(cuda: Cuda, gate: int, stream: int) -> Iterator[None]:
    """Holds a stream back while the block runs: `gate` is the kernel of that name in driver_ptx.py."""
    flag, words = cuda.pinned(4)
    words[0] = 0
    cuda.run(gate, flag, block=(1, 1, 1), stream=stream)
    try:
        yield
    finally:
        words[0] = 1


HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


@contextmanager
def held_by_host(cuda: Cuda, stream: int) -> Iterator[None]:
    """Holds a stream back while the block runs, by a host function, so that the device is free for other streams.

    What the block uses must have run before: loading a kernel may wait for the whole device.
    """
    let_go = threading.Event()
    function = HOST_FUNCTION(lambda _: (let_go.wait(), None)[1])
    cuda.check("cuLaunchHostFunc", stream, function, None)
    try:
        yield
    finally:
        let_go.set()
        cuda.check("cuStreamSynchronize", stream)


def ends(cuda: Cuda, stream: int, within_s: float = 20.0) -> bool:
    """Whether the stream's work comes to its end, where a synchronisation would wait for ever if it did not."""
    deadline = time.monotonic() + within_s
    while (code := cuda.call("cuStreamQuery", stream)) == NOT_READY and time.monotonic() < deadline:
        time.sleep(0.001)
    return code == 0
