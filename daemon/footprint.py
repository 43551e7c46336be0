"""What a pair of engines will hold in memory, known from its plans, against what is available: before a reload begins.

Called by `daemon.py`. Pure. Memory is counted as on an Orin, where CPU and GPU share it.
"""

from __future__ import annotations

from ..ipc.errors import IpcError
from ..ipc.results import ResultArea
from .candidate import Candidate
from .engine_handle import ResultLayout

MIB = 1 << 20
ENGINES = 2
ENGINE_BYTES = 20 * MIB  # private memory before any plan: 17 MiB measured, CPython 3.11 and NumPy on x86-64
CONTEXT_BYTES = 200 * MIB  # of a CUDA context: NVIDIA gives no figure, 150 to 300 MiB are reported for Jetson


def of_pair(candidate: Candidate) -> tuple[int, int]:
    """Bytes of one engine, and of the results that main shares with both."""
    engine, plans = candidate.config.engine, candidate.plans
    reserve = candidate.config.memory.emergency_reserve_mib * MIB  # on a CPU it costs nothing until it is used
    own = ENGINE_BYTES + sum(plan.engine_bytes for plan in plans)
    own += CONTEXT_BYTES + reserve if engine.device == "cuda" else 0
    layout = ResultLayout.over(plans, candidate.config.batching.max_size)
    return own, ENGINES * ResultArea.size_of(engine.queue_depth, layout.frames, layout.rows_max, layout.row_width)


def check(candidate: Candidate, available: int) -> None:
    """Raises IpcError with the figures where a second pair of engines does not fit beside what runs."""
    own, results = of_pair(candidate)
    if ENGINES * own + results > available:
        raise IpcError(
            f"the new engines need about {ENGINES} x {mib(own)} and {mib(results)} for results beside those that "
            f"serve, {mib(available)} are available: free memory, or restart orind, which needs no second pair"
        )


def mib(size: int) -> str:
    """In words, rounded up."""
    return f"{-(-size // MIB)} MiB"
