"""What an engine holds of a plan in private memory, told from the plan before anything runs.

Called by the daemon's checker, so that a reload that does not fit is refused before it begins. An upper estimate, which
a test holds against running engines.
"""

from __future__ import annotations

from math import prod

import numpy as np

from .ir.validate import programs_of
from .plan.file import PlanFile

PROGRAM_BYTES = 4 << 20  # views and calls of a bound program


def private_bytes(plan: PlanFile, device: str) -> int:
    """Bytes beside the plan itself, which all engines share; on "cuda" of host and device together, as on an Orin."""
    weights = [t for name, t in plan.tensors.items() if not name.startswith(("golden.", "orind."))]
    total = 0
    for program in programs_of(plan.metadata, plan.tensors).values():
        item = min(np.dtype(tensor.dtype).itemsize for tensor in program.tensors.values())
        # beside the arena the CPU holds as many numbers as float32 (windows, sums), and the weights as float32
        total += PROGRAM_BYTES + program.arena_bytes * (1 + 4 // item) + 4 * sum(prod(t.shape) for t in weights)
        if device == "cuda":
            total += program.arena_bytes + sum(t.nbytes for t in weights)
    return total
