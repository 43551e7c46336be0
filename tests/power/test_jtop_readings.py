"""What jtop said becomes readings, or the same faults as from sysfs."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from closed_loop import Loop, facts_of, new_loop

from orind.power.board import BoardFacts
from orind.power.errors import PowerError
from orind.power.governor import Governor
from orind.power.jtop_readings import INTERVAL_S, LATE_NS, parse, readings_of, seen_through_jtop
from orind.power.sensors import Readings
from orind.power.trust import SensorTrust

NOW = 40 * 86_400 * 10**9  # a board that has run for forty days
MS = 10**6


@pytest.fixture
def told() -> dict[str, Any]:
    return {
        "began_ns": NOW - 100 * MS, "interval_s": INTERVAL_S, "gpu_hz": 816_000_000, "gpu_permille": 600,
        "cpu_khz": 2_201_600, "fan_permille": 447,
        "rails": {"VDD_GPU_SOC": [19_000, 980], "VDD_CPU_CV": [19_000, 200], "VIN_SYS_5V0": [5_000, 1_380],
                  "VDDQ_VDD2_1V8AO": [5_000, 300]},
        "zones": {"cpu": 46_562, "gpu": 52_156, "soc0": 45_250, "soc1": 44_468, "soc2": 46_937, "tj": 52_062,
                  "cv0": None, "cv1": None, "cv2": None},
    }


def _readings(told: dict[str, Any], facts: BoardFacts, now_ns: int = NOW) -> Readings:
    return readings_of(parse(json.dumps(told).encode()), facts, now_ns)


def test_a_sample_as_readings(told: dict[str, Any], agx: BoardFacts) -> None:
    seen = _readings(told, agx)
    assert seen.faults == () and seen.board_mw == 18_620 + 3_800 + 6_900, "no rail twice, and to the milliwatt"
    assert (seen.tj_mc, seen.gpu_hz, seen.gpu_busy_permille, seen.cpu_khz) == (52_062, 816_000_000, 600, 2_201_600)
    assert seen.fan_pwm == 114 and seen.oc_count is None and "cv0" not in seen.zones_mc
    # JetPack 5 writes CPU-therm
    zones = {name.upper() if name != "tj" else name: value for name, value in told["zones"].items()}
    assert _readings({**told, "zones": zones}, agx).zones_mc == seen.zones_mc


def test_what_is_lost_or_absurd_is_a_fault_as_from_sysfs(told: dict[str, Any], agx: BoardFacts) -> None:
    del told["rails"]["VIN_SYS_5V0"]
    told["rails"]["VDD_CPU_CV"] = [19_000, 9_000]
    told["zones"] |= {"tj": None, "cpu": -62_000, "gpu": None, "cv0": 300_000}
    told["gpu_hz"] = None
    seen = _readings(told, agx)
    assert seen.board_mw is None and seen.tj_mc is None and set(seen.zones_mc) == {"soc0", "soc1", "soc2"}
    assert sorted(seen.faults) == [
        "GPU clock: jtop shows no GPU",
        "rail VDD_CPU_CV: 171000 mW cannot be true",
        "rail VIN_SYS_5V0: jtop shows none of this name",
        "zone cpu: -62 C cannot be true",
        "zone tj: jtop cannot read it",
    ]


def test_no_sample_and_a_late_one_are_lost_sensors_within_a_second(told: dict[str, Any], agx: BoardFacts) -> None:
    assert readings_of(None, agx, NOW) == Readings(None, faults=("jtop: no sample",))
    assert _readings(told, agx, told["began_ns"] + LATE_NS).faults == ()
    late = _readings(told, agx, told["began_ns"] + LATE_NS + 1)
    assert late == Readings(None, faults=("jtop: the last sample is older than 550 ms",))
    slow = _readings({**told, "interval_s": 1.0}, agx, NOW + LATE_NS)
    assert slow.faults[0].endswith("; its service sends one every 1 s, since another client asked first")
    assert _readings({**told, "began_ns": NOW + 1}, agx).faults == ("jtop: the last sample is from the future",)
    trust = SensorTrust(agx.model.full_mw)
    verdicts = [trust.judge(_readings(told, agx, told["began_ns"] + age * 100 * MS), 1.0, 20_000.0,
                            told["began_ns"] + age * 100 * MS) for age in range(11)]
    assert verdicts[:9] == [None] * 9 and verdicts[10] == "junction temperature lost"


@pytest.mark.parametrize("line", [
    b"", b"nonsense", b"[]", b"{}", b'{"error": 3}', b"[" * 10_000, b"\xff",
])
def test_no_sample_at_all(line: bytes) -> None:
    with pytest.raises(PowerError, match="no sample of jtop: "):
        parse(line)


@pytest.mark.parametrize("wrong", [
    {"rails": {"VDD_IN": 5000}}, {"rails": {"VDD_IN": [5000, 1.5]}}, {"rails": {"VDD_IN": [5000, True]}}, {"rails": []},
    {"rails": {f"R{n}": [1, 1] for n in range(65)}}, {"zones": {"tj": "hot"}}, {"zones": {"tj": 2**62}},
    {"gpu_hz": -1}, {"cpu_khz": "2"}, {"interval_s": float("nan")}, {"interval_s": 0}, {"interval_s": None},
    {"began_ns": None}, {"began_ns": 10**30},
])
def test_a_sample_with_something_else_in_it_is_none(told: dict[str, Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(PowerError, match="no sample of jtop: "):
        parse(json.dumps(told | wrong).encode())


def test_the_readers_last_words(agx: BoardFacts) -> None:
    with pytest.raises(PowerError, match=r"^The jtop\.service is not active$"):
        parse(b'{"error": "The jtop.service is not active"}')


class _Late:
    """Sensors as jtop passes them on: collected every quarter of a second, known 100 ms later."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._past: deque[Readings] = deque()
        self._tick = 0

    def read(self) -> Readings:
        self._tick += 1
        if self._tick % 5 in (1, 3):  # of ticks of 100 ms: every 250 ms on average
            self._past.append(self._loop.board.read())
        while len(self._past) > 2:
            self._past.popleft()
        return self._past[0]


@pytest.mark.parametrize("name", ["agx-orin", "orin-nx"])
def test_the_budget_is_held_with_readings_that_are_late(name: str, bursts: Any) -> None:
    loop = new_loop(name=name, seed=2)
    facts = seen_through_jtop(facts_of(name))
    assert facts.sensor_window_ns == 930 * MS and replace(facts, sensor_window_ns=430 * MS) == facts_of(name)
    loop.steward._sensors = _Late(loop)
    loop.steward._governor = Governor(facts, loop.policy)
    load = bursts(2, 20.0, 3.0)
    report = loop.run(600, load)
    assert report.faults == ()
    seconds = loop.trace.full_seconds()
    budget_w = loop.policy.budget_mw / 1000
    assert len(seconds) > 1000
    assert sum(abs(watts - budget_w) <= 1.5 for watts in seconds) >= 0.99 * len(seconds)
