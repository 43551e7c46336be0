"""A piece of 64 KB that holds small blocks: a binary buddy system. Offsets only.

Used by `pool.py`. Invariant: two free buddies are always merged, so an empty slab is one free piece again.
"""

from __future__ import annotations

from .errors import PoolError

SMALLEST = 256
SLAB_BYTES = 64 << 10


def buddy_size(nbytes: int) -> int:
    """The power of two that a small block takes."""
    return max(SMALLEST, 1 << max(nbytes - 1, 0).bit_length())


class Slab:
    """[offset, offset + SLAB_BYTES), offset being a multiple of SMALLEST."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._free: dict[int, set[int]] = {SLAB_BYTES: {0}}  # by size: where, from the slab's begin
        self._taken: dict[int, int] = {}

    @property
    def empty(self) -> bool:
        return not self._taken

    @property
    def free_bytes(self) -> int:
        return SLAB_BYTES - sum(self._taken.values())

    @property
    def largest(self) -> int:
        return max((size for size, places in self._free.items() if places), default=0)

    def take(self, size: int) -> int | None:
        """Offset of a piece of `size`, which is of `buddy_size`; None where there is none."""
        fitting = [s for s, places in self._free.items() if places and s >= size]
        if not fitting:
            return None
        whole = min(fitting)
        at = min(self._free[whole])
        self._free[whole].remove(at)
        while whole > size:
            whole //= 2
            self._free.setdefault(whole, set()).add(at + whole)
        self._taken[at] = size
        return self.offset + at

    def give(self, offset: int) -> None:
        """Raises PoolError for what was not taken here."""
        at = offset - self.offset
        size = self._taken.pop(at, 0)
        if not size:
            raise PoolError(f"the small block at {offset} is given back, but is not taken: the pool's books are wrong")
        while size < SLAB_BYTES and at ^ size in self._free.get(size, ()):
            self._free[size].remove(at ^ size)
            at &= ~size
            size *= 2
        self._free.setdefault(size, set()).add(at)
