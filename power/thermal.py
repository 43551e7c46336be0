"""Turns the temperature limit into a power budget: present power plus what the distance to the set point allows. Pure.

Called by governor.py, which takes the smaller of this and the policy's budget, so that heat is held by the same
feed-forward and dithering as power. Temperature and power go through the same averaging window, so a burst, in which
both rise, hardly moves the result; what remains is integral action. Above the limit itself nothing is slow: the brake
asks for the lowest clock and pacing until the set point is regained. Invariant: the budget stays in floor..ceiling.
"""

from __future__ import annotations

from .window import SlidingMean

# What a watt does within seconds: 0.25 C at once and a part of 0.4 C with 20 s (facts: fits of published traces).
# Taking more than the true instant part makes the loop calmer and a burst after idle begin lower, never hotter.
_R_C_PER_W = 0.5
_SMOOTH_S = 1.0
# 30 % of the way from limit back to warning: 83.5 C for 80 / 85
_SET_POINT_SHARE = 0.3


class ThermalBudget:
    """State: windows of temperature, smoothed budget, whether the brake is on. Temperatures in C here."""

    def __init__(self, warn_mc: int, limit_mc: int, window_ns: int) -> None:
        self._warn_c = warn_mc / 1000
        self._limit_c = limit_mc / 1000
        self.set_point_c = self._limit_c - _SET_POINT_SHARE * (self._limit_c - self._warn_c)
        self._window = SlidingMean(window_ns)
        self._mean_c = 0.0
        self._budget_mw: float | None = None
        self.braking = False

    @property
    def warm(self) -> bool:
        """Whether the temperature, averaged over the sensor window, is at or above the warning."""
        return self._mean_c >= self._warn_c

    def budget_mw(self, tj_c: float, board_mw: int | None, lasted_ns: int, floor_mw: float,
                  ceiling_mw: float) -> float:
        """The power that the temperature allows now. Without a power reading the last answer holds (not for long:
        lost power is hot)."""
        if tj_c >= self._limit_c:
            self.braking = True
        elif tj_c < self.set_point_c:
            self.braking = False
        self._window.add(max(lasted_ns, 1), tj_c)
        mean = self._window.mean()
        self._mean_c = tj_c if mean is None else mean
        low = min(floor_mw, ceiling_mw)
        if board_mw is not None:
            allowed = board_mw + (self.set_point_c - self._mean_c) / _R_C_PER_W * 1000
            before = min(allowed, ceiling_mw) if self._budget_mw is None else self._budget_mw
            self._budget_mw = before + (allowed - before) * min(lasted_ns / 1e9 / _SMOOTH_S, 1.0)
        self._budget_mw = min(max(self._budget_mw if self._budget_mw is not None else low, low), ceiling_mw)
        return self._budget_mw
