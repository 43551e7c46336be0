"""Frames that a lost engine had, and engines that change: each frame again, alone, or poison; times by device."""

from __future__ import annotations

from line import ROW, Line
from stand_ins import MS, S

from orind.daemon.faults import Fault
from orind.daemon.orders import Fence


def test_a_dead_engines_batch_is_replayed_frame_by_frame_before_everything_else(no_fd_leak: None) -> None:
    line = Line(batching={"max_size": 4, "window_ms": 0})
    line.engine()
    for seq in range(4):
        line.give(seq)
    line.pipeline.dispatch(line.now)
    line.give(9, "live")
    line.kill()
    engine = line.engine()
    sent = []
    for _ in range(5):
        line.pipeline.dispatch(line.now)
        line.pipeline.dispatch(line.now)  # a suspect is in flight alone: nothing joins it
        (order,) = engine.hear()
        sent.append(len(order.frames))
        engine.answer(order, [ROW] * len(order.frames))
        line.hear(line.handles[-1])
    assert sent == [1] * 5 and line.outcomes() == [(0, "ok"), (1, "ok"), (2, "ok"), (3, "ok"), (9, "ok")]
    line.close()


def test_a_frame_alone_at_a_second_death_is_poison(line: Line) -> None:
    line.engine()
    line.give(1)
    line.give(2)
    line.pipeline.dispatch(line.now)
    line.kill()
    line.engine()
    line.pipeline.dispatch(line.now)
    line.give(3)
    line.pipeline.dispatch(line.now)
    line.kill("SIGSEGV again")
    assert line.outcomes() == [(1, "error")] and line.ledger.reasons == {"poison": 1}
    assert line.published[0]["reason"] == "2 engines died of it, at last with nothing else in flight (SIGSEGV again)"
    line.engine()
    for _ in range(2):
        line.pipeline.dispatch(line.now)
        line.serve()
    assert line.outcomes()[1:] == [(2, "ok"), (3, "ok")]


def test_a_frame_is_not_blamed_for_an_engine_that_was_not_lost_at_work(line: Line) -> None:
    line.engine()
    line.give(1)
    for fault in (Fault.WRONG, Fault.SLOW, Fault.SILENT, Fault.DIED, Fault.WRONG):
        line.pipeline.dispatch(line.now)
        line.kill(fault=fault)
        line.engine()
    assert line.outcomes() == []
    line.pipeline.dispatch(line.now)
    line.serve()
    assert line.outcomes() == [(1, "ok")]


def test_what_a_slow_engine_took_refuses_no_frame_of_the_next_one(line: Line) -> None:
    line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=5 * S)
    line.give(2)
    line.pipeline.dispatch(line.now)
    assert line.outcomes() == [(1, "ok"), (2, "expired")]
    line.kill(fault=Fault.SLOW)
    line.engine()
    line.give(3)
    line.pipeline.dispatch(line.now)
    line.serve()
    assert line.outcomes()[2:] == [(3, "ok")]


def test_a_suspect_that_waits_for_an_engine_expires_at_its_deadline(line: Line) -> None:
    line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.kill()
    assert line.pipeline.dispatch(line.now) == 500 * MS
    line.now += 500 * MS
    line.pipeline.dispatch(line.now)
    assert line.outcomes() == [(1, "expired")]


def test_a_late_answer_of_a_fenced_engine_changes_nothing(line: Line) -> None:
    stand_in = line.engine()
    line.give(1)
    line.pipeline.dispatch(line.now)
    (order,) = stand_in.hear()
    handle = line.handles[-1]
    batches = handle.take_in_flight()
    stand_in.answer(order, [ROW])
    line.hear(handle)
    line.pipeline.replay(batches, Fence(handle.epoch, Fault.BATCH_OVERDUE, "hung"), line.now)
    assert line.published == [] and line.ledger.in_flight == 1 and len(line.pipeline.queues.retry) == 1


def test_what_the_last_resort_answers_is_degraded_and_says_why(line: Line) -> None:
    line.engine()
    line.handles[-1].last_resort = True
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve()
    (said,) = line.published
    assert said["outcome"] == "degraded" and said["objects"]
    assert said["reason"] == "answered on the CPU as last resort: no engine on the GPU can serve"
    assert line.ledger.reasons == {"last_resort": 1}
    line.check()


def test_times_of_one_device_predict_nothing_of_another(line: Line) -> None:
    """A CPU that is slow for once must not make the GPU's frames look too late, nor the other way round."""
    line.engine()
    line.handles[-1].device = "cuda"
    line.pipeline.active = line.handles[-1]
    line.give(1)
    line.pipeline.dispatch(line.now)
    line.serve(took_ns=5 * MS)
    fast = line.pipeline.times.predict("m.plan", 1, 0)
    line.engine()
    assert line.pipeline.times.predict("m.plan", 1, 0) == 0 < fast
    line.pipeline.active = line.handles[0]
    assert line.pipeline.times.predict("m.plan", 1, 0) == fast
