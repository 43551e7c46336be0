"""Runs of a controller on a simulated board under a bursty load, and what is counted of them (scripts/bench_governor).

The governor, steward and policy are the daemon's own; the board is power/plant. Everything is judged by the plant's
true power, which no controller sees: shares and means over whole seconds at full load throughout, the largest mean of a
second over the whole run. A run is made from its `Spec` alone, so that runs are repeatable and can be spread over
processes.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orind.power.board import BoardFacts, Mode
from orind.power.plant.modules import MODULES, Module
from orind.power.plant.simulated import SimulatedBoard, simulated_board
from orind.power.policy import Policy
from orind.power.sensors import Readings
from orind.power.simulation import ClosedLoop, IndifferentWork

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
TICK_NS = 100_000_000
TICKS = 10  # in a second
START_NS = 1_000_000_000
# how late the busy counter is in the runs with wrong models: main writes its page every 100 ms, and a tick more
BUSY_LATE_NS = 2 * TICK_NS


@dataclass(frozen=True)
class Spec:
    """One run. `control`: governor, none, mode, steps, or fixed:N (the Nth clock all the time). `wrong`: how every
    constant of the governor's model is wrong: "", high, low or mixed."""

    module: str
    policy: str
    control: str
    seed: int
    hours: float
    ambient: tuple[float, float] = (25.0, 45.0)
    fan: str | None = None
    wrong: str = ""

    @property
    def ticks(self) -> int:
        return round(self.hours * 3600 * TICKS)


@dataclass(frozen=True)
class Outcome:
    """What a run was like; shares in 0..1, W, C, s, MHz (work: the clock times powered TPCs that full load ran at).
    `max_w`: largest mean of any second, sliding by a tick, loaded or not; `over_s`: longest run of ticks over."""

    spec: Spec
    seconds: int
    within: float
    close: float
    mean_w: float
    max_w: float
    over_s: float
    reading_within: float
    reading_mean_w: float
    work_mhz: float
    tj_max_c: float
    throttled_s: float
    paced_s: float
    step_spread: int


def settings(spec: Spec) -> tuple[BoardFacts, Policy, Module]:
    """Facts, policy and simulated module of a run, with the model made wrong where the run asks for it."""
    facts = BoardFacts.from_dict(yaml.safe_load((CONFIGS / "boards" / f"{spec.module}.yaml").read_text()))
    policy = Policy.from_dict(yaml.safe_load((CONFIGS / "power" / f"{spec.policy}.yaml").read_text()))
    if spec.wrong:
        facts = dataclasses.replace(facts, model=dataclasses.replace(facts.model, **_wrong(facts, spec.wrong)))
    return facts, policy, MODULES[spec.module]


def _wrong(facts: BoardFacts, how: str) -> dict[str, Any]:
    """Every constant 25 % too high or too low; mixed: in turn. The reference clock is no constant but what the others
    are given at."""
    names = [f.name for f in dataclasses.fields(facts.model) if f.name != "reference_hz"]
    signs = {"high": (1,), "low": (-1,), "mixed": (1, -1)}[how]
    return {name: getattr(facts.model, name) * (1 + 0.25 * signs[i % len(signs)]) for i, name in enumerate(names)}


class Bursts:
    """Idle to full within 10 to 100 ms. Phases of one to five minutes with a duty of 10 to 100 % each; bursts in them
    of 0.3 to 30 s, short ones as often as long ones."""

    def __init__(self, seed: int, length_s: float) -> None:
        r = random.Random(seed)
        self._edges: list[tuple[float, float, float]] = []  # start, end, ramp
        t = 0.0
        while t < length_s:
            duty, phase_end = r.uniform(0.1, 1.0), t + r.uniform(60.0, 300.0)
            if duty > 0.97:
                self._edges.append((t, phase_end, r.uniform(0.01, 0.1)))
                t = phase_end
                continue
            while t < phase_end:
                on = 0.3 * 100.0 ** r.random()
                start = t + on * (1.0 - duty) / duty * r.uniform(0.5, 1.5)
                self._edges.append((start, start + on, r.uniform(0.01, 0.1)))
                t = start + on
        self._edges.append((math.inf, math.inf, 1.0))
        self._i = 0

    def at(self, t_s: float) -> float:
        """The load at a time that never goes back."""
        while t_s >= self._edges[self._i][1]:
            self._i += 1
        start, _, ramp = self._edges[self._i]
        return min(max((t_s - start) / ramp, 0.0), 1.0)


def run(spec: Spec) -> Outcome:
    """Make the run."""
    facts, policy, module = settings(spec)
    mode = mode_for(facts, policy.budget_mw) if spec.control == "mode" else None
    board = simulated_board(facts, module, mode, spec.ambient[0], spec.seed, spec.fan, START_NS)
    if spec.wrong:
        board.busy_late_ns = BUSY_LATE_NS
    tick = _controller(spec, board, facts, policy)
    counted = _Counted(policy.budget_mw / 1000, policy.tolerance_mw / 1000)
    bursts = Bursts(spec.seed, spec.ticks / TICKS)
    low, high = spec.ambient
    for i in range(spec.ticks):
        board.model.ambient_c = (low + high) / 2 - (high - low) / 2 * math.cos(2 * math.pi * i / spec.ticks)
        loads: list[float] = []

        def load(now_ns: int, loads: list[float] = loads) -> float:
            loads.append(bursts.at((now_ns - START_NS) / 1e9))
            return loads[-1]

        readings, level, watts = tick(IndifferentWork(load))
        counted.add(watts, min(loads), readings.board_mw, board, level)
    return counted.outcome(spec, board.model.powered_tpcs / board.model.constants.tpcs)


def _controller(spec: Spec, board: SimulatedBoard, facts: BoardFacts,
                policy: Policy) -> Callable[[IndifferentWork], tuple[Readings, str, float]]:
    """What is done at each tick, and the board's work until the next; returns the readings, the governor's level
    ("free" where there is none) and the true mean power in W."""
    if spec.control == "governor":
        loop = ClosedLoop(facts, policy, board)

        def govern(work: IndifferentWork) -> tuple[Readings, str, float]:
            report, watts, _ = loop.tick(work)
            return report.readings, report.decision.limits.level, watts
        return govern
    if spec.control.startswith("fixed:"):
        board.cap_hz = board.gpu_clocks_hz()[int(spec.control[6:])]
    stepping = Steps(board, policy.budget_mw) if spec.control == "steps" else None

    def watch(work: IndifferentWork) -> tuple[Readings, str, float]:
        readings = board.read()
        if stepping is not None:
            stepping.tick(readings.board_mw)
        return readings, "free", board.run(TICK_NS, work)
    return watch


class Steps:
    """The plain step governor: every half second one step down when the reading is over the budget, one up when it is
    two watts below."""

    _EVERY, _ROOM_MW = 5, 2_000

    def __init__(self, board: SimulatedBoard, budget_mw: int) -> None:
        self._board, self._budget_mw = board, budget_mw
        self._index = len(board.gpu_clocks_hz()) - 1
        self._ticks = 0

    def tick(self, reading_mw: int | None) -> None:
        self._ticks += 1
        if self._ticks % self._EVERY or reading_mw is None:
            return
        clocks = self._board.gpu_clocks_hz()
        if reading_mw > self._budget_mw:
            self._index = max(self._index - 1, 0)
        elif reading_mw < self._budget_mw - self._ROOM_MW:
            self._index = min(self._index + 1, len(clocks) - 1)
        self._board.set_gpu_max(clocks[self._index], "step")


def mode_for(facts: BoardFacts, budget_mw: int) -> Mode:
    """The mode that the budget's number suggests: the largest number of watts in a name that is not above it."""
    def watts(mode: Mode) -> int:
        digits = "".join(c for c in mode.name if c.isdigit())
        return int(digits) if digits and mode.name.endswith("W") else 10**6
    return max((m for m in facts.modes if watts(m) * 1000 <= budget_mw), key=watts)


class _Counted:
    """Collects the ticks of a run."""

    def __init__(self, budget_w: float, tolerance_w: float) -> None:
        self._budget, self._tolerance = budget_w, tolerance_w
        self._second: list[float] = []  # ticks of the present second at full load
        self._clocks: list[float] = []
        self._indices: set[int] = set()
        self._means: list[float] = []
        self._work: list[float] = []
        self._readings: list[float] = []
        self._full_ticks = 0
        self._recent: list[float] = []
        self._max_w = 0.0
        self._over = self._longest_over = 0
        self._tj_max = -273.0
        self._throttled = self._paced = 0
        self._spread = 0

    def add(self, watts: float, load: float, reading_mw: int | None, board: SimulatedBoard, level: str) -> None:
        """One tick that has passed; the reading was taken at its start."""
        self._over = self._over + 1 if watts > self._budget + self._tolerance else 0
        self._longest_over = max(self._longest_over, self._over)
        self._recent.append(watts)
        if len(self._recent) > TICKS:
            self._recent.pop(0)
        if len(self._recent) == TICKS:
            self._max_w = max(self._max_w, sum(self._recent) / TICKS)
        self._tj_max = max(self._tj_max, board.model.temperature_c("tj"))
        self._throttled += board.kernel.throttled or board.kernel.shut_down
        self._paced += level in ("hot", "over_budget")
        if load < 0.999:
            self._second, self._clocks, self._indices, self._full_ticks = [], [], set(), 0
            return
        # a reading looks back over up to two windows
        self._full_ticks += 1
        if self._full_ticks > TICKS and reading_mw is not None:
            self._readings.append(reading_mw / 1000)
        self._second.append(watts)
        self._clocks.append(board.done_hz)
        self._indices.add(board.gpu_clocks_hz().index(board.cap_hz))
        if len(self._second) == TICKS:
            self._means.append(sum(self._second) / TICKS)
            self._work.append(sum(self._clocks) / TICKS)
            self._spread = max(self._spread, max(self._indices) - min(self._indices))
            self._second, self._clocks, self._indices = [], [], set()

    def outcome(self, spec: Spec, share: float) -> Outcome:
        """The figures; `share`: of the TPCs, that were powered."""
        off = [abs(w - self._budget) for w in self._means]
        reading_off = [abs(w - self._budget) for w in self._readings]
        return Outcome(
            spec=spec, seconds=len(off),
            within=_share(off, self._tolerance), close=_share(off, 0.5), mean_w=_mean(self._means),
            max_w=self._max_w, over_s=self._longest_over / TICKS,
            reading_within=_share(reading_off, self._tolerance), reading_mean_w=_mean(self._readings),
            work_mhz=_mean(self._work) * share / 1e6, tj_max_c=self._tj_max,
            throttled_s=self._throttled / TICKS, paced_s=self._paced / TICKS, step_spread=self._spread)


def _share(values: list[float], limit: float) -> float:
    return sum(v <= limit for v in values) / len(values) if values else 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
