"""A layered drawing of a program's steps (Sugiyama's method), broken into columns like a newspaper's.

Caller: `drawing.py`. Steps stand in ranks by their longest way from the input; an edge that passes a rank does so in a
narrow lane of its own, shared by all edges of one tensor. Ranks are ordered by medians, places are the least squares
that keep the order. All lengths are in CSS pixels.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

NODE_W, NODE_H = 150.0, 36.0
LANE_W = 12.0
GAP_X, GAP_Y = 14.0, 18.0
TRACK = 9.0
"""Distance of edges that run side by side from one column to the next."""
ROUNDS = 8
MOST_COLUMNS = 10
STILL = 0.5
PULL = (6.0, 0.3, 4.0)
"""How strongly the ends of an edge pull at each other: two nodes (the main way is straight), a node and a lane, two
lanes (a long edge is straight)."""
CENTRE = 0.4
"""How strongly the middle of the column pulls at every item: a chain does not wander."""


@dataclass(slots=True)
class Item:
    """A node, or the lane (`lane`) in which the output of step `node` passes a rank. `x`: its middle."""

    node: int
    lane: bool
    x: float = 0.0
    above: list[Item] = field(default_factory=list)
    below: list[Item] = field(default_factory=list)

    @property
    def width(self) -> float:
        return LANE_W if self.lane else NODE_W


@dataclass(slots=True)
class Column:
    """Ranks `first` up to (not including) `end`; `left` to `left + width` without its gutter of `tracks` tracks."""

    first: int
    end: int
    left: float = 0.0
    width: float = 0.0
    tracks: int = 0


@dataclass(slots=True)
class Layering:
    """`ranks` hold items in order; `y` is the middle of a rank within its column; `columns` in reading order."""

    ranks: list[list[Item]]
    columns: list[Column]
    y: list[float]
    width: float
    height: float


def ranks_of(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way to each node from one without a predecessor; those that nothing feeds stand close to a reader."""
    rank = [0] * count
    fed = set()
    for a, b in sorted(edges, key=lambda e: e[1]):
        rank[b] = max(rank[b], rank[a] + 1)
        fed.add(b)
    for node in range(count):
        readers = [rank[b] for a, b in edges if a == node]
        if node not in fed and readers:
            rank[node] = max(0, min(readers) - 1)
    return rank


def _items(count: int, edges: Sequence[tuple[int, int]]) -> list[list[Item]]:
    rank = ranks_of(count, edges)
    ranks: list[list[Item]] = [[] for _ in range(max(rank, default=0) + 1)]
    nodes = [Item(n, False) for n in range(count)]
    for n in range(count):
        ranks[rank[n]].append(nodes[n])
    chains: dict[int, list[Item]] = {}
    for a, b in sorted(set(edges)):
        chain = chains.setdefault(a, [nodes[a]])
        while len(chain) < rank[b] - rank[a]:
            lane = Item(a, True)
            lane.above.append(chain[-1])
            chain[-1].below.append(lane)
            ranks[rank[a] + len(chain)].append(lane)
            chain.append(lane)
        last = chain[rank[b] - rank[a] - 1]
        last.below.append(nodes[b])
        nodes[b].above.append(last)
    return ranks


def _crossings(ranks: list[list[Item]]) -> int:
    total = 0
    for upper, lower in pairwise(ranks):
        at = {id(item): i for i, item in enumerate(lower)}
        ends = [at[id(b)] for item in upper for b in sorted(item.below, key=lambda v: at[id(v)])]
        seen: list[int] = []
        for end in ends:
            total += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return total


def _order(ranks: list[list[Item]]) -> None:
    """Sorts each rank by the middle of its neighbours', from above and from below in turn; the best round is kept."""
    best, kept = _crossings(ranks), [list(r) for r in ranks]
    for round_ in range(ROUNDS):
        down = round_ % 2 == 0
        order = ranks if down else ranks[::-1]
        for fixed, moving in pairwise(order):
            at = {id(item): i for i, item in enumerate(fixed)}
            own = {id(item): float(i) for i, item in enumerate(moving)}

            def key(item: Item) -> float:
                near = sorted(at[id(v)] for v in (item.above if down else item.below))      # noqa: B023 used at once
                return sum(near) / len(near) if near else own[id(item)]                     # noqa: B023
            moving.sort(key=key)
        found = _crossings(ranks)
        if found < best:
            best, kept = found, [list(r) for r in ranks]
    for rank, items in zip(ranks, kept, strict=True):
        rank[:] = items


def spaced(wanted: Sequence[float], widths: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Middles closest to `wanted` (least squares) that keep the order and GAP_X between neighbours."""
    shift, at = [], 0.0
    for i, width in enumerate(widths):
        at += width / 2 if i == 0 else (widths[i - 1] + width) / 2 + GAP_X
        shift.append(at)
    blocks: list[tuple[float, float, int]] = []               # pool adjacent violators: (mean, weight, members)
    for want, s, weight in zip(wanted, shift, weights, strict=True):
        mean, members = want - s, 1
        while blocks and blocks[-1][0] > mean:
            other, heavy, n = blocks.pop()
            mean = (mean * weight + other * heavy) / (weight + heavy)
            weight, members = weight + heavy, members + n
        blocks.append((mean, weight, members))
    flat = [mean for mean, _, members in blocks for _ in range(members)]
    return [mean + s for mean, s in zip(flat, shift, strict=True)]


def _place(ranks: list[list[Item]]) -> None:
    """Middles of the items of one column, each near the middle of its neighbours there."""
    here = {id(item) for rank in ranks for item in rank}
    for rank in ranks:
        _move(rank, [0.0] * len(rank))
    for round_ in range(5 * ROUNDS):
        far = 0.0
        for rank in (ranks if round_ % 2 == 0 else ranks[::-1]):
            wanted = []
            for item in rank:
                near = [(v.x, PULL[item.lane + v.lane]) for v in (*item.above, *item.below) if id(v) in here]
                wanted.append(sum(x * pull for x, pull in near) / (CENTRE + sum(pull for _, pull in near)))
            far = max(far, _move(rank, wanted))
        if far < STILL:
            break


def _move(rank: list[Item], wanted: Sequence[float]) -> float:
    """Puts a rank's items as near as can be to `wanted`; returns how far the farthest went."""
    far = 0.0
    weights = [0.3 if item.lane else 4.0 for item in rank]                     # a lane gives way to a node
    for item, x in zip(rank, spaced(wanted, [i.width for i in rank], weights), strict=True):
        far, item.x = max(far, abs(item.x - x)), x
    return far


def _cuts(ranks: list[list[Item]], columns: int) -> list[int]:
    """First ranks of the columns: near even parts, where few tensors cross."""
    cuts = [0]
    for part in range(1, columns):
        ideal = part * len(ranks) / columns
        slack = max(1, len(ranks) // columns // 8)
        near = [r for r in range(int(ideal) - slack, int(ideal) + slack + 1) if cuts[-1] < r < len(ranks)]
        if near:
            cuts.append(min(near, key=lambda r: (len(crossing(ranks, r)), abs(r - ideal))))
    return [*cuts, len(ranks)]


def crossing(ranks: list[list[Item]], rank: int) -> list[Item]:
    """Items of the rank before `rank` with an edge to it, in order."""
    return [item for item in ranks[rank - 1] if item.below]


def _least_width(ranks: list[list[Item]], columns: int) -> float:
    """What the columns need if every rank stands in the middle."""
    return sum(max(sum(item.width + GAP_X for item in rank) for rank in ranks[first:end])
               for first, end in pairwise(_cuts(ranks, columns)))


def _fold(ranks: list[list[Item]], columns: int) -> Layering:
    cuts = _cuts(ranks, columns)
    found, left, y = [], 0.0, [0.0] * len(ranks)
    for first, end in pairwise(cuts):
        part = ranks[first:end]
        _place(part)
        low = min(item.x - item.width / 2 for rank in part for item in rank)
        high = max(item.x + item.width / 2 for rank in part for item in rank)
        tracks = len(crossing(ranks, end)) if end < len(ranks) else 0
        column = Column(first, end, left, high - low, tracks)
        for at, rank in enumerate(part):
            y[first + at] = NODE_H / 2 + at * (NODE_H + GAP_Y)
            for item in rank:
                item.x += left - low
        left += column.width + GAP_X * 2 + tracks * TRACK
        found.append(column)
    last = found[-1]
    height = max((c.end - c.first) * (NODE_H + GAP_Y) - GAP_Y for c in found)
    return Layering(ranks, found, y, last.left + last.width, height)


def layered(count: int, edges: Sequence[tuple[int, int]], width: float) -> Layering:
    """The drawing of `count` nodes (at least one); an edge leads to a larger number. As many columns as `width` holds.
    """
    ranks = _items(count, edges)
    _order(ranks)
    for columns in range(min(MOST_COLUMNS, len(ranks) // 6), 1, -1):
        if _least_width(ranks, columns) <= width and (found := _fold(ranks, columns)).width <= width:
            return found
    return _fold(ranks, 1)
