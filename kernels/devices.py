"""What runs a plan's programs: "cpu", "cuda" or "cuda:N", by name, never by falling back.

Opened once by an engine, before its plans. Imports PyCUDA only for a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .cpu.binding import Array
from .cpu.executor import CpuExecutor, Plan
from .ir.errors import ProgramError
from .ir.program import Program
from .placement import Placement


class Executor(Protocol):
    """A program bound to memory. `input` is written before each `run`, whose outputs are valid until the next.

    `placement` is None on the CPU.
    """

    @property
    def input(self) -> Array: ...
    @property
    def overflows(self) -> Mapping[int, str]: ...
    @property
    def placement(self) -> Placement | None: ...
    def run(self) -> list[Array]: ...
    def golden(self) -> None: ...
    def close(self) -> None: ...


class Device(Protocol):
    """Where programs run. `close` comes after the last executor's."""

    def executor(self, plan: Plan, batch: int, programs: Mapping[int, Program]) -> Executor: ...
    def close(self) -> None: ...


class CpuDevice:
    """NumPy in this process."""

    def executor(self, plan: Plan, batch: int, programs: Mapping[int, Program]) -> Executor:
        return CpuExecutor(plan, batch, programs)

    def close(self) -> None:
        """Nothing is held."""


class CudaDevice:
    """A GPU. `cpu_steps`: steps without a kernel run on the CPU; else a plan with such steps is refused."""

    def __init__(self, ordinal: int, cpu_steps: bool) -> None:
        """Raises ProgramError where PyCUDA or the GPU of that number is missing."""
        from .cuda.device import Device as Gpu

        self._gpu = Gpu(ordinal)
        self._cpu_steps = cpu_steps

    def executor(self, plan: Plan, batch: int, programs: Mapping[int, Program]) -> Executor:
        from .cuda.executor import CudaExecutor

        return CudaExecutor(plan, batch, programs, device=self._gpu, cpu_steps=self._cpu_steps)

    def close(self) -> None:
        self._gpu.close()


def open_device(name: str, cpu_steps: bool = False) -> Device:
    """`name`: cpu, cuda (the first GPU) or cuda:N.

    Raises ProgramError for a name that there is none of, or whose hardware or library is missing.
    """
    if name == "cpu":
        return CpuDevice()
    kind, _, ordinal = name.partition(":")
    if kind == "cuda" and (ordinal or name == kind) and (ordinal or "0").isdecimal():
        return CudaDevice(int(ordinal or "0"), cpu_steps)
    raise ProgramError(f"device '{name}' is not one of cpu, cuda, cuda:N")
