"""What an INA3221 averages: the power of each part over the sensor's window, of which a register shows the mean.

Used by model.py. As window.SlidingMean for each part, with one queue for all of them, since all steps have one length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class RegisterWindow:
    """State: the steps that cover the window; `add` before `means`."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._steps: deque[tuple[int, Mapping[str, float]]] = deque()
        self._held_ns = 0

    def add(self, lasted_ns: int, parts_w: Mapping[str, float]) -> None:
        """The powers of the `lasted_ns` that have just ended; the mapping is kept and must not change any more."""
        if lasted_ns <= 0:
            return
        steps = self._steps
        steps.append((lasted_ns, parts_w))
        self._held_ns += lasted_ns
        while self._held_ns - steps[0][0] >= self._window_ns:
            self._held_ns -= steps.popleft()[0]

    def means(self) -> dict[str, float]:
        """W by part over the window, or over what there is."""
        steps = self._steps
        # only the oldest step can stick out of the window
        surplus = max(self._held_ns - self._window_ns, 0)
        lasted_ns, first = self._held_ns - surplus, steps[0][1]
        return {part: (sum([lasted * parts[part] for lasted, parts in steps]) - surplus * before) / lasted_ns
                for part, before in first.items()}
