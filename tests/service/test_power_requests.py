"""Budgets from outside and by reload, seen from outside the real daemon: its steward over a simulated board's files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import yaml

from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel

AMBIENT = [{"ambient_c": 25, "budget_w": 30}, {"ambient_c": 45, "budget_w": 20}]
POLICY = {"name": "test", "budget_w": 30, "ambient": AMBIENT}


@pytest.fixture
def board(folder: Path) -> Iterator[Path]:
    """An idle AGX Orin in real time."""
    plant, stop = PlantBoard(folder / "board", PlantModel(seed=1)), threading.Event()

    def live() -> None:
        while not stop.wait(0.1):
            plant.advance(0.1, 0.0)

    thread = threading.Thread(target=live)
    thread.start()
    yield folder / "board"
    stop.set()
    thread.join()


def budget_of(service: harness.Service, watts: float, reason: str) -> None:
    """Wait until that budget holds, for that reason."""
    def holds(status: dict[str, Any]) -> bool:
        power = status["power"]
        return power["budget_w"] == watts and reason in (power.get("budget_reason") or "")

    service.wait_for(holds, f"a budget of {watts} W by {reason}")


def steward_of(service: harness.Service) -> int:
    """The steward's process id, once the status has it."""
    def pids(status: dict[str, Any]) -> list[int]:
        return [each["pid"] for each in status["processes"] if each["name"].startswith("steward")]

    (pid,) = pids(service.wait_for(pids, "steward among the processes"))
    return pid


def test_a_budget_is_asked_for_and_reloaded_without_a_new_steward(folder: Path, identity: Path, board: Path) -> None:
    policy = folder / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    power = {"board": "agx-orin", "policy": str(policy), "root": str(board)}
    with harness.Service(folder, {"models": {"v1": {"plan": str(identity)}}, "cameras": {"line1": {"model": "v1"}},
                                  "power": power}) as service:
        where = ["--run-dir", str(service.run_dir)]
        budget_of(service, 20, "ambient temperature not told")
        steward = steward_of(service)
        assert service.orind("power", "ambient", "35", "--for", "1m", *where).stdout == "ambient of 35 C for 60 s\n"
        budget_of(service, 25, "ambient 35.0 C")
        assert service.ask({"op": "power", "budget_w": 18, "for_s": 60}) == {"ok": True, "result": "taken"}
        budget_of(service, 18, "asked for by uid")
        refused = service.ask({"op": "power", "budget_w": 99, "for_s": 60})
        assert not refused["ok"] and refused["result"].startswith("refused: budget_w must lie in 10.88 to 30 W")
        policy.write_text(yaml.safe_dump({**POLICY, "budget_w": 28}))
        assert service.reload()["ok"]
        assert service.ask({"op": "power", "budget_w": None})["ok"]
        budget_of(service, 25, "ambient 35.0 C")
        policy.write_text(yaml.safe_dump({"name": "test", "budget_w": 28}))
        assert service.reload()["ok"]
        budget_of(service, 28, "policy")
        assert steward_of(service) == steward
        policy.write_text(yaml.safe_dump({"name": "test", "budget_w": 5}))
        answer = service.reload()
        assert not answer["ok"] and f"{policy}:1: budget_w: 5 W is not above the idle power" in answer["problems"][0]
        log = service.log(200)
        assert "power: ambient of 35 C, asked for by uid" in log and "ended: the new policy has no ambient table" in log
        told = service.wait_for(lambda s: s["energy"]["known_s"] > 2, "energy that was measured")["energy"]
        assert told["reason"] == "" and 9 < told["board_joules"] / told["known_s"] < 13, "an idle AGX Orin's watts"
        assert told["idle_joules"] + told["inference_joules"] + told["other_joules"] == pytest.approx(
            told["board_joules"]) and told["models"]["v1"]["cameras"]["line1"]["frames"] == 0
