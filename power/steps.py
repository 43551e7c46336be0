"""A table of clock steps, ascending, under a cap: which steps are left, and which one the board takes. Pure.

Used wherever a clock is capped, on a board and on the plant; one unit throughout, Hz or kHz. Invariant: the lowest step
is always left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def steps_under(steps: Sequence[int], cap: int | None) -> tuple[int, ...]:
    """Those that are not above the cap (None: there is none), at least the lowest."""
    return tuple(steps if cap is None else steps[: max(bisect_right(steps, cap), 1)])


def step_under(steps: Sequence[int], cap: int) -> int:
    """The highest that is not above the cap, else the lowest."""
    return steps[max(bisect_right(steps, cap) - 1, 0)]
