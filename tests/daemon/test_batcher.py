"""When a batch starts and how large it is: every branch of the decision, and what it predicts from."""

from __future__ import annotations

import random

import pytest
from stand_ins import MS

from orind.daemon.batcher import (
    BELIEVED_NS,
    FAR_SLOWER,
    SINGLE,
    SLOWER,
    WAKE_NS,
    Adaptive,
    Facts,
    Go,
    Rule,
    ServiceTimes,
    Wait,
    decide,
    too_late,
    window_of,
)

NOW = 1_000_000 * MS
FAR = NOW + 10_000 * MS
SIZES = (1, 4, 8)
PREDICTED = {1: 10 * MS, 4: 25 * MS, 8: 40 * MS}


def facts(queued: int, *, first: int = NOW, deadlines: tuple[int, ...] | None = None, in_flight: int = 0,
          depth: int = 2, batch_max: int = 64, earliest: int = 0, sizes: tuple[int, ...] = SIZES,
          recent: int = 0) -> Facts:
    """`queued` frames that came now with all the time in the world, unless told otherwise."""
    ends = deadlines if deadlines is not None else (FAR,) * min(queued, max(sizes))
    return Facts(queued, first, ends, sizes, in_flight, depth, batch_max, earliest, recent)


FIXED = Rule(4, None)
WINDOW = Rule(8, 5 * MS)
ADAPTIVE = Rule(32, 5 * MS, Adaptive(4, 16, MS))
LARGE = (1, 4, 8, 16, 32)
QUICK = {size: size * MS for size in LARGE}


def test_waits_without_a_date_while_there_is_nothing_to_do() -> None:
    assert decide(WINDOW, facts(0, first=0), PREDICTED, NOW) == Wait(0, "queue is empty")
    assert decide(WINDOW, facts(9, in_flight=2), PREDICTED, NOW) == Wait(0, "engine has enough in flight")


def test_pacing_says_until_when() -> None:
    assert decide(WINDOW, facts(9, earliest=NOW + 3), PREDICTED, NOW) == Wait(NOW + 3, "paced by the power limits")
    assert isinstance(decide(WINDOW, facts(9, earliest=NOW), PREDICTED, NOW), Go)


@pytest.mark.parametrize("rule", [FIXED, WINDOW])
def test_a_full_batch_starts_at_once(rule: Rule) -> None:
    decision = decide(rule, facts(20), PREDICTED, NOW)
    assert decision == Go(rule.max_size, rule.max_size, "batch is full")


def test_a_part_batch_waits_for_the_window_exactly() -> None:
    end, waiting = NOW + 5 * MS, "waiting for 5 more frames"
    assert decide(WINDOW, facts(3), PREDICTED, NOW) == Wait(end, waiting)
    assert decide(WINDOW, facts(3), PREDICTED, end - 1) == Wait(end, waiting)
    assert decide(WINDOW, facts(3), PREDICTED, end) == Go(3, 4, "window or deadline reached")


def test_a_fixed_size_waits_as_long_as_the_deadlines_allow() -> None:
    deadline = NOW + 300 * MS
    latest = deadline - PREDICTED[4] - WAKE_NS
    waiting = facts(3, deadlines=(deadline, deadline + MS, deadline + MS))
    assert decide(FIXED, waiting, PREDICTED, NOW + 200 * MS) == Wait(latest, "waiting for 1 more frames")
    assert decide(FIXED, waiting, PREDICTED, latest) == Go(3, 4, "window or deadline reached")


def test_before_anything_is_measured_no_frame_waits_for_its_deadline() -> None:
    """Else the only frame of a slow camera waits until its deadline, is late for it, and nothing is ever measured."""
    unknown = dict.fromkeys(SIZES, 0)
    assert decide(FIXED, facts(1), unknown, NOW) == Go(1, 1, "window or deadline reached")
    assert decide(WINDOW, facts(1), unknown, NOW) == Wait(NOW + 5 * MS, "waiting for 7 more frames")
    tight = facts(1, deadlines=(NOW + 5 * MS,))
    assert decide(WINDOW, tight, unknown, NOW) == Go(1, 1, "window or deadline reached")


def test_waiting_ends_early_enough_for_a_turn_that_comes_late() -> None:
    """A plan of one size: what is left must still hold the prediction when the turn comes a millisecond late."""
    only, deadline = (4,), NOW + 300 * MS
    waiting = decide(FIXED, facts(1, deadlines=(deadline,), sizes=only), PREDICTED, NOW)
    assert isinstance(waiting, Wait)
    assert too_late(deadline, PREDICTED[4], 0, waiting.until_ns + MS) == ""


def test_what_the_engine_has_counts_before_every_deadline() -> None:
    deadline = NOW + 100 * MS
    waiting = facts(1, deadlines=(deadline,), in_flight=1)._replace(backlog_ns=30 * MS)
    assert decide(FIXED, waiting, PREDICTED, NOW) == Wait(
        deadline - 30 * MS - PREDICTED[4] - WAKE_NS, "waiting for 3 more frames"
    )
    full = facts(8, deadlines=(NOW + 45 * MS,) + (FAR,) * 7, in_flight=1)
    assert decide(WINDOW, full._replace(backlog_ns=5 * MS), PREDICTED, NOW) == Go(8, 8, "batch is full")
    assert decide(WINDOW, full._replace(backlog_ns=6 * MS), PREDICTED, NOW).take == 4  # type: ignore[union-attr]


def test_size_one_never_waits() -> None:
    assert decide(Rule(1, 20 * MS), facts(3), PREDICTED, NOW) == Go(1, 1, "batch is full")


def test_no_window_takes_what_is_there() -> None:
    assert decide(Rule(8, 0), facts(5), PREDICTED, NOW) == Go(5, 8, "window or deadline reached")


def test_the_deadline_of_any_of_the_frames_beats_the_window() -> None:
    rule = Rule(4, 500 * MS)
    tight = NOW + 60 * MS
    for deadlines in ((tight, FAR), (FAR, tight)):
        latest = tight - PREDICTED[4] - WAKE_NS
        assert decide(rule, facts(2, deadlines=deadlines), PREDICTED, NOW) == Wait(latest, "waiting for 2 more frames")
        assert decide(rule, facts(2, deadlines=deadlines), PREDICTED, latest) == Go(2, 4, "window or deadline reached")


def test_a_smaller_batch_where_the_large_one_would_be_late() -> None:
    good = decide(WINDOW, facts(8, deadlines=(NOW + 40 * MS,) + (FAR,) * 7), PREDICTED, NOW)
    assert good == Go(8, 8, "batch is full")
    late = decide(WINDOW, facts(8, deadlines=(NOW + 40 * MS - 1,) + (FAR,) * 7), PREDICTED, NOW)
    assert late == Go(4, 4, "window or deadline reached")
    last = decide(WINDOW, facts(8, deadlines=(NOW + 12 * MS,) + (FAR,) * 7), PREDICTED, NOW)
    assert last == Go(1, 1, "window or deadline reached")


def test_a_tight_frame_behind_counts_only_where_it_would_be_in_the_batch() -> None:
    deadlines = (FAR,) * 4 + (NOW + 30 * MS,) + (FAR,) * 3
    assert decide(WINDOW, facts(8, deadlines=deadlines), PREDICTED, NOW) == Go(4, 4, "window or deadline reached")


def test_adaptive_a_part_batch_waits_for_the_window_then_goes() -> None:
    few = facts(3, sizes=LARGE)
    assert decide(ADAPTIVE, few, QUICK, NOW) == Wait(NOW + 5 * MS, "waiting for 29 more frames")
    assert decide(ADAPTIVE, few, QUICK, NOW + 5 * MS) == Go(3, 4, "window or deadline reached")


def test_adaptive_the_least_batch_goes_at_once_to_an_idle_engine_and_waits_for_a_busy_one() -> None:
    assert decide(ADAPTIVE, facts(4, sizes=LARGE), QUICK, NOW) == Go(4, 4, "enough for an idle engine")
    busy = facts(4, sizes=LARGE, in_flight=1)
    assert decide(ADAPTIVE, busy, QUICK, NOW) == Wait(NOW + 5 * MS, "waiting for 28 more frames")


def test_adaptive_a_full_batch_is_of_the_largest_size() -> None:
    assert decide(ADAPTIVE, facts(40, sizes=LARGE, in_flight=1), QUICK, NOW) == Go(32, 32, "batch is full")


def test_adaptive_a_long_queue_shortens_the_window() -> None:
    for queued, window in ((16, 5 * MS), (17, MS)):
        waiting = facts(queued, sizes=LARGE, in_flight=1)
        assert decide(ADAPTIVE, waiting, QUICK, NOW) == Wait(NOW + window, f"waiting for {32 - queued} more frames")
        assert isinstance(decide(ADAPTIVE, waiting, QUICK, NOW + window), Go)


def test_adaptive_never_waits_longer_than_twice_the_recent_inference() -> None:
    for recent, window in ((MS, 2 * MS), (2 * MS, 4 * MS), (3 * MS, 5 * MS), (0, 5 * MS)):
        waiting = facts(3, sizes=LARGE, recent=recent)
        assert decide(ADAPTIVE, waiting, QUICK, NOW) == Wait(NOW + window, "waiting for 29 more frames")
    assert window_of(ADAPTIVE, facts(17, recent=MS // 4)) == MS // 2


def test_adaptive_the_deadline_beats_the_window_and_the_size() -> None:
    tight = NOW + QUICK[32] + WAKE_NS + 2 * MS
    waiting = facts(3, sizes=LARGE, deadlines=(tight, FAR, FAR))
    assert decide(ADAPTIVE, waiting, QUICK, NOW) == Wait(NOW + 2 * MS, "waiting for 29 more frames")
    late = facts(20, sizes=LARGE, deadlines=(NOW + 8 * MS, *(FAR,) * 19))
    assert decide(ADAPTIVE, late, QUICK, NOW) == Go(8, 8, "enough for an idle engine")


def test_single_is_the_smallest_batch_at_once() -> None:
    assert decide(SINGLE, facts(20, sizes=LARGE), QUICK, NOW) == Go(1, 1, "batch is full")
    assert decide(SINGLE, facts(20, sizes=(4, 8)), PREDICTED, NOW) == Go(4, 4, "batch is full")


def test_power_limits_bound_the_batch() -> None:
    assert decide(WINDOW, facts(20, batch_max=5), PREDICTED, NOW) == Go(4, 4, "batch is full")
    assert decide(WINDOW, facts(20, batch_max=1), PREDICTED, NOW) == Go(1, 1, "batch is full")


def test_a_plan_without_a_size_that_small_runs_its_smallest() -> None:
    only = {4: 25 * MS}
    assert decide(Rule(1, 0), facts(2, sizes=(4,)), only, NOW) == Go(2, 4, "window or deadline reached")


def test_the_smallest_size_that_holds_the_frames() -> None:
    assert decide(Rule(8, 0), facts(2), PREDICTED, NOW) == Go(2, 4, "window or deadline reached")
    assert decide(Rule(8, 0), facts(1), PREDICTED, NOW) == Go(1, 1, "window or deadline reached")


def test_decisions_hold_their_promises_whatever_the_facts() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        sizes = tuple(sorted(rng.sample([1, 2, 4, 8, 16], rng.randint(1, 4))))
        queued = rng.randint(0, 20)
        deadlines = tuple(NOW + rng.randint(1, 200) * MS for _ in range(min(queued, sizes[-1])))
        adaptive = rng.choice([None, Adaptive(rng.choice([1, 2, 4]), rng.choice([2, 16]), MS)])
        rule = Rule(rng.choice([1, 4, 16]), rng.choice([None, 0, 5 * MS, 50 * MS]), adaptive)
        given = Facts(queued, NOW - rng.randint(0, 60) * MS, deadlines, sizes, rng.randint(0, 2), 2,
                      rng.choice([1, 4, 64]), rng.choice([0, NOW + MS]), rng.choice([0, MS, 20 * MS]))
        predicted = {size: size * rng.randint(0, 20) * MS for size in sizes}
        decision = decide(rule, given, predicted, NOW)
        assert decision.reason
        if isinstance(decision, Wait):
            assert decision.until_ns == 0 or decision.until_ns > NOW
            if decision.reason.startswith("waiting") and rule.window_ns is not None:
                window = window_of(rule, given)
                assert window is not None and decision.until_ns <= given.first_ns + window
                largest = max(s for s in sizes if s <= max(sizes[0], min(rule.max_size, given.batch_max)))
                assert decision.until_ns + predicted[largest] <= min(deadlines[:queued])
            continue
        assert 1 <= decision.take <= min(queued, decision.size) and decision.size in sizes
        assert decision.size <= max(sizes[0], min(rule.max_size, given.batch_max))
        if decision.size > sizes[0]:
            assert NOW + predicted[decision.size] <= min(deadlines[: decision.take])


def test_nothing_is_predicted_before_anything_was_measured() -> None:
    times = ServiceTimes()
    assert times.predict("m", 1, 0) == 0 and times.believed("m", 1, 0, NOW) == 0


def test_prediction_is_the_mean_plus_three_deviations_and_settles() -> None:
    times = ServiceTimes()
    times.learn("m", 1, 0, 80 * MS, NOW)
    assert times.predict("m", 1, 0) == 80 * MS + 3 * 10 * MS
    for n in range(200):
        times.learn("m", 1, 0, 80 * MS, NOW + n)
    assert times.predict("m", 1, 0) == pytest.approx(80 * MS, rel=0.001)
    times.learn("m", 1, 0, 160 * MS, NOW + 201)
    assert times.predict("m", 1, 0) == pytest.approx(90 * MS + 30 * MS, rel=0.001)
    assert times.predict("other", 1, 0) == 0


def test_an_unknown_size_or_clock_is_predicted_from_the_nearest() -> None:
    times = ServiceTimes()
    times.learn("m", 2, 1_000_000_000, 8 * MS, NOW)
    times.learn("m", 8, 1_000_000_000, 24 * MS, NOW)
    per_two, per_eight = times.predict("m", 2, 1_000_000_000), times.predict("m", 8, 1_000_000_000)
    assert (per_two, per_eight) == (11 * MS, 33 * MS)
    assert times.predict("m", 4, 1_000_000_000) == 2 * per_two  # in proportion
    assert times.predict("m", 1, 1_000_000_000) == per_two  # a smaller one is not promised to be faster
    assert times.predict("m", 16, 1_000_000_000) == 2 * per_eight
    assert times.predict("m", 2, 500_000_000) == 2 * per_two  # half the clock, twice the time
    assert times.predict("m", 2, 0) == per_two


def test_an_old_measurement_refuses_nothing_and_is_replaced_not_smoothed() -> None:
    times = ServiceTimes()
    times.learn("m", 1, 0, 2000 * MS, NOW)  # a hiccup, far over any deadline
    assert times.believed("m", 1, 0, NOW + BELIEVED_NS) == 2750 * MS
    assert times.believed("m", 1, 0, NOW + BELIEVED_NS + 1) == 0
    assert times.predict("m", 1, 0) == 2750 * MS  # still what a fuller batch is weighed with
    times.learn("m", 1, 0, 20 * MS, NOW + BELIEVED_NS + 1)
    assert times.predict("m", 1, 0) == 27_500_000
    assert times.believed("m", 1, 0, NOW + BELIEVED_NS + 2) == 27_500_000


def test_the_recent_time_is_the_models_last_whatever_its_size() -> None:
    times = ServiceTimes()
    assert times.recent_ns("m") == 0
    times.learn("m", 4, 0, 9 * MS, NOW)
    times.learn("m", 1, 0, 3 * MS, NOW)
    times.learn("other", 1, 0, 7 * MS, NOW)
    assert times.recent_ns("m") == 3 * MS


def test_what_a_frame_takes_is_its_share_of_the_best_batch_measured() -> None:
    times = ServiceTimes()
    assert times.per_frame_ns("m", (1, 4), 0) == 0 and not times.batches_pay("m", (1, 4), 0)
    times.learn("m", 1, 0, 10 * MS, NOW)
    assert times.per_frame_ns("m", (1, 4), 0) == 10 * MS and not times.batches_pay("m", (1, 4), 0)
    times.learn("m", 4, 0, 24 * MS, NOW)
    assert times.per_frame_ns("m", (1, 4), 0) == 6 * MS and times.batches_pay("m", (1, 4), 0)
    assert times.per_frame_ns("m", (1,), 0) == 10 * MS
    times.learn("n", 1, 0, 10 * MS, NOW)
    times.learn("n", 4, 0, 36 * MS, NOW)
    assert not times.batches_pay("n", (1, 4), 0), "a tenth is noise"


def test_far_slower_than_usual_is_seen_at_once_and_for_long_but_no_hiccup_of_the_clock() -> None:
    times = ServiceTimes()
    assert times.learn("m", 1, 0, 10 * MS, NOW) == 1
    assert all(times.learn("m", 1, 0, (8 + n % 20) * MS, NOW + n) < FAR_SLOWER for n in range(50))
    assert SLOWER < times.learn("m", 1, 0, 60 * MS, NOW + 100) < FAR_SLOWER, "a slow clock"
    assert all(times.learn("m", 1, 0, 300 * MS, NOW + 200 + n) > FAR_SLOWER for n in range(5))
    assert times.learn("m", 4, 0, 300 * MS, NOW + 300) == 1, "nothing is usual for a size that is new"


def test_too_late_says_why() -> None:
    assert too_late(NOW + 10 * MS, 10 * MS, 0, NOW) == ""
    assert too_late(NOW + 10 * MS, 10 * MS + 1, 0, NOW) == "needs about 10.0 ms, 10.0 ms are left"
    assert too_late(NOW, 0, 0, NOW) == "deadline passed 0.0 ms before it could be started"
    assert too_late(NOW - 5 * MS, 0, 0, NOW) == "deadline passed 5.0 ms before it could be started"
    behind = "needs about 10.0 ms behind 5.0 ms of other frames, 12.0 ms are left"
    assert too_late(NOW + 12 * MS, 10 * MS, 5 * MS, NOW) == behind
    assert too_late(NOW + 15 * MS, 10 * MS, 5 * MS, NOW) == ""
    assert too_late(NOW + 1, 0, 5 * MS, NOW) == "", "of a model that was not measured lately nothing is refused"
