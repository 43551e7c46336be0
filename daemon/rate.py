"""Token buckets: how often a camera may trigger. Pure, times in ns.

Called by `intake.py`, a bucket a camera. Invariant: counted in whole numbers, so that the rate is exact however long it
runs; a time that lies before the last one earns nothing and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

TOKEN = 10**15
"""A token in units of one nanosecond at one microhertz."""


@dataclass(slots=True)
class TokenBucket:
    """`rate_hz` tokens a second (to a microhertz), at most `burst` of them saved; a rate of 0 never refuses."""

    rate_hz: float
    burst: int
    _units: int = -1
    _at_ns: int = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more is allowed now."""
        if self.rate_hz <= 0:
            return True
        full = self.burst * TOKEN
        if self._units < 0:
            self._units, self._at_ns = full, now_ns
        elif now_ns > self._at_ns:
            self._units = min(full, self._units + (now_ns - self._at_ns) * max(1, round(self.rate_hz * 1e6)))
            self._at_ns = now_ns
        if self._units < TOKEN:
            return False
        self._units -= TOKEN
        return True
