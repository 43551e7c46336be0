"""Pictures on their way through a decode worker: their slots, their refusals."""

from __future__ import annotations

from line import Line
from stand_ins import turn


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
