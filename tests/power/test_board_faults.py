"""What breaks on a board, on every module: sensors lost, absurd, stuck or slow, a dead fan, refused and undone caps.

The steward and governor are the product's; judged is what the plant does, and that the fault is said.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orind.power import sysfs
from orind.power.board import BoardFacts
from orind.power.plant.board import PlantBoard
from orind.power.sensors import Sensors

Make = Callable[..., Any]
NAMES = ("agx-orin", "orin-nx", "orin-nano-super")
TOTAL = {"agx-orin": "VDD_GPU_SOC", "orin-nx": "VDD_IN", "orin-nano-super": "VDD_IN"}


def _full(_: float) -> float:
    return 1.0


def _idle(_: float) -> float:
    return 0.0


def _levels(loop: Any) -> set[str]:
    return {report.decision.limits.level for report in loop.trace.reports}


def _obedient(loop: Any) -> Callable[[float], float]:
    """Full load, or as many frames of 20 ms (at the top clock) as pacing allows."""

    def load(_: float) -> float:
        limits = loop.board.limits
        if limits is None or limits.pace_hz is None:
            return 1.0
        clocks = loop.board.gpu_clocks_hz()
        return min(float(limits.pace_hz * 0.02 * clocks[-1] / loop.board.cap_hz), 1.0)

    return load


# -- the fan


@pytest.mark.parametrize(("name", "budget_w"), [("agx-orin", 50), ("orin-nx", 25), ("orin-nano-super", 20)])
def test_a_fan_that_dies_at_full_load_never_reaches_the_throttle(make_loop: Make, name: str, budget_w: float) -> None:
    loop = make_loop(ambient_c=25.0, name=name, budget_w=budget_w)
    loop.run(60, _obedient(loop))
    loop.board.model.fan_works = False
    loop.run(540, _obedient(loop))
    assert max(loop.trace.tj_c) < 87 and "warm" in _levels(loop)
    assert not loop.board.kernel.shut_down and not loop.board.kernel.throttled
    warm = sum(loop.trace.power_w[-100:]) / 100
    loop.board.model.fan_works = True
    loop.run(200, _obedient(loop))
    assert sum(loop.trace.power_w[-100:]) / 100 > warm + 2, "and comes back by itself"


def test_without_fan_in_a_hot_cabinet_pacing_is_what_is_left(make_loop: Make) -> None:
    # the lowest clock at full load would settle at 97 C, idle at 80
    loop = make_loop(ambient_c=40.0, fan_works=False)
    loop.run(600, _obedient(loop))
    assert max(loop.trace.tj_c) < 91 and not loop.board.kernel.throttled
    hot = [r.decision.limits for r in loop.trace.reports if r.decision.limits.level == "hot"]
    assert hot and all(limits.pace_hz == 5 and limits.batch_max == 1 for limits in hot)
    assert all("C), the limit was reached" in limits.reason for limits in hot)


# -- sensors


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["tj", "gpu", "total"])
def test_a_lost_sensor_is_hot_within_a_second_and_recovers(make_loop: Make, name: str, what: str) -> None:
    loop = make_loop(name=name)
    loop.run(20, _full)
    assert loop.trace.step[-1] > 0
    loop.board.faults.missing.add(TOTAL[name] if what == "total" else what)
    report = loop.run(1, _full)
    assert loop.trace.step[-1] == 0
    limits = loop.board.limits
    assert limits.level == "hot" and limits.pace_hz == 5 and limits.batch_max == 1 and "lost" in limits.reason
    assert any("taken for hot" in fault for fault in report.faults), "health says so"
    loop.board.faults.missing.clear()
    loop.run(4, _full)
    assert loop.board.limits.level == "hot", "trust comes back only after a stretch of good readings"
    report = loop.run(3, _full)
    assert loop.board.limits.level == "free" and loop.trace.step[-1] > 0 and report.faults == ()


@pytest.mark.parametrize(("what", "value", "said"), [("tj", 12_000, "jumped"), ("gpu", 125_000, "jumped"),
                                                     ("tj", 0, "jumped")])
def test_an_absurd_temperature_is_hot_within_a_second(make_loop: Make, what: str, value: int, said: str) -> None:
    loop = make_loop()
    loop.run(20, _full)
    loop.board.faults.forced[what] = value
    report = loop.run(0.9, _full)
    assert loop.trace.step[-1] == 0 and said in loop.board.limits.reason
    assert any(said in fault for fault in report.faults)
    loop.board.faults.forced.clear()
    loop.run(8, _full)
    assert loop.board.limits.level == "free"


@pytest.mark.parametrize("value", [0, 125_000])
def test_a_junction_that_was_absurd_from_the_start_is_hot_and_teaches_nothing(make_loop: Make, value: int) -> None:
    loop = make_loop()
    loop.board.faults.forced["tj"] = value
    report = loop.run(20, _full)
    assert f"{value / 1000} C contradicts zone gpu" in loop.board.limits.reason and loop.trace.step[-1] == 0
    assert (report.decision.bias_mw, report.decision.gain) == (0.0, 1.0)


def test_one_failed_read_is_bridged(make_loop: Make) -> None:
    loop = make_loop()
    loop.run(20, _full)
    loop.board.faults.missing.add("tj")
    loop.run(0.2, _full)
    loop.board.faults.missing.clear()
    loop.run(2, _full)
    assert _levels(loop) == {"free"}


@pytest.mark.parametrize("what", ["tj", "gpu"])
def test_a_stuck_temperature_is_hot_when_power_has_moved(make_loop: Make, what: str) -> None:
    loop = make_loop()
    loop.run(20, _idle)
    loop.board.faults.stuck.add(what)
    loop.run(29, lambda t: float(t % 4 < 2))
    assert loop.board.limits.level == "free"
    report = loop.run(2, lambda t: float(t % 4 < 2))
    assert loop.board.limits.level == "hot" and "stuck" in loop.board.limits.reason
    assert any("stuck" in fault for fault in report.faults), "health says so"
    loop.board.faults.stuck.clear()
    loop.run(8, _idle)
    assert loop.board.limits.level == "free"


def test_a_constant_temperature_at_constant_power_is_no_alarm(make_loop: Make) -> None:
    loop = make_loop()
    loop.board.faults.forced["tj"] = loop.board.model.read_temperature_mc("tj")
    loop.run(60, _idle)
    assert _levels(loop) == {"free"}


@pytest.mark.parametrize("name", NAMES)
def test_frozen_power_is_hot(make_loop: Make, name: str) -> None:
    loop = make_loop(name=name)
    loop.run(10, _idle)
    loop.board.faults.stuck |= set(loop.board.model.constants.rails)
    loop.run(5, _full)
    assert loop.board.limits.level == "hot" and "frozen" in loop.board.limits.reason


def test_a_slow_temperature_is_held_below_the_throttle(make_loop: Make) -> None:
    loop = make_loop(ambient_c=55.0, budget_w=50)
    loop.board.faults.slow_s |= {"tj": 5.0, "gpu": 5.0, "cpu": 5.0}
    loop.run(250, lambda t: float(t % 40 < 30))
    assert max(loop.trace.tj_c) < 92 and not loop.board.kernel.throttled


@pytest.mark.parametrize("how", ["missing", "-256 C"])
def test_a_sleeping_gpu_zone_is_normal_while_idle(make_loop: Make, how: str) -> None:
    loop = make_loop()
    loop.run(5, _idle)
    if how == "missing":
        loop.board.faults.missing.add("gpu")
    else:
        loop.board.faults.forced["gpu"] = -256_000
    loop.run(20, _idle)
    assert _levels(loop) == {"free"} and not any(r.faults for r in loop.trace.reports), "as Sensors over files"
    report = loop.run(1, _full)
    assert loop.board.limits.level == "hot" and report.decision.hot == "GPU temperature lost"


def test_what_a_sensor_cannot_show_is_lost_as_over_files(make_loop: Make, plant: PlantBoard, agx: BoardFacts) -> None:
    loop, sensors = make_loop(), Sensors(plant.root, agx)
    forced = {"tj": -62_000, "soc1": 131_000, "VDD_CPU_CV": agx.rail_max_mw + 1}
    loop.board.faults.forced |= forced
    loop.board.faults.missing |= {"VIN_SYS_5V0", "cpu"}
    # files show current: the plant's faults are in mA there
    plant.faults.forced |= {**forced, "VDD_CPU_CV": 10**7}
    plant.faults.missing |= {"VIN_SYS_5V0", "cpu"}
    loop.run(1, _full)
    plant.advance(0.1, 1.0)
    here, there = loop.board.read(), sensors.read()
    assert (here.tj_mc, here.board_mw) == (there.tj_mc, there.board_mw) == (None, None)
    assert set(here.rails_mw) == set(there.rails_mw) and set(here.zones_mc) == set(there.zones_mc)
    assert {f.partition(":")[0] for f in here.faults} == {f.partition(":")[0] for f in there.faults}
    assert "zone tj: -62 C cannot be true" in here.faults and "zone tj: -62 C cannot be true" in there.faults
    assert loop.board.limits.level == "hot"


def test_rail_gated_and_eagain_are_no_faults_in_files(plant: PlantBoard, agx: BoardFacts,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    (plant.root / plant.layout.zone_file("gpu")).write_text("-256000\n")
    real = os.open

    def gated(path: Path, *rest: int) -> int:
        # what a zone of a power-gated block answers; a plain file cannot
        if str(path).endswith(tuple(f"thermal_zone{n}/temp" for n in (2, 3, 4))):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return real(path, *rest)

    monkeypatch.setattr(sysfs.os, "open", gated)
    readings = Sensors(plant.root, agx).read()
    assert readings.faults == () and set(readings.zones_mc) == {"tj", "cpu", "soc0", "soc1", "soc2"}


# -- over-current


def test_over_current_events_are_shown_as_a_rate_and_only_many_are_a_fault(make_loop: Make) -> None:
    loop = make_loop(name="orin-nano-super", budget_w=25)
    report = loop.run(20, _full)
    shown = report.to_dict()["over_current_hz"]
    assert 10 <= shown <= 30 and report.faults == (), "normal for this module in its free mode"
    loop.board.kernel._oc = (4.0, 10.0, 120.0)
    report = loop.run(10, _full)
    assert any("over-current events a second, which no clock shows" in fault for fault in report.faults)


# -- caps


def test_refused_caps_are_a_fault_and_lead_to_pacing(make_loop: Make) -> None:
    loop = make_loop()
    loop.board.faults.refuse_writes = True
    report = loop.run(6, _obedient(loop))
    assert any("GPU cap: /max_freq: cannot be written" in fault for fault in report.faults)
    assert loop.board.limits.level == "over_budget" and loop.board.limits.pace_hz == 5
    loop.board.faults.refuse_writes = False
    report = loop.run(10, _obedient(loop))
    assert loop.board.limits.level == "free" and report.faults == ()


def test_pacing_ends_at_full_load_too(make_loop: Make) -> None:
    """A governed board stands at its budget, not below it."""
    loop = make_loop()
    loop.board.faults.refuse_writes = True
    loop.run(6, _full)
    assert loop.board.limits.level == "over_budget"
    loop.board.faults.refuse_writes = False
    loop.run(15, _full)
    assert loop.board.limits.level == "free" and loop.trace.step[-1] < 10


def test_a_mode_that_was_reset_is_capped_again_within_a_tick(make_loop: Make) -> None:
    loop = make_loop()
    loop.run(20, _full)
    loop.board.cap_hz = loop.board.gpu_clocks_hz()[-1]  # nvpmodel.service was run again
    loop.run(0.1, _full)
    assert loop.trace.step[-1] < 10
    loop.run(5, _full)
    assert max(sum(loop.trace.power_w[i:i + 10]) / 10 for i in range(50, 240)) <= 31.5
