"""The rungs above the GPU's clock: what is given up next where the clock alone cannot hold the budget. Pure.

Called by governor.py. GPU clock, CPU clock, pacing and single-frame batches, a lower live mode of nvpmodel (asked for
in words: only the root helper enters one), levels of degradation in main. Invariants: one rung at a time in both
directions, up only while the rungs below do not suffice, down only after a stretch in which one less did; who comes
back soon after leaving waits twice as long. Heat that has reached its limit does not climb: it takes clock and pacing
at once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

_S = 1_000_000_000


class Rung(IntEnum):
    """Each includes the ones before it."""

    GPU_CLOCK = 0
    CPU_CLOCK = 1
    PACING = 2
    MODE = 3
    DEGRADATION = 4


# How long the rung below is given before the next is entered: the CPUs obey at once, but a reading is up to 0.9 s old;
# what waits in the queue is paced within a second or two; somebody may enter the mode that was named.
_ENTER_NS = {Rung.CPU_CLOCK: 0, Rung.PACING: _S, Rung.MODE: 10 * _S, Rung.DEGRADATION: 10 * _S}
_LEAVE_NS, _LEAVE_MAX_NS, _SOON_NS = 2 * _S, 64 * _S, 60 * _S
# What is left must fit by so much, so that learning does not make it flap.
FITS_AGAIN_MW = 500.0


class Need(NamedTuple):
    """What the rungs are judged by, in mW. `floor_spare`: budget less full load at the lowest clock that is wanted,
    CPUs at their highest; `least_spare`: at the lowest clock that there is, CPUs at their lowest. `over`: readings
    stayed over the budget; `now_over`: the last one is."""

    floor_spare: float
    least_spare: float
    cpu_helps: bool
    over: bool
    now_over: bool


def wanted(rung: Rung, need: Need) -> Rung:
    """The rung that would suffice, seen from the one in force."""
    if need.over:
        # what is in force is kept while readings calm down; more is asked for only while they are still over
        return Rung(min(rung + 1, Rung.DEGRADATION)) if need.now_over or rung is Rung.GPU_CLOCK else rung
    if need.floor_spare >= (FITS_AGAIN_MW if rung > Rung.GPU_CLOCK else 0.0):
        return Rung.GPU_CLOCK
    if need.least_spare >= (FITS_AGAIN_MW if rung > Rung.CPU_CLOCK else 0.0):
        return Rung.CPU_CLOCK if need.cpu_helps else Rung.GPU_CLOCK
    return Rung.MODE if rung >= Rung.PACING else Rung(rung + 1)


class Ladder:
    """State: the rung in force and since when, since when less would do, how long that must last."""

    def __init__(self) -> None:
        self.rung = Rung.GPU_CLOCK
        self._since_ns = 0
        self._less_since_ns: int | None = None
        self._left_ns: int | None = None
        self._leave_ns = _LEAVE_NS

    def climb(self, need: Need, now_ns: int) -> Rung:
        """At most one rung up or down; returns the one in force from now on."""
        target = wanted(self.rung, need)
        if target > self.rung:
            self._less_since_ns = None
            above = Rung(self.rung + 1)
            if now_ns - self._since_ns >= _ENTER_NS[above] or self.rung is Rung.GPU_CLOCK:
                if self._left_ns is not None:
                    soon = now_ns - self._left_ns < _SOON_NS
                    self._leave_ns = min(self._leave_ns * 2, _LEAVE_MAX_NS) if soon else _LEAVE_NS
                self.rung, self._since_ns, self._left_ns = above, now_ns, None
        elif target < self.rung:
            if self._less_since_ns is None:
                self._less_since_ns = now_ns
            if now_ns - self._less_since_ns >= self._leave_ns:
                self.rung = Rung(self.rung - 1)
                self._since_ns = self._left_ns = self._less_since_ns = now_ns
        else:
            self._less_since_ns = None
        return self.rung
