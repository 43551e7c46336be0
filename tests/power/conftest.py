"""Fixtures of the power tests: facts, policies, a plant's tree, and the closed loop in simulated time.

The loop is the product's own steward over a simulated board; what is judged is the plant's true power and clock, which
the governor never sees.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from orind.power.board import BoardFacts
from orind.power.governor import Governor
from orind.power.plant.board import PlantBoard
from orind.power.plant.constants import PlantConstants
from orind.power.plant.model import PlantModel
from orind.power.plant.simulated import SimulatedBoard
from orind.power.policy import Policy
from orind.power.steward import Report, Steward

CONFIGS = Path(__file__).parents[2] / "configs"
TICK_NS = 100_000_000
START_NS = 1_000_000_000


@pytest.fixture(scope="session")
def agx_dict() -> dict[str, Any]:
    loaded = yaml.safe_load((CONFIGS / "boards" / "agx-orin.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="session")
def agx(agx_dict: dict[str, Any]) -> BoardFacts:
    return BoardFacts.from_dict(agx_dict)


@pytest.fixture
def plant(tmp_path: Path) -> PlantBoard:
    return PlantBoard(tmp_path / "board", PlantModel(seed=1))


@dataclass
class Trace:
    """One entry a tick: true mean power in W, mean load, clock index, true junction in C, and the steward's report."""

    power_w: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    tj_c: list[float] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def full_seconds(self, skip_s: int = 60) -> list[float]:
        """Mean true power of every second (sliding by one tick) that was at full load throughout."""
        return [sum(self.power_w[i:i + 10]) / 10 for i in range(skip_s * 10, len(self.power_w) - 9)
                if min(self.load[i:i + 10]) > 0.999]

    def seconds(self, skip_s: int = 60) -> list[float]:
        return [sum(self.power_w[i:i + 10]) / 10 for i in range(skip_s * 10, len(self.power_w) - 9)]


class Loop:
    """Steward, governor, simulated board. `run(seconds, load)` appends to `trace`; load maps s since start to 0..1."""

    def __init__(self, facts: BoardFacts, policy: Policy, model: PlantModel) -> None:
        self.board = SimulatedBoard(model, facts, start_ns=START_NS)
        self.steward = Steward(self.board, self.board, Governor(facts, policy), self.board.read_busy,
                               self.board.take_limits, self.board.clock)
        self.trace = Trace()

    def tick(self, load: Callable[[float], float]) -> Report:
        report = self.steward.tick()
        seen: list[float] = []

        def at(now_ns: int) -> float:
            seen.append(load((now_ns - START_NS) / 1e9))
            return seen[-1]

        self.trace.step.append(self.board.gpu_clocks_hz().index(self.board.cap_hz))
        self.trace.power_w.append(self.board.advance(TICK_NS, at))
        self.trace.load.append(sum(seen) / len(seen))
        self.trace.tj_c.append(self.board.model.temperature_c("tj"))
        self.trace.reports.append(report)
        return report

    def run(self, seconds: float, load: Callable[[float], float]) -> Report:
        for _ in range(round(seconds * 10)):
            report = self.tick(load)
        return report


@pytest.fixture
def make_loop(agx: BoardFacts) -> Callable[..., Loop]:
    def make(constants: PlantConstants | None = None, ambient_c: float = 35.0, seed: int = 0, fan_works: bool = True,
             **policy: float) -> Loop:
        return Loop(agx, Policy.from_dict({"budget_w": 30, **policy}),
                    PlantModel(constants, ambient_c, seed, fan_works))
    return make


@pytest.fixture
def bursts() -> Callable[[int, float, float], Callable[[float], float]]:
    """(seed, longest on, longest off) -> load: idle to full within 100 ms, on and off for 0.3 s to that long."""

    def make(seed: int, on_s: float, off_s: float) -> Callable[[float], float]:
        r = random.Random(seed)
        edges: list[tuple[float, float, float]] = []  # start, end, ramp
        end = 0.0
        while end < 4_000:
            start = end + r.uniform(0.3, off_s)
            end = start + r.uniform(0.3, on_s)
            edges.append((start, end, r.uniform(0.01, 0.1)))
        state = {"i": 0}

        def load(t_s: float) -> float:
            while t_s >= edges[state["i"]][1]:
                state["i"] += 1
            start, _, ramp = edges[state["i"]]
            return min(max((t_s - start) / ramp, 0.0), 1.0)

        return load

    return make
