"""The free pieces of a range of addresses, in order, neighbours always merged. Offsets only, no memory.

Used by `pool.py`. Invariant: no two pieces touch or overlap, so a piece that was given back is one with its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from .errors import PoolError


class Extents:
    """Free pieces [start, end) of [first, last), all of it at the beginning."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._starts: list[int] = [first] if last > first else []
        self._ends: list[int] = [last] if last > first else []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    @property
    def total(self) -> int:
        return sum(self._ends) - sum(self._starts)

    @property
    def largest(self) -> int:
        return max((end - start for start, end in self), default=0)

    def take(self, start: int, size: int) -> None:
        """Make [start, start + size) used. Raises PoolError where a part of it is not free."""
        at = bisect_right(self._starts, start) - 1
        if at < 0 or start + size > self._ends[at] or size <= 0:
            raise PoolError(f"{size} bytes at {start} are to be taken, but are not free: the pool's books are wrong")
        first, last = self._starts[at], self._ends[at]
        pieces = [(a, b) for a, b in ((first, start), (start + size, last)) if a < b]
        self._starts[at : at + 1] = [a for a, _ in pieces]
        self._ends[at : at + 1] = [b for _, b in pieces]

    def give(self, start: int, size: int) -> None:
        """Make [start, start + size) free. Raises PoolError where a part of it is free or lies outside."""
        end, at = start + size, bisect_left(self._starts, start)
        free = (at > 0 and self._ends[at - 1] > start) or (at < len(self._starts) and self._starts[at] < end)
        if free or start < self._first or end > self._last or size <= 0:
            raise PoolError(
                f"{size} bytes at {start} are given back, but are free or outside: the pool's books are wrong"
            )
        joins_left = at > 0 and self._ends[at - 1] == start
        joins_right = at < len(self._starts) and self._starts[at] == end
        if joins_left and joins_right:
            del self._starts[at], self._ends[at - 1]
        elif joins_left:
            self._ends[at - 1] = end
        elif joins_right:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
