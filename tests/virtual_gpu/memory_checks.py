"""A GPU whose memory is short at the first, second, ... allocation of an executor, one that gives no stream, and a
graph whose capture is given up.

Started by test_executor_memory.py on the virtual GPU, with VIRTUAL_GPU_CONTROL set. Prints as JSON what is said of each
allocation, the bytes and the graphs that stay behind, what is said without a stream, and the driver's answers to the
capture.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pycuda.driver as driver
from net_checks import random_net

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

from compiled import calibrated
from numpy.typing import NDArray

from orind.kernels.cuda.convolution import TILES, Kernel
from orind.kernels.cuda.device import Device, Graph
from orind.kernels.cuda.executor import CudaExecutor
from orind.kernels.devices import open_device
from orind.kernels.ir.errors import DeviceFault, ProgramError
from orind.kernels.ir.program import Program
from orind.kernels.passes.lower import lower
from orind.kernels.quant.half import mixed_numbers

SEED = 3
ALLOCATIONS_MAX = 100


def control(text: str) -> None:
    path = Path(os.environ["VIRTUAL_GPU_CONTROL"])
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def opened(device: Device, programs: dict[int, Program], constants: dict[str, NDArray[Any]]) -> str:
    """What is said; empty where the executor opens, and runs."""
    try:
        plan = SimpleNamespace(tensors=constants, metadata={})
        with CudaExecutor.alone(plan, 1, programs, device=device, cpu_steps=True) as cuda:
            cuda.run()
    except ProgramError as error:
        return str(error)
    return ""


def main() -> dict[str, object]:
    graph, numbers = mixed_numbers(calibrated(random_net(SEED), seed=SEED), ())
    programs, constants = lower(graph, [1], numbers)
    device = Device()
    try:
        assert opened(device, programs, constants) == ""  # its kernels stay loaded
        answers, graphs = given_up_capture(device), graphs_of_a_life(device, programs, constants)
        free, _ = driver.mem_get_info()
        said, left = [], []
        for number in range(1, ALLOCATIONS_MAX):
            control("")
            driver.mem_alloc(1)  # reads that: a line that stays counts from when it was first read
            # two, since PyCUDA collects garbage and tries once more
            control(f"out_of_memory allocation=+{number}\nout_of_memory allocation=+{number + 1}\n")
            text = opened(device, programs, constants)
            gc.collect()
            left.append(free - driver.mem_get_info()[0])
            if not text:
                break
            said.append(text)
    finally:
        device.close()
    return {"said": said, "left": left, "given_up_capture": answers, "graphs": graphs, "reservation": without_room(),
            "cubins": cubins(), "without_stream": without_stream()}


class Answers:
    """The driver's library; keeps each function's name and code, and the graphs that it made."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.kept: list[tuple[str, int]] = []
        self.graphs: list[int] = []
        self.executables: list[int] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def called(*arguments: Any) -> int:
            code = int(self._library[name](*arguments))
            self.kept.append((name, code))
            if name == "cuStreamEndCapture":
                self.graphs.append(arguments[1]._obj.value)
            if name == "cuGraphInstantiateWithFlags":
                self.executables.append(arguments[0]._obj.value)
            return code

        return called

    __getitem__ = __getattr__


def given_up_capture(device: Device) -> list[tuple[str, int]]:
    library, graphs = device._library, list[Graph]()
    device._library = answers = Answers(library)
    try:
        with device.captured(graphs):
            raise ProgramError("given up")
    except ProgramError:
        assert not graphs
    finally:
        device._library = library
    device.zeros(8)  # nothing is captured any more
    return answers.kept


def graphs_of_a_life(device: Device, programs: dict[int, Program], constants: dict[str, NDArray[Any]]) -> list[int]:
    """Segments of an executor on the GPU; graphs made, executable and not; those that a driver that knows every handle
    still has once the executor is closed."""
    library = device._library
    device._library = answers = Answers(library)
    plan = SimpleNamespace(tensors=constants, metadata={})
    with CudaExecutor.alone(plan, 1, programs, device=device, cpu_steps=True) as cuda:
        segments = cuda.placement.segments
        cuda.run()
    device._library = library
    alive = [library.cuGraphDestroy(ctypes.c_void_p(graph)) == 0 for graph in answers.graphs]
    alive += [library.cuGraphExecDestroy(ctypes.c_void_p(executable)) == 0 for executable in answers.executables]
    return [segments, len(answers.executables), len(answers.graphs), sum(alive)]


def cubins() -> dict[str, object]:
    """What comes of a kernel whose cubin the driver does not load, by what it says, and whether the next one's cubin is
    tried all the same."""
    kernel, other, told = Kernel(TILES[4]), Kernel(TILES[4], ending="table"), {}
    load = driver.module_from_buffer
    for kind, text in (
        (driver.MemoryError, "cuModuleLoadDataEx failed: out of memory"),
        (driver.LogicError, "cuModuleLoadDataEx failed: an illegal memory access was encountered"),
        (driver.RuntimeError, "cuModuleLoadDataEx failed: device kernel image is invalid - of another kind"),
        (driver.RuntimeError, "cuModuleLoadDataEx failed: a PTX JIT compilation failed"),
    ):
        device, tried = Device(), []

        def refused(image: bytes, kind: type[Exception] = kind, text: str = text, tried: list[bool] = tried) -> Any:
            tried.append(image.startswith(b"\x7fELF"))
            if tried[-1] or "PTX" in text:
                raise kind(text)
            return load(image)

        driver.module_from_buffer = refused
        said = []
        for each in (kernel, other):
            try:
                with device.opening("it"):
                    device.function(each)
                    said.append("loaded")
            except (ProgramError, DeviceFault) as error:
                said.append(f"{type(error).__name__}: {error}")
        device.close()
        told[text] = [tried, said]
    driver.module_from_buffer = load
    return told


def without_room() -> str:
    """An engine's plans that need more than the GPU has."""
    device = open_device("cuda")
    try:
        device.reserve([1 << 45], 0, 0)
    except ProgramError as error:
        return str(error)
    finally:
        device.close()
    return ""


def without_stream() -> str:
    def refused() -> None:
        raise driver.RuntimeError("cuStreamCreate failed: unknown error")

    driver.Stream = refused
    try:
        Device()
    except ProgramError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(main()))
