"""Which budget holds when: schedule with summer time, ambient, requests, quiet; and that a change of it under load is
held at once and loses nothing that was learned."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from closed_loop import Loop

from orind.power.budget import Asked, Outside, highest_mw, setting_now
from orind.power.errors import SettingsError
from orind.power.policy import Policy
from orind.power.polyline import interpolated

Make = Callable[..., Any]
S = 10**9
BERLIN = ZoneInfo("Europe/Berlin")
SCHEDULE = {"time_zone": "Europe/Berlin", "windows": [
    {"name": "shift", "days": ["mon", "tue", "wed", "thu", "fri"], "from": "06:00", "to": "22:00", "budget_w": 25},
    {"name": "night", "days": ["fri", "sun"], "from": "22:00", "to": "06:00", "quiet": True},
    {"name": "odd", "days": ["sun"], "from": "02:15", "to": "02:45", "budget_w": 20},
]}
QUIET = {"budget_w": 15, "tj_warn_c": 65, "tj_limit_c": 70, "fan_profile": "quiet"}
FULL = Policy.from_dict({"budget_w": 30, "schedule": SCHEDULE, "quiet": QUIET})


def at(year: int, month: int, day: int, hour: int, minute: int = 0, fold: int = 0) -> Outside:
    return Outside(datetime(year, month, day, hour, minute, fold=fold, tzinfo=BERLIN).timestamp())


@pytest.mark.parametrize(("when", "watts", "reason"), [
    (at(2026, 6, 3, 6), 25, "schedule, shift"),           # a Wednesday
    (at(2026, 6, 3, 5, 59), 30, "policy"),
    (at(2026, 6, 3, 22), 30, "policy"),
    (at(2026, 6, 5, 22), 15, "quiet, night"),             # Friday night
    (at(2026, 6, 6, 5, 59), 15, "quiet, night"),          # its morning, a Saturday
    (at(2026, 6, 6, 6), 30, "policy"),
    (at(2026, 6, 7, 23), 15, "quiet, night"),             # Sunday night: over the end of the week
    (at(2026, 6, 8, 3), 15, "quiet, night"),
    (at(2026, 3, 29, 2, 30), 30, "policy"),               # this half hour is not there: clocks say 03:30
    (at(2026, 10, 25, 2, 30), 20, "schedule, odd"),       # and this one is there twice
    (at(2026, 10, 25, 2, 30, fold=1), 20, "schedule, odd"),
    (Outside(1000.0), 15, "the wall clock is not set, the lowest budget of the policy holds"),
    (Outside(), 15, "the wall clock is not set, the lowest budget of the policy holds"),
])
def test_the_schedule_in_local_time(when: Outside, watts: float, reason: str) -> None:
    found = setting_now(FULL, when, 0)
    assert (found.budget_mw, found.reason) == (watts * 1000, reason)
    quiet = found.budget_mw == 15_000
    assert (found.tj_warn_mc, found.tj_limit_mc) == ((65_000, 70_000) if quiet else (80_000, 85_000))
    assert found.fan_profile == ("quiet" if found.reason == "quiet, night" else "")


def test_what_is_asked_for_beats_the_schedule_until_its_time_is_over() -> None:
    outside = Outside(at(2026, 6, 3, 12).wall_s, budget=Asked(28_000, 60 * S, "uid 7"))
    assert setting_now(FULL, outside, 0).reason == "asked for by uid 7, 60 s left"
    assert setting_now(FULL, outside, 60 * S - 1).budget_mw == 28_000
    assert setting_now(FULL, outside, 60 * S).budget_mw == 25_000
    assert highest_mw(FULL) == 30_000


def test_the_ambient_table_only_lowers_and_not_known_is_hot() -> None:
    rows = [{"ambient_c": 25, "budget_w": 30}, {"ambient_c": 45, "budget_w": 20}, {"ambient_c": 55, "budget_w": 12}]
    policy = Policy.from_dict({"budget_w": 28, "ambient": rows})
    for told_c, watts in ((-10, 28), (25, 28), (35, 25), (45, 20), (50, 16), (70, 12)):
        told = Outside(ambient=Asked(told_c * 1000, 60 * S, "uid 7"))
        assert setting_now(policy, told, 0).budget_mw == watts * 1000, told_c
        assert setting_now(policy, told, 60 * S).budget_mw == 12_000, "old news are none"
    assert setting_now(policy, Outside(), 0).reason == "ambient temperature not told, the hottest row holds"
    asked = Outside(budget=Asked(15_000, 60 * S, "x"), ambient=Asked(40_000, 60 * S, "y"))
    assert setting_now(policy, asked, 0).budget_mw == 15_000, "the smaller of both"
    found = [interpolated((0, 10, 20), (10, 20, 0), at) for at in (-5, 0, 2.5, 10, 15, 20, 99)]
    assert found == [10, 10, 12.5, 20, 10, 0, 0] and interpolated((3,), (7,), 5) == 7


# -- a change of the budget under load ------------------------------------------------------------------------------


def _full(_: float) -> float:
    return 1.0


def change_to(loop: Loop, how: str, watts: int) -> None:
    policy = Policy.from_dict({"budget_w": watts if how == "reload" else 30})
    if how == "reload":
        loop.steward.adopt(policy)
    else:
        loop.steward._look_outside = lambda: Outside(budget=Asked(watts * 1000, 10**18, "test"))


def over_for(loop: Loop, begin: int, limit_w: float) -> int:
    """Longest run of ticks from `begin` on whose own mean power is over the limit."""
    longest = now = 0
    for watts in loop.trace.power_w[begin:]:
        now = now + 1 if watts > limit_w else 0
        longest = max(longest, now)
    return longest


@pytest.mark.parametrize("how", ["reload", "request"])
@pytest.mark.parametrize("steps", [(20,), (35, 20, 30), (45, 18, 45)])
def test_a_change_of_the_budget_is_held_at_once_and_loses_nothing(make_loop: Make, how: str,
                                                                  steps: tuple[int, ...]) -> None:
    loop = make_loop(seed=3)
    loop.board.model.extra_w = 2.0  # something to have learned
    loop.run(60, _full)
    for watts in steps:
        before = loop.trace.reports[-1].decision
        begin = len(loop.trace.power_w)
        change_to(loop, how, watts)
        loop.run(0.2, _full)
        after = loop.trace.reports[-1].decision
        assert abs(after.bias_mw - before.bias_mw) < 300 and abs(after.gain - before.gain) < 0.02
        loop.run(14.8, _full)
        assert over_for(loop, begin, watts + 1.5) <= 10
        settled = loop.trace.power_w[begin + 30:]
        assert abs(sum(settled) / len(settled) - watts) < 0.5
        assert {r.decision.limits.level for r in loop.trace.reports[begin:]} == {"free"}, "no pacing for it"


def test_the_same_budget_again_moves_no_cap(make_loop: Make) -> None:
    one, other = make_loop(seed=3), make_loop(seed=3)
    one.run(30, _full)
    other.run(30, _full)
    other.steward.adopt(Policy.from_dict({"budget_w": 30}))
    one.run(10, _full)
    other.run(10, _full)
    assert one.trace.step == other.trace.step


def test_a_policy_that_the_board_cannot_keep_changes_nothing(make_loop: Make) -> None:
    loop = make_loop()
    with pytest.raises(SettingsError, match="idle power"):
        loop.steward.adopt(Policy.from_dict({"budget_w": 8}))
    assert loop.tick(_full).decision.setting.budget_mw == 30_000


def test_lowered_temperatures_are_led_to_and_not_braked_for(make_loop: Make) -> None:
    loop = make_loop(ambient_c=45.0, budget_w=50)
    loop.run(400, _full)
    assert loop.trace.tj_c[-1] > 75
    loop.steward.adopt(Policy.from_dict({"budget_w": 50, "tj_warn_c": 65, "tj_limit_c": 70}))
    begin = len(loop.trace.reports)
    loop.run(400, _full)
    assert "hot" not in {r.decision.limits.level for r in loop.trace.reports[begin:]}
    assert max(loop.trace.tj_c[-1000:]) <= 70.2
    loop.board.model.ambient_c = 75.0
    loop.run(60, _full)
    assert loop.board.limits.level == "hot", "once below, the new limit brakes"
