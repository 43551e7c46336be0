"""The accuracy gate of CONTRACT.md: INT8 against FP32 on the held-back pictures. Caller: `build.py`, `orind build`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cpu.executor import ProgramRunner
from ..spec import ModelSpec
from .pictures import Source


def measure_gate(spec: ModelSpec, floats: ProgramRunner, integers: ProgramRunner, float_source: Source,
                 integer_source: Source, held: Sequence[Path], warnings: list[str]) -> dict[str, Any]:
    return {}
