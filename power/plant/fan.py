"""nvfancontrol of a simulated board: a table of margin and PWM, looked at every two seconds, by profile.

Used by model.py. Invariant: a dead fan turns at 0 whatever is asked of it.
"""

from __future__ import annotations

from itertools import pairwise

from .constants import FanCurve

_GROUP_MAX_C = 105.0
_POLLING_S = 2.0  # POLLING_INTERVAL of nvfancontrol.conf


class Fan:
    """State: what was last set, and when the next look is due."""

    def __init__(self, curve: FanCurve, works: bool) -> None:
        self._curve = curve
        self.works = works
        self.pwm = 88.0
        self._wait_s = 0.0

    def step(self, dt_s: float, tj_c: float) -> None:
        """Let dt_s pass."""
        self._wait_s -= dt_s
        if self._wait_s <= 0.0:
            self._wait_s = _POLLING_S
            self.pwm = interpolate(self._curve, _GROUP_MAX_C - tj_c) if self.works else 0.0


def interpolate(points: FanCurve, x: float) -> float:
    """Piecewise linear, clamped at both ends; points ascending in x."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]
