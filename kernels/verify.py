"""`orind verify`: is this plan whole, does it compute what it computed when it was built, and how far is it from ONNX?

Caller: the command line. Each check is one line with a verdict; the first failure of the bytes or of the program ends
it, since what follows would judge damaged numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .cpu.executor import CpuExecutor
from .cpu.memory_check import check_memory
from .described import described
from .ir.errors import GoldenMismatch, MemoryFault, ProgramError
from .ir.lifetimes import joined
from .ir.program import ALIGN, Program
from .ir.validate import programs_of
from .passes.arena import floor
from .plan.file import PlanFile
from .plan.layout import PlanError
from .plan.told import text_of
from .verify_model import REFERENCES, Check, against_onnx

__all__ = ["REFERENCES", "Check", "VerifyReport", "verify"]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok is not False for check in self.checks)


def verify(path: Path, onnx: Path | None = None, reference: str = "import", images: Path | None = None) -> VerifyReport:
    """Checks a plan on the CPU executor; with `onnx`, also against that model, on the golden input or on the pictures
    of the folder `images`: through our own FP32 import, or through ONNX Runtime where it is named (and installed).
    Raises PlanError for a file that is not a plan or does not say what it is, SpecError, DecoderError, ModelError,
    CalibrationError."""
    checks: list[Check] = []
    with PlanFile.open_path(path) as plan:
        try:
            plan.verify()
        except PlanError as error:
            return VerifyReport((Check("hash", False, str(error)),))
        checks.append(Check("hash", True, f"sha256 {plan.sha256[:12]}, {plan.size} bytes"))
        off = [name for name, value in plan.tensors.items() if value.ctypes.data % ALIGN]
        checks.append(Check("alignment", not off, f"{len(plan.tensors)} tensors on {ALIGN} bytes" if not off else
                            f"tensor '{off[0]}' is not aligned to {ALIGN} bytes: build the plan again"))
        text_of(plan, "program")
        programs: dict[int, Program] = {}
        try:
            programs = programs_of(plan.metadata, plan.tensors)
            for batch, program in programs.items():
                checks += _run(plan, batch, programs)
                if all(check.ok for check in checks):
                    checks.append(_memory(plan, program))
        except ProgramError as error:
            checks.append(Check("program", False, str(error)))
        else:
            described(plan)
        if onnx is not None and all(check.ok for check in checks):
            checks += against_onnx(plan, programs, onnx, reference, images)
    return VerifyReport(tuple(checks))


def _run(plan: PlanFile, batch: int, programs: dict[int, Program]) -> list[Check]:
    """The program as it was read, and its answer to the golden input."""
    with CpuExecutor(plan, batch, programs) as executor:
        program = executor.program
        exact = sum(all(program.tensors[n].exact for n in s.writes()) for s in program.steps)
        sound = Check(f"program, batch {batch}", True, f"{len(program.steps)} steps, {len(program.tensors)} tensors: "
                      "fields, shapes, constants, data flow and places in the arena agree")
        try:
            executor.golden()
        except GoldenMismatch as error:
            return [sound, Check(f"golden, batch {batch}", False, str(error))]
    return [sound, Check(f"golden, batch {batch}", True,
                         f"outputs and {exact} of {len(program.steps)} steps bit for bit")]


def _memory(plan: PlanFile, program: Program) -> Check:
    """The watched run: see cpu/memory_check.py."""
    name = f"memory, batch {program.batch}"
    try:
        check_memory(program, plan.tensors, plan.tensors["golden.input"][:program.batch])
    except MemoryFault as error:
        return Check(name, False, str(error))
    ratio = program.arena_bytes / max(1, floor(list(joined(program)[0].values())))
    return Check(name, True, "same bits with separate buffers and with poisoned dead memory, every read finds its own "
                 f"tensor; arena {program.arena_bytes} bytes, {ratio:.3f} of the largest live set")
