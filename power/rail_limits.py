"""Limits of single rails, as board power: what the clock at which a rail reaches its limit makes the board draw. Pure.

Called by governor.py where the policy has `rail_limits_w`. Each rail has an observer of its own, which begins with the
board's model and learns the rail's share of it. Invariant: until it has learned, a rail counts as drawing all of the
board's power: less is allowed, never more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .board import BoardFacts
from .dither import place_of
from .observer import Observer

# a rail may carry a small part of what the load adds: the CPUs' one does
_GAIN_LOW = 0.02


class RailLimits:
    """One observer for each limited rail. Powers in mW."""

    def __init__(self, facts: BoardFacts, limits_mw: Mapping[str, int]) -> None:
        self._facts = facts
        self._observers: dict[str, Observer] = {}
        self.adopt(limits_mw)

    def adopt(self, limits_mw: Mapping[str, int]) -> None:
        """Other limits from now on; what was learned of a rail that is still limited stays."""
        facts = self._facts
        self._limits_mw = dict(limits_mw)
        self._observers = {label: self._observers.get(label) or Observer(facts.model, facts.sensor_window_ns, _GAIN_LOW)
                           for label in limits_mw}

    def note(self, lasted_ns: int, gpu_hz: int, busy: float | None, tj_c: float, cpu_share: float) -> None:
        """As Observer.note, for each rail."""
        for observer in self._observers.values():
            observer.note(lasted_ns, gpu_hz, busy, tj_c, cpu_share)

    def learn(self, rails_mw: Mapping[str, int], lasted_ns: int) -> None:
        """As Observer.learn, for each rail that could be read."""
        for label, observer in self._observers.items():
            if label in rails_mw:
                observer.learn(rails_mw[label], lasted_ns)

    def allowed(self, clocks_hz: Sequence[int], board_mw: Sequence[float], tj_c: float,
                cpu_share: float) -> tuple[float, str]:
        """(board power, why) at the clock where the first rail reaches its limit; infinite where none does."""
        best, why = float("inf"), ""
        for label, observer in self._observers.items():
            limit = self._limits_mw[label]
            table = observer.full_load_mw(clocks_hz, tj_c, cpu_share)
            if table[-1] <= limit:
                continue
            place = place_of(table, limit)
            low = min(int(place), max(len(board_mw) - 2, 0))
            high = min(low + 1, len(board_mw) - 1)
            power = board_mw[low] + (board_mw[high] - board_mw[low]) * (place - low)
            if power < best:
                best, why = power, f"{label} is limited to {limit / 1000:g} W"
        return best, why
