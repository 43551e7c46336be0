"""A generation with engines that the test plays: what they say is heard, what the machine decides is carried out."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator

import numpy as np
import pytest
from stand_ins import MS, EngineStandIn, Processes, S, config, turn

from orind.daemon import engine_handle, memory_report
from orind.daemon.batcher import FAR_SLOWER, SLOWER
from orind.daemon.engine_handle import Batch, EngineHandle, Launcher
from orind.daemon.failover import Failover
from orind.daemon.faults import Fault
from orind.daemon.generation import Generation
from orind.daemon.orders import Fence, Retire
from orind.daemon.placement import to_text
from orind.daemon.plans import ServedPlan
from orind.daemon.poller import Poller
from orind.daemon.restarts import RESPAWN_AFTER_NS
from orind.daemon.standing import Standing, rules_of
from orind.daemon.trigger import Trigger
from orind.ipc import engine_messages as messages
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.errors import IpcError
from orind.ipc.slots import SlotRing
from orind.kernels.memory.reservation import HostReservation
from orind.kernels.model import Interface
from orind.kernels.placement import Placement
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

DETECT = ModelSpec("m", "detect", ("a",), (1, 4), InputSpec(), DecoderSpec(kind="yolo"))
ROW = np.ones((1, 6), np.float32)
BUDGET = {"engine": {"restart_budget": 2, "golden_interval_s": 6, "ready_timeout_s": 5}}


class Stage:
    """A generation and its owner."""

    def __init__(self) -> None:
        self.now = 100 * S
        self.poller, self.processes = Poller(), Processes()
        self.ring = SlotRing(8, 8192)
        interface = Interface("int8", (8, 8, 3), 100, 6, ())
        plan = ServedPlan("m", os.memfd_create("plan"), "m.plan", "00", 1, DETECT, interface)
        self.generation = Generation(
            1, config(**BUDGET), [plan], Launcher(self.processes, self.ring), self.poller, self, StampPolicy()
        )
        self.answers: list[tuple[int, list[int | None]]] = []
        self.lost: list[tuple[list[list[int | None]], Fault, str]] = []
        self.slowdown = 1.0
        self.let_go: list[tuple[list[list[int | None]], str]] = []
        self.active: list[int] = []
        self.engines: dict[int, EngineStandIn] = {}

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        batch.slowdown = self.slowdown
        self.answers.append((engine.epoch, [f.seq for f in batch.frames]))

    def fenced(self, generation: Generation, batches: list[Batch], order: Fence | Retire, now_ns: int) -> None:
        assert generation.active is None or generation.active.epoch != order.epoch
        if isinstance(order, Retire):
            self.let_go.append(([[f.seq for f in b.frames] for b in batches], order.reason))
            return
        self.lost.append(([[f.seq for f in b.frames] for b in batches], order.fault, order.reason))

    def promoted(self, generation: Generation, now_ns: int) -> None:
        assert generation.active is not None
        self.active.append(generation.active.epoch)

    def start(self) -> None:
        self.generation.start(self.now)
        self.meet()

    def meet(self) -> None:
        for started in self.processes.of("engine"):
            if started.fds:
                made = EngineStandIn(started)
                self.engines[made.epoch] = made

    def serve(self) -> None:
        """Both ready: 1 active, 2 standby."""
        self.start()
        for engine in self.engines.values():
            engine.ready()
            self.turn()
        self.active.clear()

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.generation.tick(self.now)
        self.meet()

    def beat(self, *but: int) -> None:
        for epoch, engine in self.engines.items():
            if epoch not in but and engine.alive and epoch in self.generation.handles:
                engine.beat()

    def send(self, seq: int, deadline_ns: int = 1_000 * S, replayed: bool = False) -> None:
        frame = Trigger("cam", seq, None, None, "arrival", self.now, encoding="mono8", width=1, height=1, length=1)
        frame.deadline_ns, frame.replayed = deadline_ns, replayed
        frame.slot = self.ring.take()
        assert self.generation.active is not None
        self.generation.active.send_batch(self.generation.serving().plans["m"], 1, [frame], self.now)

    def close(self) -> None:
        self.generation.close()
        for engine in self.engines.values():
            engine.die()
        self.processes.close()
        self.ring.close()


@pytest.fixture
def stage(no_fd_leak: None) -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def test_two_engines_are_started_and_the_first_ready_one_serves(stage: Stage) -> None:
    stage.start()
    assert sorted(stage.engines) == [1, 2] and stage.generation.active is None
    stage.engines[2].ready()
    stage.turn()
    assert stage.active == [2] and stage.lost == []
    stage.send(5)
    (order,) = stage.engines[2].hear()
    stage.engines[2].answer(order, [ROW])
    stage.turn(MS)
    assert stage.answers == [(2, [5])] and not stage.generation.frames_in_flight()


PLACED = Placement(5, (("a", "MaxPool"), ("b", "MaxPool"), ("c", "Unary")), 2)


def test_which_steps_run_on_the_cpu_is_kept_and_logged_once_an_engine(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orind")
    stage.start()
    assert stage.generation.placements == {}
    for engine in stage.engines.values():
        engine.say(messages.pack_placed(0, to_text(0, PLACED, 1)))
        engine.ready()
        stage.turn()
    assert stage.generation.placements == {
        "m": {
            "steps": 5, "cpu_steps": 3, "gpu_segments": 2,
            "on_cpu": {"MaxPool": {"count": 2, "names": ["a", "b"]}, "Unary": {"count": 1, "names": ["c"]}},
        }
    }
    said = [r.getMessage() for r in caplog.records if "model m" in r.getMessage()]
    assert said == [
        f"generation 1: engine {epoch}: model m: 3 of 5 steps run on the CPU (2 MaxPool, 1 Unary), 2 GPU segments"
        for epoch in (1, 2)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", to_text(1, PLACED, 1), to_text(0, PLACED, 1).replace("5", '"5"', 1),
        to_text(0, PLACED, 1).replace('"a"', "1"), to_text(0, PLACED, 1).replace('"names"', '"name"'),
    ],
)
def test_a_placement_that_cannot_be_read_ends_the_engine(stage: Stage, text: str) -> None:
    stage.start()
    stage.engines[1].say(messages.pack_placed(0, text))
    stage.turn()
    assert 1 not in stage.generation.handles and stage.generation.placements == {}


def test_what_a_lost_engine_said_of_its_memory_is_not_kept(stage: Stage) -> None:
    """Both lie there when main looks: the golden answer is wrong, and the memory is in pieces."""
    stage.serve()
    stage.engines[2].say(messages.pack_golden(0, ok=False, text="output 'scores' differs"))
    stage.engines[2].say(messages.pack_memory(0, memory_text(20)))
    stage.turn()
    assert 2 not in stage.generation.handles and stage.generation.machine.losses == {Fault.WRONG: 1}
    assert stage.generation.memory.table(2) is None and stage.generation.memory.problems() == []


def memory_text(percent: float) -> str:
    fields = json.loads(memory_report.to_text(HostReservation(1 << 20, 0)))
    return json.dumps({**fields, "free": 1000 << 20, "largest_free": round((1000 - 10 * percent) * (1 << 20))})


def test_an_engine_whose_memory_falls_to_pieces_is_renewed_through_the_standby(stage: Stage) -> None:
    stage.start()
    for engine in stage.engines.values():
        engine.say(messages.pack_memory(0, memory_text(1)))
        engine.ready()
        stage.turn()
    assert stage.generation.memory.table(1) is not None and stage.active == [1]
    stage.send(5)
    stage.engines[1].say(messages.pack_memory(0, memory_text(20)))
    stage.turn()
    assert stage.active == [1] and stage.generation.memory.problems() == [
        "engine 1: 20.0 % of its free memory is in pieces, the limit is 15 %"
    ], "not while it works"
    (order,) = stage.engines[1].hear()
    stage.engines[1].answer(order, [ROW])
    stage.turn()
    assert stage.active == [1, 2] and 1 not in stage.generation.handles and 3 in stage.generation.handles
    assert (stage.lost, stage.generation.machine.renewals, stage.generation.machine.losses) == ([], 1, {})
    assert stage.generation.memory.table(1) is None and stage.generation.memory.problems() == []


def test_a_report_of_memory_that_cannot_be_read_ends_the_engine(stage: Stage) -> None:
    stage.start()
    stage.engines[1].say(messages.pack_memory(0, "{}"))
    stage.turn()
    assert 1 not in stage.generation.handles
    assert "it tells of its memory what cannot be read" in stage.lost[0][2]


def test_serving_is_what_the_plans_and_the_configuration_say(stage: Stage) -> None:
    serving = stage.generation.serving()
    assert (serving.generation, serving.depth, serving.rule.window_ns, serving.rule.max_size) == (1, 2, 5 * MS, 1)
    assert serving.plans["m"].sizes == (1,) and serving.plans["m"].labels.names == ("a",)


def test_result_memory_is_as_large_as_what_is_served_can_ever_use(stage: Stage) -> None:
    """The plan could also be run with batches of 4, but batching.max_size is 1."""
    assert stage.generation.plans[0].spec.batch == (1, 4)
    stage.start()
    assert stage.engines[1].start["results"] == [2, 1, 600, 1]


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


def test_a_retired_generation_starts_nothing_and_ends_with_its_last_answer(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    stage.generation.retire()
    assert stage.generation.frames_in_flight() == 1
    stage.engines[2].die()
    stage.turn(S)
    assert sorted(stage.generation.handles) == [1] and len(stage.processes.started) == 2
    (order,) = stage.engines[1].hear()
    stage.engines[1].answer(order, [ROW])
    stage.turn()
    assert not stage.generation.frames_in_flight() and stage.generation.machine.engines[1].standing is Standing.ACTIVE


def test_what_is_in_flight_can_be_taken_back(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    stage.send(2)
    assert [[f.seq for f in b.frames] for b in stage.generation.take_in_flight()] == [[1], [2]]
    assert not stage.generation.frames_in_flight()


def test_rules_are_the_configurations_times() -> None:
    rules = rules_of(config(engine={"heartbeat_missed_ms": 200, "golden_interval_s": 4, "restart_budget": 7}))
    assert (rules.heartbeat_missed_ns, rules.golden_interval_ns, rules.restart_budget) == (200 * MS, 4 * S, 7)
    assert (rules.batch_watchdog_ns, rules.ready_timeout_ns, rules.restart_window_ns) == (2 * S, 60 * S, 60 * S)


def test_busy_time_of_an_engine_counts_once(stage: Stage) -> None:
    stage.serve()
    handle = stage.generation.handles[1]
    stage.send(1)
    (order,) = stage.engines[1].hear()
    stage.engines[1].answer(order, [ROW])
    stage.turn(7 * MS)
    assert handle.take_busy_ns() == 7 * MS and handle.take_busy_ns() == 0 and handle.running_since_ns == 0


def test_how_an_engine_ended() -> None:
    stage = Stage()
    stage.start()
    handle = stage.generation.handles[1]
    assert handle.pid == 1_000_001 and handle.end_reason() == "its process ended"
    assert handle.child is not None
    handle.child.status = -11
    assert handle.end_reason() == "its process ended with status -11"
    stage.close()


def test_each_engine_runs_on_the_device_of_its_seat_and_the_last_resort_on_the_cpu(stage: Stage) -> None:
    engine = {**BUDGET["engine"], "device": "cuda"}
    stage.generation.config = made = config(engine=engine, standby={"device": "cuda:1", "last_resort": "cpu"})
    stage.generation.machine = Failover(rules_of(made))
    stage.serve()
    assert {epoch: handle.device for epoch, handle in stage.generation.handles.items()} == {1: "cuda", 2: "cuda:1"}
    stage.send(7)
    for epoch in (1, 2):
        stage.engines[epoch].die()
    stage.turn()
    stage.turn()
    last = stage.engines[max(stage.engines)]
    assert last.start["device"] == "cpu"
    last.ready()
    stage.turn()
    assert stage.generation.active is not None and stage.generation.active.last_resort
    stage.send(8)
    stage.turn(S)
    again = stage.engines[max(stage.engines)]
    assert again.start["device"] == "cuda"
    again.ready()
    stage.turn()
    assert stage.generation.active.epoch == again.epoch and not stage.generation.active.last_resort
    assert stage.let_go == [([[8]], "an engine of the pair serves again")]
