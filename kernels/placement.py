"""Which steps of a program a device computes: told by executors, read by the status. Imports nothing of either."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a program runs: `on_cpu` are the steps (name, ONNX operator) that the GPU leaves to the CPU, in running
    order; a run launches `segments` graphs."""

    steps: int
    on_cpu: tuple[tuple[str, str], ...]
    segments: int
