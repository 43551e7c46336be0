"""The engine loop in this process over a real socket pair: with a model that fails on command, and with a real plan."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from orind.daemon import engine, memory_report
from orind.daemon.engine_loop import EngineLoop
from orind.daemon.placement import from_text
from orind.ipc import engine_messages as messages
from orind.ipc.channel import Channel
from orind.ipc.message_text import Kind
from orind.ipc.results import ResultArea
from orind.ipc.slots import SlotReader, SlotRing
from orind.kernels.devices import open_device
from orind.kernels.ir.errors import DeviceFault, GoldenMismatch, ProgramError
from orind.kernels.memory.reservation import HostReservation, Reservation
from orind.kernels.model import FrameFault, Interface
from orind.kernels.picture import Picture
from orind.kernels.placement import Placement

END_S = 30.0
NEVER_MS = 60_000.0


class Stub:
    """A model that answers each picture with its first byte, refuses those that begin with 255, and can be wrong."""

    def __init__(self) -> None:
        self.wrong = ""
        self.closed = False
        self.seen: list[Picture] = []
        self.preprocessed_ns = 11
        self.executed_ns = 22
        self.interface = Interface("uint8", (8,), 4, 6, ())
        self.placement: Placement | None = None

    def run(self, pictures: Sequence[Picture], targets: Sequence[NDArray[np.float32]]) -> list[int | FrameFault]:
        self.seen += pictures
        outcomes: list[int | FrameFault] = []
        for picture, target in zip(pictures, targets, strict=True):
            first = int(memoryview(picture.data)[0])
            target[0] = first
            outcomes.append(FrameFault("not finite") if first == 255 else 1)
        return outcomes

    def golden(self) -> None:
        if self.wrong:
            raise GoldenMismatch("conv_3", f"conv_3: {self.wrong}")

    def close(self) -> None:
        self.closed = True


class Bench:
    """Main's end of one engine loop that runs in a thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(END_S)
        self.sock = ours
        self.theirs = theirs
        self.ring = SlotRing(4, 16_384)
        self.results = ResultArea(2, 4, 24, 1)
        self.model = Stub()
        self.proved: list[bool] = []
        self.exit: list[int] = []
        self.thread: threading.Thread | None = None

    def loop(
        self, heartbeat_ms: float = NEVER_MS, memory: Reservation | None = None, device_name: str = ""
    ) -> EngineLoop:
        slots = SlotReader(self.ring.readonly_fd(), 4, 16_384)
        area = ResultArea(2, 4, 24, 1, self.results.writable_fd())
        self.children = slots, area
        channel = Channel(self.theirs, blocking=True)
        return EngineLoop(channel, slots, area, [self.model], heartbeat_ms, memory, device_name)

    def start(self, loop: EngineLoop) -> None:
        self.thread = threading.Thread(target=lambda: self.exit.append(loop.run(lambda: self.proved.append(True))))
        self.thread.start()

    def said(self) -> messages.Batch | messages.Answer | messages.Notice:
        try:
            return messages.unpack(self.sock.recv(65_536))
        except ConnectionResetError:  # the kernel says so before the last words of a peer that left something unread
            return messages.unpack(self.sock.recv(65_536))

    def notice(self) -> messages.Notice:
        message = self.said()
        assert isinstance(message, messages.Notice)
        return message

    def frame(self, first: int, model: int = 0) -> messages.FrameRef:
        slot = self.ring.take()
        assert slot is not None
        self.ring.view(slot)[:8] = bytes([first, *range(7)])
        return messages.FrameRef(slot.index, 8, 4, 2, 4, "mono8")

    def batch(self, number: int, *frames: messages.FrameRef, area: int = 0) -> messages.Answer:
        self.sock.send(messages.pack_batch(messages.Batch(number, 7, 0, area, frames)))
        answer = self.said()
        assert isinstance(answer, messages.Answer)
        return answer

    def end(self) -> int:
        assert self.thread is not None
        self.thread.join(END_S)
        assert not self.thread.is_alive()
        return self.exit[0]

    def close(self) -> None:
        self.sock.close()
        if self.thread is not None:
            self.thread.join(END_S)
        self.theirs.close()
        self.model.seen.clear()
        for child in getattr(self, "children", ()):
            child.close()
        self.results.close()
        self.ring.close()


@pytest.fixture
def bench(no_fd_leak: None) -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_ready_comes_after_the_golden_check_then_batches_are_answered(bench: Bench) -> None:
    bench.start(bench.loop())
    assert bench.notice().kind is Kind.READY
    answer = bench.batch(5, bench.frame(9), bench.frame(255), bench.frame(3), area=1)
    assert (answer.batch_id, answer.epoch, answer.area) == (5, 7, 1)
    assert [(f.status, f.rows, f.detail) for f in answer.frames] == [
        (messages.STATUS_OK, 1, ""), (messages.STATUS_ERROR, 0, "not finite"), (messages.STATUS_OK, 1, ""),
    ]
    assert bench.results.read(1, 0, 5, 1, 6).tolist() == [[9.0] * 6] and bench.results.read(1, 2, 5, 1, 6)[0, 0] == 3
    assert (answer.t_pre_ns, answer.t_run_ns) == (11, 22) and answer.t_start_ns <= answer.t_end_ns
    (picture, *_) = bench.model.seen
    assert (picture.encoding, picture.width, picture.height, picture.stride) == ("mono8", 4, 2, 4)
    assert memoryview(picture.data).readonly, "an engine cannot write into a slot"


def test_what_a_gpu_leaves_to_the_cpu_is_told_before_ready(bench: Bench) -> None:
    bench.model.placement = Placement(3, (("pool", "MaxPool"),), 1)
    bench.start(bench.loop(device_name="Orin"))
    told = bench.notice()
    assert told.kind is Kind.PLACED
    assert from_text(told.text) == (
        0,
        {"steps": 3, "cpu_steps": 1, "gpu_segments": 1, "on_cpu": {"MaxPool": {"count": 1, "names": ["pool"]}}},
    )
    ready = bench.notice()
    assert ready.kind is Kind.READY and ready.text == "Orin", "the device's own name"
    bench.sock.shutdown(socket.SHUT_WR)
    assert bench.end() == 0


def test_memory_is_told_first_and_then_only_when_it_has_changed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orind.daemon.engine_loop.MEMORY_EVERY_NS", 0)
    memory = HostReservation(1 << 20, 0)
    block = memory.take(5000, "m: weights")
    bench.start(bench.loop(heartbeat_ms=1, memory=memory))
    said = [bench.notice() for _ in range(20)]
    assert [notice.kind for notice in said] == [Kind.MEMORY, Kind.READY, *[Kind.HEARTBEAT] * 18]
    memory.give_back(block)
    said = [bench.notice() for _ in range(20)]
    (told,) = [notice for notice in said if notice.kind is Kind.MEMORY]
    assert memory_report.from_text(told.text)["blocks"] == []


def test_it_ends_when_main_is_gone(bench: Bench) -> None:
    bench.start(bench.loop())
    bench.notice()
    bench.sock.close()
    assert bench.end() == 0 and bench.model.closed


def test_a_wrong_golden_answer_at_start_is_its_last_word(bench: Bench) -> None:
    bench.model.wrong = "checksum differs"
    bench.start(bench.loop())
    said = bench.notice()
    assert said.kind is Kind.FAULT and "golden check failed" in said.text and "conv_3" in said.text
    assert not bench.proved
    assert bench.end() == 1


def raising(kind: type[Exception], text: str) -> Callable[..., list[int | FrameFault]]:
    def run(*_: object) -> list[int | FrameFault]:
        raise kind(text) if text else kind

    return run


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (DeviceFault, "cuCtxSynchronize: illegal address", "cuCtxSynchronize: illegal address"),
        (MemoryError, "", "MemoryError"),
        (ProgramError, "step 'conv_3' has no kernel", "step 'conv_3' has no kernel"),
    ],
)
def test_whatever_ends_it_at_work_is_its_last_word(
    bench: Bench, kind: type[Exception], text: str, said: str
) -> None:
    bench.model.run = raising(kind, text)  # type: ignore[method-assign]
    bench.start(bench.loop())
    assert bench.notice().kind is Kind.READY
    bench.sock.send(messages.pack_batch(messages.Batch(1, 7, 0, 0, (bench.frame(1),))))
    fault = bench.notice()
    assert (fault.kind, fault.ok, fault.text) == (Kind.FAULT, False, said)
    assert bench.end() == 1


def test_orders_that_cannot_be_are_told_back_before_it_ends(bench: Bench) -> None:
    for order, said in (
        (messages.pack_batch(messages.Batch(1, 7, 0, 9, (bench.frame(1),))), "result 9/0 lies outside"),
        (messages.pack_batch(messages.Batch(1, 7, 5, 0, (bench.frame(1),))), "IndexError: "),
        (b"no message of ours", "datagram with magic"),
    ):
        other = Bench()
        other.start(other.loop())
        assert other.notice().kind is Kind.READY
        other.sock.send(order)
        fault = other.notice()
        assert fault.kind is Kind.FAULT and fault.text.startswith(said)
        assert other.end() == 1
        other.close()


def test_check_is_answered_with_what_it_found(bench: Bench) -> None:
    bench.start(bench.loop())
    assert bench.notice().kind is Kind.READY and bench.proved == [True]
    bench.sock.send(messages.pack_check(0))
    assert bench.notice()[0::2] == (Kind.GOLDEN, True)
    bench.model.wrong = "checksum differs"
    bench.sock.send(messages.pack_check(0))
    said = bench.notice()
    assert (said.kind, said.ok) == (Kind.GOLDEN, False) and "checksum differs" in said.text


def test_it_beats_while_it_is_idle(bench: Bench) -> None:
    bench.start(bench.loop(heartbeat_ms=1))
    bench.notice()
    beats = [bench.notice() for _ in range(3)]
    assert {b.kind for b in beats} == {Kind.HEARTBEAT}
    assert [b.now_ns for b in beats] == sorted(b.now_ns for b in beats)


def test_a_real_plan_is_served_by_descriptor(bench: Bench, identity_plan: Path) -> None:
    slots = SlotReader(bench.ring.readonly_fd(), 4, 16_384)
    area = ResultArea(2, 4, 24, 1, bench.results.writable_fd())
    bench.children = slots, area
    fd = os.open(identity_plan, os.O_RDONLY)
    loop = EngineLoop.open(Channel(bench.theirs, blocking=True), slots, area, [fd], open_device("cpu"), NEVER_MS, 0)
    os.close(fd)
    bench.start(loop)
    memory = bench.notice()
    assert memory.kind is Kind.MEMORY
    assert [block[2].partition(": ")[2] for block in memory_report.from_text(memory.text)["blocks"]] == [
        "weights", "work memory", "batch 1"
    ]
    assert bench.notice().kind is Kind.READY
    slot = bench.ring.take()
    assert slot is not None
    pixels = np.zeros((1, 3, 4096, 1), np.uint8)
    pixels[0, :, 0, 0] = (5, 6, 250)
    bench.ring.view(slot)[: pixels.nbytes] = pixels.tobytes()
    good = messages.FrameRef(slot.index, pixels.nbytes, 0, 0, 0, "tensor", "uint8", (1, 3, 4096, 1))
    answer = bench.batch(1, good)
    assert answer.frames == (messages.FrameAnswer(messages.STATUS_OK, 3),)
    assert bench.results.read(0, 0, 1, 3, 1).ravel().tolist() == [5.0, 6.0, 250.0]
    assert answer.t_start_ns <= answer.t_pre_ns <= answer.t_run_ns <= answer.t_end_ns
    wrong = good._replace(dtype="int8")
    (said,) = bench.batch(2, wrong).frames
    assert said.status == messages.STATUS_ERROR and "int8" in said.detail
    assert bench.batch(3, good).frames[0].status == messages.STATUS_OK, "a bad frame costs only itself"


def start_text(bench: Bench, **changes: object) -> str:
    return json.dumps(
        {"epoch": 1, "device": "cpu", "cpu_steps": False, "heartbeat_ms": NEVER_MS, "others_serve": False,
         "emergency_bytes": 0, "slots": [4, 16_384],
         "results": [2, 4, 24, 1], **changes}
    )


def as_process(bench: Bench, monkeypatch: pytest.MonkeyPatch, start: str, plan: int) -> None:
    monkeypatch.setattr(engine, "begin_child", lambda: None)
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)  # pytest's own stays
    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    channel = Channel(bench.theirs, blocking=True)
    monkeypatch.setattr(engine.Channel, "from_fd", lambda fd, blocking: channel)  # the process's end would close it
    descriptors = [bench.theirs.fileno(), os.dup(1), bench.ring.readonly_fd(), bench.results.writable_fd(), plan]
    monkeypatch.setattr(sys, "argv", ["engine", *map(str, descriptors), start])
    bench.sock.shutdown(socket.SHUT_WR)


def test_the_process_starts_says_ready_and_stops(
    monkeypatch: pytest.MonkeyPatch, identity_plan: Path
) -> None:
    bench = Bench()
    plan = os.open(identity_plan, os.O_RDONLY)
    as_process(bench, monkeypatch, start_text(bench), plan)
    assert engine.main() == 0
    assert [bench.notice().kind for _ in range(2)] == [Kind.MEMORY, Kind.READY]
    os.close(plan)
    bench.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slots": [400, 16_384]}, "were announced"),
        ({"device": "cuda"}, "cuda"),
        ({"results": [2, 4, 24]}, "cannot start: ValueError: not enough values to unpack"),
    ],
)
def test_whatever_keeps_it_from_starting_reaches_main_in_words(
    monkeypatch: pytest.MonkeyPatch, identity_plan: Path, changes: dict[str, object], said: str
) -> None:
    bench = Bench()
    plan = os.open(identity_plan, os.O_RDONLY)
    as_process(bench, monkeypatch, start_text(bench, **changes), plan)
    assert engine.main() == 1
    fault = bench.notice()
    assert fault.kind is Kind.FAULT and fault.text.startswith("cannot start: ") and said in fault.text
    os.close(plan)
    bench.close()
