"""Straight lines between points, for the policy's ambient table and the traces of a simulation. Pure.

Used by budget.py and daemon/trace_file.py; the plant has its own (plant/fan.py), being what others are judged by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def interpolated(at: Sequence[float], values: Sequence[float], x: float) -> float:
    """The value at `x`; before the first and after the last point (`at` ascends), theirs."""
    place = bisect_right(at, x)
    if place in (0, len(at)):
        return values[min(place, len(at) - 1)]
    begin, end, before, after = at[place - 1], at[place], values[place - 1], values[place]
    return before + (after - before) * (x - begin) / (end - begin)
