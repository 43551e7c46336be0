"""Which calibration method each tensor gets, by what it costs at the network's outputs. Caller: `build.py`.

MSE on a histogram clips what is rare, and in a detector objects are rare. So each group of tensors that share a scale
is coded alone, in an otherwise float32 run over calibration pictures (never the held-back ones), with the scale of each
method, and the one that costs least stays. A run starts at the group's first tensor from a snapshot of the arena.

Part detector, 256 generated parts, 64 held back (seeds from 500000 on, 815 anchors): MSE alone KL 0.0046, IoU of boxes
0.9641, which misses the gate's 0.97; minmax alone 0.0012 and 0.9668; entropy 0.026 and 0.904; the choice between MSE,
minmax and 99.99 % by cost 0.0008 and 0.9686; with the parts of minmax too 0.0009 and 0.9733 (0.9737 on 48 pictures
instead of 16). Chosen by the SQNR of the raw heads instead, it lost: 0.0092 and 0.956, since nearly all anchors are
background. So "output" here means what the gate looks at, on calibration pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from ..passes.islands import IMAGE
from . import contract
from .calibrate import best_scale, merged
from .gate import Tally, Task, compare, cost_of
from .scales import Scales, deciding_members

PARTS = (0.5, 0.6, 0.7, 0.8, 0.9)
LEAST_GAIN = 0.98
"""An alternative must cost less than this part of the method's cost: smaller differences are those of few pictures."""
LOOKS, HOPELESS = (3, 6), 2.0
"""After so many pictures alternatives are given up that cost HOPELESS times as much as the best: no scale of the part
detector or of BlazeFace changes by that. At 1.5 times, from 2 pictures on, six scales of the detector did."""
LEAST_DIFFERENCE = 0.02
"""Two scales that differ by less than this part are one."""

Array = npt.NDArray[np.float32]


@dataclass
class _Group:
    names: list[str]
    scales: dict[str, float]                                 # method -> scale
    seen: dict[str, Tally] = field(default_factory=dict)     # method -> what it does to the outputs


def choose_methods(scales: Scales, method: str, task: Task, runner: ProgramRunner,
                   pictures: Sequence[Callable[[Array], object]]) -> tuple[Scales, dict[str, str]]:
    """Scales with the best method of each group, and the groups (by their first tensor) that left `method`.

    `runner` is the FP32 program of the graph that will be coded; each of `pictures` writes one frame.
    """
    pinned = {scales.group[info.name] for info in scales.graph.inputs if scales.input.dtype != "float32"}
    groups: dict[str, _Group] = {}
    for root, names in deciding_members(scales).items():
        found = {method: scales.scale[names[0]]}
        histogram = merged(scales.ranges[name] for name in names)
        largest = best_scale(histogram, "minmax")
        alternatives = {"minmax": largest, "percentile": best_scale(histogram, "percentile")}
        alternatives |= {f"{part:g} of minmax": contract.single(part * largest) for part in PARTS}
        for other, value in alternatives.items():
            if all(abs(value / known - 1) > LEAST_DIFFERENCE for known in found.values()):
                found[other] = value
        if root not in pinned and len(found) > 1:
            stored = [image if (image := name + IMAGE) in runner.program.tensors else name for name in names]
            groups[root] = _Group(stored, found, {name: Tally() for name in found})
    for number, write in enumerate(pictures):
        write(runner.input[0])
        _measure(runner, task, groups)
        if number + 1 in LOOKS:
            for group in groups.values():
                _drop_the_hopeless(group, method, task)
    better: dict[str, str] = {}
    changed: dict[str, float] = {}
    for root, group in groups.items():
        cost = {name: cost_of(task, tally) for name, tally in group.seen.items()}
        best = min(cost, key=lambda name: cost[name])
        if cost[best] < LEAST_GAIN * cost[method]:
            better[group.names[0].removesuffix(IMAGE)] = best
            changed[root] = group.scales[best]
    scale: Mapping[str, float] = {name: changed.get(scales.group[name], value) for name, value in scales.scale.items()}
    return replace(scales, scale=scale), better


def _drop_the_hopeless(group: _Group, method: str, task: Task) -> None:
    """Alternatives that cost HOPELESS times as much as the best so far are not run any more."""
    cost = {name: cost_of(task, tally) for name, tally in group.seen.items()}
    least = min(cost.values())
    for name, value in cost.items():
        if name != method and value > HOPELESS * least:
            del group.seen[name], group.scales[name]


def _measure(runner: ProgramRunner, task: Task, groups: Mapping[str, _Group]) -> None:
    """Adds what each group's codes alone do to the outputs, for the frame in the runner's input."""
    frame = runner.input.copy()
    want = [output[0].copy() for output in runner.run()]
    np.copyto(runner.input, frame)
    root_of = {name: root for root, group in groups.items() for name in group.names}
    done: set[str] = set()

    def measure(written: Sequence[str], following: int) -> None:
        root = next((root_of[name] for name in written if name in root_of), None)
        if root is None or root in done:
            return
        done.add(root)
        group = groups[root]
        arena = runner.binding.arena.copy()
        for name, scale in group.scales.items():
            _code(runner, written, group.names, scale)
            for later in runner.walk(following):
                _code(runner, later.writes(), group.names, scale)
            compare(task, group.seen[name], want, [output[0] for output in runner.outputs])
            np.copyto(runner.binding.arena, arena)
    measure(runner.program.inputs, 0)
    for index, step in enumerate(runner.walk()):
        measure(step.writes(), index + 1)


def _code(runner: ProgramRunner, written: Sequence[str], names: Sequence[str], scale: float) -> None:
    """What int8 codes would make of the tensors `names` that a step has just written."""
    for name in written:
        if name in names:
            round_to_codes(runner.binding.view(name, 0), scale)


def round_to_codes(view: Array, scale: float, low: int = -128, high: int = 127) -> None:
    """What codes from `low` to `high` of this scale stand for, in place."""
    np.divide(view, np.float32(scale), out=view)
    np.rint(view, out=view)
    np.clip(view, low, high, out=view)
    np.multiply(view, np.float32(scale), out=view)
