"""The failover machine in simulated time: every transition with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stand_ins import MS, S

from orind.daemon.failover import RESPAWN_AFTER_NS, Failover
from orind.daemon.faults import Fault
from orind.daemon.orders import Check, Fence, Promote, Retire, Spawn
from orind.daemon.standing import Rules, Standing

RULES = Rules(
    heartbeat_missed_ns=150 * MS,
    ready_timeout_ns=10 * S,
    golden_interval_ns=5 * S,
    golden_timeout_ns=2 * S,
    batch_watchdog_ns=1 * S,
    restart_budget=3,
    restart_window_ns=60 * S,
)


def pair(rules: Rules = RULES, now_ns: int = 0) -> Failover:
    """Engine 1 active, engine 2 ready, both heard at `now_ns`."""
    machine = Failover(rules)
    assert machine.start() == [Spawn("start of the generation")] * rules.engines
    for epoch in (1, 2):
        machine.spawned(epoch, now_ns)
    assert machine.ready(1, now_ns) == [Promote(1, "first engine ready")]
    assert machine.ready(2, now_ns) == []
    return machine


def test_first_ready_engine_becomes_active_the_next_one_standby() -> None:
    machine = Failover(RULES)
    machine.start()
    machine.spawned(1, 0)
    machine.spawned(2, 0)
    assert machine.active is None and not machine.all_ready() and not machine.standby_ready(0)
    assert machine.ready(2, 7) == [Promote(2, "first engine ready")]
    assert machine.active == 2 and not machine.all_ready() and not machine.standby_ready(7)
    assert machine.ready(1, 8) == []
    assert machine.all_ready() and machine.standby_ready(8) and machine.engines[1].standing is Standing.READY
    assert machine.ready(1, 9) == [] and machine.ready(99, 9) == []


def test_a_lost_active_is_fenced_and_the_standby_promoted_for_the_same_reason() -> None:
    machine = pair()
    assert machine.lost(1, Fault.DIED, "SIGSEGV", 1) == [Fence(1, Fault.DIED, "SIGSEGV"), Promote(2, "SIGSEGV")]
    assert (machine.failovers, machine.active) == (1, 2)
    assert machine.lost(1, Fault.DIED, "its process ended", 2) == []  # heard of twice, counted once
    # the standby's replayed frames go first
    machine.heard(2, RESPAWN_AFTER_NS)
    assert machine.tick(RESPAWN_AFTER_NS) == []
    assert machine.tick(RESPAWN_AFTER_NS + 1) == [Spawn("to replace an engine that was lost")]
    assert machine.tick(RESPAWN_AFTER_NS + 2) == []


def test_a_lost_standby_is_replaced_without_a_failover() -> None:
    machine = pair()
    assert machine.lost(2, Fault.DIED, "gone", 1) == [Fence(2, Fault.DIED, "gone")]
    assert (machine.failovers, machine.active) == (0, 1) and not machine.standby_ready(1)


def test_without_a_ready_standby_nobody_is_active_until_one_is_ready() -> None:
    machine = pair()
    machine.lost(2, Fault.DIED, "gone", 1)
    machine.tick(2)
    machine.spawned(3, 2)
    assert machine.lost(1, Fault.DIED, "gone too", 3) == [Fence(1, Fault.DIED, "gone too")]
    assert machine.active is None and machine.failovers == 1
    assert machine.ready(3, 4) == [Promote(3, "first engine ready")]


def test_the_standby_with_the_freshest_golden_answer_is_promoted() -> None:
    machine = Failover(replace(RULES, engines=3))
    machine.start()
    for epoch in (1, 2, 3):
        machine.spawned(epoch, 0)
        machine.ready(epoch, 0)
    machine.golden(3, True, "", 50)
    assert machine.lost(1, Fault.DIED, "x", 60) == [Fence(1, Fault.DIED, "x"), Promote(3, "x")]


def test_a_wrong_golden_answer_fences_whoever_gave_it() -> None:
    machine = pair()
    assert machine.golden(2, False, "step conv_3", 5) == [Fence(2, Fault.WRONG, "wrong golden answer: step conv_3")]
    assert machine.golden(2, False, "again", 6) == []
    assert machine.golden(1, False, "step add", 7) == [Fence(1, Fault.WRONG, "wrong golden answer: step add")]
    assert machine.active is None and machine.losses == {Fault.WRONG: 2}


def test_standby_ready_means_a_right_answer_within_the_interval() -> None:
    machine = pair(now_ns=100)
    limit = 100 + RULES.golden_interval_ns
    assert machine.standby_ready(limit) and not machine.standby_ready(limit + 1)
    machine.golden(2, True, "", limit)
    assert machine.standby_ready(limit + 1)


HALF = RULES.golden_interval_ns // 2
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
RENEWED = [Promote(2, WORN), Retire(1, WORN), Spawn("to replace the worn engine")]


def test_a_worn_engine_is_renewed_through_the_standby_at_a_moment_without_work() -> None:
    machine = pair()
    machine.wear(1, WORN)
    machine.wear(99, WORN)
    machine.busy(1, MS)
    assert machine.tick(2 * MS) == []
    machine.busy(1, 0)
    assert machine.tick(3 * MS) == RENEWED
    assert (machine.active, machine.failovers, machine.losses, machine.renewals) == (2, 0, {}, 1)
    assert not machine.failed and machine._deaths_within_window(3 * MS) == 0
    assert machine.tick(4 * MS) == [] and machine.golden(1, False, "late", 4 * MS) == []


def test_a_worn_standby_is_renewed_without_a_promotion() -> None:
    machine = pair()
    machine.wear(2, WORN)
    assert machine.tick(MS) == [Retire(2, WORN), Spawn("to replace the worn engine")]
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
    spent.spawned(3, MS)
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
    machine.spawned(3, MS)
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


def hear(machine: Failover, now_ns: int) -> None:
    for epoch in list(machine.engines):
        machine.heard(epoch, now_ns)


SLOW = "3 batches in a row answered after their deadline"


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
    machine.spawned(3, MS)
    machine.ready(3, MS)
    assert machine.served(1, True, 2 * MS)[1:] == [Promote(3, "51 batches in a row answered after their deadline")]


def test_slowness_costs_one_engine_in_a_window_and_never_the_last_restart() -> None:
    machine = pair(replace(RULES, restart_budget=2))
    for epoch, now_ns in ((1, 0), (2, MS)):
        machine.served(epoch, False, now_ns)
        lost = [action for _ in range(9) for action in machine.served(epoch, True, now_ns)]
        assert bool(lost) == (epoch == 1)
        machine.spawned(epoch + 2, now_ns)
        machine.ready(epoch + 2, now_ns)
    machine.lost(3, Fault.DIED, "gone", 2 * MS)
    machine.spawned(5, 2 * MS)
    machine.ready(5, RULES.restart_window_ns)
    assert machine.served(2, True, RULES.restart_window_ns) == [], "the budget is spent"
    assert not machine.failed and machine.served(2, True, RULES.restart_window_ns + 3 * MS)[0] == Fence(
        2, Fault.SLOW, "11 batches in a row answered after their deadline"
    )


def keep_alive(machine: Failover, epoch: int, now_ns: int) -> None:
    machine.heard(epoch, now_ns)


@pytest.mark.parametrize("epoch", [1, 2])
def test_heartbeat_is_missed_just_after_the_bound(epoch: int) -> None:
    machine = pair()
    at_bound = RULES.heartbeat_missed_ns
    keep_alive(machine, 3 - epoch, at_bound)
    assert not machine.overdue(epoch, at_bound) and machine.tick(at_bound) == []
    assert machine.overdue(epoch, at_bound + 1) and not machine.overdue(99, at_bound + 1)
    assert machine.tick(at_bound + 1)[0] == Fence(epoch, Fault.SILENT, "no heartbeat for 150 ms")


def test_a_busy_engine_owes_no_heartbeat_but_its_batch_within_the_watchdog() -> None:
    machine = pair()
    since_ns = 20 * MS
    machine.busy(1, since_ns)
    at_bound = since_ns + RULES.batch_watchdog_ns
    keep_alive(machine, 2, at_bound)
    assert machine.tick(at_bound) == []
    actions = machine.tick(at_bound + 1)
    reason = "batch over its watchdog of 1000 ms"
    assert actions[:2] == [Fence(1, Fault.BATCH_OVERDUE, reason), Promote(2, reason)]


def test_an_answered_batch_ends_the_watchdog_and_the_heartbeat_counts_again() -> None:
    machine = pair()
    machine.busy(1, 10 * MS)
    machine.heard(1, 900 * MS)
    machine.busy(1, 0)
    keep_alive(machine, 2, 900 * MS)
    assert machine.tick(900 * MS + RULES.heartbeat_missed_ns) == []
    keep_alive(machine, 2, 900 * MS + RULES.heartbeat_missed_ns)
    assert machine.tick(901 * MS + RULES.heartbeat_missed_ns)[0] == Fence(1, Fault.SILENT, "no heartbeat for 150 ms")


def test_a_golden_check_is_overdue_just_after_its_bound() -> None:
    machine = pair()
    hear(machine, HALF)
    assert machine.tick(HALF) == [Check(2)]
    at_bound = HALF + RULES.golden_timeout_ns
    machine.heard(1, at_bound)
    assert machine.tick(at_bound) == []
    assert machine.tick(at_bound + 1)[0] == Fence(2, Fault.CHECK_OVERDUE, "golden check not answered within 2000 ms")


def test_an_engine_that_is_never_ready_is_given_up_just_after_the_bound() -> None:
    machine = Failover(RULES)
    machine.start()
    machine.spawned(1, 5)
    machine.spawned(2, 5 + RULES.ready_timeout_ns)
    assert machine.tick(5 + RULES.ready_timeout_ns) == []
    assert machine.tick(6 + RULES.ready_timeout_ns)[0] == Fence(1, Fault.NOT_READY, "not ready within 10.0 s")


def test_both_overdue_in_one_turn_are_both_fenced() -> None:
    machine = pair()
    actions = machine.tick(10 * S)
    assert [a.epoch for a in actions if isinstance(a, Fence)] == [1, 2]
    assert machine.active is None


def test_back_off_doubles_up_to_its_bound_and_a_ready_engine_resets_it() -> None:
    rules = replace(RULES, restart_budget=1000, engines=1)
    machine = Failover(rules)
    machine.start()
    now_ns, waits = 0, []
    for epoch in range(1, 12):
        machine.spawned(epoch, now_ns)
        machine.lost(epoch, Fault.DIED, "died at start", now_ns)
        at_ns = now_ns
        while not machine.tick(at_ns):
            at_ns += 10 * MS
        waits.append(at_ns - now_ns)
        now_ns = at_ns
    assert waits == [0, *(min(100 * MS * 2**n, 10 * S) for n in range(10))]
    machine.spawned(50, now_ns)
    machine.ready(50, now_ns)
    machine.lost(50, Fault.DIED, "died", now_ns)
    assert machine.tick(now_ns) == [Spawn("to replace an engine that was lost")]


def test_ready_after_spawn_failures() -> None:
    machine = Failover(replace(RULES, engines=1))
    machine.start()
    machine.spawn_failed("no memory", 0)
    assert machine.tick(0) == [Spawn("to replace an engine that was lost")]
    machine.spawn_failed("no memory", 1)
    assert machine.tick(2) == []  # backs off
    assert machine.tick(1 + 100 * MS) == [Spawn("to replace an engine that was lost")]
    machine.spawned(1, 1 + 100 * MS)
    assert machine.ready(1, 2 * S) == [Promote(1, "first engine ready")]
    assert not machine.failed and machine.all_ready() and machine.losses == {Fault.NOT_STARTED: 2}


def test_two_engines_are_replaced_one_after_the_other_so_that_back_off_holds_for_the_second() -> None:
    machine = pair()
    for epoch in (1, 2):
        machine.lost(epoch, Fault.DIED, "x", 0)
    assert machine.tick(100 * MS) == [Spawn("to replace an engine that was lost")]
    machine.spawn_failed("no memory", 100 * MS)
    assert machine.tick(101 * MS) == [] and machine.tick(299 * MS) == []
    assert machine.tick(300 * MS) == [Spawn("to replace an engine that was lost")]
    machine.spawned(3, 300 * MS)
    assert machine.tick(301 * MS) == [Spawn("to replace an engine that was lost")]


def test_more_losses_than_the_budget_within_the_window_are_failed_and_nothing_is_spawned_again() -> None:
    machine = pair()
    lose_ns = 0
    for epoch in range(1, RULES.restart_budget + 2):
        assert not machine.failed
        machine.lost(epoch, Fault.DIED, f"death {epoch}", lose_ns)
        machine.spawned(epoch + 2, lose_ns)
    assert machine.failed == "4 engines lost within 60 s, the last one: death 4"
    assert machine.tick(lose_ns + 100) == [] and machine.tick(lose_ns + 9 * S) == []
    machine.ready(5, lose_ns + 1)
    assert machine.active is not None  # what lives goes on serving


def test_losses_further_apart_than_the_window_never_fail() -> None:
    machine = pair()
    now_ns = 0
    for epoch in range(1, 30):
        machine.lost(epoch, Fault.DIED, "x", now_ns)
        machine.spawned(epoch + 2, now_ns)
        machine.ready(epoch + 2, now_ns)
        now_ns += RULES.restart_window_ns // 2
    assert not machine.failed


def test_a_generation_that_ends_spawns_nothing() -> None:
    machine = pair()
    machine.end()
    machine.lost(2, Fault.DIED, "x", 1)
    assert machine.tick(2) == [] and machine.tick(100 * MS) == []


def test_every_fault_is_explained() -> None:
    assert all(fault.meaning for fault in Fault) and len({fault.meaning for fault in Fault}) == len(Fault)
    assert {f for f in Fault if f.blames_frames} == {Fault.DIED, Fault.REPORTED, Fault.UNTRUSTED, Fault.BATCH_OVERDUE}
