"""Arena offsets by lifetime: two buffers share bytes only if no step needs both. Caller: `lower.py`.

Greedy by size, first fit, 256-byte aligned. A concat buffer lives from its first part to its last reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.program import ALIGN


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`nbytes` from the step that first writes to the one that last reads, both included."""

    name: str
    nbytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """(offset by name, bytes in all)."""
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    for life in sorted(lifetimes, key=lambda v: (-v.nbytes, v.first, v.name)):
        size = -(-life.nbytes // ALIGN) * ALIGN
        at = 0
        for start, end, other in sorted(placed, key=lambda p: p[0]):
            if other.last < life.first or life.last < other.first:
                continue
            if at + size <= start:
                break
            at = max(at, end)
        placed.append((at, at + size, life))
        offsets[life.name] = at
    return offsets, max((end for _, end, _ in placed), default=0)
