"""Watches whether board power obeys the caps: over the budget for long although the clock is right, and calm again.
Pure.

Called by governor.py with every reading. A refused write, a load that is not the GPU's: no model knows of these, so
what counts is the reading. Invariant: bursts and a budget that was just lowered are neither (the sensor averages 430
ms).
"""

from __future__ import annotations

_S = 1_000_000_000
_OVER_NS, _CALM_NS = 2 * _S, 5 * _S


class Overrun:
    """`over`: since a reading stayed above budget plus tolerance, until it has been calm: less than half the tolerance
    over the budget, where a governed board may stand for ever."""

    def __init__(self) -> None:
        self._over_since_ns: int | None = None
        self._calm_since_ns: int | None = None
        self.over = False
        self.now_over = False  # the reading at the last look

    def watch(self, board_mw: int | None, budget_mw: int, tolerance_mw: int, now_ns: int) -> None:
        self.now_over = board_mw is not None and board_mw > budget_mw + tolerance_mw
        self._over_since_ns = _since(self._over_since_ns, self.now_over, now_ns)
        below = board_mw is not None and board_mw < budget_mw + tolerance_mw / 2
        self._calm_since_ns = _since(self._calm_since_ns, below, now_ns)
        if self._over_since_ns is not None and now_ns - self._over_since_ns >= _OVER_NS:
            self.over = True
        elif self._calm_since_ns is not None and now_ns - self._calm_since_ns >= _CALM_NS:
            self.over = False


def _since(since_ns: int | None, holds: bool, now_ns: int) -> int | None:
    """Since when something holds without a break; None while it does not."""
    if not holds:
        return None
    return now_ns if since_ns is None else since_ns
