"""Cameras whose frames end engines are refused for a while, so that they cannot spend the restart budget."""

from __future__ import annotations

from dataclasses import replace

from line import Line
from stand_ins import S

from orind.daemon.faults import Fault
from orind.daemon.quarantine import Quarantine


def test_so_many_poison_frames_within_the_window_keep_the_camera_out_for_as_long() -> None:
    rules = Quarantine(2, 60 * S)
    rules.struck("a", 0)
    assert rules.problem("a", 1) == ""
    rules.struck("a", 60 * S)
    said = "camera 'a': 2 of its frames ended engines; it is refused for 60 s more, or until a reload"
    assert rules.problem("a", 60 * S) == said and rules.problems(60 * S) == [said]
    assert rules.problem("b", 60 * S) == ""
    assert rules.problem("a", 120 * S - 1) and not rules.problem("a", 120 * S) and not rules.problems(120 * S)


def test_further_apart_than_the_window_they_are_forgiven() -> None:
    rules = Quarantine(2, 60 * S)
    for second in (0, 61, 122):
        rules.struck("a", second * S)
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


def test_frames_that_the_last_resort_answers_count_as_well() -> None:
    """They cost a pair of engines each, though they end as `degraded` and not as poison."""
    line = Line()
    line.pipeline.serving = replace(line.pipeline.serving, deaths_max=3)
    assert line.pipeline.serving.intake.quarantine.limit == 2
    try:
        line.engine()
        for seq in range(2):
            poison(line, seq)
            line.handles[-1].last_resort = True
            line.serve()
        line.give(2)
        assert line.outcomes() == [(0, "degraded"), (1, "rejected"), (2, "rejected")]
        assert line.ledger.reasons == {"last_resort": 1, "quarantine": 2}
    finally:
        line.close()


def test_an_engine_that_never_received_the_frame_did_not_die_of_it() -> None:
    """Both are killed from outside: the second one's death is seen when the frame cannot be sent to it."""
    line = Line()
    try:
        line.engine()
        line.give(1)
        line.pipeline.dispatch(line.now)
        line.kill()
        line.engine().die()
        line.pipeline.dispatch(line.now)
        line.kill("its channel is closed or full", Fault.UNTRUSTED)
        line.engine()
        line.pipeline.dispatch(line.now)
        line.serve()
        assert line.outcomes() == [(1, "ok")] and not line.pipeline.serving.intake.quarantine.problems(line.now)
    finally:
        line.close()
