"""A frame's way with everything real but the processes: slots, engine channels, result areas, decode pool, books.

Whatever happens to a frame, it has exactly one outcome, its slot
comes back, and the sums hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from line import ROW, Line
from stand_ins import MS, DecoderStandIn, EngineStandIn, S, config, turn

from orind.daemon.batcher import BELIEVED_NS
from orind.daemon.config import Config
from orind.daemon.engine_handle import ResultLayout
from orind.daemon.faults import Fault
from orind.daemon.orders import Fence
from orind.ipc.engine_messages import Batch as Order


@pytest.fixture
def line(no_fd_leak: None) -> Iterator[Line]:
    made = Line()
    yield made
    made.check()
    made.close()


def lines(**changes: Any) -> Line:
    return Line(**changes)


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
    ]  # fmt: skip
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
    line = lines(cameras={"cam": {"model": "m", "deadline_ms": 500, "rate_limit_hz": 1, "rate_burst": 1}})
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
    ]  # fmt: skip
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
    line = lines(batching={"max_size": 4, "window_ms": 0})
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
    assert line.handles[0].ended and "another number of frames" in line.handles[0].end_reason()
    assert [len(b.frames) for b in line.handles[0].take_in_flight()] == [1]


def test_no_more_than_the_depth_is_in_flight(line: Line) -> None:
    engine = line.engine()
    for seq in range(5):
        line.give(seq)
    line.pipeline.dispatch(line.now)
    assert [len(o.frames) for o in engine.hear()] == [1, 1]
    line.serve()
    line.pipeline.dispatch(line.now)


def test_a_full_batch_goes_and_a_part_batch_waits_for_its_window(no_fd_leak: None) -> None:
    line = lines(batching={"max_size": 4, "window_ms": 20})
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


def test_a_dead_engines_batch_is_replayed_frame_by_frame_before_everything_else(no_fd_leak: None) -> None:
    line = lines(batching={"max_size": 4, "window_ms": 0})
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


def test_a_jpeg_goes_through_a_worker_and_its_slot_is_exchanged(line: Line) -> None:
    worker = line.decoder()
    engine = line.engine()
    line.give(1, encoding="jpeg", payload=b"12345")
    (job,) = worker.hear()
    assert bytes(worker.slots.view(job.slot_in)[: job.length]) == b"12345" and line.ring.free == 6
    worker.answer(job)
    turn(line.poller, line.now)
    assert line.ring.free == 7 and line.ledger.stages["decode"].count == 1
    line.pipeline.dispatch(line.now)
    (order,) = engine.hear()
    assert order.frames[0].slot == job.slot_out and order.frames[0].encoding == "gray"
    assert (order.frames[0].width, order.frames[0].height, order.frames[0].stride) == (4, 2, 4)
    worker.die()


def test_a_refused_jpeg_is_rejected_with_the_decoders_words(line: Line) -> None:
    worker = line.decoder()
    line.give(1, encoding="jpeg", payload=b"x")
    (job,) = worker.hear()
    worker.answer(job, text="premature end of data")
    turn(line.poller, line.now)
    assert line.outcomes() == [(1, "rejected")] and line.published[0]["reason"] == "premature end of data"
    assert line.ring.free == 8
    worker.die()


def test_jpegs_leave_one_slot_to_decode_into(line: Line) -> None:
    for seq in range(8):
        line.give(seq, encoding="jpeg", payload=b"x")  # no worker yet
    assert line.outcomes() == [(7, "dropped")] and line.ring.free == 1
    worker = line.decoder()
    for _ in range(7):
        (job,) = worker.hear()
        worker.answer(job)
        turn(line.poller, line.now)
    assert line.ledger.stages["decode"].count == 7
    worker.die()


def test_a_waiting_jpeg_is_assigned_when_a_slot_is_freed(line: Line) -> None:
    line.engine()
    line.give(1, encoding="jpeg", payload=b"x")
    for seq in range(2, 9):
        line.give(seq)
    worker = line.decoder()
    assert line.ring.free == 0 and worker.hear() == []
    line.pipeline.dispatch(line.now)
    line.serve()
    (job,) = worker.hear()
    assert job.slot_out != job.slot_in
    worker.die()


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
    assert line.ledger.reasons == {"shutdown": 5} and line.decoders.idle()
    worker.die()


def test_a_large_answer_is_kept_without_its_rows(line: Line) -> None:
    big = lines(slots=4)
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


class Chaos:
    """Thousands of random events; after each of them the sums hold, in the end every trigger has one outcome."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.line = Line(slots=self.rng.choice([4, 8, 24]), batching={"max_size": 4, "window_ms": 5})
        self.workers: list[DecoderStandIn] = []
        self.orders: list[Order] = []
        self.seq = 0
        self.sent: list[tuple[int, str, int | None]] = []
        self.generation = 1

    def step(self) -> None:
        rng, line = self.rng, self.line
        line.now += rng.choice([0, 0, MS, 5 * MS, 30 * MS, 200 * MS if rng.random() < 0.1 else MS])
        event = rng.random()
        if event < 0.45:
            self.send()
        elif event < 0.70:
            self.engine_answers()
        elif event < 0.80:
            self.decoder_works()
        elif event < 0.82 and line.handles:
            line.kill()
            self.orders.clear()
        elif event < 0.88 and not line.handles:
            line.engine()
        elif event < 0.885:
            self.reload()
        elif event < 0.89 and self.workers:
            self.workers.pop().die()
        else:
            line.decoders.tick(line.now)
            for started in line.processes.of("decoder"):
                if started.fds:
                    self.workers.append(DecoderStandIn(started))
                    self.workers[-1].hello()
        turn(line.poller, line.now)
        line.pipeline.dispatch(line.now)
        line.check()
        assert line.ledger.in_flight <= line.ring.count
        assert line.ring.count - line.ring.free <= line.ledger.in_flight + len(line.decoders._workers)

    def send(self) -> None:
        rng, line = self.rng, self.line
        if self.sent and rng.random() < 0.1:
            seq, camera, stamp = rng.choice(self.sent[-20:])
            line.give(seq, camera, ts_ns=stamp)
            return
        self.seq += 1
        camera = rng.choice(["cam", "live", "live", "nobody"])
        stamp = rng.choice([None, line.now])
        if stamp is not None and camera != "nobody":
            self.sent.append((self.seq, camera, stamp))
        jpeg = {"encoding": "jpeg", "payload": b"x"} if rng.random() < 0.3 else {}
        line.give(self.seq, camera, ts_ns=stamp, deadline_ms=rng.choice([5, 50, 400]), **jpeg)

    def engine_answers(self) -> None:
        line, rng = self.line, self.rng
        if not line.handles:
            return
        stand_in = line.engines[-1]
        self.orders += stand_in.hear()
        if self.orders:
            order = self.orders.pop(0)
            rows = ["bad number" if rng.random() < 0.1 else ROW for _ in order.frames]
            stand_in.answer(order, rows, took_ns=rng.randrange(1, 40) * MS)
            line.hear(line.handles[-1])

    def decoder_works(self) -> None:
        for worker in self.workers:
            for job in worker.hear() and list(worker.jobs):
                if self.rng.random() < 0.8:
                    worker.answer(job, text="broken" if self.rng.random() < 0.2 else "")

    def reload(self) -> None:
        self.generation += 1
        cameras = {"cam": {"model": "m", "deadline_ms": 500}}
        if self.rng.random() < 0.7:
            cameras["live"] = {"model": "m2", "deadline_ms": 300, "priority": "best_effort"}
        made = config(models={"m": {"plan": "m"}, "m2": {"plan": "m"}}, cameras=cameras, batching={"max_size": 4})
        self.line.pipeline.change_generation(self.line.serving(made, self.generation), self.line.now)

    def end(self) -> None:
        line = self.line
        batches = [b for h in line.handles for b in h.take_in_flight()]
        line.pipeline.drop_all(batches, "shutting down", line.now)
        line.check()
        ledger = line.ledger
        assert ledger.in_flight == 0 and ledger.received == sum(ledger.outcomes.values())
        once = Counter(r["seq"] for r in line.published if not r.get("repeated"))
        assert set(once) == set(range(1, self.seq + 1)) and sum(once.values()) == ledger.received
        assert len(line.camera.replies) == ledger.received + ledger.repeated
        assert all(ledger.outcomes[name] for name in ("ok", "stale", "rejected", "expired", "error", "dropped"))
        for worker in self.workers:
            worker.die()
        line.close()


@pytest.mark.parametrize("seed", range(4))
def test_sums_hold_after_every_event_of_a_random_schedule(seed: int, no_fd_leak: None) -> None:
    chaos = Chaos(seed)
    for _ in range(6000):
        chaos.step()
    chaos.end()


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
