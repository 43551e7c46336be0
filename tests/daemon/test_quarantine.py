"""Cameras whose frames end engines are refused for a while, so that they cannot spend the restart budget."""

from __future__ import annotations

from line import Line
from stand_ins import S

from orind.daemon.quarantine import Quarantine


def test_so_many_poison_frames_within_the_window_keep_the_camera_out_for_as_long() -> None:
    rules = Quarantine(2, 60 * S)
    rules.poisoned("a", 0)
    assert rules.problem("a", 1) == ""
    rules.poisoned("a", 60 * S)
    said = "camera 'a': 2 of its frames ended engines; it is refused for 60 s more, or until a reload"
    assert rules.problem("a", 60 * S) == said and rules.problems(60 * S) == [said]
    assert rules.problem("b", 60 * S) == ""
    assert rules.problem("a", 120 * S - 1) and not rules.problem("a", 120 * S) and not rules.problems(120 * S)


def test_further_apart_than_the_window_they_are_forgiven() -> None:
    rules = Quarantine(2, 60 * S)
    for second in (0, 61, 122):
        rules.poisoned("a", second * S)
        assert not rules.problem("a", second * S)


def poison(line: Line, seq: int) -> None:
    """A frame that ends the engine that it is first given to, and the next one."""
    line.give(seq)
    line.pipeline.dispatch(line.now)
    for _ in range(2):
        line.kill()
        line.engine()
        line.pipeline.dispatch(line.now)


def test_what_waits_of_such_a_camera_is_refused_with_it_and_others_go_on() -> None:
    line = Line()
    try:
        line.engine()
        poison(line, 1)
        line.give(2)
        line.pipeline.dispatch(line.now)
        line.kill()
        line.engine()
        line.pipeline.dispatch(line.now)
        line.give(3)  # waits: a suspect is in flight alone
        line.give(4, "live")
        line.kill()
        line.engine()
        assert [(r["seq"], r["outcome"]) for r in line.published] == [(1, "error"), (2, "error"), (3, "rejected")]
        assert line.published[2]["reason"].startswith("camera 'cam': 2 of its frames ended engines")
        line.give(5)
        assert line.published[-1]["seq"] == 5 and line.published[-1]["outcome"] == "rejected"
        line.pipeline.dispatch(line.now)
        line.serve()
        assert line.outcomes()[-1] == (4, "ok")
        assert line.ledger.reasons == {"poison": 2, "quarantine": 2}
        line.check()
    finally:
        line.close()
