"""Whether what the configuration names can run on `engine.device`: found out by the checker, which touches no GPU.

Invariant: what is refused here an engine would refuse as well (kernels/cuda), once it had been started for it. That
there is a GPU and that its memory suffices only an engine can find out.
"""

from __future__ import annotations

from ..kernels.cuda import driver, nvrtc
from ..kernels.cuda.assignment import assign
from ..kernels.ir.errors import ProgramError
from ..kernels.ir.onnx_names import onnx_name
from ..kernels.ir.validate import programs_of
from ..kernels.plan.file import PlanFile
from .sections import EngineSection


def library_problems(engine: EngineSection) -> list[str]:
    """What keeps every plan from running there, each beginning with the dotted key."""
    if engine.device == "cpu":
        return []
    problems = []
    for load in (driver.load, nvrtc.load):
        try:
            load()
        except (ProgramError, nvrtc.CompileError) as error:
            problems.append(f"engine.device: {error}; or set it to cpu")
    return problems


def plan_problem(plan: PlanFile, engine: EngineSection) -> str | None:
    """What keeps this plan from running there, of the batch size with most steps without a kernel; or None."""
    if engine.device == "cpu":
        return None
    without, steps = max(_without_kernel(plan), key=lambda found: len(found[0]))
    kinds = ", ".join(sorted(set(without)))
    if len(without) == steps:
        return (
            f"no step of this plan has a CUDA kernel ({kinds}): build it with --precision mixed, int8 or fp16, or "
            "set engine.device to cpu"
        )
    if without and engine.cpu_steps == "refuse":
        return (
            f"{len(without)} of {steps} steps have no CUDA kernel yet ({kinds}): engine.cpu_steps: allow runs "
            "these on the CPU"
        )
    return None


def _without_kernel(plan: PlanFile) -> list[tuple[list[str], int]]:
    """Of each batch size the operators of the steps that no CUDA kernel computes, and how many steps there are."""
    programs = programs_of(plan.metadata, plan.tensors).values()
    return [([onnx_name(step) for step in assign(program).cpu_steps], len(program.steps)) for program in programs]
