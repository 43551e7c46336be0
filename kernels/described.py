"""What a plan says of itself, checked as a whole: spec, interface, report and provenance, and a program for each batch.

Callers: `verify.py` and `orind inspect`, so that what one refuses the other does not pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from .ir.validate import programs_of
from .model import Interface, interface_of
from .plan.file import PlanFile
from .plan.layout import PlanError
from .plan.told import Told, text_of, told
from .spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Description:
    spec: ModelSpec
    interface: Interface
    report: Told
    provenance: Told


def described(plan: PlanFile) -> Description:
    """Of a verified plan. Raises PlanError, SpecError, ProgramError, DecoderError for what is missing or wrong."""
    text_of(plan, "program")
    spec = ModelSpec.from_json(text_of(plan, "spec"))
    programs = programs_of(plan.metadata, plan.tensors)
    for batch in spec.batch:
        if batch not in programs:
            raise PlanError(f"{plan.path}: it holds no program for batch {batch}: make it with orind build")
    report = told(plan, "report")
    for key in ("layers", "precision"):
        report[key]
    return Description(spec, interface_of(plan, spec), report, told(plan, "provenance"))
