"""Token buckets: how often a camera may trigger. Pure, times in ns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """`rate_hz` tokens a second, at most `burst` of them saved; a rate of 0 never refuses."""

    rate_hz: float
    burst: int
    _tokens: float = -1.0
    _at_ns: int = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more is allowed now."""
        if self.rate_hz <= 0:
            return True
        if self._tokens < 0:
            self._tokens = float(self.burst)
        else:
            self._tokens = min(float(self.burst), self._tokens + (now_ns - self._at_ns) * self.rate_hz / 1e9)
        self._at_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
