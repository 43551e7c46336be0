"""Arena offsets by lifetime: two buffers share bytes only if no step needs both. Caller: `lowering.py`.

First fit, 256-byte aligned, in the best of a few orders; what still sticks out at the top is placed earlier and tried
again. Deterministic. A concat buffer lives from its first part to its last reader; buffers that take each other's place
come as one. No arena is smaller than `floor`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.lifetimes import Lifetime

# Rounds of placing the buffer on top earlier. All of 400 random nets then reach the floor.
ROUNDS = 48


def floor(lifetimes: Sequence[Lifetime]) -> int:
    """The largest sum of buffers that one step finds alive."""
    return max((sum(v.size for v in lifetimes if v.first <= at <= v.last) for at in {v.first for v in lifetimes}),
               default=0)


def place(lifetimes: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """(offset by name, bytes in all)."""
    least = floor(lifetimes)
    best: tuple[dict[str, int], int] = ({}, 0)
    orders = [sorted(lifetimes, key=lambda v: (-v.nbytes, v.first, v.name)),
              sorted(lifetimes, key=lambda v: (-v.size * (v.last - v.first + 1), v.first, v.name)),
              sorted(lifetimes, key=lambda v: (v.first, -v.nbytes, v.name)),
              sorted(lifetimes, key=lambda v: (v.first - v.last, -v.nbytes, v.name))]
    for order in orders:
        for _ in range(ROUNDS):
            offsets, total = _first_fit(order)
            if not best[0] or total < best[1]:
                best = offsets, total
            if best[1] <= least:
                return best
            top = next(v for v in order if offsets[v.name] + v.size == total)
            at = order.index(top)
            if at == 0:
                break
            order = [*order[:at // 2], top, *order[at // 2:at], *order[at + 1:]]
    return best


def _first_fit(order: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    placed: list[tuple[int, int, Lifetime]] = []
    for life in order:
        at = 0
        for start, end in sorted((p[0], p[1]) for p in placed if p[2].meets(life)):
            if at + life.size <= start:
                break
            at = max(at, end)
        placed.append((at, at + life.size, life))
    return {life.name: at for at, _, life in placed}, max((end for _, end, _ in placed), default=0)
