"""Cameras whose frames end engines: after so many of them the camera is refused for a while.

Owned by `intake.py`, so that a reload forgives. Pure: facts and a given `now_ns` in. Invariant: one camera cannot spend
the restart budget, which all the others need.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Quarantine:
    """`limit` frames of a camera that cost a pair of engines each, within `window_ns`, keep it out for as long."""

    limit: int
    window_ns: int
    _poisoned: dict[str, deque[int]] = field(default_factory=dict)

    def struck(self, camera: str, now_ns: int) -> None:
        """One of its frames was alone in flight when a second engine was lost that may have been lost of it."""
        self._poisoned.setdefault(camera, deque(maxlen=self.limit)).append(now_ns)

    def problem(self, camera: str, now_ns: int) -> str:
        """Why its frames are refused, or ''."""
        times = self._poisoned.get(camera)
        if times is None or len(times) < self.limit or times[-1] - times[0] > self.window_ns:
            return ""
        left_ns = times[-1] + self.window_ns - now_ns
        if left_ns <= 0:
            return ""
        return (
            f"camera '{camera}': {self.limit} of its frames ended engines; it is refused for {left_ns / 1e9:.0f} s "
            "more, or until a reload"
        )

    def problems(self, now_ns: int) -> list[str]:
        """Of all cameras that are refused."""
        return [text for camera in self._poisoned if (text := self.problem(camera, now_ns))]
