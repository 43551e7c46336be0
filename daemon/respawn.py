"""When a child process that ended may be started again, and what health says until it serves.

One for each of JPEG decode workers, the HTTP process and the steward. Pure: facts and a given `now_ns` in. Invariant: a
child that never comes to serve is tried at most every LONGEST_NS, and is never missing in silence.
"""

from __future__ import annotations

from ..ipc.bounded_text import bound_text

LONGEST_NS = 10_000_000_000


class Respawn:
    """`problem` is why the child is missing, '' while it serves or starts for the first time."""

    def __init__(self, first_ns: int) -> None:
        self.problem = ""
        self._first_ns = self._delay_ns = first_ns
        self._at_ns = 0

    def due(self, now_ns: int) -> bool:
        return now_ns >= self._at_ns

    def failed(self, now_ns: int, reason: str) -> None:
        """It ended, or could not be started: the wait before the next try doubles."""
        self.problem = bound_text(reason)
        self._at_ns = now_ns + self._delay_ns
        self._delay_ns = min(2 * self._delay_ns, LONGEST_NS)

    def served(self) -> None:
        """It did what it is for: the next failure is a first one."""
        self.problem, self._delay_ns = "", self._first_ns
