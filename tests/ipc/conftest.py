"""Fixtures of the ipc tests: no descriptor may leak, no ZeroMQ context may refuse to end; a stub of a daemon."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from orind.ipc import wire
from orind.ipc.answer import mark_repeated
from orind.ipc.errors import WireError
from orind.ipc.identity import Identities
from orind.ipc.sink import ResultSink
from orind.ipc.source import RawFrame, Source

END_S = 5.0
REAPED_S = 10.0  # ZeroMQ closes a socket's last descriptor in a thread of its own, which a busy machine may delay


def open_descriptors() -> dict[int, str]:
    """Descriptor -> what it points to. ZeroMQ's and the test runner's own included."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(entry.name)] = str(entry.readlink())
    return found


@pytest.fixture
def no_fd_leak() -> Iterator[None]:
    """Fails when a descriptor is open after the test that was not open before it."""
    gc.collect()
    before = open_descriptors()
    yield
    gc.collect()
    end = time.monotonic() + REAPED_S
    while left := {fd: to for fd, to in open_descriptors().items() if before.get(fd) != to and "/proc/" not in to}:
        assert time.monotonic() < end, f"left open: {left}"
        time.sleep(0.01)


@pytest.fixture
def context(no_fd_leak: None) -> Iterator[zmq.Context[Any]]:
    """A context that must be able to terminate: a socket left open, or one without LINGER, fails the test."""
    own: zmq.Context[Any] = zmq.Context()
    yield own
    ender = threading.Thread(target=own.term, daemon=True)
    ender.start()
    ender.join(END_S)
    hangs = ender.is_alive()
    if hangs:
        own.destroy(linger=0)
    assert not hangs, "the ZeroMQ context does not terminate: a socket was left open or lingers"


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


class StubDaemon:
    """The least that is a daemon to a client: validates, answers `ok`, knows repeats. Runs in a thread of its own.

    mute: how many more frames get no answer (they are remembered all the same, as by a daemon that lost the reply).
    outcome: of every frame that follows the wire format.
    """

    def __init__(self, kind: str, frames: str, results: str) -> None:
        self.kind, self.frames, self.results = kind, frames, results
        self.mute = 0
        self.outcome = "ok"
        self.received: list[wire.Header] = []
        self.payloads: list[bytes] = []
        self._context: zmq.Context[Any] = zmq.Context()
        self._source = Source(self._context, kind, frames, slot_bytes=1 << 20)
        self._sink = ResultSink(self._context, results)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        recent = Identities()
        while not self._stop.is_set():
            self._source.socket.poll(5)
            for frame in self._source.drain():
                self._serve(frame, recent)
        self._source.close()
        self._sink.close()

    def _serve(self, frame: RawFrame, recent: Identities) -> None:
        try:
            camera = wire.parse_camera(frame.camera)
            header = wire.parse_header(frame.header)
            wire.check_payload(header, len(frame.payload), 1 << 20)
        except WireError as error:
            parts = wire.build_result(None, error.seq, None, None, None, "rejected", str(error))
        else:
            self.received.append(header)
            self.payloads.append(bytes(frame.payload))
            entry, new = recent.claim(camera, header.trigger, header.seq, header.ts_ns)
            if new:
                box = np.array([[1, 2, 3, 4, 0.5, 0]], np.float32)
                found = [{"label": "hole", "score": 0.5, "box": [1.0, 2.0, 3.0, 4.0]}]
                recent.answer(
                    entry,
                    wire.build_result(
                        camera,
                        header.seq,
                        header.trigger,
                        header.ts_ns,
                        header.clock,
                        self.outcome,
                        objects=found,
                        boxes=box,
                    ),
                )
                parts = list(entry.answer or ())
            else:
                parts = mark_repeated(entry.answer or ())
        if self.mute > 0:
            self.mute -= 1
            return
        self._sink.publish(parts)
        if frame.envelope:
            self._source.reply(frame.envelope, parts)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(END_S)
        self._context.term()


@pytest.fixture
def start_daemon(tmp_path: Path, no_fd_leak: None) -> Iterator[Callable[..., StubDaemon]]:
    """start_daemon(kind="router") -> a StubDaemon on ipc sockets under tmp_path."""
    started: list[StubDaemon] = []

    def start(kind: str = "router") -> StubDaemon:
        started.append(StubDaemon(kind, f"ipc://{tmp_path}/frames", f"ipc://{tmp_path}/results"))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()
