"""Fixtures of the power tests: facts, a plant's tree, loops and loads."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

from closed_loop import CONFIGS, Loop, new_loop

from orind.power.board import BoardFacts
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel


def why_no_fuse() -> str:
    """What keeps this host from mounting a board, or ''."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        return "only root may mount, and only with /dev/fuse"
    if missing := [tool for tool in ("unshare", "setpriv") if shutil.which(tool) is None]:
        return f"no {', '.join(missing)} here"
    tried = subprocess.run([sys.executable, "-c", "import mfusepy"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"mfusepy (extra test) and libfuse3 are needed: {tried.stderr.strip().splitlines()[-1]}"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"mount namespaces are refused: {tried.stderr.strip()}" if tried.returncode else ""


NO_FUSE = why_no_fuse()
collect_ignore = ["test_fuse.py"] if NO_FUSE else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if NO_FUSE:
        terminalreporter.write_line(f"left out: tests/power/test_fuse.py: {NO_FUSE}")


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


@pytest.fixture
def make_loop() -> Callable[..., Loop]:
    return new_loop


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
