"""The last resort: an engine on the CPU, only where the configuration asks for it."""

from __future__ import annotations

from dataclasses import replace

from failover_pair import RULES, pair, start_next
from stand_ins import MS, S

from orind.daemon.failover import Failover
from orind.daemon.faults import Fault
from orind.daemon.orders import Promote, Retire, Spawn
from orind.daemon.standing import Seat

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
