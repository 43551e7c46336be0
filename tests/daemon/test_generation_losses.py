"""How a generation loses engines: what each kind of fault makes of the frames in flight and of the standby."""

from __future__ import annotations

import errno
import os

import pytest
from stage import ROW, Stage
from stand_ins import MS, S

from orind.daemon import engine_handle
from orind.daemon.batcher import FAR_SLOWER, SLOWER
from orind.daemon.engine_handle import EngineHandle, Launcher
from orind.daemon.faults import Fault
from orind.daemon.restarts import RESPAWN_AFTER_NS
from orind.ipc import engine_messages as messages
from orind.ipc.errors import IpcError


def test_end_of_file_takes_the_frames_back_and_promotes_the_standby(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    stage.send(2)
    order = stage.engines[1].hear()[0]
    stage.engines[1].answer(order, [ROW])
    stage.engines[1].die()
    stage.turn(MS)
    assert stage.answers == [(1, [1])], "what it answered before it died counts"
    assert stage.lost == [([[2]], Fault.DIED, "its process ended")] and stage.active == [2]
    assert stage.processes.started[0].killed and sorted(stage.generation.handles) == [2]
    assert stage.generation.machine.failovers == 1
    stage.beat()
    stage.turn(2 * MS + RESPAWN_AFTER_NS)
    assert sorted(stage.generation.handles) == [2, 3], "another one comes when the standby has had its time"


def test_a_fatal_signal_is_known_from_the_fault_pipe_before_the_end_of_file(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    os.write(stage.engines[1].fault_fd, b"Fatal Python error: Segmentation fault\n\nCurrent thread\n")
    stage.turn()
    assert stage.lost == [([[1]], Fault.DIED, "Fatal Python error: Segmentation fault")]
    assert stage.generation.active is not None and stage.generation.active.epoch == 2


def test_an_empty_fault_pipe_that_closes_says_nothing(stage: Stage) -> None:
    stage.serve()
    handle = stage.generation.handles[2]
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, stage.engines[2].fault_fd)
    os.close(null)
    stage.turn()
    assert 2 in stage.generation.handles and handle.read_fault_pipe() is None


def test_what_comes_in_pieces_through_the_fault_pipe_is_read_whole(stage: Stage) -> None:
    """As faulthandler writes it: the reason without the signal's name would say nothing."""
    stage.serve()
    for piece in (b"Fatal Python error: ", b"Segmentation fault"):
        os.write(stage.engines[1].fault_fd, piece)
        stage.turn()
        assert stage.lost == []
    os.write(stage.engines[1].fault_fd, b"\n\n")
    stage.turn()
    assert stage.lost == [([], Fault.DIED, "Fatal Python error: Segmentation fault")]


def test_a_fault_pipe_without_an_end_of_line_is_bounded(stage: Stage) -> None:
    stage.serve()
    os.write(stage.engines[1].fault_fd, b"x" * engine_handle.FAULT_TEXT_BYTES)
    stage.turn()
    assert [(fault, len(reason)) for _, fault, reason in stage.lost] == [(Fault.DIED, engine_handle.FAULT_TEXT_BYTES)]


@pytest.mark.parametrize(
    ("said", "fault", "reason"),
    [
        (messages.pack_fault(0, "CUDA error 700"), Fault.REPORTED, "it reports: CUDA error 700"),
        (messages.pack_golden(0, False, "step conv_1"), Fault.WRONG, "wrong golden answer: step conv_1"),
        (b"\1\2\3", Fault.UNTRUSTED, "datagram of 3 bytes: not a message of ours"),
    ],
)
def test_what_it_says_can_end_it(stage: Stage, said: bytes, fault: Fault, reason: str) -> None:
    stage.serve()
    stage.send(1)
    stage.engines[1].say(said)
    stage.turn()
    assert stage.lost == [([[1]], fault, reason)] and stage.active == [2]


def test_a_silent_standby_is_fenced_a_beating_one_is_not(stage: Stage) -> None:
    stage.serve()
    for _ in range(5):
        stage.beat(2)
        stage.turn(50 * MS)
    assert 2 not in stage.generation.handles and stage.generation.active is not None
    assert stage.lost == [([], Fault.SILENT, "no heartbeat for 150 ms")] and stage.active == []


def test_a_late_main_gives_up_no_engine_that_has_spoken(stage: Stage) -> None:
    stage.serve()
    stage.beat()
    stage.now += 10 * S  # main slept
    stage.generation.tick(stage.now)
    assert sorted(stage.generation.handles) == [1, 2] and stage.lost == []


def test_a_hung_batch_ends_at_its_watchdog(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    for _ in range(20):
        stage.beat(1)
        stage.turn(100 * MS)
    assert stage.generation.active is not None and stage.generation.active.epoch == 1
    stage.beat(1)
    stage.turn(MS)
    assert stage.lost[0] == ([[1]], Fault.BATCH_OVERDUE, "batch over its watchdog of 2000 ms")


@pytest.mark.parametrize(("replayed", "slowdown"), [(False, 3.0), (True, 3.0), (False, 1.1)])
def test_late_answers_are_the_engines_slowness_where_it_is_slower_and_got_the_frame_in_good_time(
    stage: Stage, replayed: bool, slowdown: float
) -> None:
    """A camera whose deadline is tighter than what the engine always takes must not cost engines."""
    stage.serve()
    stage.slowdown = slowdown
    at_fault = not replayed and slowdown > SLOWER
    for seq in range(7):
        stage.send(seq, deadline_ns=stage.now + 30 * MS, replayed=replayed and seq > 0)
        (order,) = stage.engines[1].hear()
        stage.turn(10 * MS)
        stage.engines[1].answer(order, [ROW], ended_ns=stage.now + (0 if seq == 0 else 21 * MS))
        stage.beat(1)
        stage.turn(21 * MS)
        if 1 not in stage.generation.handles:
            break
    slow = (Fault.SLOW, "3 batches in a row answered late or far slower than usual")
    assert [lost[1:] for lost in stage.lost] == ([slow] if at_fault else [])
    assert len(stage.answers) == (4 if at_fault else 7)


def test_far_slower_than_usual_is_slow_without_a_late_answer(stage: Stage) -> None:
    stage.serve()
    for seq in range(4):
        stage.slowdown = 1.0 if seq == 0 else FAR_SLOWER + 1.0
        stage.send(seq)
        (order,) = stage.engines[1].hear()
        stage.engines[1].answer(order, [ROW])
        stage.turn()
    assert [lost[1] for lost in stage.lost] == [Fault.SLOW]


def test_a_start_that_fails_after_the_generation_was_given_up_changes_nothing(stage: Stage) -> None:
    stage.start()
    children = [started.child for started in stage.processes.of("engine")]
    stage.generation.close()
    for child in children:
        assert child.on_failed is not None
        child.on_failed("no memory")
    assert not stage.lost and not stage.generation.machine.losses


def test_the_standby_is_asked_for_its_golden_answer(stage: Stage) -> None:
    stage.serve()
    for _ in range(31):
        stage.beat()
        stage.turn(100 * MS)
    stage.engines[2].hear()
    assert stage.engines[2].checks == 1
    stage.engines[2].say(messages.pack_golden(0, True))
    stage.turn()
    assert stage.generation.machine.engines[2].golden_ns == stage.now


def test_an_engine_that_takes_no_message_is_lost(stage: Stage) -> None:
    stage.serve()
    active = stage.generation.active
    assert active is not None
    while not active.broken:
        active.check(stage.now)
    assert active.broken == "its channel is closed or full"
    stage.beat()
    stage.generation.tick(stage.now)
    assert stage.lost[0] == ([], Fault.UNTRUSTED, "its channel is closed or full")


def test_an_answer_that_cannot_be_ends_the_engine_at_the_next_tick(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    stage.generation.handles[1].distrust("its answer cannot be used")
    stage.turn()
    assert stage.lost[0] == ([[1]], Fault.UNTRUSTED, "its answer cannot be used")


def test_a_spawn_that_failed_in_the_nursery_is_a_loss(stage: Stage) -> None:
    stage.start()
    child = stage.processes.started[0].child
    assert child.on_failed is not None
    child.on_failed("cannot start engine: no memory")
    assert sorted(stage.generation.handles) == [2]
    stage.turn(S)
    assert sorted(stage.generation.handles) == [2, 3]


def test_a_spawn_that_main_cannot_even_prepare_is_tried_again_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> EngineHandle:
        raise IpcError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(Launcher, "launch", refuse)
        stage.start()
    assert not stage.generation.handles and not stage.generation.machine.failed
    stage.turn(S)
    stage.turn()
    assert len(stage.generation.handles) == 2


@pytest.mark.parametrize("what", ["make_pair", "pipe2", "dup", "spawn"])
def test_an_engine_that_cannot_be_launched_leaves_nothing_open(
    no_fd_leak: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    stage = Stage()

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        owner = {"make_pair": engine_handle, "spawn": stage.processes}.get(what, os)
        short.setattr(owner, what, none_left)
        stage.generation.start(stage.now)
    assert not stage.generation.handles
    assert stage.generation.machine.restarts.last_loss.endswith("Too many open files")
    stage.close()


def test_out_of_restarts_is_failed(stage: Stage) -> None:
    stage.serve()
    for epoch in (1, 2, 3):
        stage.engines[epoch].die()
        stage.turn(S)
    assert stage.generation.machine.failed.startswith("3 engines lost within 60 s")
    started = len(stage.processes.started)
    for _ in range(50):
        stage.turn(S)
    assert len(stage.processes.started) == started
