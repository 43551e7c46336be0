"""A frame's way with everything real but the processes: slots, engine channels, result areas, decode pool, books.

Whatever happens to a frame, it has exactly one outcome, its slot
comes back, and the sums hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from line import ROW, Line
from stand_ins import MS, EngineStandIn, S

from orind.daemon.batcher import BELIEVED_NS
from orind.daemon.engine_handle import ResultLayout
from orind.daemon.faults import Fault


def test_a_frame_comes_back_with_its_rows_and_its_slot_is_free(line: Line) -> None:
    engine = line.engine()
    line.give(3, trigger="T3", ts_ns=line.now - 2 * MS)
    assert line.ledger.in_flight == 1 and line.ring.free == 7
    assert line.pipeline.dispatch(line.now) == 0
    (order,) = engine.hear()
    (reference,) = order.frames
    assert (order.epoch, order.model, engine.pixels(reference)) == (engine.epoch, 0, bytes(range(8)))
    line.now += 6 * MS
    engine.answer(order, [ROW])
    line.hear(line.handles[0])
    (result,) = line.published
    assert (result["camera"], result["seq"], result["trigger"], result["outcome"]) == ("cam", 3, "T3", "ok")
    assert result["objects"] == [{"label": "part", "score": 0.5, "box": [1.0, 2.0, 3.0, 4.0]}]
    assert (result["model"], result["generation"], result["latency_ms"]) == ("m", 1, {"total": 8.0})
    assert line.rows == [ROW.tobytes()] and line.ring.free == 8
    assert [(e, r["outcome"]) for e, r in line.camera.replies] == [((b"id",), "ok")]
    assert line.ledger.stages["total"].count == line.ledger.stages["engine"].count == 1


def test_a_refused_message_is_answered_to_its_sender(line: Line) -> None:
    line.give(4, width=0)
    line.give(5, "nobody")
    assert [(r["seq"], r["outcome"], r["camera"]) for r in line.published] == [
        (4, "rejected", "cam"), (5, "rejected", "nobody"),
    ]
    assert len(line.camera.replies) == 2 and line.ledger.reasons == {"bad_field": 1, "unknown_camera": 1}


def test_a_reply_that_cannot_be_delivered_is_counted(line: Line) -> None:
    line.camera.gone = True
    line.give(1, width=0)
    assert line.ledger.unroutable == 1 and line.outcomes() == [(1, "rejected")]


def test_without_a_slot_the_frame_is_dropped_at_once(line: Line) -> None:
    for seq in range(10):
        line.give(seq)
    assert line.outcomes() == [(8, "dropped"), (9, "dropped")] and line.ledger.reasons == {"no_slot": 2}
    assert "cannot keep up" in line.published[0]["reason"]


def test_rate_limit(no_fd_leak: None) -> None:
    line = Line(cameras={"cam": {"model": "m", "deadline_ms": 500, "rate_limit_hz": 1, "rate_burst": 1}})
    line.give(1)
    line.give(2)
    assert line.outcomes() == [(2, "rejected")] and line.ledger.reasons == {"rate_limit": 1}
    line.close()


def test_a_newer_best_effort_frame_makes_the_older_one_stale(line: Line) -> None:
    line.give(1, "live")
    line.give(2, "live")
    line.give(3, "cam")
    assert line.outcomes() == [(1, "stale")] and line.published[0]["reason"].startswith("a newer frame")
    assert line.ring.free == 6


def test_a_repeat_of_a_frame_in_flight_gets_the_same_answer_once_more(line: Line) -> None:
    line.engine()
    line.give(1, ts_ns=line.now)
    line.give(1, ts_ns=line.now)
    line.pipeline.dispatch(line.now)
    line.give(1, ts_ns=line.now)
    line.serve()
    assert [(r["outcome"], r.get("repeated", False)) for _, r in line.camera.replies] == [
        ("ok", False), ("ok", True), ("ok", True),
    ]
    assert line.ledger.received == 1 and line.ledger.repeated == 2
    assert len(line.published) == 1  # a repeat goes to its sender only


def test_a_repeat_of_an_answered_frame_gets_its_outcome_marked(line: Line) -> None:
    line.engine()
    stamp = line.now
    line.give(1, ts_ns=stamp)
    line.pipeline.dispatch(line.now)
    line.serve()
    line.give(1, ts_ns=stamp)
    first, second = (r for _, r in line.camera.replies)
    assert second == {**first, "repeated": True} and line.ledger.repeated == 1


def test_a_repeat_without_an_envelope_is_published(line: Line) -> None:
    stamp = line.now
    line.give(1, ts_ns=stamp, envelope=(), payload=None)
    line.pipeline.drop_all([], "shutting down", line.now)
    line.give(1, ts_ns=stamp, envelope=())
    assert [r.get("repeated", False) for r in line.published] == [False, True] and not line.camera.replies


def test_no_repeat_ever_gets_another_outcome_however_many_there_are(line: Line) -> None:
    line.engine()
    stamp = line.now
    for _ in range(1 + 64 + 2):
        line.give(1, ts_ns=stamp)
    assert line.camera.replies == [] and line.ledger.repeats_unanswered == 2
    assert line.ledger.repeated == 66 and line.ledger.received == 1
    line.pipeline.dispatch(line.now)
    line.serve()
    line.give(1, ts_ns=stamp)
    assert [r["outcome"] for _, r in line.camera.replies] == ["ok"] * (1 + 64 + 1)


def test_a_repeat_of_a_large_answer_says_that_its_rows_are_not_kept(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orind.daemon.repeats.STORED_ANSWER_BYTES", 100)
    line.engine()
    stamp = line.now
    line.give(1, ts_ns=stamp)
    line.give(1, ts_ns=stamp)
    line.pipeline.dispatch(line.now)
    line.serve()
    line.give(1, ts_ns=stamp)
    first, waited, later = (r for _, r in line.camera.replies)
    assert waited == {**first, "repeated": True}, "who waited gets all of it"
    assert later == {**first, "rows_kept": False, "repeated": True} and later["objects"]


def test_without_a_stamp_nothing_is_a_repeat(line: Line) -> None:
    line.give(1)
    line.give(1)
    assert line.ledger.received == 2 and line.ledger.repeated == 0


def test_a_deadline_that_passes_in_the_queue_is_expired(line: Line) -> None:
    line.give(1)
    assert line.pipeline.dispatch(line.now) == 500 * MS  # no engine: look again at the deadline
    line.now += 500 * MS
    line.pipeline.dispatch(line.now)
    assert line.outcomes() == [(1, "expired")] and line.ledger.reasons == {"too_late": 1}


def test_what_would_come_too_late_is_not_started(line: Line) -> None:
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=100 * MS)  # predicted from now on: 137.5 ms
    line.give(2, deadline_ms=130)
    line.give(3, deadline_ms=140)
    line.pipeline.dispatch(line.now)
    assert line.outcomes()[1:] == [(2, "expired")] and [len(o.frames) for o in engine.hear()] == [1]
    assert "needs about 137.5 ms, 130.0 ms are left" in line.published[1]["reason"]


def test_what_would_come_too_late_behind_a_running_batch_is_not_started(line: Line) -> None:
    """Else the engine works for nothing, and is blamed for being slow when it is only busy."""
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=40 * MS)  # predicted from now on: 55 ms
    line.give(2)
    line.pipeline.dispatch(line.now)
    line.now += 20 * MS
    line.give(3, deadline_ms=85)
    line.give(4, deadline_ms=95)
    line.pipeline.dispatch(line.now)
    assert line.outcomes()[1:] == [(3, "expired")] and [len(o.frames) for o in engine.hear()] == [1, 1]
    assert "needs about 55.0 ms behind 35.0 ms of other frames, 85.0 ms are left" in line.published[1]["reason"]
    line.now += 400 * MS
    line.give(5, deadline_ms=120)
    line.pipeline.dispatch(line.now)
    assert len(line.published) == 2, "a batch that is overdue says nothing of when it ends, and refuses nothing"


def test_one_slow_batch_does_not_refuse_frames_for_ever(line: Line) -> None:
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=3 * S)
    line.give(2)
    line.pipeline.dispatch(line.now)
    assert line.outcomes()[-1] == (2, "expired")
    line.now += BELIEVED_NS + 1
    line.give(3)
    line.pipeline.dispatch(line.now)
    assert [len(o.frames) for o in engine.hear()] == [1]  # tried, and then measured anew


def test_an_answer_after_the_deadline_is_expired(line: Line) -> None:
    line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.now += 501 * MS
    line.serve()
    assert line.outcomes() == [(1, "expired")] and line.published[0]["reason"] == "answered 1.0 ms after the deadline"
    assert line.ledger.reasons == {"late_answer": 1} and "objects" not in line.published[0]


def test_a_frame_fault_is_that_frames_error_only(no_fd_leak: None) -> None:
    line = Line(batching={"max_size": 4, "window_ms": 0})
    engine = line.engine()
    for seq in range(3):
        line.give(seq)
    line.pipeline.dispatch(line.now)
    (order,) = engine.hear()
    engine.answer(order, [ROW, "not finite", ROW[:0]])
    line.hear(line.handles[0])
    assert line.outcomes() == [(0, "ok"), (1, "error"), (2, "ok")]
    assert line.published[1]["reason"] == "not finite" and line.published[2]["objects"] == []
    line.check()
    line.close()


@pytest.mark.parametrize("lie", ["rows", "nan"])
def test_an_answer_that_cannot_be_is_an_error_and_the_engine_is_distrusted(line: Line, lie: str) -> None:
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    (order,) = engine.hear()
    rows = ROW * np.float32(np.nan) if lie == "nan" else ROW
    engine.answer(order, [rows], announced=1000 if lie == "rows" else None)
    line.hear(line.handles[0])
    assert line.outcomes() == [(1, "error")] and "cannot be used" in line.published[0]["reason"]
    assert "cannot be used" in line.handles[0].broken and line.ring.free == 8


def test_a_distrusted_engine_gets_no_more_frames_to_be_blamed_for(line: Line) -> None:
    """The next tick loses it; what waits then is for the next engine, and bears no guilt."""
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    (order,) = engine.hear()
    line.give(2)
    engine.answer(order, [ROW * np.float32(np.nan)])
    line.hear(line.handles[0])
    line.pipeline.dispatch(line.now)
    assert engine.hear() == [] and len(line.pipeline.queues) == 1
    line.kill("its answer cannot be used", Fault.UNTRUSTED)
    line.engine()
    line.pipeline.dispatch(line.now)
    line.serve()
    assert line.outcomes() == [(1, "error"), (2, "ok")]


def test_an_engine_that_takes_no_message_gets_one_only(line: Line) -> None:
    line.engine()
    line.engines[0].die()
    for seq in range(3):
        line.give(seq)
    line.pipeline.dispatch(line.now)
    assert [len(b.frames) for b in line.handles[0].in_flight.values()] == [1] and len(line.pipeline.queues) == 2


def test_an_answer_of_another_epoch_is_not_looked_at(line: Line) -> None:
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    (order,) = engine.hear()
    engine.epoch += 1
    engine.answer(order, [ROW])
    line.hear(line.handles[0])
    assert line.published == [] and line.ledger.in_flight == 1


def test_an_answer_with_another_number_of_frames_ends_the_engine(line: Line) -> None:
    engine = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    (order,) = engine.hear()
    engine.answer(order, [ROW, ROW])
    line.hear(line.handles[0])
    assert "another number of frames" in line.handles[0].end_reason()
    assert line.handles[0].ended and [len(b.frames) for b in line.handles[0].in_flight.values()] == [1]


def test_no_more_than_the_depth_is_in_flight(line: Line) -> None:
    engine = line.engine()
    for seq in range(5):
        line.give(seq)
    line.pipeline.dispatch(line.now)
    assert [len(o.frames) for o in engine.hear()] == [1, 1]
    line.serve()
    line.pipeline.dispatch(line.now)


def test_a_full_batch_goes_and_a_part_batch_waits_for_its_window(no_fd_leak: None) -> None:
    line = Line(batching={"max_size": 4, "window_ms": 20})
    engine = line.engine()
    for seq in range(5):
        line.give(seq)
    assert line.pipeline.dispatch(line.now) == 20 * MS
    assert [len(o.frames) for o in engine.hear()] == [4]
    line.now += 20 * MS
    line.pipeline.dispatch(line.now)
    assert [len(o.frames) for o in engine.hear()] == [1]
    line.close()


def test_pacing_spaces_the_starts(line: Line) -> None:
    engine = line.engine()
    line.pipeline.pace_ns = 100 * MS
    line.give(1)
    line.give(2)
    assert line.pipeline.dispatch(line.now) == 100 * MS
    assert len(engine.hear()) == 1
    line.now += 100 * MS
    line.pipeline.dispatch(line.now)
    assert len(engine.hear()) == 1


def test_drop_all_answers_everything_that_is_left(line: Line) -> None:
    worker = line.decoder()
    line.engine()
    for seq in (1, 2, 3):
        line.give(seq)
    line.give(4, encoding="jpeg", payload=b"x")
    line.give(5, encoding="jpeg", payload=b"x")
    line.pipeline.dispatch(line.now)
    line.pipeline.drop_all(line.handles[0].take_in_flight(), "shutting down", line.now)
    assert sorted(line.outcomes()) == [(n, "dropped") for n in range(1, 6)]
    assert {r["reason"] for r in line.published} == {"shutting down"} and line.ledger.in_flight == 0
    assert line.ledger.reasons == {"shutdown": 5} and not len(line.decoders)
    worker.die()


def test_a_large_answer_is_kept_without_its_rows(line: Line) -> None:
    big = Line(slots=4)
    handle = big.launcher.launch(big.config, "cpu", [], ResultLayout(1, 60_000, 1), lambda epoch, text: None)
    engine = EngineStandIn(big.processes.of("engine")[-1])
    big.handles, big.engines, big.pipeline.active = [handle], [engine], handle
    big.give(1, ts_ns=big.now)
    big.pipeline.dispatch(big.now)
    (order,) = engine.hear()
    engine.answer(order, [np.repeat(ROW, 10_000, axis=0)])
    big.hear(handle)
    stamp = big.now
    big.give(1, ts_ns=stamp, envelope=())
    assert big.published[-1]["repeated"] and big.rows[-1] == b"" and len(big.rows[0]) == 240_000
    big.close()


def test_a_camera_that_triggers_once_in_ten_minutes_is_served_each_time() -> None:
    """Whatever was measured, counted or held ten minutes ago refuses nothing now, in whatever mode."""
    cameras: dict[str, Any] = {
        "cam": {"model": "m", "deadline_ms": 500, "rate_limit_hz": 1, "rate_burst": 1},
        "live": {"model": "m", "deadline_ms": 500, "priority": "best_effort", "degraded": "held"},
    }
    for batching in ({"max_size": 1}, {"max_size": 4, "window_ms": 20}, {"max_size": 4, "mode": "fixed"}):
        line = Line(cameras=cameras, batching=batching)
        line.engine()
        for visit in range(60):
            line.now += 600 * S
            camera = ("cam", "live")[visit % 2]
            line.give(visit, camera, ts_ns=line.now - 2 * MS)
            for _ in range(3):
                wait_ns = line.pipeline.dispatch(line.now)
                line.now += wait_ns
            # mostly so slow that the next frame would be refused, were it to come soon
            line.now += 10 * MS
            line.serve(took_ns=3 * S if visit % 3 else 10 * MS)
        assert line.outcomes() == [(visit, "ok") for visit in range(60)]
        assert line.pipeline.relief.problem == ""
        line.check()
        line.close()
