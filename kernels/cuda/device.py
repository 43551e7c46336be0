"""The one door to PyCUDA: a context, memory, modules, streams, graphs.

Called by `executor.py`. The context is popped by `close`, or else when the process ends: PyCUDA ends one by abort that
leaves a context on its stack. Graphs and their launches go through ctypes on the driver, which PyCUDA does not wrap.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.errors import DeviceFault, ProgramError
from .build import compile_source
from .convolution import Array, Kernel
from .driver import load as load_driver
from .nvrtc import CompileError

CAPTURE_THREAD_LOCAL = 1
NO_CUBIN = (200, 209)
"""CUDA_ERROR_INVALID_IMAGE and _NO_BINARY_FOR_GPU: what a driver says of a cubin that is not for its device."""
NO_IMAGE = (*NO_CUBIN, 218, 221, 222, 223)
"""Of PTX besides: _INVALID_PTX, _JIT_COMPILER_NOT_FOUND, _UNSUPPORTED_PTX_VERSION, _JIT_COMPILATION_DISABLED. Any other
code is of the device, which has failed or lacks memory."""
LOG = logging.getLogger(__name__)


class CudaError(Exception):
    """A driver function called through ctypes failed."""


class Graph:
    """An instantiated graph. `launch` runs it on a stream; its memory must outlive it."""

    def __init__(self, device: Device, handle: int) -> None:
        self._device, self._handle = device, handle

    def launch(self, stream: Any) -> None:
        self._device.call("cuGraphLaunch", ctypes.c_void_p(self._handle), ctypes.c_void_p(stream.handle))

    def close(self) -> None:
        self._device.call("cuGraphExecDestroy", ctypes.c_void_p(self._handle))


class Device:
    """A GPU, its primary context current until `close`. Raises ProgramError where there is none of that number."""

    def __init__(self, ordinal: int = 0) -> None:
        try:
            driver = load_driver()
        except ProgramError as error:
            raise ProgramError(f"device cuda: {error}") from error
        self.driver = driver
        try:
            driver.init()
            if ordinal >= (count := driver.Device.count()):
                raise ProgramError(f"device cuda:{ordinal}: there {'is' if count == 1 else 'are'} {count}, from 0")
            gpu = driver.Device(ordinal)
            self._context = gpu.retain_primary_context()
        except driver.Error as error:
            raise ProgramError(f"device cuda: no GPU can be used ({error})") from error
        self._library = ctypes.CDLL("libcuda.so.1")
        self._functions: dict[Kernel, Any] = {}
        self._takes_cubins = True
        self._context.push()
        try:
            self.name = str(gpu.name())
            self.sms = int(gpu.get_attribute(driver.device_attribute.MULTIPROCESSOR_COUNT))
            self.capability = gpu.compute_capability()
            self.stream = driver.Stream()
        except driver.Error as error:
            self._context.pop()
            raise ProgramError(f"device cuda: no GPU can be used ({error})") from error
        atexit.register(self._leave)

    def call(self, function: str, *arguments: Any) -> None:
        """A driver function through ctypes. Raises CudaError."""
        code = self._library[function](*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            raise CudaError(f"{function} failed: {(name.value or b'').decode()} ({code})")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A failure of the driver inside becomes DeviceFault."""
        try:
            yield
        except (CudaError, self.driver.Error) as error:
            raise DeviceFault(f"GPU fault: {error}") from error

    @contextmanager
    def opening(self, what: str) -> Iterator[None]:
        """A failure of the driver inside becomes DeviceFault; that memory is short, ProgramError."""
        with self.watched():
            try:
                yield
            except self.driver.MemoryError as error:
                raise ProgramError(f"device cuda: the GPU's memory does not hold {what} ({error})") from error

    def upload(self, data: Array) -> Any:
        """A device allocation that holds `data`; freed when the last reference goes."""
        allocation = self.driver.mem_alloc(max(data.nbytes, 1))
        if data.nbytes:
            self.driver.memcpy_htod(allocation, np.ascontiguousarray(data))
        return allocation

    def zeros(self, nbytes: int) -> Any:
        allocation = self.driver.mem_alloc(max(nbytes, 1))
        self.driver.memset_d8(allocation, 0, max(nbytes, 1))
        return allocation

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Zeroed host memory that copies run from and to in the background."""
        memory = self.driver.pagelocked_empty(max(nbytes, 1), np.uint8)
        memory.fill(0)
        return memory  # type: ignore[no-any-return]

    def function(self, kernel: Kernel) -> Any:
        """The kernel, compiled for this device: its cubin, or PTX where the driver refuses that, which is logged.

        Raises ProgramError where it cannot be compiled or is refused; the driver's error where the device fails.
        """
        if kernel not in self._functions:
            module = self._module(kernel)
            found = module.get_function(kernel.name)
            found.set_attribute(self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.tile.shared_bytes)
            self._functions[kernel] = found
        return self._functions[kernel]

    def _module(self, kernel: Kernel) -> Any:
        version = "{}{}".format(*self.capability)
        try:
            if self._takes_cubins:
                try:
                    return self._loaded(kernel, f"sm_{version}")
                except self.driver.Error as error:
                    if not self._is(error, NO_CUBIN):
                        raise
                    self._takes_cubins = False
                    LOG.info("device cuda: %s takes no cubins: its driver compiles the kernels' PTX", self.name)
            return self._loaded(kernel, f"compute_{version}")
        except CompileError as error:
            raise ProgramError(f"device cuda: {error}") from error
        except self.driver.Error as error:
            if not self._is(error, NO_IMAGE):
                raise
            raise ProgramError(f"device cuda: {kernel.name} cannot be loaded: {error}") from error

    def _is(self, error: Exception, codes: Sequence[int]) -> bool:
        """Whether PyCUDA's error, which gives a code in the driver's words, is of one of these."""
        text = ctypes.c_char_p()
        for code in codes:
            known = self._library.cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value
            if known and f" failed: {known.decode()}" in str(error):
                return True
        return False

    def _loaded(self, kernel: Kernel, architecture: str) -> Any:
        return self.driver.module_from_buffer(compile_source(kernel.source, kernel.defines(), architecture))

    @contextmanager
    def captured(self, into: list[Graph]) -> Iterator[None]:
        """What is enqueued on `stream` inside becomes a graph, appended to `into`; nothing runs."""
        stream = ctypes.c_void_p(self.stream.handle)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", stream, CAPTURE_THREAD_LOCAL)
        try:
            yield
        except BaseException:
            # whatever these say: the first failure counts
            self._library.cuStreamEndCapture(stream, ctypes.byref(graph))
            if graph:  # none where the driver itself refused what was captured
                self._library.cuGraphDestroy(graph)
            raise
        self.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        finally:
            self._library.cuGraphDestroy(graph)  # whatever it says: the first failure counts
        into.append(Graph(self, int(executable.value or 0)))

    def copy_2d(self, host: npt.NDArray[np.uint8], device: int, shape: Sequence[int], up: bool) -> None:
        """Enqueues a copy of `height` rows of `width` bytes, `pitch` apart on both sides; (width, height, pitch)."""
        copy = self.driver.Memcpy2D()
        (copy.set_src_host if up else copy.set_dst_host)(host)
        (copy.set_dst_device if up else copy.set_src_device)(device)
        copy.width_in_bytes, copy.height = shape[0], shape[1]
        copy.src_pitch = copy.dst_pitch = shape[2]
        copy(self.stream)

    def close(self) -> None:
        """What was allocated here must be gone by now: PyCUDA frees nothing in a context that is not current."""
        self._functions.clear()
        del self.stream
        atexit.unregister(self._leave)
        self._leave()

    def _leave(self) -> None:
        self._context.pop()
        self._context.detach()
