"""A process that starts beside one that serves stands back: its imports and checks must not cost a frame its deadline.

Used by the checker, which stays there, and by engines until they are ready. Invariant: nobody stands back who could not
come back (the unit's LimitNICE allows it), nor where nobody serves.
"""

from __future__ import annotations

import os
import resource

STEPS = 10


def stand_back() -> None:
    """Lower this process's priority for good."""
    os.nice(STEPS)


class StandingBack:
    """Lowers the priority, where somebody else serves and it can be raised again; `come_back` raises it."""

    def __init__(self, others_serve: bool) -> None:
        self._own = os.getpriority(os.PRIO_PROCESS, 0)
        self._lowered = others_serve and _may_return_to(self._own)
        if self._lowered:
            os.setpriority(os.PRIO_PROCESS, 0, min(19, self._own + STEPS))

    def come_back(self) -> None:
        """As it was. A second call does nothing."""
        if self._lowered:
            os.setpriority(os.PRIO_PROCESS, 0, self._own)
            self._lowered = False


def _may_return_to(nice: int) -> bool:
    """RLIMIT_NICE counts from 20 for nice 0; a process of root's needs none, as long as it has the capability."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    return soft == resource.RLIM_INFINITY or soft >= 20 - nice or _has_capability()


def _has_capability() -> bool:
    """CAP_SYS_NICE, bit 23 of the effective set."""
    with open("/proc/self/status") as file:
        effective = next((line for line in file if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(effective.split()[1], 16) >> 23 & 1)
