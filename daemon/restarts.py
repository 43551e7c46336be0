"""How often and how soon engines may be started again: a back-off between starts, a budget of losses in a window.

One for the pair of engines and one for the last resort, in `failover.py`. Pure: facts and a given `now_ns` in.
Invariant: once the budget is overspent, `failed` says so and nothing is due any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

RESPAWN_AFTER_NS = 200_000_000


@dataclass(slots=True)
class Restarts:
    """`failed` is '' or why nothing is started any more; `last_loss` why the last engine was lost."""

    budget: int
    window_ns: int
    first_ns: int
    longest_ns: int
    failed: str = ""
    last_loss: str = ""
    due_ns: int = 0
    _losses: deque[int] = field(default_factory=deque)
    _wait_ns: int = 0

    def lost(self, reason: str, served_by_others: bool, now_ns: int) -> None:
        """An engine was lost or could not be started."""
        self._losses.append(now_ns)
        self.last_loss = reason
        losses = self._within_window(now_ns)
        if losses > self.budget:
            self.failed = f"{losses} engines lost within {self.window_ns / 1e9:.0f} s, the last one: {reason}"
        # Where another engine serves, its replayed frames go first: a starting engine would compete with them.
        self.due_ns = now_ns + max(self._wait_ns, RESPAWN_AFTER_NS if served_by_others else 0)
        self._wait_ns = min(max(2 * self._wait_ns, self.first_ns), self.longest_ns)

    def ready(self) -> None:
        """One has come up: the next loss is a first one."""
        self._wait_ns = 0

    def due(self, now_ns: int) -> bool:
        return not self.failed and now_ns >= self.due_ns

    def spent(self, now_ns: int) -> bool:
        """Whether the next loss would be one too many."""
        return self._within_window(now_ns) >= self.budget

    def _within_window(self, now_ns: int) -> int:
        while self._losses and now_ns - self._losses[0] > self.window_ns:
            self._losses.popleft()
        return len(self._losses)
