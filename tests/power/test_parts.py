"""The governor's parts alone: clock steps, window, dithering, limits, busy share, trust, thermal budget."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.power.dither import Dither
from orind.power.errors import PowerError
from orind.power.limits import Limits, in_force
from orind.power.over_current import OverCurrentRate
from orind.power.policy import Policy
from orind.power.sensors import Readings
from orind.power.steps import step_under, steps_under
from orind.power.steward import BusyShare
from orind.power.thermal import ThermalBudget
from orind.power.trust import SensorTrust
from orind.power.window import SlidingMean

TICK = 100_000_000
TABLE = [16.0, 18.0, 20.3, 23.1, 26.0, 29.2, 33.0]


@pytest.mark.parametrize(("cap", "left"), [(None, 3), (400, 3), (300, 3), (299, 2), (100, 1), (99, 1), (-1, 1)])
def test_a_cap_leaves_the_steps_that_are_not_above_it_and_always_the_lowest(cap: int | None, left: int) -> None:
    steps = (100, 200, 300)
    assert steps_under(steps, cap) == steps[:left]
    assert cap is None or step_under(steps, cap) == steps[left - 1]


@given(st.lists(st.tuples(st.integers(1, 700), st.floats(0, 100)), min_size=1, max_size=30))
def test_sliding_mean_equals_direct_summation(parts: list[tuple[int, float]]) -> None:
    window = SlidingMean(430)
    for lasted, value in parts:
        window.add(lasted, value)
    line = [value for lasted, value in parts for _ in range(lasted)][-430:]
    assert window.mean() == pytest.approx(sum(line) / len(line))
    assert window.full == (len(line) == 430)


def test_sliding_mean_of_nothing() -> None:
    window = SlidingMean(430)
    window.add(0, 5.0)
    assert window.mean() is None and not window.full
    window.add(10, 5.0)
    window.clear()
    assert window.mean() is None


@given(st.floats(10, 40))
@settings(max_examples=60)
def test_dithering_meets_the_target_on_two_neighbours(target: float) -> None:
    dither = Dither(TICK, TICK)
    used = [dither.choose(TABLE, target, 1.0, 10**9 + i * TICK) for i in range(400)]
    assert max(used) - min(used) <= 1
    mean = sum(TABLE[i] for i in used[1:]) / 399
    assert mean == pytest.approx(min(max(target, TABLE[0]), TABLE[-1]), abs=0.05)


@given(st.integers(0, 2**32), st.floats(0.001, 0.02))
@settings(max_examples=40)
def test_a_drifting_target_never_uses_three_steps_in_a_second(seed: int, drift: float) -> None:
    r, dither, target, used = random.Random(seed), Dither(TICK, TICK), 22.0, []
    for i in range(600):
        target += drift * r.choice((-1, 1, 1)) + r.gauss(0, 0.02)
        used.append(dither.choose(TABLE, target, 1.0, 10**9 + i * TICK))
    assert all(len(set(used[i:i + 10])) <= 2 for i in range(590))


def test_a_large_change_is_followed_at_once() -> None:
    dither = Dither(TICK, TICK)
    dither.choose(TABLE, 31.0, 1.0, 10**9)
    assert dither.choose(TABLE, 17.0, 1.0, 10**9 + TICK) in (0, 1)
    assert dither.choose(TABLE, 31.0, 1.0, 10**9 + 2 * TICK) in (5, 6)


def test_dwell_is_kept_with_jittering_ticks() -> None:
    dither, now, changes, last = Dither(3 * TICK, TICK), 10**9, [], -1
    r = random.Random(1)
    for _ in range(500):
        now += TICK + r.randint(-5_000_000, 5_000_000)
        index = dither.choose(TABLE, 21.7, 1.0, now)
        if index != last:
            changes.append(now)
            last = index
    gaps = [b - a for a, b in pairwise(changes[1:])]
    assert len(gaps) > 50 and min(gaps) >= 2.7 * TICK


def test_idle_builds_no_debt() -> None:
    dither = Dither(TICK, TICK)
    used = [dither.choose(TABLE, 21.7, 0.0, 10**9 + i * TICK) for i in range(100)]
    assert len(set(used)) == 1


def test_a_table_of_one_and_a_shrinking_one() -> None:
    dither = Dither(TICK, TICK)
    assert dither.choose([20.0], 25.0, 1.0, 10**9) == 0
    assert dither.choose([20.0], 15.0, 1.0, 2 * 10**9) == 0
    dither.choose(TABLE, 33.0, 1.0, 3 * 10**9)
    assert dither.choose(TABLE[:3], 33.0, 1.0, 4 * 10**9) == 2


def test_force_overrides_and_is_left_again() -> None:
    dither = Dither(TICK, TICK)
    dither.choose(TABLE, 31.0, 1.0, 10**9)
    assert dither.force(0, 10**9 + 1) == 0
    assert dither.choose(TABLE, 31.0, 1.0, 2 * 10**9) in (5, 6)


def test_limits_round_trip() -> None:
    limits = Limits(5 * 10**9, 4, 12.5, "warm", "why")
    assert Limits.from_json(limits.to_json()) == limits
    free = Limits(None, 1, None, "free", "")
    assert Limits.from_json(free.to_json().encode()) == free


@pytest.mark.parametrize(("changes", "message"), [
    ({"expires_ns": 1.5}, "expires_ns"), ({"batch_max": 0}, "batch_max"), ({"batch_max": True}, "batch_max"),
    ({"pace_hz": 0}, "pace_hz"), ({"pace_hz": float("nan")}, "pace_hz"), ({"degrade": 1}, "degrade"),
    ({"level": "tepid"}, "level must be one of free"), ({"reason": None}, "level must be one of free"),
    ({"more": 1}, "must be an object with batch_max, degrade"),
])
def test_malformed_limits_are_refused(changes: dict[str, object], message: str) -> None:
    right = {"expires_ns": 1, "batch_max": 1, "pace_hz": None, "level": "free", "reason": "", "degrade": False}
    assert Limits.from_json(json.dumps(right)).batch_max == 1
    with pytest.raises(PowerError, match=message):
        Limits.from_json(json.dumps({**right, **changes}))


@pytest.mark.parametrize(("text", "message"), [
    ("{", "not JSON"), ("[]", "must be an object"), ('{"batch_max": 1}', "must be an object")])
def test_limits_that_are_no_table_are_refused(text: str, message: str) -> None:
    with pytest.raises(PowerError, match=message):
        Limits.from_json(text)


def test_limits_end() -> None:
    lowest = Policy.from_dict({"budget_w": 30, "lowest_pace_hz": 3}).lowest("no word")
    latest = Limits(2_000, 8, None, "free", "fine")
    assert in_force(None, 0, lowest) is lowest
    assert in_force(latest, 1_999, lowest) is latest
    assert in_force(latest, 2_000, lowest) is lowest
    assert (lowest.pace_hz, lowest.batch_max, lowest.expires_ns) == (3.0, 1, None)
    assert in_force(lowest, 10**18, latest) is lowest


def test_power_that_settles_while_the_model_is_late_is_not_frozen() -> None:
    """The end of a burst with a late busy signal: the reading has come to rest before the model has."""
    trust = SensorTrust(15_000)
    for i in range(200):
        now, on = 10**9 + i * TICK, i < 60
        seen = Readings(board_mw=20_000 + i if on else 4_560, tj_mc=50_000 + i % 2, zones_mc={"gpu": 50_000 + i % 3})
        assert trust.judge(seen, 1.0, 15_000.0 if i < 66 else 0.0, now) is None
    for i in range(200, 260):
        verdict = trust.judge(Readings(board_mw=4_560, tj_mc=50_000 + i % 2, zones_mc={"gpu": 50_000 + i % 3}), 1.0,
                              15_000.0, 10**9 + i * TICK)
    assert verdict == "board power frozen at 4.6 W while the load moved by 15.0 W"


def test_a_fault_that_comes_again_is_believed_for_longer() -> None:
    """A stuck junction agrees with the zones once caution has cooled them; trust at once would heat them again."""
    trust, now, lasted = SensorTrust(43_000), 10**9, []

    def hot(junction_mc: int) -> str | None:
        nonlocal now
        now += TICK
        odd = now // TICK % 2
        seen = Readings(board_mw=20_000 + odd, tj_mc=junction_mc, zones_mc={"gpu": 60_000 + odd})
        return trust.judge(seen, 1.0, None, now)

    for _ in range(7):
        assert hot(48_000) == "junction temperature of 48.0 C contradicts zone gpu, the hottest (60.0 C)"
        begun = now
        while hot(60_000) is not None:
            pass
        lasted.append((now - begun) / 10**9)
    assert lasted == [5, 10, 20, 40, 80, 160, 160]
    assert hot(85_000) is not None, "jumped: another fault"
    begun = now
    while hot(60_000) is not None:
        pass
    assert now - begun < 7 * 10**9
    now += 60 * 10**9
    assert hot(48_000) is not None
    begun = now
    while hot(60_000) is not None:
        pass
    assert now - begun == 5 * 10**9, "a minute was well"


def test_a_lost_zone_and_a_stuck_one_are_two_faults_although_its_name_has_a_digit() -> None:
    trust, now, verdicts = SensorTrust(43_000), 10**9, []
    trust.watch(["soc2"])

    def look(zone_mc: int | None, power_mw: int = 20_000) -> str | None:
        nonlocal now
        now += TICK
        odd = now // TICK % 2
        zones = {"gpu": 60_000 + odd} | ({} if zone_mc is None else {"soc2": zone_mc})
        return trust.judge(Readings(board_mw=power_mw + odd, tj_mc=60_000 + odd, zones_mc=zones), 1.0, None, now)

    look(50_000)
    for zone_mc in (None, 50_000):
        told = [look(zone_mc, 20_000 + n % 4 * 2_000) for n in range(320)]
        verdicts.append(told[-1])
        well = [look(50_001 + n % 3) is None for n in range(60)]
        assert well.index(True) == 49, "after 5 s: no relapse"
    assert verdicts[0] == "temperature of zone soc2 lost"
    assert verdicts[1].startswith("temperature of zone soc2 stuck at 50.0 C while power moved by")


def test_over_current_rate() -> None:
    rate = OverCurrentRate()
    assert [rate.take(i * 7, i * 10**9) for i in range(6)] == [None, None, None, None, 7.0, 7.0]
    assert rate.take(None, 6 * 10**9) is None and rate.take(50, 7 * 10**9) is None, "begun anew"
    assert [rate.take(50, (7 + i) * 10**9) for i in range(1, 6)][-1] == 0.0
    assert rate.take(3, 13 * 10**9) is None, "counters began anew at boot"
    assert rate.take(43, 18 * 10**9) == 8.0


def test_busy_share() -> None:
    share = BusyShare()
    assert share.take((100, 10)) is None, "first look"
    assert share.take((200, 60)) == 0.5
    assert [share.take((200, 60)) for _ in range(5)] == [0.5, 0.5, 0.5, None, None], "held for three looks"
    assert share.take((300, 60)) == 0.0
    assert share.take((400, 260)) == 1.0, "never above one"
    assert share.take((500, 10)) is None, "counter went back: a new writer"
    assert share.take((600, 20)) == 0.1
    assert share.take(None) is None and share.take((700, 30)) is None
    assert share.take((650, 30)) is None, "time went back"


def test_thermal_budget_does_not_bind_when_cool_and_brakes_when_hot() -> None:
    thermal = ThermalBudget(80_000, 85_000, 430_000_000)
    assert thermal.set_point_c == 83.5
    assert (thermal.budget_mw(50.0, 20_000, TICK, 15_000, 30_000), thermal.warm) == (30_000, False)
    for _ in range(100):
        budget = thermal.budget_mw(84.0, 30_000, TICK, 15_000, 30_000)
    assert 15_000 <= budget < 30_000 and (thermal.warm, thermal.braking) == (True, False)
    braking = []
    # on at the limit, off only below the set point
    for tj_c in (85.0, 83.6, 83.4):
        thermal.budget_mw(tj_c, 30_000, TICK, 15_000, 30_000)
        braking.append(thermal.braking)
    assert braking == [True, True, False]


def test_thermal_budget_without_power_is_the_floor_or_the_last() -> None:
    thermal = ThermalBudget(80_000, 85_000, 430_000_000)
    assert thermal.budget_mw(50.0, None, TICK, 15_000, 30_000) == 15_000
    assert thermal.budget_mw(50.0, 20_000, 10**9, 15_000, 30_000) == 30_000
    assert thermal.budget_mw(50.0, None, TICK, 15_000, 30_000) == 30_000
    assert thermal.budget_mw(50.0, 20_000, TICK, 40_000, 30_000) == 30_000, "floor above ceiling: the ceiling"


@pytest.mark.parametrize(("permille", "busy", "hot"), [(0, 0.9, False), (400, 0.9, True), (None, 0.9, True),
                                                       (None, None, True), (None, 0.0, False)])
def test_a_sleeping_gpu_zone_is_a_fault_only_while_the_gpu_works(permille: int | None, busy: float | None,
                                                                 hot: bool) -> None:
    trust = SensorTrust(43_000)
    for i in range(10):
        seen = Readings(board_mw=20_000, tj_mc=50_000 + i % 2, gpu_busy_permille=permille)
        verdict = trust.judge(seen, busy, None, 10**9 + i * TICK)
    assert verdict == ("GPU temperature lost" if hot else None)
