"""A plan on the GPU before it has memory: the launches of its programs, and what they need.

Called by `devices.py`. The same calls that fill the memory count it first.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..cpu.executor import Plan
from ..cpu.workspace import Workspace
from ..ir.program import Program
from ..memory.pool import Block
from .device import Device
from .executor import CudaExecutor
from .launching import PreparedProgram
from .memory import DeviceReservation, Sizes


class PreparedPlan:
    """`needs`: bytes by what they are for, in the order in which `open` takes them."""

    def __init__(self, plan: Plan, programs: Mapping[int, Program], device: Device, cpu_steps: bool) -> None:
        """Raises ProgramError as CudaExecutor.alone."""
        self._programs = [PreparedProgram(plan, programs[n], device, cpu_steps) for n in sorted(programs)]
        self.needs: dict[str, int] = {}
        for program in self._programs:
            weights, work = Sizes(), Sizes()
            program.fill(weights, work, False)
            n = program.program.batch
            self.needs |= {f"weights of batch {n}": weights.nbytes, f"batch {n}": work.nbytes}

    def open(self, memory: DeviceReservation, name: str) -> tuple[dict[int, CudaExecutor], list[Block]]:
        """The executors by batch size, and their blocks. Raises PoolExhausted, ProgramError, DeviceFault."""
        parts = {what: memory.part(nbytes, f"{name}: {what}") for what, nbytes in self.needs.items()}
        batches = [program.program.batch for program in self._programs]
        workspace = Workspace()
        executors = {
            n: CudaExecutor(program, parts[f"weights of batch {n}"], parts[f"batch {n}"], workspace=workspace)
            for n, program in zip(batches, self._programs, strict=True)
        }
        return executors, [part.block for part in parts.values()]
