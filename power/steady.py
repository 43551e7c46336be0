"""Picks one clock and stays there: the highest whose full load fits, for the smoothest latency. Pure.

Called by governor.py in place of dither.py under `steady: true`. Invariants: it goes down at once, as far as it must;
up by one step, only when the next one has fitted with room to spare for a while, so that learning does not move it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

# What is learned of a board settles within a few seconds of load (observer.py) and then moves by a tenth of a watt.
_UP_NS, _UP_SHARE = 10_000_000_000, 0.02


class SteadyStep:
    """State: the step in use, and since when the one above would have fitted."""

    def __init__(self) -> None:
        self._index: int | None = None
        self._fits_since_ns: int | None = None

    def force(self, index: int, now_ns: int) -> int:
        """Take this step now (brakes); the way up from it is the usual one."""
        self._index, self._fits_since_ns = index, None
        return index

    def choose(self, full_load_mw: Sequence[float], target_mw: float, busy: float, now_ns: int) -> int:
        """The index to use from now on; `busy` changes nothing, a pinned clock does not follow the load."""
        highest = max(bisect_right(full_load_mw, target_mw) - 1, 0)
        if self._index is None or highest < self._index:
            self._index, self._fits_since_ns = highest, None
            return highest
        above = self._index + 1
        if above >= len(full_load_mw) or full_load_mw[above] > target_mw * (1.0 - _UP_SHARE):
            self._fits_since_ns = None
        elif self._fits_since_ns is None:
            self._fits_since_ns = now_ns
        elif now_ns - self._fits_since_ns >= _UP_NS:
            self._index, self._fits_since_ns = above, None
        return self._index
