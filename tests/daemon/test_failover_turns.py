"""Engines that serve well and still change places: to prove themselves, when worn, when slow."""

from __future__ import annotations

from dataclasses import replace

from failover_pair import HALF, RULES, hear, pair, start_next
from stand_ins import MS

from orind.daemon.faults import Fault
from orind.daemon.orders import Check, Fence, Promote, Retire, Spawn
from orind.daemon.standing import Seat

RELIEVED = Promote(2, "it has proved itself, the other one is to")


def test_engines_take_turns_to_prove_themselves_so_that_no_frame_waits_behind_a_check() -> None:
    machine = pair()
    for now_ns in range(0, HALF, 100 * MS):
        hear(machine, now_ns)
        assert machine.tick(now_ns) == []
    hear(machine, HALF)
    assert machine.tick(HALF) == [Check(2)]
    assert machine.tick(HALF + MS) == []  # not twice while it is unanswered
    machine.golden(2, True, "", HALF + 10 * MS)
    hear(machine, HALF + 10 * MS)
    assert machine.tick(HALF + 11 * MS) == [RELIEVED, Check(1)]
    assert machine.standby_ready(HALF + 11 * MS), "its last right answer counts until the next one"
    machine.golden(1, True, "", HALF + 20 * MS)
    assert machine.tick(HALF + 21 * MS) == [] and machine.active == 2
    assert (machine.failovers, machine.losses) == (0, {})


def test_the_turn_waits_for_a_moment_without_work_but_not_for_ever() -> None:
    machine = pair()
    for now_ns in (HALF, 2 * HALF - MS):
        machine.golden(2, True, "", now_ns)
        machine.busy(1, now_ns - MS)
        assert machine.tick(now_ns) == []
    machine.golden(2, True, "", 2 * HALF)
    assert machine.tick(2 * HALF) == [RELIEVED], "and the other one is checked when it has answered what it has"
    machine.busy(1, 0)
    machine.heard(1, 2 * HALF + MS)
    assert machine.tick(2 * HALF + MS) == [Check(1)]


def test_an_engine_that_answers_its_check_wrongly_after_its_turn_has_no_frames() -> None:
    machine = pair()
    machine.golden(2, True, "", HALF)
    hear(machine, HALF)
    assert machine.tick(HALF) == [RELIEVED, Check(1)]
    assert machine.golden(1, False, "step conv_3", HALF + MS) == [
        Fence(1, Fault.WRONG, "wrong golden answer: step conv_3")
    ]
    assert (machine.active, machine.failovers, machine.losses) == (2, 0, {Fault.WRONG: 1})


def test_nobody_takes_turns_without_a_fresh_standby_or_at_the_end() -> None:
    machine = pair()
    hear(machine, HALF)
    assert machine.tick(HALF) == [Check(2)], "an unanswered check proves nothing"
    machine.golden(2, True, "", HALF + MS)
    machine.end()
    hear(machine, 2 * HALF)
    assert machine.tick(2 * HALF) == []


WORN = "9.1 % of its free memory is in pieces"
RENEWED = [Promote(2, WORN), Retire(1, WORN), Spawn(Seat.FIRST, "to replace the worn engine")]


def test_a_worn_engine_is_renewed_through_the_standby_at_a_moment_without_work() -> None:
    machine = pair()
    machine.wear(1, WORN)
    machine.wear(99, WORN)
    machine.busy(1, MS)
    assert machine.tick(2 * MS) == []
    machine.busy(1, 0)
    assert machine.tick(3 * MS) == RENEWED
    assert (machine.active, machine.failovers, machine.losses, machine.renewals) == (2, 0, {}, 1)
    assert not machine.failed and not machine.restarts.last_loss
    assert machine.tick(4 * MS) == [] and machine.golden(1, False, "late", 4 * MS) == []


def test_a_worn_standby_is_renewed_without_a_promotion() -> None:
    machine = pair()
    machine.wear(2, WORN)
    assert machine.tick(MS) == [Retire(2, WORN), Spawn(Seat.SECOND, "to replace the worn engine")]
    assert machine.active == 1


def test_a_worn_engine_serves_on_where_none_could_take_over_or_the_budget_is_spent() -> None:
    alone = pair()
    alone.lost(2, Fault.DIED, "gone", 0)
    spent = pair(replace(RULES, restart_budget=1))
    spent.lost(2, Fault.DIED, "gone", 0)
    unproven = pair()
    for machine in (alone, spent, unproven):
        machine.wear(1, WORN)
    assert alone.tick(MS) == []
    start_next(spent, 3, MS)
    spent.ready(3, MS)
    assert spent.tick(2 * MS) == []
    late = RULES.golden_interval_ns + MS
    hear(unproven, late)
    assert unproven.tick(late) == [Check(2)], "the standby's answer is too old"
    unproven.golden(2, True, "", late)
    assert unproven.tick(late)[0] == Promote(2, WORN)


def test_one_renewal_in_a_window_and_none_at_the_end() -> None:
    machine = pair()
    machine.wear(1, WORN)
    assert machine.tick(MS) == RENEWED
    start_next(machine, 3, MS)
    machine.ready(3, 2 * MS)
    machine.wear(2, WORN)
    for now_ns in (3 * MS, RULES.restart_window_ns):
        hear(machine, now_ns)
        machine.golden(3, True, "", now_ns)
        machine.golden(2, True, "", now_ns)
        assert machine.tick(now_ns) == []
    hear(machine, RULES.restart_window_ns + MS)
    machine.end()
    assert machine.tick(RULES.restart_window_ns + MS) == []
    machine._ended = False
    assert machine.tick(RULES.restart_window_ns + MS)[:2] == [Promote(3, WORN), Retire(2, WORN)]


SLOW = "3 batches in a row answered late or far slower than usual"


def test_an_engine_that_has_become_slow_is_relieved_by_the_standby() -> None:
    machine = pair()
    assert machine.served(1, False, 0) == []
    for late in [True] * 2 + [False] + [True] * 2:  # one in time begins the count anew
        assert machine.served(1, late, MS) == []
    assert machine.served(1, True, MS) == [Fence(1, Fault.SLOW, SLOW), Promote(2, SLOW)]
    assert machine.losses == {Fault.SLOW: 1} and machine.served(1, True, MS) == []


def test_an_engine_that_never_was_in_time_is_not_slow_it_is_the_load() -> None:
    machine = pair()
    assert [machine.served(1, True, MS) for _ in range(50)] == [[]] * 50


def test_a_slow_engine_serves_on_without_a_ready_standby() -> None:
    machine = pair()
    machine.served(1, False, 0)
    machine.lost(2, Fault.DIED, "gone", 0)
    assert [machine.served(1, True, MS) for _ in range(50)] == [[]] * 50
    start_next(machine, 3, MS)
    machine.ready(3, MS)
    reason = "51 batches in a row answered late or far slower than usual"
    assert machine.served(1, True, 2 * MS)[1:] == [Promote(3, reason)]


def test_slowness_costs_one_engine_in_a_window_and_never_the_last_restart() -> None:
    machine = pair(replace(RULES, restart_budget=2))
    for epoch, now_ns in ((1, 0), (2, MS)):
        machine.served(epoch, False, now_ns)
        lost = [action for _ in range(9) for action in machine.served(epoch, True, now_ns)]
        assert bool(lost) == (epoch == 1)
        if lost:
            start_next(machine, 3, now_ns)
            machine.ready(3, now_ns)
    machine.lost(3, Fault.DIED, "gone", 2 * MS)
    start_next(machine, 5, 2 * MS)
    machine.ready(5, RULES.restart_window_ns)
    assert machine.served(2, True, RULES.restart_window_ns) == [], "the budget is spent"
    assert not machine.failed and machine.served(2, True, RULES.restart_window_ns + 3 * MS)[0] == Fence(
        2, Fault.SLOW, "11 batches in a row answered late or far slower than usual"
    )
