"""The failover machine in simulated time: every transition with its reason, and its invariants under random faults."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from stand_ins import MS, S

from orind.daemon.failover import RESPAWN_AFTER_NS, Action, Check, Failover, Fence, Promote, Rules, Spawn, Standing

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
    assert machine.lost(1, "SIGSEGV", 1) == [Fence(1, "SIGSEGV"), Promote(2, "SIGSEGV")]
    assert (machine.failovers, machine.active) == (1, 2)
    assert machine.lost(1, "its process ended", 2) == []  # heard of twice, counted once
    # the standby's replayed frames go first
    machine.heard(2, RESPAWN_AFTER_NS)
    assert machine.tick(RESPAWN_AFTER_NS) == []
    assert machine.tick(RESPAWN_AFTER_NS + 1) == [Spawn("to replace an engine that was lost")]
    assert machine.tick(RESPAWN_AFTER_NS + 2) == []


def test_a_lost_standby_is_replaced_without_a_failover() -> None:
    machine = pair()
    assert machine.lost(2, "gone", 1) == [Fence(2, "gone")]
    assert (machine.failovers, machine.active) == (0, 1) and not machine.standby_ready(1)


def test_without_a_ready_standby_nobody_is_active_until_one_is_ready() -> None:
    machine = pair()
    machine.lost(2, "gone", 1)
    machine.tick(2)
    machine.spawned(3, 2)
    assert machine.lost(1, "gone too", 3) == [Fence(1, "gone too")]
    assert machine.active is None and machine.failovers == 1
    assert machine.ready(3, 4) == [Promote(3, "first engine ready")]


def test_the_standby_with_the_freshest_golden_answer_is_promoted() -> None:
    machine = Failover(replace(RULES, engines=3))
    machine.start()
    for epoch in (1, 2, 3):
        machine.spawned(epoch, 0)
        machine.ready(epoch, 0)
    machine.golden(3, True, "", 50)
    assert machine.lost(1, "x", 60) == [Fence(1, "x"), Promote(3, "x")]


def test_a_wrong_golden_answer_fences_whoever_gave_it() -> None:
    machine = pair()
    assert machine.golden(2, False, "step conv_3", 5) == [Fence(2, "wrong golden answer: step conv_3")]
    assert machine.golden(2, False, "again", 6) == []
    assert machine.golden(1, False, "step add", 7) == [Fence(1, "wrong golden answer: step add")]
    assert machine.active is None


def test_standby_ready_means_a_right_answer_within_two_check_intervals() -> None:
    machine = pair(now_ns=100)
    limit = 100 + 2 * RULES.golden_interval_ns
    assert machine.standby_ready(limit) and not machine.standby_ready(limit + 1)
    machine.golden(2, True, "", limit)
    assert machine.standby_ready(limit + 1)


def test_only_the_idle_standby_is_checked_once_an_interval() -> None:
    machine = pair()
    for now_ns in range(0, RULES.golden_interval_ns, 100 * MS):
        machine.heard(1, now_ns)
        machine.heard(2, now_ns)
        assert machine.tick(now_ns) == []
    due_ns = RULES.golden_interval_ns
    machine.heard(1, due_ns)
    assert machine.tick(due_ns) == [Check(2)]
    assert machine.tick(due_ns + MS) == []  # not twice while it is unanswered
    machine.golden(2, True, "", due_ns + 10 * MS)
    machine.heard(1, due_ns + 10 * MS)
    assert machine.tick(due_ns + 11 * MS) == []


def keep_alive(machine: Failover, epoch: int, now_ns: int) -> None:
    machine.heard(epoch, now_ns)


@pytest.mark.parametrize("epoch", [1, 2])
def test_heartbeat_is_missed_just_after_the_bound(epoch: int) -> None:
    machine = pair()
    at_bound = RULES.heartbeat_missed_ns
    keep_alive(machine, 3 - epoch, at_bound)
    assert not machine.overdue(epoch, at_bound) and machine.tick(at_bound) == []
    assert machine.overdue(epoch, at_bound + 1) and not machine.overdue(99, at_bound + 1)
    assert machine.tick(at_bound + 1)[0] == Fence(epoch, "no heartbeat for 150 ms")


def test_a_busy_engine_owes_no_heartbeat_but_its_batch_within_the_watchdog() -> None:
    machine = pair()
    since_ns = 20 * MS
    machine.busy(1, since_ns)
    at_bound = since_ns + RULES.batch_watchdog_ns
    keep_alive(machine, 2, at_bound)
    assert machine.tick(at_bound) == []
    actions = machine.tick(at_bound + 1)
    reason = "batch over its watchdog of 1000 ms"
    assert actions[:2] == [Fence(1, reason), Promote(2, reason)]


def test_an_answered_batch_ends_the_watchdog_and_the_heartbeat_counts_again() -> None:
    machine = pair()
    machine.busy(1, 10 * MS)
    machine.heard(1, 900 * MS)
    machine.busy(1, 0)
    keep_alive(machine, 2, 900 * MS)
    assert machine.tick(900 * MS + RULES.heartbeat_missed_ns) == []
    keep_alive(machine, 2, 900 * MS + RULES.heartbeat_missed_ns)
    assert machine.tick(901 * MS + RULES.heartbeat_missed_ns)[0] == Fence(1, "no heartbeat for 150 ms")


def test_a_golden_check_is_overdue_just_after_its_bound() -> None:
    machine = pair()
    due_ns = RULES.golden_interval_ns
    for epoch in (1, 2):
        machine.heard(epoch, due_ns)
    assert machine.tick(due_ns) == [Check(2)]
    at_bound = due_ns + RULES.golden_timeout_ns
    machine.heard(1, at_bound)
    assert machine.tick(at_bound) == []
    assert machine.tick(at_bound + 1)[0] == Fence(2, "golden check not answered within 2000 ms")


def test_an_engine_that_is_never_ready_is_given_up_just_after_the_bound() -> None:
    machine = Failover(RULES)
    machine.start()
    machine.spawned(1, 5)
    machine.spawned(2, 5 + RULES.ready_timeout_ns)
    assert machine.tick(5 + RULES.ready_timeout_ns) == []
    assert machine.tick(6 + RULES.ready_timeout_ns)[0] == Fence(1, "not ready within 10.0 s")


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
        machine.lost(epoch, "died at start", now_ns)
        at_ns = now_ns
        while not machine.tick(at_ns):
            at_ns += 10 * MS
        waits.append(at_ns - now_ns)
        now_ns = at_ns
    assert waits == [0, *(min(100 * MS * 2**n, 10 * S) for n in range(10))]
    machine.spawned(50, now_ns)
    machine.ready(50, now_ns)
    machine.lost(50, "died", now_ns)
    assert machine.tick(now_ns) == [Spawn("to replace an engine that was lost")]


def test_ready_after_spawn_failures() -> None:
    machine = Failover(replace(RULES, engines=1))
    machine.start()
    assert machine.spawn_failed("no memory", 0) == []
    assert machine.tick(0) == [Spawn("to replace an engine that was lost")]
    assert machine.spawn_failed("no memory", 1) == []
    assert machine.tick(2) == []  # backs off
    assert machine.tick(1 + 100 * MS) == [Spawn("to replace an engine that was lost")]
    machine.spawned(1, 1 + 100 * MS)
    assert machine.ready(1, 2 * S) == [Promote(1, "first engine ready")]
    assert not machine.failed and machine.all_ready()


def test_more_losses_than_the_budget_within_the_window_are_failed_and_nothing_is_spawned_again() -> None:
    machine = pair()
    lose_ns = 0
    for epoch in range(1, RULES.restart_budget + 2):
        assert not machine.failed
        machine.lost(epoch, f"death {epoch}", lose_ns)
        machine.spawned(epoch + 2, lose_ns)
    assert machine.failed == "4 engines lost within 60 s, the last one: death 4"
    assert machine.tick(lose_ns + 100) == [] and machine.tick(lose_ns + 9 * S) == []
    machine.ready(5, lose_ns + 1)
    assert machine.active is not None  # what lives goes on serving


def test_losses_further_apart_than_the_window_never_fail() -> None:
    machine = pair()
    now_ns = 0
    for epoch in range(1, 30):
        machine.lost(epoch, "x", now_ns)
        machine.spawned(epoch + 2, now_ns)
        machine.ready(epoch + 2, now_ns)
        now_ns += RULES.restart_window_ns // 2
    assert not machine.failed


def test_a_generation_that_ends_spawns_nothing() -> None:
    machine = pair()
    machine.end()
    machine.lost(2, "x", 1)
    assert machine.tick(2) == [] and machine.tick(100 * MS) == []


class World:
    """Engines that live, hang and die at random, and a main that carries out what the machine says."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.rules = replace(RULES, restart_budget=rng.choice([2, 50, 100_000]), engines=rng.choice([1, 2, 3]))
        self.machine = Failover(self.rules)
        self.now_ns = 0
        self.last_epoch = 0
        self.alive: set[int] = set()
        self.fenced: set[int] = set()
        self.hung: set[int] = set()
        self.active: int | None = None
        self.frozen = False  # failed or ended: no spawn from here on
        self.apply(self.machine.start())

    def apply(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                assert not self.frozen and action.reason
                if self.rng.random() < 0.1:
                    self.apply(self.machine.spawn_failed("no memory", self.now_ns))
                else:
                    self.last_epoch += 1
                    self.alive.add(self.last_epoch)
                    self.machine.spawned(self.last_epoch, self.now_ns)
            elif isinstance(action, Fence):
                assert action.epoch not in self.fenced and action.reason
                self.fenced.add(action.epoch)
                self.alive.discard(action.epoch)
                self.active = None if self.active == action.epoch else self.active
            elif isinstance(action, Promote):
                assert action.epoch not in self.fenced and action.epoch in self.alive and action.reason
                assert self.active is None
                self.active = action.epoch
            else:
                assert action.epoch in self.alive and action.epoch != self.active
        assert self.machine.active == self.active
        assert sum(e.standing is Standing.ACTIVE for e in self.machine.engines.values()) <= 1
        assert not self.fenced & set(self.machine.engines)
        self.frozen = self.frozen or bool(self.machine.failed)

    def step(self) -> None:
        rng, machine = self.rng, self.machine
        self.now_ns += rng.choice([0, MS, 20 * MS, 60 * MS, 120 * MS, rng.randrange(2 * S)])
        known = sorted(self.alive | set(rng.sample(sorted(self.fenced), min(2, len(self.fenced)))))
        epoch = rng.choice(known) if known else 0
        event = rng.random()
        if event < 0.30:
            for beating in self.alive - self.hung:
                machine.heard(beating, self.now_ns)
        elif event < 0.45:
            self.apply(machine.ready(epoch, self.now_ns))
        elif event < 0.55:
            self.apply(machine.golden(epoch, rng.random() < 0.8, "step 3", self.now_ns))
        elif event < 0.62:
            machine.busy(epoch, rng.choice([0, self.now_ns]))
        elif event < 0.67:
            self.apply(machine.lost(epoch, "signal 11", self.now_ns))
        elif event < 0.70:
            self.hung ^= {epoch}
        elif event < 0.7005:
            machine.end()
            self.frozen = True
        else:
            self.apply(machine.tick(self.now_ns))
        live = len(machine.engines) + machine._spawns_pending
        assert live <= self.rules.engines
        assert machine.standby_ready(self.now_ns) <= bool(self.alive)


@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_under_any_schedule(seed: int) -> None:
    world = World(seed)
    for _ in range(4000):
        world.step()
    assert world.last_epoch >= world.rules.engines  # something did happen
