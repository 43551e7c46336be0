"""Frames across a reload: admitted anew, predicted by the plan that serves, named after the generation that answers."""

from __future__ import annotations

import pytest
from line import ROW, Line
from stand_ins import MS, config, turn

from orind.daemon.config import Config
from orind.daemon.faults import Fault


@pytest.mark.parametrize("fault", [Fault.DIED, Fault.SILENT])
def test_a_new_generation_readmits_what_waits(line: Line, fault: Fault) -> None:
    line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.kill(fault=fault)  # 1 is to be replayed, and suspect only if the engine died
    line.give(2)
    line.give(3, "live")
    made = config(models={"new": {"plan": "n"}}, cameras={"cam": {"model": "new", "deadline_ms": 500}})
    line.pipeline.change_generation(line.serving(made, 2), line.now)
    assert line.outcomes() == [(3, "rejected")] and line.ledger.reasons == {"reconfigured": 1}
    assert [frame.seq for frame in line.pipeline.queues.retry] == [1]
    line.engine()
    for _ in range(2):
        line.pipeline.dispatch(line.now)
        line.serve()
    assert [(r["seq"], r["model"], r["generation"]) for r in line.published[1:]] == [(1, "new", 2), (2, "new", 2)]


def test_a_dead_engines_frame_whose_camera_is_gone_is_rejected(line: Line) -> None:
    line.engine()
    line.give(1, "live")
    line.pipeline.dispatch(line.now)
    line.pipeline.change_generation(
        line.serving(config(cameras={"cam": {"model": "m", "deadline_ms": 500}}), 2), line.now
    )
    line.kill()
    assert line.outcomes() == [(1, "rejected")]


def test_a_frame_decoded_across_a_reload_is_admitted_under_the_new_rules(line: Line) -> None:
    worker = line.decoder()
    line.give(1, encoding="jpeg", payload=b"jpeg")
    line.give(2, "live", encoding="jpeg", payload=b"jpeg")
    made = config(models={"new": {"plan": "n"}}, cameras={"cam": {"model": "new", "deadline_ms": 500}})
    line.pipeline.change_generation(line.serving(made, 2), line.now)
    for _ in range(2):
        (job,) = worker.hear()
        worker.answer(job)
        turn(line.poller, line.now)
    assert line.outcomes() == [(2, "rejected")]
    line.engine()
    line.pipeline.dispatch(line.now)
    line.serve()
    assert line.published[-1]["model"] == "new"
    worker.die()


def tight(plan: str) -> Config:
    return config(models={"m": {"plan": plan}}, cameras={"cam": {"model": "m", "deadline_ms": 20}})


def changed(line: Line, plan: str, number: int) -> None:
    """As at a reload: the new generation's engine is there first."""
    line.engine()
    line.pipeline.change_generation(line.serving(tight(plan), number), line.now)


def test_a_plan_that_a_reload_changes_is_not_judged_by_the_old_ones_times(line: Line) -> None:
    """30 ms were measured of the old one, which refuses a deadline of 20 ms; the new one takes 5."""
    line.engine()
    line.pipeline.change_generation(line.serving(tight("slow"), 1), line.now)
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=30 * MS)
    line.give(2)
    line.pipeline.dispatch(line.now)
    assert line.outcomes() == [(1, "ok"), (2, "expired")], "what is measured refuses"
    changed(line, "slow", 2)
    line.give(3)
    line.pipeline.dispatch(line.now)
    assert line.outcomes()[2:] == [(3, "expired")], "an unchanged plan stays known"
    changed(line, "fast", 3)
    line.give(4)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=5 * MS)
    line.give(5)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=5 * MS)
    assert line.outcomes()[3:] == [(4, "ok"), (5, "ok")]
    line.check()


def test_what_an_old_engine_still_answers_is_its_own_generations(line: Line) -> None:
    """Its number is in the result, its time is nothing that the new plan could be judged by."""
    old = line.engine()
    line.pipeline.change_generation(line.serving(tight("slow"), 1), line.now)
    line.give(1)
    line.give(2)
    line.give(3)
    line.pipeline.dispatch(line.now)
    (first, second) = old.hear()
    changed(line, "fast", 2)
    old.answer(first, [ROW], took_ns=30 * MS)
    old.answer(second, ["no memory"], took_ns=30 * MS)
    line.hear(line.handles[0])
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=5 * MS)
    assert line.pipeline.times.predict("slow", 1, 0) == 0 < line.pipeline.times.predict("fast", 1, 0)
    said = [(r["seq"], r["outcome"], r["generation"]) for r in line.published]
    assert said == [(1, "ok", 1), (2, "error", 1), (3, "ok", 2)]
    line.check()


def test_what_is_known_of_plans_is_bounded_by_those_that_are_served(line: Line) -> None:
    """A year of reloads, each with another plan under another name."""
    for number in range(1, 100):
        cameras = {"cam": {"model": f"m{number}", "deadline_ms": 500}}
        made = config(models={f"m{number}": {"plan": f"p{number}"}}, cameras=cameras)
        line.engine()
        line.pipeline.change_generation(line.serving(made, number), line.now)
        line.give(number)
        line.pipeline.dispatch(line.now)
        line.serve()
        times = line.pipeline.times
        assert {len(times._known), len(times._usual), len(times._recent_ns)} == {1}
        assert list(line.pipeline.queues.models) == [f"m{number}"]
        line.handles.pop().fence()
        line.engines.pop().die()
