"""A sliding mean over the time that a sensor averages. Pure.

Used by observer.py for the model's side of what a sensor averages (plant/register.py is its own), and by thermal.py.
Invariant: `mean` is the exact time-weighted mean over the last `window_ns`, also for uneven steps.
"""

from __future__ import annotations

from collections import deque


class SlidingMean:
    """Piecewise constant values, each lasting some ns; holds just enough of them to cover the window."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._parts: deque[tuple[int, float]] = deque()
        self._held_ns = 0
        self._mean: float | None = None  # remembered until the next `add`

    def add(self, lasted_ns: int, value: float) -> None:
        """The value held for the `lasted_ns` that have just ended."""
        if lasted_ns <= 0:
            return
        self._mean = None
        self._parts.append((lasted_ns, value))
        self._held_ns += lasted_ns
        while self._held_ns - self._parts[0][0] >= self._window_ns:
            self._held_ns -= self._parts.popleft()[0]

    def clear(self) -> None:
        """Forget everything (after an interval about which nothing is known)."""
        self._parts.clear()
        self._held_ns = 0
        self._mean = None

    @property
    def full(self) -> bool:
        """Whether the window is covered."""
        return self._held_ns >= self._window_ns

    def mean(self) -> float | None:
        """The mean over the window, or over what there is; None when there is nothing."""
        if self._mean is None and self._parts:
            # only the oldest part can stick out of the window
            surplus = max(self._held_ns - self._window_ns, 0)
            total = sum([lasted * value for lasted, value in self._parts]) - surplus * self._parts[0][1]
            self._mean = total / (self._held_ns - surplus)
        return self._mean
