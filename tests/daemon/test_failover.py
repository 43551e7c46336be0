"""The failover machine in simulated time: every transition with its reason."""

from __future__ import annotations

import pytest
from failover_pair import HALF, RULES, hear, pair, start_next
from stand_ins import MS, S

from orind.daemon.failover import Failover
from orind.daemon.faults import Fault
from orind.daemon.orders import Check, Fence, Promote, Spawn
from orind.daemon.restarts import RESPAWN_AFTER_NS
from orind.daemon.standing import PAIR, Seat, Standing

REPLACED = "to replace an engine that was lost"

def test_first_ready_engine_becomes_active_the_next_one_standby() -> None:
    machine = Failover(RULES)
    machine.start()
    start_next(machine, 1, 0)
    start_next(machine, 2, 0)
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
    assert machine.tick(RESPAWN_AFTER_NS + 1) == [Spawn(Seat.FIRST, REPLACED)]
    assert machine.tick(RESPAWN_AFTER_NS + 2) == []


def test_a_lost_standby_is_replaced_without_a_failover() -> None:
    machine = pair()
    assert machine.lost(2, Fault.DIED, "gone", 1) == [Fence(2, Fault.DIED, "gone")]
    assert (machine.failovers, machine.active) == (0, 1) and not machine.standby_ready(1)


def test_without_a_ready_standby_nobody_is_active_until_one_is_ready() -> None:
    machine = pair()
    machine.lost(2, Fault.DIED, "gone", 1)
    machine.tick(2)
    start_next(machine, 3, 2)
    assert machine.lost(1, Fault.DIED, "gone too", 3) == [Fence(1, Fault.DIED, "gone too")]
    assert machine.active is None and machine.failovers == 1
    assert machine.ready(3, 4) == [Promote(3, "first engine ready")]


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
    start_next(machine, 1, 5)
    start_next(machine, 2, 5 + RULES.ready_timeout_ns)
    assert machine.tick(5 + RULES.ready_timeout_ns) == []
    assert machine.tick(6 + RULES.ready_timeout_ns)[0] == Fence(1, Fault.NOT_READY, "not ready within 10.0 s")


def test_both_overdue_in_one_turn_are_both_fenced() -> None:
    machine = pair()
    actions = machine.tick(10 * S)
    assert [(a.epoch, a.was_active) for a in actions if isinstance(a, Fence)] == [(2, False), (1, True)]
    assert not any(isinstance(a, Promote) for a in actions) and machine.failovers == 1
    assert machine.active is None


def test_ready_after_spawn_failures() -> None:
    machine = Failover(RULES)
    machine.start()
    for seat in PAIR:
        machine.spawn_failed(seat, "no memory", 0)
    assert machine.tick(1) == []  # backs off
    assert machine.tick(100 * MS) == [Spawn(Seat.FIRST, REPLACED)]
    start_next(machine, 1, 100 * MS)
    assert machine.ready(1, 2 * S) == [Promote(1, "first engine ready")]
    assert not machine.failed and not machine.all_ready() and machine.losses == {Fault.NOT_STARTED: 2}


def test_two_engines_are_replaced_one_after_the_other_so_that_back_off_holds_for_the_second() -> None:
    machine = pair()
    for epoch in (1, 2):
        machine.lost(epoch, Fault.DIED, "x", 0)
    assert machine.tick(100 * MS) == [Spawn(Seat.FIRST, REPLACED)]
    machine.spawn_failed(Seat.FIRST, "no memory", 100 * MS)
    assert machine.tick(101 * MS) == [] and machine.tick(299 * MS) == []
    assert machine.tick(300 * MS) == [Spawn(Seat.FIRST, REPLACED)]
    start_next(machine, 3, 300 * MS)
    assert machine.tick(301 * MS) == [Spawn(Seat.SECOND, REPLACED)]


def test_more_losses_than_the_budget_within_the_window_are_failed_and_nothing_is_spawned_again() -> None:
    machine = pair()
    lose_ns = 0
    for epoch in range(1, RULES.restart_budget + 2):
        assert not machine.failed
        machine.lost(epoch, Fault.DIED, f"death {epoch}", lose_ns)
        start_next(machine, epoch + 2, lose_ns)
    assert machine.failed == "4 engines lost within 60 s, the last one: death 4"
    assert machine.tick(lose_ns + 100) == [] and machine.tick(lose_ns + 9 * S) == []
    machine.ready(5, lose_ns + 1)
    assert machine.active is not None  # what lives goes on serving


def test_losses_further_apart_than_the_window_never_fail() -> None:
    machine = pair()
    now_ns = 0
    for epoch in range(1, 30):
        machine.lost(epoch, Fault.DIED, "x", now_ns)
        start_next(machine, epoch + 2, now_ns)
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
