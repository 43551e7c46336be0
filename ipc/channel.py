"""Datagrams between our own processes: a SEQPACKET pair, non-blocking in main, blocking in a child.

Used by main to engines and decoders and by the nursery. Invariant: what a peer sent before it died is still delivered
(the kernel reports ECONNRESET *before* those datagrams when the peer died with unread input), and end of file is
reported only after the last of them: then, and only then, may main replay what is unanswered.
"""

from __future__ import annotations

import socket
from typing import NamedTuple

from .errors import ChannelError

MESSAGE_BYTES_MAX = 32_768
DRAIN_MAX = 64  # datagrams per turn, so that one busy engine cannot hold up the loop


class Received(NamedTuple):
    """messages in order; ended: the peer is gone and nothing is left to read."""

    messages: list[bytes]
    ended: bool


class Channel:
    """One end. Owns its socket."""

    def __init__(self, sock: socket.socket, *, blocking: bool) -> None:
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            raise ChannelError("a channel needs a Unix SEQPACKET socket: was the wrong descriptor passed?")
        sock.setblocking(blocking)
        self._sock = sock
        self._buffer = bytearray(MESSAGE_BYTES_MAX + 1)  # one more, so that a longer datagram shows
        self._view = memoryview(self._buffer)

    @classmethod
    def from_fd(cls, fd: int, *, blocking: bool) -> Channel:
        """The end that a child inherited as a descriptor number."""
        return cls(socket.socket(fileno=fd), blocking=blocking)

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, data: bytes) -> bool:
        """True: queued in the kernel. False: the peer is gone or its queue is full; main fences it, never waits."""
        if not 0 < len(data) <= MESSAGE_BYTES_MAX:
            raise ChannelError(f"message of {len(data)} bytes: 1 to {MESSAGE_BYTES_MAX} can be sent")
        try:
            self._sock.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> bytes | None:
        """A child's way: wait for one datagram; None when the peer is gone. Raises ChannelError when it is too long."""
        while True:
            try:
                n = self._sock.recv_into(self._buffer)
            except ConnectionResetError:
                continue  # reported once; what was sent before is still there
            return bytes(self._view[: self._checked(n)]) if n else None

    def recv_all(self, limit: int = DRAIN_MAX) -> Received:
        """Main's way: all that is there, at most `limit`. Raises ChannelError for a datagram that is too long."""
        messages: list[bytes] = []
        recv_into, buffer, view = self._sock.recv_into, self._buffer, self._view
        while len(messages) < limit:
            try:
                n = recv_into(buffer)
            except BlockingIOError:
                break
            except ConnectionResetError:
                continue
            if n == 0:
                return Received(messages, True)
            messages.append(bytes(view[: self._checked(n)]))
        return Received(messages, False)

    def _checked(self, n: int) -> int:
        if n > MESSAGE_BYTES_MAX:
            raise ChannelError(f"datagram of more than {MESSAGE_BYTES_MAX} bytes: the peer is not one of ours")
        return n

    def close(self) -> None:
        self._view.release()
        self._sock.close()


def make_pair() -> tuple[Channel, socket.socket]:
    """(main's end, non-blocking; the child's end, to be passed on by descriptor and then closed here)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours, blocking=False), theirs
