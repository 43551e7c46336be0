"""Levels of degradation: entered on lasting overload, left with hysteresis, skipped where nothing can be left out."""

from __future__ import annotations

import random

import pytest
from stand_ins import MS, S

from orind.daemon.degradation import MEANINGS, START, Facts, Level, Rules, Standing, decide
from orind.daemon.overload import LOST_MIN, SLICE_NS, LoadWindow

RULES = Rules(0.05, 0.8, 1 * S, 0.01, 0.4, 0.8, 10 * S)
NOW = 100 * S
CALM = Facts(0.0, 0.0, 0.5, {}, False)
LATE = CALM._replace(lost=0.05)
OLD = CALM._replace(age=0.8)
NOTHING = {Level.NO_OPTIONAL: "no camera is optional", Level.NO_BATCHING: "nothing is batched",
           Level.HELD: "no camera allows held results"}


def over(facts: Facts, seconds: float, standing: Standing = START, now_ns: int = NOW) -> Standing:
    """What it comes to under these facts, judged twenty times a second."""
    for step in range(int(seconds * 20) + 1):
        standing = decide(RULES, standing, facts, now_ns + step * 50 * MS)
    return standing


@pytest.mark.parametrize("facts", [LATE, OLD])
def test_overload_leads_up_one_level_a_period(facts: Facts) -> None:
    assert over(facts, 0.95).level is Level.FULL
    levels = [over(facts, seconds).level for seconds in (1.0, 2.0, 2.1, 3.15, 60)]
    assert levels == [Level.NO_OPTIONAL, Level.NO_OPTIONAL, Level.NO_BATCHING, Level.HELD, Level.HELD]


def test_the_reason_says_what_was_measured() -> None:
    assert over(LATE, 1).reason == "5% of the frames come too late or find no slot"
    both = LATE._replace(age=0.9, paced=True)
    assert over(both, 1).reason == (
        "5% of the frames come too late or find no slot, a waiting frame has used 90% of its time, "
        "the power limits slow the engine down"
    )


def test_what_the_power_governor_asks_for_leads_up_with_its_reason_and_keeps_the_level() -> None:
    asked = CALM._replace(asked="even the lowest clock needs 17 W")
    standing = over(asked, 1)
    assert standing.level is Level.NO_OPTIONAL
    assert standing.reason == "the power governor asks for less: even the lowest clock needs 17 W"
    assert over(asked, 60).level is Level.HELD
    assert over(CALM, 9, over(asked, 60), NOW + 61 * S).level is Level.HELD
    assert over(CALM, 35, over(asked, 60), NOW + 61 * S).level is Level.FULL


def test_overload_that_does_not_last_changes_nothing() -> None:
    standing = START
    for step in range(200):
        standing = decide(RULES, standing, LATE if step % 20 else CALM, NOW + step * 50 * MS)
    assert standing.level is Level.FULL


def test_what_there_is_nothing_to_leave_out_of_is_skipped_and_said() -> None:
    only_held = {n: why for n, why in NOTHING.items() if n is not Level.HELD}
    standing = over(LATE._replace(impossible=only_held), 1)
    assert standing.level is Level.HELD
    assert standing.reason.endswith(
        "; level 1 is skipped: no camera is optional; level 2 is skipped: nothing is batched"
    )


def test_without_any_level_overload_is_said_and_nothing_pretended() -> None:
    standing = over(LATE._replace(impossible=NOTHING), 5)
    assert standing.level is Level.FULL
    assert standing.exhausted == (
        "5% of the frames come too late or find no slot; no camera is optional; nothing is batched; "
        "no camera allows held results"
    )
    later = over(CALM._replace(impossible=NOTHING), 9, standing, NOW + 6 * S)
    assert later.exhausted, "said until it has been calm for a while"
    assert not over(CALM._replace(impossible=NOTHING), 10, standing, NOW + 6 * S).exhausted


def test_a_level_is_left_one_at_a_time_after_a_calm_time() -> None:
    held = Standing(Level.HELD, NOW - 60 * S, "overload")
    assert over(CALM, 9.95, held).level is Level.HELD
    left = over(CALM, 10, held)
    assert left.level is Level.NO_BATCHING and left.reason == "0% of the frames lost and 50% load for 10 s"
    assert over(CALM, 40, held).level is Level.FULL


@pytest.mark.parametrize("facts", [CALM._replace(lost=0.02), CALM._replace(age=0.5), CALM._replace(load=0.81)])
def test_between_the_thresholds_a_level_stays(facts: Facts) -> None:
    standing = over(facts, 100, Standing(Level.NO_BATCHING, NOW - 60 * S, "overload"))
    assert standing.level is Level.NO_BATCHING and not standing.hot_ns and not standing.calm_ns


def test_what_is_left_out_counts_as_load_so_that_a_level_does_not_swing() -> None:
    """At the last level nothing is lost, but the cameras offer as much as before."""
    relieved = CALM._replace(load=1.4)
    assert over(relieved, 600, Standing(Level.HELD, NOW, "overload")).level is Level.HELD


def test_a_level_is_held_for_a_least_time_even_where_overload_ends_at_once() -> None:
    entered = over(LATE, 1)
    assert entered.level is Level.NO_OPTIONAL
    assert over(CALM, 9.9, entered, entered.since_ns + 1).level is Level.NO_OPTIONAL


def test_a_level_that_a_reload_made_impossible_is_left_at_once() -> None:
    held = Standing(Level.HELD, NOW, "overload")
    standing = decide(RULES, held, LATE._replace(impossible={Level.HELD: "no camera allows held results"}), NOW)
    assert standing.level is Level.NO_BATCHING
    assert standing.reason == "level 3 is left: no camera allows held results"
    assert decide(RULES, held, LATE._replace(impossible=NOTHING), NOW).level is Level.FULL


def test_whatever_the_facts_levels_are_possible_and_dwell() -> None:
    rng, standing, now, changed = random.Random(5), START, NOW, NOW
    facts = CALM
    for _ in range(30_000):
        now += rng.choice([10, 50, 400]) * MS
        if rng.random() < 0.02:
            some = {n: why for n, why in NOTHING.items() if rng.random() < 0.3}
            facts = Facts(rng.choice([0, 0.03, 0.5]), rng.choice([0, 0.6, 2.0]), rng.choice([0.1, 0.9]), some, False)
        after = decide(RULES, standing, facts, now)
        assert after.level not in facts.impossible and after.reason
        if after.level < standing.level and standing.level not in facts.impossible:
            assert now - standing.since_ns >= RULES.leave_after_ns
        if after.level > standing.level:
            assert now - changed >= RULES.enter_after_ns or changed == NOW
        if after.level is not standing.level:
            changed = now
        standing = after


def test_every_level_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Level)


# -- what it is measured by ----------------------------------------------------------------------------------------


def test_the_share_of_lost_frames_is_of_the_last_second() -> None:
    window = LoadWindow()
    for n in range(20):
        window.ended(n % 4 == 0, NOW + n * 10 * MS)
    assert window.lost_share(NOW + 200 * MS) == 0.25
    assert window.lost_share(NOW + 1100 * MS) == 0.0, "all of them lie a second back"


def test_a_few_lost_frames_are_no_overload() -> None:
    window = LoadWindow()
    for _ in range(LOST_MIN - 1):
        window.ended(True, NOW)
    assert window.lost_share(NOW) == 0.0
    window.ended(True, NOW)
    assert window.lost_share(NOW) == 1.0


def test_load_is_the_time_that_the_frames_need() -> None:
    window = LoadWindow()
    for n in range(10):
        window.arrived("slow", NOW + n * SLICE_NS)
    window.arrived("quick", NOW + 9 * SLICE_NS)
    times = {"slow": 80 * MS, "quick": 10 * MS}
    assert window.load(times, NOW + 9 * SLICE_NS) == pytest.approx(0.81)
    assert window.load({}, NOW + 9 * SLICE_NS) == 0.0, "nothing is known of a model that has not served"
    assert window.load(times, NOW + 600 * S) == 0.0


def test_a_time_that_goes_back_counts_as_now() -> None:
    window = LoadWindow()
    for _ in range(LOST_MIN):
        window.ended(True, NOW)
    window.ended(False, NOW - 5 * S)
    assert window.lost_share(NOW) == 0.75
