"""Camera programs that misbehave, on real sockets: what scripts/soak and tests/service do to a daemon.

Each returns a `Told`: the triggers that it sent, so that a caller can hold every answer against them. `sure` must end
in exactly one outcome each; `maybe` may have been lost on the way, and then no outcome exists. None uses the client
library, which would refuse most of this. Invariant: nothing here outlives its call, and every wait has a bound.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import zmq

from orind.ipc.answer import Result, parse_result

HOUR_NS = 3_600_000_000_000
ANSWER_S = 30.0
Key = tuple[str, int, int]
"""camera, seq, ts_ns: what an answer echoes."""


@dataclass(frozen=True)
class Frame:
    """What a sender needs of a picture: the header's fields and the payload."""

    fields: dict[str, Any]
    payload: bytes


@dataclass
class Told:
    """What was sent and what was answered to the sender itself."""

    sure: list[Key] = field(default_factory=list)
    maybe: list[Key] = field(default_factory=list)
    nameless: int = 0
    """Messages that must be refused and whose answer names no frame."""
    repeats: int = 0
    replies: list[Result] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def judge_replies(self) -> Told:
        """Every sure key one reply that is no repeat, as many repeats as were sent, nothing else."""
        first = [(r.camera, r.seq, r.ts_ns) for r in self.replies if not r.repeated and r.seq is not None]
        repeated = sum(r.repeated for r in self.replies)
        bare = sum(r.seq is None for r in self.replies)
        if sorted(map(str, first)) != sorted(map(str, self.sure)):
            self.wrong.append(f"{len(self.sure)} triggers, {len(first)} answers for {len(set(first))} of them")
        if (repeated, bare) != (self.repeats, self.nameless):
            self.wrong.append(f"{self.repeats} repeats and {self.nameless} unreadable messages were sent, "
                              f"{repeated} and {bare} answered")
        return self


class Dealer:
    """A DEALER without manners."""

    def __init__(self, endpoint: str, *, identity: bytes = b"", linger_ms: int = 0) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger, self._socket.sndhwm, self._socket.rcvhwm = linger_ms, 100_000, 100_000
        if identity:
            self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.connect(endpoint)

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def receive(self, count: int, timeout_s: float = ANSWER_S) -> list[Result]:
        """At most `count` results, and less than that only where nothing came for so long."""
        got: list[Result] = []
        while len(got) < count and self._socket.poll(int(timeout_s * 1000)):
            got.append(parse_result(self._socket.recv_multipart()))
        return got

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Dealer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def message(camera: str, frame: Frame, seq: int, ts_ns: int | None, **more: Any) -> list[bytes]:
    """The three parts of a frame; without ts_ns it has no identity."""
    stamp = {} if ts_ns is None else {"ts_ns": ts_ns}
    return [camera.encode(), json.dumps({"v": 1, "seq": seq, **stamp, **frame.fields, **more}).encode(), frame.payload]


# -- what senders do ---------------------------------------------------------------------------------------------


def flood(endpoint: str, camera: str, frame: Frame, seq: int, count: int) -> Told:
    """All at once, and only then reads what came back."""
    told = Told()
    with Dealer(endpoint) as dealer:
        for n in range(seq, seq + count):
            stamp = time.monotonic_ns()
            dealer.send(*message(camera, frame, n, stamp))
            told.sure.append((camera, n, stamp))
        told.replies = dealer.receive(count)
        told.replies += dealer.receive(1, 0.05)  # one too many would be here by now
    return told.judge_replies()


def flood_and_leave(endpoint: str, camera: str, frame: Frame, seq: int, count: int) -> Told:
    """As `flood`, and gone before the answers come: they have no receiver."""
    told = Told()
    with Dealer(endpoint, linger_ms=2000) as dealer:
        for n in range(seq, seq + count):
            stamp = time.monotonic_ns()
            dealer.send(*message(camera, frame, n, stamp))
            told.maybe.append((camera, n, stamp))
    return told


def repeat(endpoint: str, camera: str, frame: Frame, seq: int, times: int) -> Told:
    """The same trigger again and again, some before and some after it is answered."""
    stamp = time.monotonic_ns()
    told = Told(sure=[(camera, seq, stamp)], repeats=times)
    parts = message(camera, frame, seq, stamp, trigger=f"part-{seq}")
    with Dealer(endpoint) as dealer:
        for _ in range(1 + times - times // 2):
            dealer.send(*parts)
        told.replies = dealer.receive(1 + times - times // 2)
        for _ in range(times // 2):
            dealer.send(*parts)
        told.replies += dealer.receive(times // 2)
    if len({(r.outcome, r.reason) for r in told.replies}) > 1:
        told.wrong.append("a repeat was answered otherwise than the trigger itself")
    return told.judge_replies()


def reorder(endpoint: str, camera: str, frame: Frame, seq: int, count: int, chance: random.Random) -> Told:
    """Numbers and stamps out of order."""
    now = time.monotonic_ns()
    frames = [(seq + n, now - n * 1_000_000) for n in range(count)]
    chance.shuffle(frames)
    return _exchange(endpoint, camera, frame, frames)


def jump_seq(endpoint: str, camera: str, frame: Frame, seq: int) -> Told:
    """To the largest number there is, back to the smallest, and on."""
    now = time.monotonic_ns()
    return _exchange(endpoint, camera, frame, [(n, now) for n in (seq, 2**63 - 1, 0, seq + 1, 2**40 + seq, seq + 2)])


def jump_time(endpoint: str, camera: str, frame: Frame, seq: int) -> Told:
    """An hour ahead, an hour back, to the beginning and the end of time, and on."""
    now = time.monotonic_ns()
    stamps = (now, now + HOUR_NS, max(0, now - HOUR_NS), now + 1, 0, 2**63 - 1, now + 2)
    return _exchange(endpoint, camera, frame, [(seq + n, stamp) for n, stamp in enumerate(stamps)])


def _exchange(endpoint: str, camera: str, frame: Frame, frames: Sequence[tuple[int, int]]) -> Told:
    told = Told()
    with Dealer(endpoint) as dealer:
        for n, stamp in frames:
            dealer.send(*message(camera, frame, n, stamp))
            told.sure.append((camera, n, stamp))
        told.replies = dealer.receive(len(frames))
        told.replies += dealer.receive(1, 0.05)
    return told.judge_replies()


def garbage(endpoint: str, camera: str, frame: Frame, chance: random.Random) -> Told:
    """Messages that are none: each is refused to its sender, and nothing else happens."""
    good = message(camera, frame, 1, None)
    bad = [
        [], [b""], [camera.encode()], good[:2], [*good, b"more"], [b"\xff", *good[1:]], [good[0], b"{", good[2]],
        [good[0], b"[" * 2000, good[2]], [good[0], chance.randbytes(64), good[2]], [good[0], b"{}", good[2]],
        [good[0], b'{"v":1,"seq":-1}', good[2]], [b"c" * 65, *good[1:]], [good[0], b"x" * 5000, good[2]],
    ]
    told = Told(nameless=len(bad))
    with Dealer(endpoint) as dealer:
        for parts in bad:
            dealer.send(*(parts or [b""]))
        told.replies = dealer.receive(len(bad))
    if others := {r.outcome for r in told.replies} - {"rejected"}:
        told.wrong.append(f"garbage was answered {', '.join(sorted(others))}")
    return told


def reconnect(endpoint: str, camera: str, frame: Frame, seq: int, count: int) -> Told:
    """Hangs up in the midst, comes back under the same name and sends the unanswered again, as our client does."""
    stamp = time.monotonic_ns()
    frames = [(n, stamp) for n in range(seq, seq + count)]
    told = Told(sure=[(camera, n, stamp) for n in range(seq, seq + count)])
    with Dealer(endpoint, identity=b"soak-%d" % seq, linger_ms=2000) as dealer:
        for n, at in frames:
            dealer.send(*message(camera, frame, n, at))
    with Dealer(endpoint, identity=b"soak-%d" % seq) as dealer:
        for n, at in frames:
            dealer.send(*message(camera, frame, n, at))
        got = dealer.receive(count)
        got += dealer.receive(count, 0.3)  # those of the first connection may still find the name
    told.replies = got
    if missing := {key[1] for key in told.sure} - {r.seq for r in got}:
        told.wrong.append(f"{len(missing)} of {count} triggers sent again after a reconnect have no answer")
    if len({(r.seq, r.outcome) for r in got}) != len({r.seq for r in got}):
        told.wrong.append("a trigger was answered with two outcomes")
    return told


@contextmanager
def deaf_subscriber(endpoint: str) -> Iterator[None]:
    """Subscribes to all results and reads none."""
    context: zmq.Context[Any] = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.linger, subscriber.rcvhwm = 0, 2
    subscriber.subscribe(b"")
    subscriber.connect(endpoint)
    try:
        yield
    finally:
        subscriber.close()
        context.term()


# -- below ZeroMQ: a sender that stops in the midst of a message --------------------------------------------------


class BareSender:
    """Speaks ZMTP 3.0 (rfc.zeromq.org/spec/23) by hand as far as a DEALER does, so that it can stop anywhere."""

    def __init__(self, path: str) -> None:
        """path: of the Unix socket. Returns after the handshake."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(path)
        self._socket.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
        self._read(64)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        self._socket.sendall(b"\x04" + bytes([len(ready)]) + ready)
        flags, size = self._read(2)
        assert flags == 4, "a command"
        assert self._read(size).startswith(b"\x05READY")

    def _read(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            piece = self._socket.recv(count - len(got))
            if not piece:
                raise ConnectionError("the daemon hung up")
            got += piece
        return got

    def part(self, data: bytes, *, more: bool, cut: int | None = None) -> None:
        """One part of a message; cut: only so many of its bytes."""
        head = bytes([2 | more]) + struct.pack(">Q", len(data))
        self._socket.sendall(head + (data if cut is None else data[:cut]))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> BareSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def die_within(path: str, camera: str, frame: Frame, seq: int) -> Told:
    """Hang up after the first part, within the header, before the payload, within the payload: nothing was received."""
    camera_part, header, payload = message(camera, frame, seq, time.monotonic_ns())
    for place in range(4):
        with BareSender(path) as sender:
            sender.part(camera_part, more=True)
            if place == 1:
                sender.part(header, more=True, cut=len(header) // 2)
            elif place >= 2:
                sender.part(header, more=True)
            if place == 3:
                sender.part(payload, more=False, cut=len(payload) // 2)
    return Told()


@contextmanager
def stall_within(path: str, camera: str, frame: Frame, seq: int) -> Iterator[None]:
    """Half a payload, and then nothing for as long as the block lasts."""
    camera_part, header, payload = message(camera, frame, seq, time.monotonic_ns())
    with BareSender(path) as sender:
        sender.part(camera_part, more=True)
        sender.part(header, more=True)
        sender.part(payload, more=False, cut=len(payload) // 2)
        yield
