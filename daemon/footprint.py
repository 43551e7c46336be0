"""What the engines of a configuration will hold in memory, known from its plans, against what is available:
before a reload begins.

Called by `daemon.py`. Pure. Memory is counted as on an Orin, where CPU and GPU share it.
"""

from __future__ import annotations

from typing import NamedTuple

from ..ipc.errors import IpcError
from ..ipc.results import ResultArea
from .candidate import Candidate
from .engine_handle import ResultLayout

MIB = 1 << 20
ENGINES = 2
ENGINE_BYTES = 20 * MIB  # private memory before any plan: 17 MiB measured, CPython 3.11 and NumPy on x86-64
CONTEXT_BYTES = 200 * MIB  # of a CUDA context: NVIDIA gives no figure, 150 to 300 MiB are reported for Jetson


class Footprint(NamedTuple):
    """Bytes of each of a pair of engines, of the one on the CPU as last resort (0: none), of results of all of them."""

    each: int
    last_resort: int
    results: int

    @property
    def total(self) -> int:
        return ENGINES * self.each + self.last_resort + self.results

    def __str__(self) -> str:
        spare = f", {mib(self.last_resort)} for one on the CPU" if self.last_resort else ""
        return f"{ENGINES} x {mib(self.each)}{spare} and {mib(self.results)} for results"


def of_engines(candidate: Candidate) -> Footprint:
    """The last resort serves while the pair is started anew, so it counts beside it."""
    config, plans = candidate.config, candidate.plans
    on_cpu = each = ENGINE_BYTES + sum(plan.host_bytes for plan in plans)
    if config.engine.device != "cpu":  # cuda or cuda:N
        # on a CPU the reserve costs nothing until it is used
        each += CONTEXT_BYTES + config.memory.emergency_reserve_mib * MIB + sum(plan.device_bytes for plan in plans)
    last_resort = on_cpu if config.standby.last_resort == "cpu" else 0
    layout = ResultLayout.over(plans, config.batching.max_size)
    area = ResultArea.size_of(config.engine.queue_depth, layout.frames, layout.rows_max, layout.row_width)
    return Footprint(each, last_resort, (ENGINES + bool(last_resort)) * area)


def check(candidate: Candidate, available: int) -> None:
    """Raises IpcError with the figures where these engines do not fit beside what runs."""
    needed = of_engines(candidate)
    if needed.total > available:
        raise IpcError(
            f"the new engines need about {needed} beside those that "
            f"serve, {mib(available)} are available: free memory, or restart orind, which needs no second pair"
        )


def mib(size: int) -> str:
    """In words, rounded up."""
    return f"{-(-size // MIB)} MiB"
