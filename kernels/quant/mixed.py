"""Mixed precision: the cheapest set of float16 layers with which the accuracy gate is met. Caller: `build.py`.

Layers are ranked on 16 calibration pictures by what each costs when it alone is int8 (`ranking.py`; a tensor that int8
cannot hold shows at the layer that makes it and at the one that reads it). The set is searched on up to 64 calibration
pictures: the shortest head of that ranking that keeps the limits, searched from where the ranking foretells it, less
every layer that it turns out not to need, the one with most multiply-accumulates first. A set is given up at the first
picture from which on it cannot keep them any more; pictures that cost INT8 most come first.

The held-back pictures only judge, or their verdict would be one on the set that suits them best. Where the set does not
meet the gate there, the next layers of the ranking join it, one, two, four and so on, and it is judged again: each such
look makes the verdict a little kinder, so their number is told with it.

On 90 classifiers (random weights, rescaled as BlazeFace made hard; 64 pictures of calibration, 64 held back, 256
others): of sets chosen on the held-back pictures themselves, all kept the limit there and 20 % missed it on the others,
where all were at a mean of 1.10 times the limit. Of sets chosen as here 10 % did, at a mean of 0.48, with 6.1 layers
in float16 instead of 5.8. One look was enough for 74 of the 90, two for 12.

A program must keep the limits also when what it alone sees counts: BlazeFace made hard kept its heads in INT8 and met
the gate of CONTRACT.md, which looks where FP32 sees something, with false alarms on every picture. Only where float16
throughout cannot do that either, false alarms are left out, as the gate does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..ir.macs import multiply_accumulates
from .borders import layers_of
from .gate import excess, strict
from .pictures import Source
from .ranking import rank_layers
from .reference import CodedRunner, Criterion, Reference
from .scales import Scales
from .verdict import against_limits

RANKING_PICTURES = 16
SEARCH_PICTURES = 64
REMOVALS = 8
"""At most so many layers are tried without; each costs a run over the pictures of the search."""
FORETOLD = 0.7
"""The head is foretold where the costs of the layers behind it add up to this part of the limits."""

Progress = Callable[[str], None]
Make = Callable[[Collection[str]], tuple[CodedRunner, Source]]
"""A bound program of batch 1 with these layers in float16, and what writes its input."""


@dataclass(frozen=True)
class Choice:
    """`layers` in float16, the figures of the held-back pictures with them and `looks`, how often those were asked;
    what the report says, and `warning`, what a person must know."""

    layers: tuple[str, ...]
    figures: dict[str, Any]
    report: dict[str, Any]
    warning: str


def choose_layers(scales: Scales, make: Make, quick: Callable[[], Reference], search: Reference, held: Reference,
                  progress: Progress) -> Choice:
    """The set that is chosen on `search` and judged on `held`; `quick` makes the pictures that layers are ranked on.

    Where no set meets the gate, the one nearest to it.
    """
    finder = _Finder(scales, make, quick, search, progress)
    chosen = finder.choose()
    looked: list[tuple[list[str], dict[str, Any]]] = []
    while True:
        figures = held.measure(*make(chosen))
        looked.append((chosen, figures))
        progress(f"{len(chosen)} of {len(finder.every)} layers in FP16, look {len(looked)} at the held-back pictures: "
                 f"{_told(figures, finder.criterion)}")
        if finder.criterion(figures) <= 1 or len(chosen) == len(finder.every):
            break
        chosen = chosen + [name for name in finder.ranked if name not in chosen][:1 << len(looked) - 1]
    if finder.criterion(figures) > 1:
        chosen, figures = min(looked, key=lambda look: max(excess(look[1]), 1.0))
    progress(f"{len(chosen)} of {len(finder.every)} layers stay in FP16" if chosen else "no layer needs FP16")
    report = finder.report | {"looks": len(looked), "pictures": len(search.pictures)} | finder.rows(chosen)
    return Choice(tuple(name for name in finder.every if name in chosen), figures | {"looks": len(looked)}, report,
                  finder.warning)


class _Finder:
    """The search on calibration pictures. `criterion` is what it keeps at or below 1."""

    def __init__(self, scales: Scales, make: Make, quick: Callable[[], Reference], search: Reference,
                 progress: Progress) -> None:
        self.scales, self.make, self.quick, self.search, self.progress = scales, make, quick, search, progress
        self.every = layers_of(scales.graph)
        self.macs = multiply_accumulates(scales.graph)
        self.criterion: Criterion = strict
        self.report: dict[str, Any] = {}
        self.warning = ""

    def choose(self) -> list[str]:
        """All layers, with a warning, where float16 throughout does not keep the limits either."""
        codes = self.report["int8"] = self._measured(())
        if strict(codes) <= 1:
            return []
        half = self.report["fp16"] = self._measured(self.every)
        self.progress(f"on calibration pictures INT8 alone is {against_limits(strict(codes))}, FP16 "
                      f"{against_limits(strict(half))}")
        if strict(half) <= 1:
            return self._cheapest()
        self.criterion = excess
        if min(excess(codes), excess(half)) > 1:
            self.warning = ("no set of FP16 layers keeps the limits on the calibration pictures: all in FP16 is at "
                            f"{excess(half):.3g} times them, all in INT8 at {excess(codes):.3g}; all are FP16")
            return list(self.every)
        self.warning = (f"with false alarms FP16 itself is at {strict(half):.3g} times the limits: layers were chosen "
                        "without counting them")
        return [] if excess(codes) <= 1 else self._cheapest()

    @cached_property
    def share(self) -> dict[str, float]:
        """What each layer costs; measured when it is asked for."""
        found = self.report["costs"] = rank_layers(self.scales, self.quick(), self.progress)
        return found

    @cached_property
    def ranked(self) -> list[str]:
        return sorted(self.every, key=lambda name: -self.share[name])

    def _measured(self, layers: Collection[str], give_up: Criterion | None = None) -> dict[str, Any]:
        return self.search.measure(*self.make(layers), give_up=give_up)

    def _cheapest(self) -> list[str]:
        low, high = 0, len(self.ranked)                   # limits are not kept with `low` layers, and are with `high`
        foretold = _foretold(self.ranked, self.share)
        near = [foretold + step for step in (0, 2, -2, 6, -6, 14, -14)]
        while high - low > 1:
            middle = next((count for count in near if low < count < high), (low + high) // 2)
            figures = self._measured(self.ranked[:middle], self.criterion)
            self.progress(f"{middle} of {len(self.ranked)} layers in FP16: {_told(figures, self.criterion)}")
            low, high = (low, middle) if self.criterion(figures) <= 1 else (middle, high)
        chosen = self.ranked[:high]
        for name in sorted(chosen, key=lambda n: -self.macs.get(n, 0))[:REMOVALS]:
            fewer = [other for other in chosen if other != name]
            if self.criterion(self._measured(fewer, self.criterion)) <= 1:
                chosen = fewer
        return chosen

    def rows(self, chosen: Sequence[str]) -> dict[str, Any]:
        """What the report says of the layers in float16."""
        whole = max(sum(self.macs.values()), 1)
        costs = self.report.get("costs", {})
        return {"layers": [_why(self.scales, name, costs.get(name), self.macs.get(name, 0)) for name in chosen],
                "macs_fp16": sum(self.macs.get(name, 0) for name in chosen) / whole}


def _foretold(ranked: Sequence[str], share: Mapping[str, float]) -> int:
    """How many layers must go before the costs of the others add up to FORETOLD of the limits."""
    left = sum(max(share[name], 0.0) for name in ranked)
    for count, name in enumerate(ranked):
        if left <= FORETOLD:
            return count
        left -= max(share[name], 0.0)
    return len(ranked)


def _told(figures: Mapping[str, Any], criterion: Criterion) -> str:
    given_up = f", given up after {figures['given_up']} pictures" if "given_up" in figures else ""
    return f"{against_limits(criterion(figures))}{given_up}"


def _why(scales: Scales, name: str, share: float | None, macs: int) -> dict[str, Any]:
    """A row of the report: what the layer costs in int8 (None: not ranked), and how uneven the channels are that one
    scale must hold."""
    node = next(n for n in scales.graph.nodes if n.name == name)
    row: dict[str, Any] = {"name": name, "share": share, "macs": macs}
    for key, tensor in (("reads", node.inputs[0]), ("makes", node.output)):
        seen = scales.ranges.get(tensor)
        if seen is not None and seen.pixels:
            row[f"{key}_spread"] = round(seen.spread(), 1)
    spread = max(row.get("reads_spread", 1.0), row.get("makes_spread", 1.0))
    row["why"] = "no set of FP16 layers keeps the limits" if share is None else \
        f"in int8 it alone costs {share:.3g} of the limits"
    if spread > 8:
        row["why"] += f"; the channels of a tensor at it differ {spread:.0f} times in range, under one scale"
    return row
