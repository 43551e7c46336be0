"""Turns the temperature limit into a power budget: present power plus what the distance to the set point allows. Pure.

Called by governor.py, which takes the smaller of this and the policy's budget, so that heat is held by the same
feed-forward and dithering as power. Temperature and power go through the same averaging window, so a burst, in which
both rise, hardly moves the result; what remains is integral action on the temperature that the present trend of the
slow parts leads to. Above the limit itself nothing is slow: the brake asks for the lowest clock and pacing until the
set point is regained. Invariant: the budget stays in floor..ceiling.
"""

from __future__ import annotations

from .window import SlidingMean

# What a watt does within seconds: 0.25 C at once and a part of 0.4 C with 20 s (facts: fits of published traces).
# Taking more than the true instant part makes the loop calmer and a burst after idle begin lower, never hotter.
_R_C_PER_W = 0.5
# What a watt does at once. Taken off, the rest is the slow parts, whose trend tells where the temperature is going.
_AT_ONCE_C_PER_W = 0.25
_LEAD_S, _TREND_S = 1.0, 2.0
# Down faster than up: while the heat sink's slower parts fill, power has to fall all the time, and what is late there
# is over the set point
_UP_S, _DOWN_S = 1.0, 0.3
# 30 % of the way from limit back to warning: 83.5 C for 80 / 85
_SET_POINT_SHARE = 0.3


class ThermalBudget:
    """State: windows of temperature, smoothed budget, whether the brake is on. Temperatures in C here."""

    def __init__(self, warn_mc: int, limit_mc: int, window_ns: int) -> None:
        self._brake_c = limit_mc / 1000
        self.set_limits(warn_mc, limit_mc)
        self._window = SlidingMean(window_ns)
        self._mean_c = 0.0
        self._slow_c: float | None = None
        self._trend_c_per_s = 0.0
        self._budget_mw: float | None = None
        self._ceiling_mw = 0.0
        self.braking = False

    def set_limits(self, warn_mc: int, limit_mc: int) -> None:
        """Other temperatures from now on. A board that is above a lowered limit is led there by the budget; the brake
        stays where it was until the set point is reached, or a change of policy would be an emergency."""
        self._warn_c = warn_mc / 1000
        self._limit_c = limit_mc / 1000
        self.set_point_c = self._limit_c - _SET_POINT_SHARE * (self._limit_c - self._warn_c)
        self._brake_c = max(self._brake_c, self._limit_c)

    @property
    def warm(self) -> bool:
        """Whether the temperature, averaged over the sensor window, is at or above the warning."""
        return self._mean_c >= self._warn_c

    def budget_mw(self, tj_c: float, board_mw: int | None, lasted_ns: int, floor_mw: float,
                  ceiling_mw: float) -> float:
        """The power that the temperature allows now. Without a power reading the last answer holds (not for long:
        lost power is hot)."""
        if tj_c < self.set_point_c:
            self._brake_c = self._limit_c
        if tj_c >= self._brake_c:
            self.braking = True
        elif tj_c < self.set_point_c:
            self.braking = False
        self._window.add(max(lasted_ns, 1), tj_c)
        mean = self._window.mean()
        self._mean_c = tj_c if mean is None else mean
        low = min(floor_mw, ceiling_mw)
        if board_mw is not None:
            ahead = self._mean_c + _LEAD_S * max(self._follow_trend(board_mw, lasted_ns), 0.0)
            allowed = board_mw + (self.set_point_c - ahead) / _R_C_PER_W * 1000
            before = self._budget_mw
            if before is None:
                before = min(allowed, ceiling_mw)
            elif before >= self._ceiling_mw:
                # it did not bind: a raised budget is not held back by what the old one had room for
                before = max(before, min(allowed, ceiling_mw))
            smooth_s = _DOWN_S if allowed < before else _UP_S
            self._budget_mw = before + (allowed - before) * min(lasted_ns / 1e9 / smooth_s, 1.0)
        self._ceiling_mw = ceiling_mw
        self._budget_mw = min(max(self._budget_mw if self._budget_mw is not None else low, low), ceiling_mw)
        return self._budget_mw

    def _follow_trend(self, board_mw: int, lasted_ns: int) -> float:
        """Trend of the slow parts in C/s, smoothed."""
        slow_c = self._mean_c - _AT_ONCE_C_PER_W * board_mw / 1000
        if self._slow_c is not None and lasted_ns > 0:
            passed_s = lasted_ns / 1e9
            now = (slow_c - self._slow_c) / passed_s
            self._trend_c_per_s += (now - self._trend_c_per_s) * min(passed_s / _TREND_S, 1.0)
        self._slow_c = slow_c
        return self._trend_c_per_s
