"""Frame sources: a ROUTER, PULL or SUB socket that yields raw frames, and for ROUTER takes the replies.

Driven by main's one poller, never blocking. Invariant: whatever arrives, in however many parts, comes out as one
RawFrame: bounded copies of everything but the payload, the payload without a copy, and for ROUTER the whole envelope,
so that every frame can be answered, the malformed ones too. Only an envelope that no ZeroMQ socket makes is discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import zmq

from .endpoint import EVENTS, NOBLOCK, READABLE, Context, attach, is_local, make_socket, send_parts
from .gate import Gate
from .wire import CAMERA_BYTES_MAX, HEADER_BYTES_MAX

KINDS = {"router": zmq.ROUTER, "pull": zmq.PULL, "sub": zmq.SUB}
PARTS_MAX = 12  # of a message; what a hostile sender adds beyond is read and forgotten
ENVELOPE_PARTS_MAX = 8  # three proxies in a row and REQ_CORRELATE
ENVELOPE_PART_BYTES_MAX = 255  # a ROUTER id's own limit
DRAIN_MAX = 64
PARTS_PER_DRAIN = 1024  # about a millisecond
OVERSIZE_TIMES, OVERSIZE_LEAST, OVERSIZE_ROOM = 4, 36 << 20, 65_536
"""What a part may have, in slots or in bytes, whichever is more (12 million pixels in colour), to be told that it is
too large. libzmq ends the connection of whoever sends a larger one, and tells neither side why. A connection can make
main hold that much in each of its receive queue's messages, where it does not read them."""
NO_BYTES = memoryview(b"")


class RawFrame(NamedTuple):
    """camera, header: copies, cut one byte above their limit (so that the parser sees that they are too long).

    payload: the message's own memory, valid as long as this tuple lives. parts: how many body parts there were, 3 in a
    well-formed frame. envelope: what reply() needs, empty for PULL and SUB.
    """

    envelope: tuple[bytes, ...]
    camera: bytes
    header: bytes
    payload: memoryview
    parts: int


class Source:
    """One socket. Its limit per part lies well above the slot, so that a frame too large gets its `rejected`."""

    def __init__(
        self,
        context: Context,
        kind: str,
        endpoint: str,
        *,
        slot_bytes: int,
        bind: bool = True,
        hwm: int = 64,
        fd: int | None = None,
    ) -> None:
        """fd: systemd's listening socket of this endpoint; it stays the caller's. Raises EndpointError, KeyError."""
        self.kind = kind
        self.endpoint = endpoint
        self.same_host = is_local(endpoint)
        self.discarded = 0  # messages whose envelope nobody could be asked to echo
        self.max_bytes = max(OVERSIZE_TIMES * slot_bytes, OVERSIZE_LEAST) + OVERSIZE_ROOM
        self.socket = make_socket(context, KINDS[kind], hwm=hwm, linger_ms=500, max_bytes=self.max_bytes)
        if kind == "router":
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # a client that comes back under its name while messages of its last connection still lie here would be
            # ignored without a word (libzmq 2019); of two that live under one name the newer gets the answers
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self.socket.setsockopt(zmq.SNDHWM, 1000)  # replies are small; a slow client costs nobody else
        if kind == "sub":
            self.socket.subscribe(b"")
        self.gate: Gate | None = None
        if bind:
            self.gate = Gate(self.socket, endpoint, fd)
        else:
            attach(self.socket, endpoint, bind=False)
        self._router = kind == "router"
        self._message: list[zmq.Frame] = []  # parts of a message that the last drain could not finish

    def drain(self, limit: int = DRAIN_MAX) -> list[RawFrame]:
        """Everything that is there, oldest first; main calls it before each dispatch.

        At most `limit` frames and PARTS_PER_DRAIN parts: a message of a million parts is read on at the next call.
        """
        frames: list[RawFrame] = []
        recv, events = self.socket.recv, self.socket.getsockopt
        left, message = PARTS_PER_DRAIN, self._message
        # asking first: the exception at the end of every drain would cost more
        while left > 0 and len(frames) < limit and int(events(EVENTS)) & READABLE:
            part = recv(NOBLOCK, copy=False)
            left -= 1
            message.append(part)
            while part.more and left > 0:
                part = recv(copy=False)
                left -= 1
                if len(message) < PARTS_MAX:
                    message.append(part)
            del message[PARTS_MAX:]
            if not part.more:
                frame = self._frame(message)
                message.clear()
                if frame is not None:
                    frames.append(frame)
        return frames

    def _frame(self, message: list[zmq.Frame]) -> RawFrame | None:
        """None, and counted: an answer would have to echo what is longer than any ROUTER's or REQ's envelope."""
        start = self._body_start(message) if self._router else 0
        n = len(message) - start
        envelope = tuple([part.bytes for part in message[:start] if len(part) <= ENVELOPE_PART_BYTES_MAX])
        if len(envelope) != start or start > ENVELOPE_PARTS_MAX:
            self.discarded += 1
            return None
        return RawFrame(
            envelope,
            _copy(message[start], CAMERA_BYTES_MAX) if n > 0 else b"",
            _copy(message[start + 1], HEADER_BYTES_MAX) if n > 1 else b"",
            message[start + 2].buffer if n > 2 else NO_BYTES,
            n,
        )

    @staticmethod
    def _body_start(message: list[zmq.Frame]) -> int:
        """Where the envelope ends. DEALER: [id] body. REQ: [id][""] body; with REQ_CORRELATE [id][n][""] body; behind a
        proxy one more id in front. A camera name is never empty, so an empty part early on is REQ's delimiter.
        """
        n = len(message)
        if n == 4 and len(message[1]):
            return 1  # the common case: our client
        for i in range(1, n - 1):
            if not len(message[i]):
                if n - 1 - i == 3 or i == 1:
                    return i + 1
                break
        if n > 4 and message[2].buffer[:1].tobytes() != b"{":
            return n - 3  # DEALER behind a proxy: the header, a JSON object, is not where it would be without
        return 1

    def reply(self, envelope: Sequence[bytes], parts: Sequence[bytes]) -> bool:
        """Answer a ROUTER frame. False: the client is gone, or does not read. Never waits."""
        try:
            send_parts(self.socket, [*envelope, *parts])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def close(self) -> None:
        if self.gate is not None:
            self.gate.close()
        self._message.clear()
        self.socket.close()


def _copy(part: zmq.Frame, limit: int) -> bytes:
    return part.bytes if len(part) <= limit else part.buffer[: limit + 1].tobytes()
