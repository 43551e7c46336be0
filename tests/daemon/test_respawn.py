"""The wait before a child is started again: doubled up to ten seconds, short again after it has served."""

from __future__ import annotations

from stand_ins import S

from orind.daemon.respawn import LONGEST_NS, Respawn


def test_waits_double_up_to_the_longest_and_start_anew_after_service() -> None:
    respawn, now = Respawn(S), 100 * S
    assert respawn.due(0) and respawn.problem == ""
    waits = []
    for _ in range(6):
        respawn.failed(now, "it ended\nby itself")
        wait = next(w for w in range(1, 20) if respawn.due(now + w * S))
        waits.append(wait)
        now += wait * S
    assert waits == [1, 2, 4, 8, 10, 10] and LONGEST_NS == 10 * S
    assert respawn.problem == "it ended by itself"
    respawn.served()
    assert respawn.problem == ""
    respawn.failed(now, "again")
    assert not respawn.due(now + S - 1) and respawn.due(now + S)
