"""What runs a plan's programs: "cpu", "cuda" or "cuda:N", by name, never by falling back.

Opened once by an engine, before its plans. Imports PyCUDA only for a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from .cpu.binding import Array
from .cpu.executor import Plan
from .cpu.prepared import PreparedPlan as CpuPlan
from .ir.errors import ProgramError
from .ir.program import Program
from .memory.pool import Block, aligned, size_for
from .memory.reservation import HostReservation, Reservation
from .placement import Placement

if TYPE_CHECKING:
    from .cuda.memory import DeviceReservation
    from .cuda.prepared import PreparedPlan as CudaPlan


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


class Prepared(Protocol):
    """A plan that a device can run, before it has memory. `needs`: bytes by what they are for."""

    @property
    def needs(self) -> Mapping[str, int]: ...


class Device(Protocol):
    """Where programs run: `prepare` all plans, `reserve` memory for them, `open` each. `close` comes after the last
    executor's. `name`: its own, "" for the CPU. `memory` is None until there is a reservation; `host_memory` where it
    is the host's."""

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> Reservation | None: ...
    @property
    def host_memory(self) -> HostReservation | None: ...
    def prepare(self, plan: Plan, programs: Mapping[int, Program]) -> Prepared: ...
    def reserve(self, needs: Sequence[int], room: int, emergency: int) -> None: ...
    def open(self, prepared: Prepared, name: str) -> tuple[Mapping[int, Executor], list[Block]]: ...
    def close(self) -> None: ...


class CpuDevice:
    """NumPy in this process."""

    name = ""

    def __init__(self) -> None:
        self.memory: HostReservation | None = None

    @property
    def host_memory(self) -> HostReservation | None:
        return self.memory

    def prepare(self, plan: Plan, programs: Mapping[int, Program]) -> CpuPlan:
        return CpuPlan(plan, programs)

    def reserve(self, needs: Sequence[int], room: int, emergency: int) -> None:
        """Memory for blocks of `needs` bytes in this order, `room` for what comes later, and the emergency reserve."""
        self.memory = HostReservation(size_for(needs) + aligned(room) + aligned(emergency), aligned(emergency))

    def open(self, prepared: Prepared, name: str) -> tuple[Mapping[int, Executor], list[Block]]:
        """The executors by batch size, and the blocks to give back when they are closed."""
        assert isinstance(prepared, CpuPlan) and self.memory is not None
        return prepared.open(self.memory, name)

    def close(self) -> None:
        """The mapping ends with the last array that looks into it."""
        self.memory = None


class CudaDevice:
    """A GPU. `cpu_steps`: steps without a kernel run on the CPU; else a plan with such steps is refused."""

    host_memory = None

    def __init__(self, ordinal: int, cpu_steps: bool) -> None:
        """Raises ProgramError where PyCUDA or the GPU of that number is missing."""
        from .cuda.device import Device as Gpu

        self._gpu = Gpu(ordinal)
        self.name = self._gpu.name
        self._cpu_steps = cpu_steps
        self.memory: DeviceReservation | None = None

    def prepare(self, plan: Plan, programs: Mapping[int, Program]) -> CudaPlan:
        from .cuda.prepared import PreparedPlan

        return PreparedPlan(plan, programs, self._gpu, self._cpu_steps)

    def reserve(self, needs: Sequence[int], room: int, emergency: int) -> None:
        """As CpuDevice.reserve, without the `room`: what comes later is the host's here."""
        from .cuda.memory import DeviceReservation

        with self._gpu.opening("the plans of an engine"):
            self.memory = DeviceReservation(self._gpu, size_for(needs) + aligned(emergency), aligned(emergency))

    def open(self, prepared: Prepared, name: str) -> tuple[Mapping[int, Executor], list[Block]]:
        from .cuda.prepared import PreparedPlan

        assert isinstance(prepared, PreparedPlan) and self.memory is not None
        return prepared.open(self.memory, name)

    def close(self) -> None:
        if self.memory is not None:
            self.memory.close()
            self.memory = None
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
