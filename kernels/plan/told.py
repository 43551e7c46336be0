"""What a build wrote into a plan's metadata, for those who show or check it: what is missing is named.

Callers: `verify.py`, `verify_model.py`, `daemon/inspect_command.py`, which hands the report on to `kernels/report`. A
plan may come from an older orind or from other hands: a part that is not there is the plan's fault (PlanError) and
never looks like one of the program's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .file import PlanFile
from .layout import PlanError
from .told_shape import first_fault


class Told(dict[str, Any]):
    """A JSON object of the plan at `path`; `[key]` raises PlanError for what it lacks."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise PlanError(f"{self.path}: it holds no {key}: make it with orind build")


def text_of(plan: PlanFile, part: str) -> str:
    """The text under `part` of the metadata. Raises PlanError."""
    return str(Told(plan.metadata, plan.path)[part])


def told(plan: PlanFile, part: str) -> Told:
    """The JSON object under `part` of the metadata; those inside it are Told too. Raises PlanError."""
    try:
        value = json.loads(text_of(plan, part), object_hook=lambda found: Told(found, plan.path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise PlanError(f"{plan.path}: its {part} cannot be read: make it with orind build") from error
    if not isinstance(value, Told):
        raise PlanError(f"{plan.path}: its {part} is no JSON object: make it with orind build")
    if fault := first_fault(value, part) if part in ("report", "provenance") else None:
        raise PlanError(f"{plan.path}: {fault}: make it with orind build")
    return value
