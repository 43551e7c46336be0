"""The GPU clock below which the engine cannot meet the cameras' deadlines, from what was measured at the present one.
Pure.

Called by `power_link.py` once a second, which tells the steward; `orind simulate` takes its arithmetic. Invariant: only
what was measured lately counts; where nothing was, there is no floor. Time is taken to go with 1/clock; what of it is
the memory's goes slower, so the floor lies rather too high than too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .batcher import WAKE_NS, ServiceTimes
from .engine_handle import PlanView


class Needed(NamedTuple):
    """What a model needs: a clock in Hz, or cycles for a frame."""

    value: int
    model: str


def floor_of(deadlines_ns: Mapping[str, int], plans: Mapping[str, PlanView], times: ServiceTimes, clock_hz: int,
             now_ns: int) -> Needed | None:
    """The highest that a model needs. `deadlines_ns`: the tightest of each model's cameras, from capture."""
    if not clock_hz:
        return None
    needed = []
    for name, deadline_ns in deadlines_ns.items():
        plan = plans.get(name)
        took_ns = 0 if plan is None else times.believed(plan.sha256, plan.sizes[0], clock_hz, now_ns)
        if took_ns:
            needed.append(Needed(clock_for(deadline_ns, clock_hz, took_ns), name))
    return max(needed, default=None)


def clock_for(deadline_ns: int, clock_hz: int, took_ns: int) -> int:
    """The clock in Hz at which what takes `took_ns` at `clock_hz` just meets a deadline."""
    return int(clock_hz * took_ns / max(1, deadline_ns - WAKE_NS))


def cycles_of(clock_hz: int, took_ns: int, frames: int) -> float:
    """GPU cycles of one frame of a batch."""
    return took_ns / frames * clock_hz / 1e9


def frame_cycles(plans: Mapping[str, PlanView], times: ServiceTimes, clock_hz: int,
                 now_ns: int) -> Needed | None:
    """GPU cycles that a frame takes in the smallest batch, of the slowest model that was measured lately."""
    took = [(cycles_of(clock_hz, times.believed(plan.sha256, plan.sizes[0], clock_hz, now_ns), plan.sizes[0]), name)
            for name, plan in plans.items()]
    cycles, name = max(took, default=(0.0, ""))
    return Needed(int(cycles), name) if int(cycles) else None
