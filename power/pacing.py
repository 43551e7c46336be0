"""How many frames a second a budget allows where full load does not fit it: the share of the time that the GPU may be
busy, by the time that a frame takes. Pure.

Called by governor.py on the third rung. Invariant: never below the policy's lowest pace, and that one wherever the time
of a frame is not known or power was over the budget lately although it was paced.
"""

from __future__ import annotations

from .budget import Asked

_DOUBT_NS = 60_000_000_000


class Pacing:
    """State: when readings were over the budget last."""

    def __init__(self) -> None:
        self._over_ns: int | None = None

    def look(self, over: bool, now_ns: int) -> None:
        """Once a tick. `over`: readings stayed over the budget."""
        if over:
            self._over_ns = now_ns

    def known(self, frame: Asked | None, now_ns: int) -> bool:
        """Whether a pace can be told. `frame`: GPU cycles of one frame, as main measured them."""
        doubt = self._over_ns is not None and now_ns - self._over_ns < _DOUBT_NS
        return frame is not None and now_ns < frame.until_ns and frame.value > 0 and not doubt

    def rate_hz(self, frame: Asked | None, hz: int, idle_mw: float, full_mw: float, budget_mw: float, lowest_hz: float,
                now_ns: int) -> float:
        """Frames/s at the clock `hz`, at which full load needs `full_mw`."""
        if frame is None or not self.known(frame, now_ns) or full_mw <= idle_mw:
            return lowest_hz
        share = min(max((budget_mw - idle_mw) / (full_mw - idle_mw), 0.0), 1.0)
        return max(share * hz / frame.value, lowest_hz)
