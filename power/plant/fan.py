"""nvfancontrol of a simulated board: a table of margin and PWM, looked at every two seconds, by profile.

Used by model.py, services.py and tree.py. Invariant: a dead fan turns at 0 whatever is asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

    def follow(self, curve: FanCurve) -> None:
        """Another profile, from the next look on."""
        self._curve = curve

    def due(self, dt_s: float) -> bool:
        """Let dt_s pass; whether it is time to look."""
        self._wait_s -= dt_s
        return self._wait_s <= 0.0

    def look(self, tj_c: float) -> None:
        """Follow the temperature."""
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


def fan_conf_text(curves: Mapping[str, FanCurve], default: str, top_rpm: int) -> str:
    """nvfancontrol.conf with these profiles. TMARGIN: the first column is the distance to GROUP_MAX_TEMP."""
    return "\n".join(_conf_lines(curves, default, top_rpm))


def _conf_lines(curves: Mapping[str, FanCurve], default: str, top_rpm: int) -> Iterator[str]:
    yield from (f"POLLING_INTERVAL {_POLLING_S:g}", "", "<FAN 1>", "\tTMARGIN ENABLED")
    yield from ("\tFAN_GOVERNOR cont {", "\t\tSTEP_SIZE 10", "\t}", "\tFAN_CONTROL close_loop {",
                "\t\tRPM_TOLERANCE 100", "\t}")
    for name, curve in curves.items():
        yield from (f"\tFAN_PROFILE {name} {{", "\t\t#TEMP \tHYST\tPWM\tRPM")
        for margin_c, pwm in curve:
            yield f"\t\t{margin_c:g}\t0\t{pwm:g}\t{pwm / 255 * top_rpm:.0f}"
        yield "\t}"
    yield from ("\tTHERMAL_GROUP 0 {", f"\t\tGROUP_MAX_TEMP {_GROUP_MAX_C:g}", "\t\ttj-thermal 20 0", "\t}")
    yield from ("\tFAN_DEFAULT_CONTROL close_loop", f"\tFAN_DEFAULT_PROFILE {default}", "\tFAN_DEFAULT_GOVERNOR cont",
                "</FAN 1>")
