"""What overload is measured by: frames that came and ended within the last second. Pure, times in ns.

Called by `relief.py`. Best-effort frames count nowhere: nothing is promised for the older of them.
"""

from __future__ import annotations

from collections import Counter

SLICES = 10
SLICE_NS = 100_000_000
LOST_MIN = 3
"""Fewer lost frames say nothing of a load: a camera that triggers once in ten minutes loses one of one."""


class LoadWindow:
    """Arrivals by model, ends and losses, in slices of a tenth of a second."""

    def __init__(self) -> None:
        self._arrived: list[Counter[str]] = [Counter() for _ in range(SLICES)]
        self._ended = [0] * SLICES
        self._lost = [0] * SLICES
        self._newest = 0

    def arrived(self, model: str, now_ns: int) -> None:
        self._arrived[self._slice(now_ns)][model] += 1

    def ended(self, lost: bool, now_ns: int) -> None:
        """lost: it came too late, or found no slot, though it could have been in time on an idle engine."""
        place = self._slice(now_ns)
        self._ended[place] += 1
        self._lost[place] += lost

    def lost_share(self, now_ns: int) -> float:
        self._slice(now_ns)
        lost = sum(self._lost)
        return lost / sum(self._ended) if lost >= LOST_MIN else 0.0

    def load(self, per_frame_ns: dict[str, int], now_ns: int) -> float:
        """Time that the frames which came need, over the time in which they came."""
        self._slice(now_ns)
        total = sum((slice_ for slice_ in self._arrived), Counter[str]())
        return sum(count * per_frame_ns.get(model, 0) for model, count in total.items()) / (SLICES * SLICE_NS)

    def _slice(self, now_ns: int) -> int:
        """The slice of now; those that have passed since are emptied. A time that goes back counts in the newest."""
        number = max(now_ns // SLICE_NS, self._newest)
        for passed in range(max(self._newest + 1, number - SLICES + 1), number + 1):
            place = passed % SLICES
            self._arrived[place] = Counter()
            self._ended[place] = self._lost[place] = 0
        self._newest = number
        return number % SLICES
