"""One tick with files in simulated time, and what happens when a part of it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orind.power.actuators import Caps
from orind.power.board import BoardFacts
from orind.power.governor import Governor
from orind.power.limits import Limits
from orind.power.plant.board import PlantBoard
from orind.power.policy import Policy
from orind.power.sensors import Sensors
from orind.power.steward import Report, Steward

POLICY = Policy.from_dict({"budget_w": 30})


class Rig:
    """The real sensors, caps and steward over a plant's files; time is ours."""

    def __init__(self, plant: PlantBoard, facts: BoardFacts, state: Path) -> None:
        self.plant, self.now_ns, self.busy_ns = plant, 10**9, 0
        self.limits: list[Limits] = []
        self.caps = Caps(plant.root, facts, state)
        self.steward = Steward(Sensors(plant.root, facts), self.caps, Governor(facts, POLICY),
                               lambda: (self.now_ns, self.busy_ns), self.limits.append, lambda: self.now_ns)

    def run(self, seconds: float, busy: float) -> Report:
        for _ in range(round(seconds * 10)):
            report = self.steward.tick()
            self.plant.advance(0.1, busy)
            self.now_ns += 10**8
            self.busy_ns += round(busy * 10**8)
        return report


@pytest.fixture
def rig(plant: PlantBoard, agx: BoardFacts, tmp_path: Path) -> Rig:
    return Rig(plant, agx, tmp_path / "state.json")


def test_the_budget_is_held_through_files(rig: Rig) -> None:
    rig.run(5, 0.0)
    watts = []
    for _ in range(20):
        report = rig.run(1, 1.0)
        assert report.readings.board_mw is not None
        watts.append(report.readings.board_mw / 1000)
    assert all(abs(w - 30) < 1.5 for w in watts[10:])
    assert report.faults == () and report.busy == 1.0
    assert rig.limits[-1].expires_ns == rig.now_ns - 10**8 + POLICY.limits_ttl_ns and len(rig.limits) == 250
    status = json.loads(json.dumps(report.to_dict()))
    assert {"board_w", "budget_w", "tj_c", "gpu_hz", "gpu_cap_hz"} <= set(status)
    assert status["budget_w"] == 30 and status["gpu_cap_hz"] == rig.caps.gpu_cap_hz() and status["level"] == "free"
    rig.steward.close()
    assert (rig.plant.root / rig.plant.layout.max_freq).read_text() == "1300500000\n"


def test_a_mode_that_is_reset_behind_our_back_is_noticed_and_obeyed(rig: Rig) -> None:
    rig.run(3, 1.0)
    rig.plant.reset_mode(3, 816_000_000)
    report = rig.steward.tick()
    assert report.notes == ("the power mode was changed from MAXN to MODE_50W; its caps hold from now on",)
    assert report.mode == ("MODE_50W", None) and report.to_dict()["mode"] == "MODE_50W"
    for _ in range(20):
        report = rig.run(0.1, 0.1)
        assert report.gpu_cap_hz is not None and report.gpu_cap_hz <= 816_000_000 and report.notes == ()
    rig.plant.reset_mode(0, None)
    report = rig.run(0.2, 1.0)
    assert report.mode == ("MAXN", None) and report.gpu_cap_hz == rig.caps.gpu_cap_hz() < 1_300_500_000, "the budget"


@pytest.mark.parametrize("text", ["-256000", "0", "1000000000000", "0 306000000"])
def test_a_clock_that_cannot_be_is_not_known(rig: Rig, text: str) -> None:
    rig.run(1, 1.0)
    cpu = rig.plant.root / rig.plant.layout.cpu_policies()[0] / "scaling_max_freq"
    table = rig.plant.root / rig.plant.layout.devfreq / "available_frequencies"
    for path in (cpu, table, rig.plant.root / rig.plant.layout.max_freq):
        good = path.read_text()
        path.write_text(f"{text}\n")
        report = rig.steward.tick()
        if path != cpu:  # nobody needs the CPUs' now
            assert "which no clock can have" in " ".join(report.faults), path
        path.write_text(good)
        assert rig.steward.tick().faults == ()
    rig.steward.close()
    assert (rig.plant.root / rig.plant.layout.max_freq).read_text() == "1300500000\n"


def test_a_cap_that_cannot_be_written_is_a_fault_and_limits_go_out(rig: Rig) -> None:
    rig.run(1, 0.0)
    (rig.plant.root / rig.plant.layout.max_freq).unlink()
    rig.plant.gpu_hz = lambda: 1_300_500_000  # type: ignore[method-assign]
    report = rig.run(4, 1.0)
    assert report.gpu_cap_hz is None and sum("GPU cap: " in fault for fault in report.faults) == 2
    assert rig.limits[-1].level == "over_budget" and rig.limits[-1].pace_hz == POLICY.lowest_pace_hz
    assert len(rig.limits) == 50, "one for each tick"


def test_lost_sensors_reach_the_limits(rig: Rig) -> None:
    rig.run(3, 1.0)
    (rig.plant.root / rig.plant.layout.zone_file("tj")).parent.joinpath("type").write_text("gone\n")
    report = rig.run(1, 1.0)
    # names are looked up at the start; the plant goes on writing the file, so it is still read
    assert report.faults == ()
    shutil.rmtree((rig.plant.root / rig.plant.layout.zone_file("tj")).parent)
    rig.plant._put = lambda path, value: None  # type: ignore[method-assign]
    report = rig.run(1, 1.0)
    assert report.readings.tj_mc is None and any("zone tj" in fault for fault in report.faults)
    assert rig.limits[-1].level == "hot" and report.decision.hot == "junction temperature lost"
    assert report.gpu_cap_hz == 306_000_000


def test_main_that_is_gone_ends_the_tick(rig: Rig) -> None:
    def closed(limits: Limits) -> None:
        raise BrokenPipeError

    rig.steward._send_limits = closed
    with pytest.raises(BrokenPipeError):
        rig.steward.tick()


def test_unreadable_busy_time_is_unknown(rig: Rig) -> None:
    rig.run(1, 0.0)
    rig.steward._read_busy = lambda: None
    report = rig.run(2, 1.0)
    assert report.busy is None and report.to_dict()["busy"] is None
    assert rig.limits[-1].level == "free"
