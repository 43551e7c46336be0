"""The client library: a camera program publishes frames and reads answers.

Used by camera programs, `orind publish` and the tests. Five lines are enough:

    from orind.ipc.client import Publisher
    with Publisher("ipc:///run/orind/frames", camera="line1") as camera:
        camera.send(image, trigger="part-0815")     # a numpy array (H, W, 3) bgr8, or the bytes of a JPEG
        for result in camera.wait_all(timeout_s=2.0):
            print(result.trigger, result.outcome, result.objects)

Invariant of the DEALER pattern: a frame is outstanding until its answer is here; until then it is sent again now and
then, byte for byte the same (the daemon recognises it and answers `repeated` instead of inspecting a part twice), and
what was given up is counted in `given_up`, its last 4,096 listed in `unanswered`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from . import wire
from .connection import Connection
from .endpoint import RESULT_BYTES_MAX, Context, attach, make_socket
from .errors import ClientError, NobodyThere, WireError
from .pixels import Image, describe
from .subscriber import Subscriber
from .wire import Result

__all__ = ["ClientError", "Publisher", "Result", "Subscriber"]

PATTERNS = {"dealer": zmq.DEALER, "push": zmq.PUSH, "pub": zmq.XPUB}
BACKOFF_MAX = 8  # a daemon that is slow must not get its load multiplied
KEPT_MAX = 4096  # results not yet fetched, frames given up: the oldest go first


@dataclass(slots=True)
class _Outstanding:
    """A frame on its way: the very parts that were sent, for sending them again."""

    parts: tuple[bytes, bytes, bytes]
    ts_ns: int
    first_sent_s: float
    due_s: float
    wait_s: float


class Publisher:
    """One camera's frames. pattern "dealer": every frame is answered here; "push", "pub": results come on PUB only.

    Not thread-safe, like the socket inside: one Publisher per thread.
    """

    def __init__(
        self,
        endpoint: str,
        camera: str,
        pattern: str = "dealer",
        *,
        bind: bool = False,
        max_outstanding: int = 64,
        resend_after_s: float = 1.0,
        give_up_after_s: float = 60.0,
        send_timeout_s: float = 5.0,
        hwm: int = 64,
        linger_s: float = 2.0,
        context: Context | None = None,
    ) -> None:
        """Connects (or binds). send_timeout_s: how long send() may wait for somebody to be there and have room.

        linger_s: how long frames that are still queued at close() are given (PUSH and PUB; with DEALER whatever is
        unanswered is listed instead). Raises ClientError, EndpointError, WireError (a camera name that cannot be).
        """
        if pattern not in PATTERNS:
            raise ClientError(f"pattern {pattern!r}: use one of {', '.join(PATTERNS)}")
        if max_outstanding < 1 or not 0 < resend_after_s <= give_up_after_s:
            raise ClientError("max_outstanding must be at least 1, resend_after_s between 0 and give_up_after_s")
        wire.parse_camera(camera.encode())
        self.camera, self.pattern, self.endpoint = camera, pattern, endpoint
        self.max_outstanding, self.send_timeout_s = max_outstanding, send_timeout_s
        self.resend_after_s, self.give_up_after_s = resend_after_s, give_up_after_s
        self.sent = self.resent = self.answered = self.duplicates = self.malformed = self.unfetched = 0
        self.given_up = 0
        self._next_seq = 0
        self._outstanding: dict[int, _Outstanding] = {}
        self._given_up: deque[int] = deque(maxlen=KEPT_MAX)
        self._ready: deque[Result] = deque(maxlen=KEPT_MAX)
        self._subscribed = False
        self._own_context = context is None
        self._context: Context = context if context is not None else zmq.Context()
        linger_ms = 0 if pattern == "dealer" else int(linger_s * 1000)
        self._socket = make_socket(
            self._context, PATTERNS[pattern], hwm=hwm, linger_ms=linger_ms, max_bytes=RESULT_BYTES_MAX
        )
        # Do not queue to nobody: frames, and every re-send of them, would wait for a daemon that is not there.
        self._connection = Connection(self._socket) if pattern == "dealer" and not bind else None
        if pattern == "push":
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
        try:
            attach(self._socket, endpoint, bind=bind)
        except BaseException:
            self.close()
            raise

    def send(
        self,
        image: Image,
        encoding: str | None = None,
        *,
        seq: int | None = None,
        trigger: str | None = None,
        ts_ns: int | None = None,
        clock: str = "monotonic",
        deadline_ms: float | None = None,
        cls: str | None = None,
    ) -> int:
        """Send one frame, -> its seq (counted up from 0 unless given). ts_ns: capture time, now unless given.

        Copies the pixels once. Waits at most send_timeout_s for room among the outstanding, and as long for the daemon.
        Raises ClientError (nobody there, nobody answers, wrong array), WireError (a field out of range).
        """
        fields, payload = describe(image, encoding)
        number = self._next_seq if seq is None else seq
        stamp_ns = time.monotonic_ns() if ts_ns is None else ts_ns
        header = wire.build_header(
            seq=number, trigger=trigger, ts_ns=stamp_ns, clock=clock, deadline_ms=deadline_ms, cls=cls, **fields,
        )
        if number in self._outstanding:
            raise ClientError(f"seq {number} is still unanswered: give each frame a seq of its own")
        parts = (self.camera.encode(), header, payload)
        if self.pattern == "pub":
            self._wait_for_subscriber()
        self._wait_for_room()
        self._send_now(parts)
        self._next_seq = number + 1
        self.sent += 1
        if self.pattern == "dealer":
            now = time.monotonic()
            self._outstanding[number] = _Outstanding(
                parts, stamp_ns, now, now + self.resend_after_s, self.resend_after_s
            )
            self._receive(0.0)
        return number

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def unanswered(self) -> tuple[int, ...]:
        """seq of every frame without an answer: given up (the last 4,096 of them) or still outstanding."""
        return (*self._given_up, *self._outstanding)

    def poll(self, timeout_s: float = 0.0) -> list[Result]:
        """Results that are here; waits at most timeout_s for the first, not at all when nothing is outstanding.

        Re-sends what is due. DEALER only.
        """
        self._need_dealer()
        end = time.monotonic() + timeout_s
        while True:
            waits = bool(self._outstanding) and not self._ready
            self._receive(max(0.0, end - time.monotonic()) if waits else 0.0)
            if self._ready or not self._outstanding or time.monotonic() >= end:
                results = list(self._ready)
                self._ready.clear()
                return results

    def results(self, timeout_s: float = 5.0) -> Iterator[Result]:
        """Results as they come, until nothing is outstanding or nothing came for timeout_s."""
        while got := self.poll(timeout_s if self._outstanding else 0.0):
            yield from got

    def wait_all(self, timeout_s: float = 5.0) -> list[Result]:
        """Wait until every frame sent is answered, -> the results. Whatever is not here in time is in `unanswered`."""
        end = time.monotonic() + timeout_s
        got = self.poll()
        while self._outstanding and (left := end - time.monotonic()) > 0:
            got += self.poll(left)
        return got

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._socket.close()
        if self._own_context:
            self._context.term()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _need_dealer(self) -> None:
        if self.pattern != "dealer":
            raise ClientError(f"{self.pattern} is not answered here: read results with Subscriber, or use dealer")

    def _send_now(self, parts: tuple[bytes, bytes, bytes]) -> None:
        there = self._connection is None or self._connection.wait(self.send_timeout_s)
        if not there or not self._socket.poll(int(self.send_timeout_s * 1000), zmq.POLLOUT):
            raise NobodyThere(
                f"{self.endpoint} takes no frame for {self.send_timeout_s:g} s: is orind serving there, "
                "is the path or port right, may this user connect?"
            )
        # copy=False is safe: bytes cannot change, and ZeroMQ holds them until they are out.
        self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)

    def _wait_for_subscriber(self) -> None:
        """PUB drops what is published before the subscription arrived: wait for that once."""
        if not self._subscribed:
            if not self._socket.poll(int(self.send_timeout_s * 1000), zmq.POLLIN):
                raise NobodyThere(f"{self.endpoint}: no subscriber for {self.send_timeout_s:g} s: is orind serving?")
            self._subscribed = True
        while self._socket.poll(0, zmq.POLLIN):
            self._socket.recv()  # later subscriptions and their ends: only to keep the queue empty

    def _wait_for_room(self) -> None:
        end = time.monotonic() + self.send_timeout_s
        while len(self._outstanding) >= self.max_outstanding:
            left = end - time.monotonic()
            if left <= 0:
                raise ClientError(
                    f"{self.endpoint}: {len(self._outstanding)} frames are unanswered for {self.send_timeout_s:g} s: "
                    "send more slowly, or look at `orind status`"
                )
            self._receive(left)

    def _receive(self, timeout_s: float) -> None:
        """Take in answers, waiting at most timeout_s for the first (less when a re-send is due), then re-send."""
        now = time.monotonic()
        if timeout_s > 0 and self._outstanding:
            timeout_s = min(timeout_s, max(0.0, min(frame.due_s for frame in self._outstanding.values()) - now))
        waiting = self._socket.poll(int(timeout_s * 1000) + (timeout_s > 0), zmq.POLLIN)
        while waiting:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._take(parts)
        self._resend(time.monotonic())

    def _take(self, parts: list[bytes]) -> None:
        if parts and not parts[0]:
            parts = parts[1:]  # the delimiter of a server that answers REQ style
        try:
            result = wire.parse_result(parts)
        except WireError:
            self.malformed += 1
            return
        if result.seq is None:
            self.malformed += 1  # answers a frame that is not ours: ours always say their seq legibly
            return
        frame = self._outstanding.get(result.seq)
        if frame is None or (result.clock != "arrival" and result.ts_ns not in (None, frame.ts_ns)):
            self.duplicates += 1  # the answer to a re-send of what was answered meanwhile
            return
        del self._outstanding[result.seq]
        self.answered += 1
        self.unfetched += len(self._ready) == KEPT_MAX
        self._ready.append(result)

    def _resend(self, now_s: float) -> None:
        for seq in [seq for seq, frame in self._outstanding.items() if frame.due_s <= now_s]:
            frame = self._outstanding[seq]
            if now_s - frame.first_sent_s >= self.give_up_after_s:
                del self._outstanding[seq]
                self._given_up.append(seq)
                self.given_up += 1
                continue
            frame.wait_s = min(2 * frame.wait_s, BACKOFF_MAX * self.resend_after_s)
            frame.due_s = now_s + frame.wait_s
            try:
                if self._connection is not None and not self._connection.up():
                    raise zmq.Again
                self._socket.send_multipart(frame.parts, zmq.NOBLOCK, copy=False)
                self.resent += 1
            except zmq.Again:
                frame.due_s = now_s + self.resend_after_s  # nobody there or no room: not a re-send, try again
