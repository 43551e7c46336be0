"""Mixed precision: the cheapest set of float16 layers with which the accuracy gate is met. Caller: `build.py`.

Layers are ranked on 16 calibration pictures by what each costs when it alone is int8 (`ranking.py`; a tensor that int8
cannot hold shows at the layer that makes it and at the one that reads it). Sets are decided on all held-back pictures:
the shortest head of that ranking that meets the gate, searched from where the ranking foretells it, less every layer
that it turns out not to need, the one with most multiply-accumulates first. A set is given up at the first picture from
which on it cannot meet the gate any more; pictures that cost INT8 most come first.

Here a program must meet the gate also when what it alone sees counts: BlazeFace made hard kept its heads in INT8 and
met the gate of CONTRACT.md, which looks where FP32 sees something, with false alarms on every picture.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cpu.executor import ProgramRunner
from ..ir.macs import multiply_accumulates
from .borders import layers_of
from .gate import Reference, strict
from .pictures import Source
from .ranking import rank_layers
from .scales import Scales

RANKING_PICTURES = 16
REMOVALS = 8
"""At most so many layers are tried without; each costs a run over the held-back pictures."""
FORETOLD = 0.7
"""The head is foretold where the costs of the layers behind it add up to this part of the limits."""

Progress = Callable[[str], None]
Make = Callable[[Collection[str]], tuple[ProgramRunner, Source]]
"""A bound program of batch 1 with these layers in float16, and what writes its input."""


@dataclass(frozen=True)
class Choice:
    """`layers` in float16, the figures of the held-back pictures with them, and what the report says."""

    layers: tuple[str, ...]
    figures: dict[str, Any]
    report: dict[str, Any]


def choose_layers(scales: Scales, make: Make, quick: Reference, held: Reference, progress: Progress) -> Choice:
    """The set for `held`; all layers, with `excess` above 1 in the figures, if float16 does not meet the gate either.
    """
    def measured(layers: Collection[str], give_up: bool = False) -> dict[str, Any]:
        return held.measure(*make(layers), give_up=give_up)
    codes = measured(())
    report: dict[str, Any] = {"int8": codes, "layers": []}
    if strict(codes) <= 1:
        return Choice((), codes, report)
    every = layers_of(scales.graph)
    best = measured(every)
    report["fp16"] = best
    progress(f"INT8 alone is {strict(codes):.3g} times over the limits, FP16 {strict(best):.3g}")
    if strict(best) > 1:
        return Choice(every, best, report)
    share = report["costs"] = rank_layers(scales, quick, progress)
    ranked = sorted(every, key=lambda name: -share[name])
    low, high = 0, len(ranked)                            # the gate is not met with `low` layers, and is with `high`
    foretold = _foretold(ranked, share)
    near = [foretold + step for step in (0, 2, -2, 6, -6, 14, -14)]
    while high - low > 1:
        middle = next((count for count in near if low < count < high), (low + high) // 2)
        figures = measured(ranked[:middle], give_up=True)
        progress(f"{middle} of {len(ranked)} layers in FP16: {_told(figures)}")
        if strict(figures) <= 1:
            high, best = middle, figures
        else:
            low = middle
    chosen = ranked[:high]
    macs = multiply_accumulates(scales.graph)
    for name in sorted(chosen, key=lambda n: -macs.get(n, 0))[:REMOVALS]:
        fewer = [other for other in chosen if other != name]
        figures = measured(fewer, give_up=True)
        if strict(figures) <= 1:
            chosen, best = fewer, figures
    progress(f"{len(chosen)} of {len(every)} layers stay in FP16")
    report["layers"] = [_why(scales, name, share[name], macs) for name in chosen]
    report["macs_fp16"] = sum(macs.get(name, 0) for name in chosen) / max(sum(macs.values()), 1)
    return Choice(tuple(name for name in every if name in chosen), best, report)


def _foretold(ranked: Sequence[str], share: Mapping[str, float]) -> int:
    """How many layers must go before the costs of the others add up to FORETOLD of the limits."""
    left = sum(max(share[name], 0.0) for name in ranked)
    for count, name in enumerate(ranked):
        if left <= FORETOLD:
            return count
        left -= max(share[name], 0.0)
    return len(ranked)


def _told(figures: Mapping[str, Any]) -> str:
    given_up = f", given up after {figures['given_up']} pictures" if "given_up" in figures else ""
    return f"{strict(figures):.3g} times the limits{given_up}"


def _why(scales: Scales, name: str, share: float, macs: dict[str, int]) -> dict[str, Any]:
    """A row of the report: what the layer costs in int8, and how uneven the channels are that one scale must hold."""
    node = next(n for n in scales.graph.nodes if n.name == name)
    row: dict[str, Any] = {"name": name, "share": share, "macs": macs.get(name, 0)}
    for key, tensor in (("reads", node.inputs[0]), ("makes", node.output)):
        seen = scales.ranges.get(tensor)
        if seen is not None and seen.pixels:
            row[f"{key}_spread"] = round(seen.spread(), 1)
    spread = max(row.get("reads_spread", 1.0), row.get("makes_spread", 1.0))
    row["why"] = f"in int8 it alone costs {share:.3g} of the limits"
    if spread > 8:
        row["why"] += f"; the channels of a tensor at it differ {spread:.0f} times in range, under one scale"
    return row
