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
from .memory import DeviceReservation, SharedWeights, Sizes

WEIGHTS = "weights"


class PreparedPlan:
    """`needs`: bytes by what they are for, in the order in which `open` takes them."""

    def __init__(self, plan: Plan, programs: Mapping[int, Program], device: Device, cpu_steps: bool) -> None:
        """Raises ProgramError as CudaExecutor.alone."""
        self._programs = [PreparedProgram(plan, programs[n], device, cpu_steps) for n in sorted(programs)]
        weights, batches = Sizes(), {}
        shared = SharedWeights(weights)
        for program in self._programs:
            work = Sizes()
            program.fill(shared, work, False)
            batches[f"batch {program.program.batch}"] = work.nbytes
        self.needs: dict[str, int] = {WEIGHTS: weights.nbytes, **batches}

    def open(self, memory: DeviceReservation, name: str) -> tuple[dict[int, CudaExecutor], list[Block]]:
        """The executors by batch size, and their blocks. Raises PoolExhausted, ProgramError, DeviceFault."""
        parts = {what: memory.part(nbytes, f"{name}: {what}") for what, nbytes in self.needs.items()}
        weights, workspace = SharedWeights(parts[WEIGHTS]), Workspace()
        executors = {
            (n := program.program.batch): CudaExecutor(program, weights, parts[f"batch {n}"], workspace=workspace)
            for program in self._programs
        }
        return executors, [part.block for part in parts.values()]
