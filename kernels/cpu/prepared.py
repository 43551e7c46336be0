"""A plan on the CPU before it has memory: what it needs at all its batch sizes, found by binding it once.

Called by `devices.py`. The first binding makes the executor's forms of the weights and writes nothing else: its pages
are never touched. The second one, in memory reserved for it, finds those forms made.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.program import Program
from ..memory.pool import Block
from ..memory.reservation import HostReservation
from .executor import CpuExecutor, Plan, ProgramRunner
from .workspace import Workspace

WEIGHTS, WORK = "weights", "work memory"


class PreparedPlan:
    """`needs`: bytes by what they are for, in the order in which `open` takes them."""

    def __init__(self, plan: Plan, programs: Mapping[int, Program]) -> None:
        """Raises ProgramError."""
        self._plan, self._programs = plan, programs
        self._workspace = Workspace()
        for program in programs.values():
            ProgramRunner(program, plan.tensors, workspace=self._workspace)
        constants = plan.tensors.values()
        self.needs = {WEIGHTS: self._workspace.weight_bytes(constants), WORK: self._workspace.work_bytes()}
        self.needs |= {f"batch {n}": programs[n].arena_bytes for n in sorted(programs)}

    def open(self, memory: HostReservation, name: str) -> tuple[dict[int, CpuExecutor], list[Block]]:
        """The executors by batch size, and their blocks. Raises PoolExhausted."""
        blocks = {what: memory.take(nbytes, f"{name}: {what}") for what, nbytes in self.needs.items()}
        parts = {what: memory.array(block) for what, block in blocks.items()}
        self._workspace.settle(self._plan.tensors.values(), parts[WEIGHTS], parts[WORK])
        executors = {
            n: CpuExecutor(self._plan, n, self._programs, parts[f"batch {n}"], self._workspace)
            for n in sorted(self._programs)
        }
        return executors, list(blocks.values())
