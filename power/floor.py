"""The clock that the governor does not go below while it can: the operator's, or the one that deadlines need. Pure.

The kernel is kept from going below it as well: under a light load it would lower the clock, a frame would then take
longer than its deadline, be refused for that, and the load would stay light.

Called by governor.py. Heat, a rail's limit and a budget that it does not fit are stronger; then it is said what cannot
be had together. Invariant: it never allows more than the budget: it only says which of the allowed clocks is the
lowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .budget import Outside
from .policy import Policy


@dataclass(frozen=True, slots=True)
class Floor:
    """`index` into the clocks that are allowed; `name` of what asks for it, '' where nothing does."""

    index: int
    hz: int
    name: str

    def pin_hz(self, clocks_hz: Sequence[int], cap_hz: int) -> int | None:
        """What the kernel must not go below under this cap; None where nothing asks for it."""
        return min(clocks_hz[self.index], cap_hz) if self.index else None

    def short_of(self, table_mw: Sequence[float], target_mw: float, budget_mw: int, why: str) -> str:
        """What cannot be had, or ''. `why`: what allows less than the budget, '' where it is the budget itself."""
        if not self.index or table_mw[self.index] <= target_mw:
            return ""
        within = "" if why else f" within {budget_mw / 1000:g} W"
        return f"{self.name} of {self.hz / 1e6:g} MHz cannot be met{within}"


def floor_of(policy: Policy, clocks_hz: Sequence[int], outside: Outside, now_ns: int) -> Floor:
    """The lowest step that is not below what is asked for; the highest where all are."""
    hz, name = policy.gpu_min_hz, "gpu_min_mhz"
    deadline = outside.deadline
    if deadline is not None and now_ns < deadline.until_ns and deadline.value > hz:
        hz, name = deadline.value, "deadline floor"
    if not hz:
        return Floor(0, 0, "")
    index = next((i for i, step in enumerate(clocks_hz) if step >= hz), len(clocks_hz) - 1)
    return Floor(index, hz, name)
