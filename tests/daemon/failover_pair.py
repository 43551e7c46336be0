"""A failover machine with two ready engines, for tests in simulated time."""

from __future__ import annotations

from stand_ins import MS, S

from orind.daemon.failover import Failover
from orind.daemon.orders import Promote, Spawn
from orind.daemon.standing import PAIR, Rules

RULES = Rules(
    heartbeat_missed_ns=150 * MS,
    ready_timeout_ns=10 * S,
    golden_interval_ns=5 * S,
    golden_timeout_ns=2 * S,
    batch_watchdog_ns=1 * S,
    restart_budget=3,
    restart_window_ns=60 * S,
)
HALF = RULES.golden_interval_ns // 2


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


def hear(machine: Failover, now_ns: int) -> None:
    for epoch in list(machine.engines):
        machine.heard(epoch, now_ns)
