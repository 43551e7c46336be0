"""Simulated boards for the tests with jtop: one stands still, except where a test moves it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from comparison import Comparison, compare
from service import Jtop

from orind.power.board import BoardFacts
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import JETPACKS, MODULES
from orind.power.plant.tree import PROGRAMS

CONFIGS = Path(__file__).parents[2] / "configs" / "boards"


class Board:
    """Module `name` under a JetPack; time passes in `run` only."""

    def __init__(self, root: Path, name: str, jetpack: str) -> None:
        self.module, self.jetpack = MODULES[name], JETPACKS[jetpack]
        self.facts = BoardFacts.from_dict(yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()))
        model = PlantModel(self.module.constants, seed=1, fan_profile=self.module.fan_profile)
        self.plant = PlantBoard(root, model, self.module, self.jetpack)

    def run(self, seconds: int, busy: float) -> None:
        for _ in range(seconds):
            self.plant.advance(1.0, busy)

    def call(self, name: str, *arguments: str) -> None:
        subprocess.run([str(self.plant.root / PROGRAMS[name]), *arguments], stdin=subprocess.DEVNULL, check=True)

    def compare(self, jtop: Jtop) -> Comparison:
        found = compare(jtop.sample(), self.plant.root, self.facts, self.module, self.jetpack)
        print(f"\n{self.module.title}, JetPack {self.jetpack.name}\n\n{found.table()}")
        return found
