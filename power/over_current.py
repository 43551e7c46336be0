"""Turns the over-current counters into a rate. Pure.

Called by steward.py. The hardware answers an over-current event by halving the clock for about a millisecond; no clock
file shows it, only these counters do, and firmware renews them every two seconds. On an Orin Nano Super in its free
mode up to 30 events a second are normal, so a single event says nothing: the rate does.
"""

from __future__ import annotations

from collections import deque

_S = 1_000_000_000
# two renewals of the counters
_WINDOW_NS = 4 * _S
# Each event costs half of 1.07 ms (published for Orin Nano Super): from 50 a second on, some 3 % of the time is lost
ALARM_HZ = 50.0


class OverCurrentRate:
    """State: counts of the last seconds."""

    def __init__(self) -> None:
        self._past: deque[tuple[int, int]] = deque()

    def take(self, count: int | None, now_ns: int) -> float | None:
        """Events per second over the last four seconds; None while that is not known: no counters on this board, less
        than four seconds of them, or a count that went back (they begin anew at boot)."""
        if count is None or (self._past and count < self._past[-1][1]):
            self._past.clear()
        if count is None:
            return None
        self._past.append((now_ns, count))
        while len(self._past) > 1 and now_ns - self._past[1][0] >= _WINDOW_NS:
            self._past.popleft()
        then_ns, then = self._past[0]
        if now_ns - then_ns < _WINDOW_NS:
            return None
        return (count - then) / ((now_ns - then_ns) / _S)
