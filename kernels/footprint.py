"""What an engine holds of a plan in private memory, told from the plan before anything runs.

Called by the daemon's checker, so that a reload that does not fit is refused before it begins. An upper estimate beside
the plan itself, which all engines share; a test holds it against running engines.
"""

from __future__ import annotations

from .devices import CpuDevice
from .ir.validate import programs_of
from .model import PIXEL_BYTES, ROOM_LEAST_BYTES, PreparedModel
from .plan.file import PlanFile

STEP_BYTES = 40 << 10  # views and calls of a bound step for one frame of a batch: 22 and 36 KiB measured, of two nets


def host_bytes(plan: PlanFile) -> int:
    """In the process, with what preparing pictures takes beside the pictures' own bytes. On a GPU that is the
    page-locked copy of each arena, and at most what steps on the CPU need. Raises ProgramError, SpecError.
    """
    model = PreparedModel(plan, CpuDevice())
    programs = programs_of(plan.metadata, plan.tensors)
    bound = sum(len(program.steps) * program.batch for program in programs.values())
    pictures = PIXEL_BYTES * model.pixels + ROOM_LEAST_BYTES if model.pixels else 0
    return STEP_BYTES * bound + sum(model.on_device.needs.values()) + pictures


def device_bytes(plan: PlanFile) -> int:
    """On a GPU, which has weights and an arena for each batch size."""
    weights = sum(t.nbytes for name, t in plan.tensors.items() if not name.startswith(("golden.", "orind.")))
    return sum(weights + program.arena_bytes for program in programs_of(plan.metadata, plan.tensors).values())
