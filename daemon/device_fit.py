"""Whether what the configuration names can run on `engine.device`: found out by the checker, which touches no GPU.

Invariant: what is refused here an engine would refuse as well (kernels/cuda), once it had been started for it. That
there is a GPU and that its memory suffices only an engine can find out.
"""

from __future__ import annotations

import importlib

from ..kernels.cuda.assignment import assign
from ..kernels.ir.validate import programs_of
from ..kernels.plan.file import PlanFile
from .sections import EngineSection


def library_problem(engine: EngineSection) -> str | None:
    """What keeps every plan from running there, beginning with the dotted key; None where nothing does."""
    if engine.device == "cpu":
        return None
    try:
        importlib.import_module("pycuda.driver")
    except ImportError as error:
        return (
            f"engine.device: PyCUDA cannot be imported ({error}); scripts/build_pycuda installs it, a driver "
            "brings libcuda.so.1; or set it to cpu"
        )
    return None


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
    return [([type(step).__name__ for step in assign(program).cpu_steps], len(program.steps)) for program in programs]
