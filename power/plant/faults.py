"""What can go wrong with a simulated board, set from outside: by tests, benchmarks and hardware-in-the-loop scenarios.

Held by board.py and simulated.py. Names are those of zones ("tj", "gpu") and rails ("VDD_IN"). The dead fan is
`model.fan_works`, a capped clock table is another `Module`. Invariant: without a fault set, nothing here changes
anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """`missing`: answers nothing. `forced`: shows this value instead (absurd). `stuck`: shows its last value for ever.
    `slow_s`: shows what was true so long ago. `refuse_writes`: no cap is accepted."""

    missing: set[str] = field(default_factory=set)
    forced: dict[str, int] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    slow_s: dict[str, float] = field(default_factory=dict)
    refuse_writes: bool = False
    _last: dict[str, int] = field(default_factory=dict)
    _past: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)

    def shown_of(self, values: dict[str, int], now_s: float) -> dict[str, int]:
        """What the sensors show that would read these values now; those that answer nothing are left out."""
        if not (self.missing or self.forced or self.stuck or self.slow_s or self._past):
            self._last.update(values)
            return values
        shown = {name: self.shown(name, value, now_s) for name, value in values.items()}
        return {name: value for name, value in shown.items() if value is not None}

    def shown(self, name: str, value: int, now_s: float) -> int | None:
        """What a sensor shows that would read `value` now; None where it answers nothing."""
        if name in self.missing:
            return None
        if name in self.forced:
            return self.forced[name]
        if name in self.stuck:
            return self._last.setdefault(name, value)
        if name in self.slow_s:
            past = self._past.setdefault(name, deque())
            past.append((now_s, value))
            while len(past) > 1 and past[1][0] <= now_s - self.slow_s[name]:
                past.popleft()
            return past[0][1]
        self._past.pop(name, None)
        self._last[name] = value
        return value
