"""What a level of degradation does to frames in the pipeline: left out, not batched, answered with what is held."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from line import ROW, Line
from stand_ins import MS, S, config

from orind.daemon.degradation import Level, Standing
from orind.daemon.relief import JUDGE_NS
from orind.ipc.answer import build_result, parse_result
from orind.ipc.errors import WireError

CAMERAS: dict[str, Any] = {
    "cam": {"model": "m", "deadline_ms": 500, "degraded": "held", "held_age_max_ms": 2000},
    "sorter": {"model": "m", "deadline_ms": 500},
    "archive": {"model": "m", "deadline_ms": 500, "optional": True},
}
RULES = {"enter_after_ms": 1000, "leave_after_s": 2}


@pytest.fixture
def line(no_fd_leak: None) -> Iterator[Line]:
    made = Line(cameras=CAMERAS, degradation=RULES, batching={"max_size": 4, "window_ms": 5})
    yield made
    made.check()
    made.close()


def at(line: Line, level: Level) -> None:
    """As if overload had led there just now."""
    line.pipeline.relief.standing = Standing(level, line.now, "overload")


def served(line: Line, seq: int, camera: str = "cam", took_ns: int = 10 * MS) -> None:
    line.give(seq, camera, trigger=f"T{seq}")
    line.now += 5 * MS
    line.pipeline.dispatch(line.now)
    line.now += took_ns
    line.serve(took_ns)


def test_optional_frames_are_dropped_from_level_1_on_and_only_those(line: Line) -> None:
    line.engine()
    served(line, 1, "archive")
    at(line, Level.NO_OPTIONAL)
    line.give(2, "archive")
    assert line.outcomes() == [(1, "ok"), (2, "dropped")] and line.ledger.reasons == {"overload": 1}
    assert line.published[-1]["reason"] == "left out under overload, the camera is optional (level 1)"
    served(line, 3, "sorter")
    assert line.outcomes()[-1] == (3, "ok")


def test_no_batching_starts_single_frames_at_once(line: Line) -> None:
    engine = line.engine()
    at(line, Level.NO_BATCHING)
    for seq in range(3):
        line.give(seq, "sorter")
    assert line.pipeline.dispatch(line.now) == 0
    assert [len(o.frames) for o in engine.hear()] == [1, 1], "depth 2, no window"


def test_a_held_result_is_degraded_with_its_age_and_whose_it_is(line: Line) -> None:
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    line.now += 85 * MS
    line.give(2)
    assert line.outcomes() == [(1, "ok")], "one frame at a time still goes to the engine"
    line.give(3, trigger="T3")
    fresh, held = line.published[0], line.published[1]
    assert (held["seq"], held["trigger"], held["outcome"]) == (3, "T3", "degraded")
    assert held["held"] == {"seq": 1, "trigger": "T1", "age_ms": 100.0}
    assert held["reason"] == "overload: not inspected; this is the result of seq 1, 100 ms old"
    assert held["objects"] == fresh["objects"] and line.rows[1] == line.rows[0]
    assert line.ledger.reasons == {"held": 1}
    line.now += 10 * MS
    line.pipeline.dispatch(line.now)
    line.serve()
    line.give(4)
    line.give(5)
    assert line.published[-1]["held"]["seq"] == 2, "what is held is renewed"


def test_a_camera_that_does_not_allow_it_never_gets_a_held_result(line: Line) -> None:
    line.engine()
    served(line, 1, "sorter")
    at(line, Level.HELD)
    line.now += JUDGE_NS
    for seq in range(2, 20):
        line.give(seq, "sorter")
    line.now += 600 * MS
    line.pipeline.dispatch(line.now)
    assert {outcome for _, outcome in line.outcomes()} == {"ok", "expired", "dropped"}
    assert not any("held" in answer for answer in line.published)


def test_what_is_held_is_not_given_above_its_age(line: Line) -> None:
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    captured = line.now - 15 * MS
    line.give(2)
    line.now = captured + 2 * S
    line.give(3)
    assert line.outcomes()[-1] == (3, "degraded") and line.published[-1]["held"]["age_ms"] == 2000.0
    line.now += 1
    line.give(4)
    assert len(line.published) == 2, "it waits for the engine as any other"


def test_a_frame_that_cannot_be_served_in_time_gets_what_is_held(line: Line) -> None:
    line.engine()
    served(line, 1)
    line.kill()
    at(line, Level.HELD)
    line.give(2)
    line.now += 500 * MS
    line.pipeline.dispatch(line.now)
    assert line.outcomes() == [(1, "ok"), (2, "degraded")] and line.ledger.reasons == {"held_for_late": 1}


def test_a_picture_that_waits_too_long_for_a_decoder_gets_what_is_held(line: Line) -> None:
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    line.give(2, encoding="jpeg", payload=b"x")
    line.now += 501 * MS
    line.decoders.tick(line.now)
    assert line.outcomes() == [(1, "ok"), (2, "degraded")] and line.ring.free == line.ring.count


def test_without_a_slot_a_held_result_stands_in(line: Line) -> None:
    line.engine()
    served(line, 1)
    for seq in range(2, 10):
        line.give(seq, "sorter")
    at(line, Level.HELD)
    line.give(10)
    line.give(11, "sorter")
    assert line.outcomes() == [(1, "ok"), (10, "degraded"), (11, "dropped")]


def test_nothing_is_held_below_the_last_level(line: Line) -> None:
    line.engine()
    served(line, 1)
    at(line, Level.NO_BATCHING)
    line.give(2)
    line.give(3)
    assert line.outcomes() == [(1, "ok")]


def test_the_newest_picture_is_held_whatever_comes_last(line: Line) -> None:
    line.engine()
    line.give(1, ts_ns=line.now)
    line.give(2, ts_ns=line.now - 50 * MS)
    line.pipeline.dispatch(line.now + 5 * MS)
    line.serve()
    at(line, Level.HELD)
    line.give(3)
    line.give(4)
    assert line.published[-1]["held"]["seq"] == 1


def test_rows_too_large_to_keep_are_left_out_of_what_is_held(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orind.daemon.relief.STORED_ANSWER_BYTES", 4)
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    line.give(2)
    line.give(3)
    assert line.published[-1]["rows_kept"] is False and line.rows[-1] == b"" and line.published[-1]["objects"]


def test_a_reload_forgets_what_is_held_and_keeps_the_level(line: Line) -> None:
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    line.pipeline.change_generation(line.serving(line.config, 2), line.now)
    line.give(2)
    line.give(3)
    assert line.outcomes() == [(1, "ok")] and line.pipeline.relief.level is Level.HELD


def test_what_an_old_engine_answers_after_a_reload_is_not_held(line: Line) -> None:
    """Another model may say other things: nothing of the old one stands in for an answer of the new one."""
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    line.give(2)
    line.pipeline.dispatch(line.now)
    line.pipeline.change_generation(line.serving(line.config, 2), line.now)
    line.serve()
    line.give(3)
    line.give(4)
    assert line.outcomes() == [(1, "ok"), (2, "ok")], "3 and 4 wait for the new one"
    assert line.published[-1]["generation"] == 1
    line.pipeline.dispatch(line.now)
    line.serve()
    line.give(5)
    line.give(6)
    assert line.published[-1]["outcome"] == "degraded" and line.published[-1]["generation"] == 2


def test_a_repeat_of_a_degraded_answer_is_the_same_answer(line: Line) -> None:
    line.engine()
    served(line, 1)
    at(line, Level.HELD)
    line.give(2)
    stamp = line.now
    line.give(3, ts_ns=stamp)
    line.now += 50 * MS
    line.give(3, ts_ns=stamp)
    first, again = (r for _, r in line.camera.replies[-2:])
    assert again == {**first, "repeated": True} and first["outcome"] == "degraded"


# -- from overload to a level and back -----------------------------------------------------------------------------


def drive(line: Line, seconds: float, rates_hz: dict[str, int], took_ns: int, seq: int = 0) -> int:
    """An engine that takes so long for a single frame, cameras at these rates, for a while; -> the next seq."""
    engine, handle = line.engines[-1], line.handles[-1]
    end, free = line.now + int(seconds * S), line.now
    due = dict.fromkeys(rates_hz, line.now)
    while line.now < end:
        line.now += MS
        for camera, rate_hz in rates_hz.items():
            if line.now >= due[camera]:
                due[camera] += S // rate_hz
                line.give(seq, camera)
                seq += 1
        line.pipeline.dispatch(line.now)
        engine.hear()
        if engine.batches and line.now >= free:
            order = engine.batches[0]
            batch_ns = took_ns * (1 if len(order.frames) == 1 else 4)  # the sizes that a Line's plans have
            free = line.now + batch_ns
            engine.answer(order, [ROW] * len(order.frames), took_ns=batch_ns)
            line.hear(handle)
        line.check()
    return seq


def test_overload_leads_to_held_results_and_calm_back_to_everything(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    """Two cameras offer more than the engine can; one allows held results. Then both become slow."""
    line.engine()
    seq = drive(line, 1, {"cam": 5, "sorter": 5}, 40 * MS)
    assert line.pipeline.relief.level is Level.FULL and line.pipeline.relief.problem == ""
    with caplog.at_level(logging.WARNING, "orind"):
        seq = drive(line, 12, {"cam": 25, "sorter": 10}, 40 * MS, seq)
        relief = line.pipeline.relief
        assert relief.level is Level.HELD and relief.report()["load"] > 1
        assert line.ledger.outcomes["degraded"] > 50
        reached = [r.getMessage() for r in caplog.records if r.getMessage().startswith("degradation")]
        assert [text.split(":")[1].split(",")[0].strip() for text in reached] == ["level 1", "level 2", "level 3"]
        assert "overload, level 3" in relief.problem
        drive(line, 20, {"cam": 2, "sorter": 2}, 40 * MS, seq)
        assert line.pipeline.relief.level is Level.FULL, "left a level at a time"
    ages = [answer["held"]["age_ms"] for answer in line.published if answer["outcome"] == "degraded"]
    assert max(ages) <= 2000.0
    assert all("held" not in answer for answer in line.published if answer["outcome"] != "degraded")


def test_at_the_last_level_every_frame_of_a_camera_that_allows_it_is_answered_in_time(line: Line) -> None:
    line.engine()
    seq = drive(line, 10, {"cam": 50}, 60 * MS)
    assert line.pipeline.relief.level is Level.HELD
    before = dict(line.ledger.outcomes)
    drive(line, 5, {"cam": 50}, 60 * MS, seq)
    assert line.ledger.outcomes["expired"] == before["expired"] and line.ledger.outcomes["dropped"] == before["dropped"]
    assert line.ledger.outcomes["ok"] > before["ok"] + 20, "what is held is renewed all the time"


def test_overload_without_anything_to_leave_out_is_told_once_and_in_health(
    no_fd_leak: None, caplog: pytest.LogCaptureFixture
) -> None:
    line = Line(cameras={"sorter": {"model": "m", "deadline_ms": 100}}, degradation=RULES)
    line.engine()
    with caplog.at_level(logging.WARNING, "orind"):
        drive(line, 6, {"sorter": 50}, 40 * MS)
    relief = line.pipeline.relief
    assert relief.level is Level.FULL and relief.report()["impossible"] == {
        "1": "no camera is optional", "2": "nothing is batched", "3": "no camera allows held results"
    }
    assert relief.problem.startswith("overload, nothing more to leave out at level 0: ")
    assert sum("nothing more to leave out" in r.getMessage() for r in caplog.records) == 1
    with caplog.at_level(logging.WARNING, "orind"):
        drive(line, 30, {"sorter": 1}, 40 * MS, 1000)
    assert [r.getMessage() for r in caplog.records][-1] == "overload at level 0 has ended" and relief.problem == ""
    line.check()
    line.close()


def test_under_overload_the_engine_works_for_frames_that_are_answered_in_time(no_fd_leak: None) -> None:
    """Frames that wait all come near their deadline: those that would be late behind others must not be started."""
    line = Line(cameras={"sorter": {"model": "m", "deadline_ms": 300}}, degradation=RULES, slots=64)
    line.engine()
    drive(line, 10, {"sorter": 50}, 40 * MS)
    assert line.ledger.outcomes["ok"] >= 0.9 * 10 * 25, "25 a second are what the engine can do"
    assert line.ledger.reasons["late_answer"] <= 5
    line.check()
    line.close()


def test_a_camera_with_a_wrong_clock_is_no_overload(line: Line) -> None:
    line.engine()
    for seq in range(300):
        line.now += 20 * MS
        line.give(seq, "sorter", ts_ns=line.now - 2 * S)
        line.pipeline.dispatch(line.now)
    assert line.ledger.outcomes["expired"] == 300 and line.pipeline.relief.level is Level.FULL
    assert line.pipeline.relief.problem == ""


def test_best_effort_frames_are_no_overload(no_fd_leak: None) -> None:
    line = Line(cameras={"live": {"model": "m", "deadline_ms": 200, "priority": "best_effort"}}, degradation=RULES)
    line.engine()
    drive(line, 5, {"live": 100}, 60 * MS)
    assert line.ledger.outcomes["stale"] > 200 and line.pipeline.relief.problem == ""
    assert line.pipeline.relief.report()["load"] == 0.0
    line.close()


def test_batches_that_are_faster_are_kept_under_overload(line: Line) -> None:
    line.engine()
    for size, took in ((1, 40 * MS), (4, 60 * MS)):
        line.pipeline.times.learn("m.plan", size, 0, took, line.now)
    line.pipeline.dispatch(line.now)
    assert line.pipeline.relief.report()["impossible"] == {"2": "batches are measured to be faster"}
    line.pipeline.times.learn("m.plan", 4, 0, 150 * MS, line.now + 2 * S)
    line.now += JUDGE_NS
    line.pipeline.dispatch(line.now)
    assert line.pipeline.relief.report()["impossible"] == {}


# -- on the wire ---------------------------------------------------------------------------------------------------


def test_a_held_result_is_never_called_anything_but_degraded() -> None:
    about = {"seq": 1, "trigger": None, "age_ms": 5.0}
    parts = build_result("cam", 2, None, None, None, "degraded", "overload", held=about, boxes=ROW)
    result = parse_result(parts)
    assert result.held == about and not result.ok and np.array_equal(result.boxes, ROW)
    for outcome in ("ok", "expired"):
        with pytest.raises(ValueError, match="never"):
            build_result("cam", 2, None, None, None, outcome, held=about)
    forged = [parts[0], parts[1].replace(b'"degraded"', b'"ok"'), *parts[2:]]
    with pytest.raises(WireError, match="held"):
        parse_result(forged)
    with pytest.raises(WireError, match="held"):
        parse_result([parts[0], parts[1].replace(b'"held":{', b'"held":5,"x":{')])


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"cameras\.cam\.optional: a camera whose priority is critical"):
        config(cameras={"cam": {"model": "m", "deadline_ms": 9, "priority": "critical", "optional": True}})
    with pytest.raises(ValueError, match=r"degradation\.leave_age_percent: 80 must be below degradation\.enter_age"):
        config(degradation={"leave_age_percent": 80})
