"""Picks the clock step: sigma-delta between the two neighbouring steps around the wanted power. Pure.

Called by governor.py. One step of an AGX Orin is 2 to 4.4 W at full load, so only changing between neighbours comes
closer to a budget. Invariants: a step lasts at least the dwell; a small drift never makes three different steps within
one second; a large one (more than a quarter of a step beyond the pair) is followed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

_AT_ONCE = 0.25
_HOLD_NS = 1_000_000_000


class Dither:
    """State: the lower index of the pair, the index in use, and the debt of time at the upper step."""

    def __init__(self, dwell_ns: int, tick_ns: int) -> None:
        # a tick that comes a little early must not double the dwell
        self._dwell_ns = dwell_ns - tick_ns // 4
        self._debt_unit_s = dwell_ns / 1e9
        self._low: int | None = None
        self._index = 0
        self._since_ns = 0
        self._noted_ns = 0
        self._debt_s = 0.0

    def force(self, index: int, now_ns: int) -> int:
        """Take this step now, regardless of dwell (brakes); later choices start from it."""
        if index != self._index or self._low is None:
            self._index, self._since_ns = index, now_ns
        self._low, self._debt_s, self._noted_ns = index, 0.0, now_ns
        return index

    def choose(self, full_load_mw: Sequence[float], target_mw: float, busy: float, now_ns: int) -> int:
        """The index to use from now on. `busy`: the share of the last interval in which power was really spent; debt
        only builds up then."""
        last = len(full_load_mw) - 1
        place = place_of(full_load_mw, target_mw)
        if self._low is None or self._index > last:
            self._low, self._index, self._since_ns = min(int(place), max(last - 1, 0)), int(place), now_ns
            self._noted_ns = now_ns
        elapsed_s = min(max(now_ns - self._noted_ns, 0) / 1e9, 1.0)
        self._noted_ns = now_ns
        share = min(max(place - self._low, 0.0), 1.0)
        self._debt_s += (share - (self._index > self._low)) * elapsed_s * busy
        # regular operation needs -0.5 to 1.5 units; more would be paid back long after the reason has gone
        bound = 2.0 * self._debt_unit_s
        self._debt_s = min(max(self._debt_s, -bound), bound)
        moved = self._move_pair(place, last, now_ns)
        if moved or now_ns - self._since_ns >= self._dwell_ns:
            self._set(self._pick(place, last), now_ns)
        return self._index

    def _pick(self, place: float, last: int) -> int:
        low = self._low or 0
        if place <= low or last == 0:
            return low
        if place >= low + 1:
            return low + 1
        return low + (self._debt_s >= 0.5 * self._debt_unit_s)

    def _move_pair(self, place: float, last: int, now_ns: int) -> bool:
        """Follow the wanted place when it has left the pair; True when the index in use must change at once."""
        low = self._low or 0
        beyond = low - place if place < low else place - (low + 1)
        if beyond <= 0 or last == 0:
            return False
        if beyond > _AT_ONCE:
            self._low, self._debt_s = min(int(place), last - 1), 0.0
            return self._index not in (self._low, self._low + 1)
        shared = low if place < low else low + 1
        if self._index == shared and now_ns - self._since_ns >= _HOLD_NS:
            self._low = min(max(low - 1 if place < low else low + 1, 0), last - 1)
            # begin at the shared step, with the debt that keeps it there longest
            self._debt_s = 0.5 * self._debt_unit_s if place < low else -0.5 * self._debt_unit_s
        return False

    def _set(self, index: int, now_ns: int) -> None:
        if index != self._index:
            self._index, self._since_ns = index, now_ns


def place_of(full_load_mw: Sequence[float], target_mw: float) -> float:
    """Where the target lies in the ascending table, as a fractional index in 0..last."""
    i = bisect_right(full_load_mw, target_mw) - 1
    if i < 0:
        return 0.0
    if i >= len(full_load_mw) - 1:
        return float(len(full_load_mw) - 1)
    return i + (target_mw - full_load_mw[i]) / (full_load_mw[i + 1] - full_load_mw[i])
