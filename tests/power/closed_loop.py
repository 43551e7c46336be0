"""The closed loop in simulated time: the product's own steward and governor over a simulated board.

Used by the power tests. What is judged is the plant's true power, clock and temperature, which the governor never sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orind.power.board import BoardFacts
from orind.power.plant.constants import PlantConstants
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import AGX_ORIN, MODULES, Module
from orind.power.plant.simulated import SimulatedBoard
from orind.power.policy import Policy
from orind.power.simulation import ClosedLoop, IndifferentWork
from orind.power.steward import Report

CONFIGS = Path(__file__).parents[2] / "configs"
START_NS = 1_000_000_000


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

    def __init__(self, facts: BoardFacts, policy: Policy, model: PlantModel, module: Module = AGX_ORIN) -> None:
        self.board = SimulatedBoard(model, facts, module, start_ns=START_NS)
        self.policy = policy
        self._loop = ClosedLoop(facts, policy, self.board)
        self.steward = self._loop.steward
        self.trace = Trace()

    def tick(self, load: Callable[[float], float]) -> Report:
        seen: list[float] = []

        def at(now_ns: int) -> float:
            seen.append(load((now_ns - START_NS) / 1e9))
            return seen[-1]

        report, watts, _ = self._loop.tick(IndifferentWork(at))
        self.trace.step.append(self.board.gpu_clocks_hz().index(self.board.cap_hz))
        self.trace.power_w.append(watts)
        self.trace.load.append(sum(seen) / len(seen))
        self.trace.tj_c.append(self.board.model.temperature_c("tj"))
        self.trace.reports.append(report)
        return report

    def run(self, seconds: float, load: Callable[[float], float]) -> Report:
        for _ in range(round(seconds * 10)):
            report = self.tick(load)
        return report


BUDGETS_W = {"agx-orin": 30, "orin-nx": 20, "orin-nano-super": 12, "orin-nano": 9}


def facts_of(name: str) -> BoardFacts:
    return BoardFacts.from_dict(yaml.safe_load((CONFIGS / "boards" / f"{name}.yaml").read_text()))


def new_loop(constants: PlantConstants | None = None, ambient_c: float = 35.0, seed: int = 0, fan_works: bool = True,
             name: str = "agx-orin", fan: str | None = None, **policy: Any) -> Loop:
    module = MODULES[name]
    model = PlantModel(constants or module.constants, ambient_c, seed, fan_works, fan or module.fan_profile)
    return Loop(facts_of(name), Policy.from_dict({"budget_w": BUDGETS_W[name], **policy}), model, module)
