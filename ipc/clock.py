"""The wall clock (the one module that reads it), and what a camera's time stamp is worth.

Everything in orind runs on CLOCK_MONOTONIC; a camera may stamp in either clock, from this host or another. Invariant:
what comes out is a capture time in this host's CLOCK_MONOTONIC that is never later than the arrival, and a stamp that
cannot be believed is replaced by the arrival time, said so (`clock: "arrival"`) and counted, never used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

ARRIVAL = "arrival"
# A realtime stamp of the same moment may lie a little ahead: NTP slews, PTP hosts differ by less.
AHEAD_MONOTONIC_NS = 1_000_000
AHEAD_REALTIME_NS = 20_000_000
AGE_MAX_NS = 60_000_000_000


def wall_offset_ns() -> int:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC now. Main refreshes it about once a second, since NTP steps the former."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return wall - (before + time.monotonic_ns()) // 2


def wall_text() -> str:
    """Now, for people: local date and time with the offset from UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


class Stamp(NamedTuple):
    """capture_ns: CLOCK_MONOTONIC. clock: what the result says: monotonic, realtime or arrival.

    fault: why the sender's stamp was replaced: "", "none" (it sent none), "future", "old", "foreign".
    """

    capture_ns: int
    clock: str
    fault: str


def interpret(
    ts_ns: int | None,
    clock: str,
    arrival_ns: int,
    offset_ns: int,
    *,
    same_host: bool = True,
    age_max_ns: int = AGE_MAX_NS,
) -> Stamp:
    """What a stamp is worth. offset_ns: wall_offset_ns(). same_host: False for tcp, whose monotonic stamps mean nothing
    here even where they look plausible.
    """
    if ts_ns is None:
        return Stamp(arrival_ns, ARRIVAL, "none")
    if clock == "monotonic":
        if not same_host:
            return Stamp(arrival_ns, ARRIVAL, "foreign")
        capture_ns, ahead_ns = ts_ns, AHEAD_MONOTONIC_NS
    else:
        capture_ns, ahead_ns = ts_ns - offset_ns, AHEAD_REALTIME_NS
    if capture_ns > arrival_ns:
        if capture_ns - arrival_ns > ahead_ns:
            return Stamp(arrival_ns, ARRIVAL, "future")
        capture_ns = arrival_ns
    elif arrival_ns - capture_ns > age_max_ns:
        return Stamp(arrival_ns, ARRIVAL, "old")
    return Stamp(capture_ns, clock, "")


@dataclass(slots=True)
class StampPolicy:
    """interpret() with its counters; one per daemon."""

    age_max_ns: int = AGE_MAX_NS
    offset_ns: int = 0
    future: int = 0
    old: int = 0
    foreign: int = 0

    @property
    def replaced(self) -> int:
        """Stamps that were sent and not believed."""
        return self.future + self.old + self.foreign

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        self.offset_ns = wall_offset_ns()

    def stamp(self, ts_ns: int | None, clock: str, arrival_ns: int, same_host: bool = True) -> Stamp:
        """As interpret; a replaced stamp is counted by its fault."""
        made = interpret(
            ts_ns, clock, arrival_ns, self.offset_ns, same_host=same_host, age_max_ns=self.age_max_ns
        )
        if made.fault == "future":
            self.future += 1
        elif made.fault == "old":
            self.old += 1
        elif made.fault == "foreign":
            self.foreign += 1
        return made
