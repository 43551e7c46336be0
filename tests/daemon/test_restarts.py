"""Back-off and budget of restarts."""

from __future__ import annotations

from stand_ins import MS, S

from orind.daemon.restarts import RESPAWN_AFTER_NS, Restarts


def restarts(budget: int = 1000) -> Restarts:
    return Restarts(budget, 60 * S, 100 * MS, 10 * S)


def wait_ns(tries: Restarts, now_ns: int) -> int:
    return max(0, tries.due_ns - now_ns)


def test_back_off_doubles_up_to_its_bound_and_a_ready_engine_resets_it() -> None:
    tries, waits = restarts(), []
    for second in range(11):
        tries.lost("died at start", False, second * S)
        waits.append(wait_ns(tries, second * S))
    assert waits == [0, *(min(100 * MS * 2**n, 10 * S) for n in range(10))]
    tries.ready()
    tries.lost("died", False, 20 * S)
    assert wait_ns(tries, 20 * S) == 0 and tries.due(20 * S)


def test_where_others_serve_their_replayed_frames_go_first() -> None:
    tries = restarts()
    tries.lost("died", True, S)
    assert not tries.due(S + RESPAWN_AFTER_NS - 1) and tries.due(S + RESPAWN_AFTER_NS)


def test_one_loss_over_the_budget_within_the_window_is_failed_and_nothing_is_due_again() -> None:
    tries = restarts(budget=2)
    for second in (0, 1):
        tries.lost("x", False, second * S)
    assert tries.spent(60 * S) and not tries.failed
    tries.lost("y", False, 60 * S)
    assert tries.failed == "3 engines lost within 60 s, the last one: y" and not tries.due(10_000 * S)


def test_losses_further_apart_than_the_window_do_not_add_up() -> None:
    tries = restarts(budget=1)
    for minute in range(9):
        tries.lost("x", False, minute * 61 * S)
    assert not tries.failed and tries.spent(8 * 61 * S) and not tries.spent(9 * 61 * S)
