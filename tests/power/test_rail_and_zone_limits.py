"""Limits of single rails and zones, held by the same clock as the budget, judged by the plant's truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orind.power.policy import Policy

Make = Callable[..., Any]


def _full(_: float) -> float:
    return 1.0


@pytest.mark.parametrize(("rail", "limit_w"), [("VDD_GPU_SOC", 15.0), ("VIN_SYS_5V0", 6.5)])
def test_a_rail_is_held_at_its_limit(make_loop: Make, bursts: Make, rail: str, limit_w: float) -> None:
    loop = make_loop(budget_w=45, rail_limits_w={rail: limit_w}, seed=2)
    loop.run(120, bursts(3, 20.0, 5.0))
    told: list[float] = []
    parts = loop.board.model.constants.rails[rail].parts
    for _ in range(600):
        loop.tick(_full)
        told.append(sum(loop.board.model.rails_w[part] for part in parts))
    assert abs(sum(told) / len(told) - limit_w) < 0.5
    assert f"{rail} is limited to {limit_w:g} W" in loop.trace.reports[-1].decision.reason
    loop.steward.adopt(Policy.from_dict({"budget_w": 45}))
    loop.run(5, _full)
    assert sum(loop.board.model.rails_w[part] for part in parts) > limit_w + 1, "it did bind"


def test_until_a_rail_is_known_it_counts_as_all_of_the_board(make_loop: Make) -> None:
    loop = make_loop(budget_w=45, rail_limits_w={"VDD_GPU_SOC": 15}, seed=2)
    loop.run(0.3, _full)
    assert loop.board.cap_hz == loop.board.gpu_clocks_hz()[0]


def test_a_zone_is_held_at_its_own_limit(make_loop: Make) -> None:
    loop = make_loop(budget_w=50, ambient_c=40.0, zone_limits_c={"soc2": 62}, seed=2)
    loop.run(300, _full)
    assert loop.board.model.temperature_c("soc2") <= 62.3
    assert max(loop.trace.tj_c) < 80 and "hot" not in {r.decision.limits.level for r in loop.trace.reports}
    assert "zone soc2 (" in loop.trace.reports[-1].decision.reason and "limited to 62)" in loop.board.limits.reason
    free = make_loop(budget_w=50, ambient_c=40.0, seed=2)
    free.run(300, _full)
    assert free.board.model.temperature_c("soc2") > 63, "it did bind"


def test_a_limited_zone_whose_sensor_is_lost_is_hot_within_a_second(make_loop: Make) -> None:
    """It is not the hottest zone, so that nothing else would hold its limit."""
    loop = make_loop(budget_w=50, ambient_c=40.0, zone_limits_c={"soc2": 62}, seed=2)
    loop.run(30, _full)
    loop.board.faults.missing |= {"soc2", "soc1"}
    report = loop.run(1, _full)
    assert loop.board.limits.level == "hot" and loop.board.limits.pace_hz == 5 and loop.trace.step[-1] == 0
    assert report.decision.hot == "temperature of zone soc2 lost"
    assert "taken for hot: temperature of zone soc2 lost" in report.faults
    loop.run(120, _full)
    assert loop.board.model.temperature_c("soc2") < 62, "the limit holds, unseen"
    loop.steward.adopt(Policy.from_dict({"budget_w": 50}))
    loop.run(6, _full)
    assert loop.board.limits.level == "free", "no limit, no need of the sensor"
    loop.steward.adopt(Policy.from_dict({"budget_w": 50, "zone_limits_c": {"soc1": 62}}))
    loop.run(0.3, _full)
    assert loop.board.limits.level == "free", "bridged, as one failed read"
    report = loop.run(0.7, _full)
    assert report.decision.hot == "temperature of zone soc1 lost"
    loop.board.faults.missing.clear()
    assert loop.run(8, _full).decision.hot is None, "trust comes back"


def test_a_limited_zone_that_is_stuck_or_absurd_is_hot(make_loop: Make) -> None:
    loop = make_loop(budget_w=50, zone_limits_c={"soc0": 80, "soc2": 80}, seed=2)
    loop.run(20, lambda _: 0.0)
    loop.board.faults.stuck.add("soc2")
    loop.run(29, lambda t: float(t % 4 < 2))
    assert loop.board.limits.level == "free"
    report = loop.run(2, lambda t: float(t % 4 < 2))
    assert report.decision.hot is not None and report.decision.hot.startswith("temperature of zone soc2 stuck at ")
    loop.board.faults.stuck.clear()
    loop.run(8, _full)
    assert loop.board.limits.level == "free"
    loop.board.faults.forced["soc0"] = 12_000
    report = loop.run(0.9, _full)
    assert report.decision.hot is not None and report.decision.hot.startswith("temperature of zone soc0 jumped by ")
