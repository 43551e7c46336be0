"""The decode workers as main sees them: given jobs, dying, hanging, talking nonsense; slots come back in time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest
from stand_ins import MS, DecoderStandIn, Processes, S, turn

from orind.daemon.decode_pool import RESPAWN_NS, START_TIMEOUT_NS, DecodePool
from orind.daemon.poller import Poller
from orind.daemon.respawn import LONGEST_NS
from orind.daemon.sections import Decode
from orind.daemon.trigger import Trigger
from orind.ipc.decode_messages import HELLO, Decoded, pack_decoded
from orind.ipc.engine_messages import STATUS_OK
from orind.ipc.slots import SlotRing

TIMEOUT_NS = 100 * MS


class Pool:
    """A pool of `workers`, and what it told the pipeline."""

    def __init__(self, workers: int = 1, slots: int = 6) -> None:
        self.now = 1 * S
        self.ring = SlotRing(slots, 4096)
        self.poller, self.processes = Poller(), Processes()
        settings = Decode(workers=workers, timeout_ms=TIMEOUT_NS / 1e6)
        self.pool = DecodePool(self.processes, self.poller, self.ring, settings)
        self.pool.receiver = self
        self.good: list[Trigger] = []
        self.bad: list[tuple[int | None, str, str, str]] = []

    def decoded(self, frame: Trigger, now_ns: int) -> None:
        self.good.append(frame)

    def undecodable(self, frame: Trigger, outcome: str, code: str, text: str, now_ns: int) -> None:
        self.bad.append((frame.seq, outcome, code, text))
        assert frame.slot is not None
        self.ring.give(frame.slot)

    def submit(self, seq: int, deadline_ns: int = 3600 * S) -> Trigger:
        frame = Trigger("cam", seq, None, None, "arrival", self.now, deadline_ns=deadline_ns, length=3)
        frame.encoding, frame.slot = "jpeg", self.ring.take()
        self.pool.submit(frame, self.now)
        return frame

    def tick(self) -> None:
        self.pool.tick(self.now)

    def turn(self) -> None:
        turn(self.poller, self.now)

    def worker(self, hello: bool = True) -> DecoderStandIn:
        """The one that was started last."""
        made = DecoderStandIn(self.processes.of("decoder")[-1])
        if hello:
            made.hello()
            self.turn()
        return made


@pytest.fixture
def pool(no_fd_leak: None) -> Iterator[Pool]:
    made = Pool()
    yield made
    made.pool.close()
    made.processes.close()
    made.ring.close()


def test_starts_the_workers_that_are_wanted_one_a_turn(no_fd_leak: None) -> None:
    pool = Pool(workers=2)
    for _ in range(4):
        pool.tick()
    assert len(pool.processes.of("decoder")) == 2
    pool.pool.close()
    pool.processes.close()
    pool.ring.close()


def test_no_job_before_the_worker_is_ready_and_one_at_a_time(pool: Pool) -> None:
    pool.submit(1)
    pool.submit(2)
    pool.tick()
    worker = pool.worker(hello=False)
    assert worker.hear() == []
    worker.hello()
    pool.turn()
    (job,) = worker.hear()
    assert (job.job, job.length) == (1, 3) and len(pool.pool) == 2
    worker.answer(job, 8, 4)
    pool.turn()
    (frame,) = pool.good
    assert frame.slot is not None and frame.slot.index == job.slot_out
    assert (frame.encoding, frame.width, frame.height, frame.stride, frame.length) == ("gray", 8, 4, 8, 32)
    assert [j.job for j in worker.hear()] == [2]
    worker.die()


def test_a_refused_picture_is_rejected_and_gives_both_slots_back(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    worker.answer(worker.hear()[0], text="12-bit JPEG")
    pool.turn()
    assert pool.bad == [(1, "rejected", "jpeg", "12-bit JPEG")] and pool.ring.free == 6 and not len(pool.pool)
    worker.die()


def test_a_worker_that_dies_is_replaced_and_its_picture_is_tried_once_more(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    pool.submit(2)
    worker.die()
    assert pool.ring.free == 3
    pool.turn()
    assert pool.bad == [] and pool.pool.deaths == 1 and pool.ring.free == 4, "both pictures wait, no target is held"
    pool.tick()
    assert len(pool.processes.of("decoder")) == 1  # not at once
    pool.now += RESPAWN_NS
    pool.tick()
    second = pool.worker()
    assert len(second.hear()) == 1
    second.die()
    pool.turn()
    assert pool.bad == [(1, "error", "decoder", "2 decode workers died of it")] and pool.pool.deaths == 2
    pool.now += 2 * RESPAWN_NS
    pool.tick()
    fresh = pool.worker()
    fresh.answer(fresh.hear()[0])
    pool.turn()
    assert [f.seq for f in pool.good] == [2]
    fresh.die()


def test_workers_that_never_serve_are_tried_ever_more_rarely_and_health_says_so(pool: Pool) -> None:
    waits = []
    for n in range(1, 9):
        waited = 0
        while len(pool.processes.of("decoder")) < n:
            pool.now += RESPAWN_NS
            waited += 1
            pool.tick()
        waits.append(waited)
        pool.worker(hello=False).die()
        pool.turn()
    assert waits == [1, 1, 2, 4, 8, 16, 32, 50] and pool.pool.problem == "no JPEG decode worker: it ended by itself"
    pool.now += LONGEST_NS
    pool.tick()
    assert pool.pool.problem, "until one is ready"
    worker = pool.worker()
    assert pool.pool.problem == ""
    worker.die()
    pool.turn()
    pool.now += RESPAWN_NS
    pool.tick()
    assert len(pool.processes.of("decoder")) == 10, "after good service the wait is short again"


def test_a_part_of_the_workers_missing_is_said_too(no_fd_leak: None) -> None:
    pool = Pool(workers=2)
    pool.tick()
    first = pool.worker()
    pool.tick()
    assert pool.pool.problem == ""
    pool.worker().die()
    pool.turn()
    assert pool.pool.problem == "1 of 2 JPEG decode workers: it ended by itself"
    first.die()
    pool.pool.close()
    pool.processes.close()
    pool.ring.close()


@pytest.mark.parametrize("what", ["make_pair", "spawn"])
def test_a_worker_that_cannot_be_asked_for_is_a_reason_not_an_end(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with monkeypatch.context() as none_left:
        if what == "spawn":
            none_left.setattr(Processes, "spawn", _no_descriptor)
        else:
            none_left.setattr("orind.daemon.decode_pool.make_pair", _no_descriptor)
        pool.tick()
        pool.tick()
    assert pool.pool.problem == "no JPEG decode worker: [Errno 24] Too many open files"
    pool.now += RESPAWN_NS
    pool.tick()
    pool.worker().die()


def _no_descriptor(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_what_a_worker_said_before_it_died_counts(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    worker.answer(worker.hear()[0])
    worker.die()
    pool.turn()
    assert [f.seq for f in pool.good] == [1] and pool.bad == [] and pool.pool.deaths == 1


def test_a_hung_worker_is_killed_and_its_slots_come_back_only_with_its_end(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    pool.now += TIMEOUT_NS
    pool.tick()
    assert not worker.started.killed
    pool.now += 1
    pool.tick()
    assert worker.started.killed
    pool.submit(2)
    assert [j.job for j in worker.hear()] == [1]  # a killed worker is given nothing
    pool.turn()
    assert pool.bad == [] and pool.ring.free == 3  # it may still be writing
    worker.die()
    pool.turn()
    assert pool.bad == [(1, "error", "decoder", "decoding took longer than 100 ms")] and pool.ring.free == 5


def test_a_killed_worker_that_answers_after_all_has_done_its_job(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    (job,) = worker.hear()
    pool.now += TIMEOUT_NS + 1
    pool.tick()
    worker.answer(job)
    worker.die()
    pool.turn()
    assert [f.seq for f in pool.good] == [1] and pool.bad == []


def test_a_worker_that_never_gets_ready_is_killed(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker(hello=False)
    pool.now += START_TIMEOUT_NS
    pool.tick()
    assert not worker.started.killed
    pool.now += 1
    pool.tick()
    assert worker.started.killed
    worker.die()
    pool.turn()
    assert pool.pool.deaths == 1 and pool.bad == []


def test_garbage_kills_the_worker_and_its_frame_is_an_error(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    worker.channel.send(b"\0" * 12)
    pool.turn()
    assert worker.started.killed and pool.ring.free == 4 and pool.bad == []
    worker.die()
    pool.turn()
    assert [b[:3] for b in pool.bad] == [(1, "error", "decoder")] and pool.bad[0][3]
    assert pool.ring.free == 6


@pytest.mark.parametrize(
    ("encoding", "width", "height", "length", "said"),
    [
        ("gray", 64, 65, 64 * 65, "4160 bytes of gray 64x65, which has 4160, in a slot of 4096"),
        ("yuv420", 64, 32, 64 * 32, "2048 bytes of yuv420 64x32, which has 3072, in a slot of 4096"),
        ("gray", 0, 3, 0, "width 0 is not between 1 and 16384"),
        ("tensor", 8, 8, 64, "shape () is not 1 to 6 positive numbers"),
    ],
)
def test_a_worker_that_claims_planes_that_its_slot_does_not_hold_is_killed(
    pool: Pool, encoding: str, width: int, height: int, length: int, said: str
) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    (job,) = worker.hear()
    worker.channel.send(pack_decoded(Decoded(job.job, STATUS_OK, width, height, length, encoding)))
    worker.channel.send(pack_decoded(Decoded(job.job, STATUS_OK, 4, 2, 8, "gray")))  # believed no more
    pool.turn()
    assert worker.started.killed and pool.ring.free == 4 and pool.good == [] == pool.bad, "it may still write"
    worker.die()
    pool.turn()
    assert pool.bad == [(1, "error", "decoder", f"it made what cannot be: {said}")] and pool.ring.free == 6


def test_an_answer_to_another_job_is_ignored(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    worker.channel.send(pack_decoded(HELLO._replace(job=77)))
    pool.turn()
    assert pool.good == [] and pool.bad == [] and len(pool.pool) == 1
    worker.die()


def test_a_picture_that_a_dead_worker_never_had_goes_to_the_next_one(pool: Pool) -> None:
    """It was killed while idle, and its end of file has not been read yet: the picture is not to blame."""
    pool.tick()
    worker = pool.worker()
    worker.die()
    frame = pool.submit(1)
    assert worker.started.killed and frame.decoder_deaths == 0
    pool.turn()
    assert not pool.bad and pool.pool.deaths == 1 and pool.ring.free == 5
    pool.now += S
    pool.tick()
    again = pool.worker()
    assert [order.job for order in again.hear()] == [2]
    again.die()


def test_every_frame_past_its_deadline_is_expired_not_only_the_first(pool: Pool) -> None:
    pool.submit(1)
    pool.submit(2, deadline_ns=pool.now + 5)
    pool.submit(3, deadline_ns=pool.now + 6)
    pool.now += 6
    pool.tick()
    assert [b[:3] for b in pool.bad] == [(2, "expired", "too_late")]
    pool.now += 1
    pool.tick()
    assert [b[0] for b in pool.bad] == [2, 3] and pool.ring.free == 5


@pytest.mark.parametrize("how", ["slot_freed", "tick"])
def test_a_frame_that_found_no_slot_to_decode_into_is_not_forgotten(pool: Pool, how: str) -> None:
    pool.tick()
    worker = pool.worker()
    others = [pool.ring.take() for _ in range(5)]
    pool.submit(1)
    assert pool.ring.free == 0 and worker.hear() == []
    assert others[0] is not None
    pool.ring.give(others[0])
    if how == "tick":
        pool.tick()
    else:
        pool.pool.slot_freed(pool.now)
    assert [j.job for j in worker.hear()] == [1]
    worker.die()


def test_take_all_leaves_nothing_and_later_words_are_ignored(pool: Pool) -> None:
    pool.tick()
    worker = pool.worker()
    pool.submit(1)
    pool.submit(2)
    assert [f.seq for f in pool.pool.take_all()] == [1, 2] and not len(pool.pool)
    worker.answer(worker.hear()[0])
    pool.turn()
    assert pool.good == [] and pool.bad == []
    worker.die()


def test_the_pool_says_so_when_nobody_receives() -> None:
    pool = Pool()
    pool.pool.receiver = None
    pool.submit(1, deadline_ns=0)
    with pytest.raises(RuntimeError, match="before the pipeline was connected"):
        pool.tick()
    pool.pool.close()
    pool.processes.close()
    pool.ring.close()
