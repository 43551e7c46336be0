"""Who has which bytes of an engine's one reservation: a pure allocator, offsets only, no memory.

Used by the reservations of both devices and by a replay of a week. Three classes: small blocks (< 64 KB) lie in
slabs, each a binary buddy system; medium and large ones (> 2 MB) are cut to measure, rounded to 256 bytes only. Powers
of two for those would waste up to half of them, and leave gaps that are no one's buddy.

What lives together lies together: a block is put beside one of its own `group` (the plans of a generation), else at an
end of the pool that is free, so that a group that goes leaves one piece that merges with the rest. Behind all lies the
emergency reserve, which is used when nothing else fits, and then says so. Invariant: blocks never overlap, and
used + free + reserve is the whole.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from .errors import PoolError, PoolExhausted
from .extents import Extents
from .slab import SLAB_BYTES, Slab, buddy_size

ALIGN = 256
MEDIUM_FROM = 64 << 10
LARGE_ABOVE = 2 << 20


class SizeClass(str, Enum):
    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


def class_of(nbytes: int) -> SizeClass:
    if nbytes < MEDIUM_FROM:
        return SizeClass.SMALL
    return SizeClass.MEDIUM if nbytes <= LARGE_ABOVE else SizeClass.LARGE


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """[offset, offset + size) of the pool, of which `nbytes` were asked for. `born_ns`: CLOCK_MONOTONIC."""

    offset: int
    size: int
    nbytes: int
    owner: str
    group: str
    born_ns: int
    in_reserve: bool

    @property
    def kind(self) -> SizeClass:
        return class_of(self.nbytes)


class Pool:
    """`size` bytes, the last `reserve` of them for emergencies; both are multiples of ALIGN. One thread."""

    def __init__(self, size: int, reserve: int = 0) -> None:
        if size % ALIGN or reserve % ALIGN or not 0 <= reserve <= size:
            raise PoolError(f"a pool of {size} bytes with a reserve of {reserve}: multiples of {ALIGN} are needed")
        self.size, self.reserve = size, reserve
        self._free = Extents(0, size - reserve)
        self._emergency = Extents(size - reserve, size)
        self._slabs: dict[str, list[Slab]] = {}
        self._blocks: dict[int, Block] = {}
        self._order: list[int] = []  # offsets of blocks and slabs
        self._group_at: dict[int, tuple[int, str]] = {}  # by offset of block or slab: (end, group)
        self._ends: dict[int, int] = {}  # the same by end: offset
        self.changes = 0
        self.emergencies = 0

    # -- what is asked of it -------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, owner: str, group: str = "", now_ns: int = 0) -> Block:
        """Raises PoolExhausted."""
        if nbytes < 0:
            raise PoolError(f"{owner} asks for {nbytes} bytes")
        small = class_of(nbytes) is SizeClass.SMALL
        size = buddy_size(nbytes) if small else aligned(nbytes)
        offset = self._small(size, group) if small else self._cut(size, group)
        in_reserve = offset is None
        if offset is None:
            offset = self._from_reserve(size, nbytes, owner)
        if not small or in_reserve:
            self._note(offset, size, group)
        block = Block(offset, size, nbytes, owner, group, now_ns, in_reserve)
        self._blocks[offset] = block
        self.changes += 1
        return block

    def free(self, block: Block) -> None:
        """Raises PoolError for a block that was freed before or never was of this pool."""
        if self._blocks.get(block.offset) is not block:
            raise PoolError(
                f"{block.owner} frees {block.nbytes} bytes at {block.offset}, which it does not have: freed twice, or "
                "of another pool"
            )
        del self._blocks[block.offset]
        self.changes += 1
        if block.in_reserve:
            self._forget(block.offset)
            self._emergency.give(block.offset, block.size)
        elif block.kind is SizeClass.SMALL:
            self._give_small(block)
        else:
            self._forget(block.offset)
            self._free.give(block.offset, block.size)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> list[Block]:
        """In the order of their offsets."""
        return sorted(self._blocks.values(), key=lambda block: block.offset)

    @property
    def used(self) -> int:
        """Bytes of all blocks, those in the reserve too."""
        return sum(block.size for block in self._blocks.values())

    @property
    def free_bytes(self) -> int:
        """Without the reserve."""
        return self._free.total + sum(slab.free_bytes for slab in self._every_slab())

    @property
    def largest_free(self) -> int:
        """The largest block that can be had without the reserve."""
        return max([self._free.largest, *(slab.largest for slab in self._every_slab())])

    @property
    def reserve_used(self) -> int:
        return self.reserve - self._emergency.total

    @property
    def fragmentation(self) -> float:
        """1 - largest free block / free bytes; 0 where nothing is free, for then nothing is in pieces."""
        free = self.free_bytes
        return 1 - self.largest_free / free if free else 0.0

    # -- how -----------------------------------------------------------------------------------------------------

    def _every_slab(self) -> Iterator[Slab]:
        return (slab for slabs in self._slabs.values() for slab in slabs)

    def _small(self, size: int, group: str) -> int | None:
        for slab in self._slabs.get(group, ()):
            offset = slab.take(size)
            if offset is not None:
                return offset
        at = self._cut(SLAB_BYTES, group)
        if at is None:
            return None
        slab = Slab(at)
        self._note(at, SLAB_BYTES, group)
        self._slabs.setdefault(group, []).append(slab)
        return slab.take(size)

    def _give_small(self, block: Block) -> None:
        slabs = self._slabs[block.group]
        slab = next(s for s in slabs if s.offset <= block.offset < s.offset + SLAB_BYTES)
        slab.give(block.offset)
        if slab.empty:
            slabs.remove(slab)
            if not slabs:
                del self._slabs[block.group]
            self._forget(slab.offset)
            self._free.give(slab.offset, SLAB_BYTES)

    def _cut(self, size: int, group: str) -> int | None:
        """Takes the free piece that suits the group best and fits best; where it lies in it, see the module's head."""
        found: tuple[int, int, int] | None = None  # rank, waste, offset
        last = self.size - self.reserve
        for start, end in self._free:
            if end - start < size:
                continue
            left, right = self._group_before(start), self._group_after(end)
            if left == group or (right != group and start == 0):
                rank, at = 0 if left == group else 1, start
            elif right == group or end == last:
                rank, at = 0 if right == group else 1, end - size
            else:
                rank, at = 2, start
            found = min(found, (rank, end - start - size, at)) if found else (rank, end - start - size, at)
        if found is None:
            return None
        self._free.take(found[2], size)
        return found[2]

    def _from_reserve(self, size: int, nbytes: int, owner: str) -> int:
        fitting = [(end - start, start) for start, end in self._emergency if end - start >= size]
        if not fitting:
            raise PoolExhausted(
                f"{owner} asks for {nbytes} bytes: of {self.size} bytes {self.free_bytes} are free, at most "
                f"{self.largest_free} in one piece, and {self.reserve - self.reserve_used} of the emergency reserve "
                f"of {self.reserve}"
            )
        offset = min(fitting)[1]
        self._emergency.take(offset, size)
        self.emergencies += 1
        return offset

    def _group_before(self, offset: int) -> str | None:
        start = self._ends.get(offset)
        return None if start is None else self._group_at[start][1]

    def _group_after(self, offset: int) -> str | None:
        found = self._group_at.get(offset)
        return None if found is None else found[1]

    def _note(self, offset: int, size: int, group: str) -> None:
        """Raises PoolError where it would lie upon another one."""
        at = bisect_left(self._order, offset)
        before = self._group_at[self._order[at - 1]][0] if at else 0
        after = self._order[at] if at < len(self._order) else self.size
        if before > offset or after < offset + size:
            raise PoolError(f"{size} bytes at {offset} lie upon another block: the pool's books are wrong")
        insort(self._order, offset)
        self._group_at[offset] = (offset + size, group)
        self._ends[offset + size] = offset

    def _forget(self, offset: int) -> None:
        end, _ = self._group_at.pop(offset)
        del self._ends[end]
        del self._order[bisect_left(self._order, offset)]


def size_for(requests: Iterable[int]) -> int:
    """How many bytes a pool must have for blocks of these sizes, of one group, asked for in this order and kept."""
    trial = Pool(1 << 46)
    for nbytes in requests:
        trial.allocate(nbytes, "known beforehand")
    return max((end for end, _ in trial._group_at.values()), default=0)
