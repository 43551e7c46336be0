"""The failover machine in simulated time: every transition with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stand_ins import MS, S

from orind.daemon.failover import Failover
from orind.daemon.faults import Fault
from orind.daemon.orders import Check, Fence, Promote, Retire, Spawn
from orind.daemon.restarts import RESPAWN_AFTER_NS
from orind.daemon.standing import PAIR, Rules, Seat, Standing

REPLACED = "to replace an engine that was lost"
RULES = Rules(
    heartbeat_missed_ns=150 * MS,
    ready_timeout_ns=10 * S,
    golden_interval_ns=5 * S,
    golden_timeout_ns=2 * S,
    batch_watchdog_ns=1 * S,
    restart_budget=3,
    restart_window_ns=60 * S,
)


def start_next(machine: Failover, epoch: int, now_ns: int) -> None:
    """The engine that was asked for first has started; where none was, one for a free seat."""
    taken = {engine.seat for engine in machine.engines.values()}
    if not machine._asked:
        machine._asked.append(next(seat for seat in PAIR if seat not in taken))
    machine.spawned(epoch, machine._asked[0], now_ns)


def pair(rules: Rules = RULES, now_ns: int = 0) -> Failover:
    """Engine 1 active, engine 2 ready, both heard at `now_ns`."""
    machine = Failover(rules)
    assert machine.start() == [Spawn(seat, "start of the generation") for seat in PAIR]
    for epoch in (1, 2):
        start_next(machine, epoch, now_ns)
    assert machine.ready(1, now_ns) == [Promote(1, "first engine ready")]
    assert machine.ready(2, now_ns) == []
    return machine


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


def hear(machine: Failover, now_ns: int) -> None:
    for epoch in list(machine.engines):
        machine.heard(epoch, now_ns)


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
    assert [a.epoch for a in actions if isinstance(a, Fence)] == [1, 2]
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


# -- the last resort: an engine on the CPU, only where the configuration asks for it --------------------------------

RESORT = replace(RULES, last_resort=True)
SERVES_AGAIN = "an engine of the pair serves again"


def without_pair() -> Failover:
    """Both of the pair are lost, and the last resort was asked for: engine 9."""
    machine = pair(RESORT)
    for epoch in (1, 2):
        machine.lost(epoch, Fault.REPORTED, "device lost", MS)
    assert machine.tick(MS) == [Spawn(Seat.LAST_RESORT, "no engine of the pair can serve")]
    machine.spawned(9, Seat.LAST_RESORT, MS)
    return machine


def test_the_last_resort_serves_while_none_of_the_pair_can_and_counts_as_no_standby() -> None:
    machine = without_pair()
    assert machine.ready(9, 2 * MS) == [Promote(9, "first engine ready")]
    assert machine.active == 9 and machine.on_last_resort and not machine.standby_ready(2 * MS)
    assert not machine.all_ready()


def test_it_makes_way_for_the_pair_at_once_and_nobody_is_blamed() -> None:
    machine = without_pair()
    machine.ready(9, 2 * MS)
    start_next(machine, 3, 300 * MS)
    assert machine.ready(3, 400 * MS) == [Retire(9, SERVES_AGAIN), Promote(3, "first engine ready")]
    assert machine.active == 3 and not machine.on_last_resort and machine.losses == {Fault.REPORTED: 2}
    assert not any(isinstance(a, Spawn) and a.seat is Seat.LAST_RESORT for a in machine.tick(401 * MS))


def test_one_that_still_starts_is_let_go_as_well() -> None:
    machine = without_pair()
    start_next(machine, 3, 300 * MS)
    assert machine.ready(3, 400 * MS) == [Retire(9, SERVES_AGAIN), Promote(3, "first engine ready")]
    assert machine.ready(9, 500 * MS) == []


def test_it_serves_on_when_the_pair_is_given_up_and_has_a_budget_of_its_own() -> None:
    machine = without_pair()
    machine.ready(9, 2 * MS)
    for epoch in (3, 4):
        start_next(machine, epoch, 2 * MS)
        machine.lost(epoch, Fault.REPORTED, "device lost", 2 * MS)
    assert machine.failed.startswith("4 engines lost") and machine.active == 9
    machine.heard(9, 20 * S)
    assert machine.tick(20 * S) == []  # of the pair none is started any more
    for epoch, now_ns in enumerate(range(21, 25), 10):
        machine.lost(machine.active or 0, Fault.DIED, "killed", now_ns * S)
        assert machine.active is None
        orders = machine.tick((now_ns + 10) * S) if epoch < 13 else []
        if epoch < 13:
            assert orders == [Spawn(Seat.LAST_RESORT, "no engine of the pair can serve")]
            machine.spawned(epoch, Seat.LAST_RESORT, now_ns * S)
            machine.ready(epoch, now_ns * S)
    assert machine.last_resort_restarts.failed.startswith("4 engines lost") and machine.tick(40 * S) == []


def test_while_the_pair_starts_for_the_first_time_it_is_not_asked_for() -> None:
    machine = Failover(RESORT)
    machine.start()
    for epoch in (1, 2):
        start_next(machine, epoch, 0)
    assert machine.tick(1) == []
    machine.lost(1, Fault.REPORTED, "no GPU", 2)
    assert Spawn(Seat.LAST_RESORT, "no engine of the pair can serve") in machine.tick(3)


def test_without_the_wish_for_it_nobody_serves() -> None:
    machine = pair()
    for epoch in (1, 2):
        machine.lost(epoch, Fault.REPORTED, "device lost", MS)
    assert machine.tick(MS) == [] and machine.active is None


def test_one_that_cannot_be_started_is_tried_again_after_its_back_off() -> None:
    machine = pair(RESORT)
    for epoch in (1, 2):
        machine.lost(epoch, Fault.REPORTED, "device lost", MS)
    machine.tick(MS)
    machine.spawn_failed(Seat.LAST_RESORT, "no memory", MS)
    again = Spawn(Seat.LAST_RESORT, "no engine of the pair can serve")
    assert again in machine.tick(2 * MS)
    machine.spawn_failed(Seat.LAST_RESORT, "no memory", 2 * MS)
    assert again not in machine.tick(3 * MS) and again in machine.tick(103 * MS)
