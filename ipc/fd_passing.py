"""JSON messages with descriptors attached, between main and the nursery (spawn this, with these memfds and sockets).

Rare and off the hot path. Invariant: lengths and the number of descriptors are bounded before they are believed, and a
descriptor that arrives with a message that is refused is closed, not leaked.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .errors import ChannelError

JSON_BYTES_MAX = 65_536
FDS_MAX = 32


class Message(NamedTuple):
    """fields as sent; fds: new close-on-exec descriptors, which the receiver owns."""

    fields: dict[str, Any]
    fds: list[int]


def send_with_fds(sock: socket.socket, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> bool:
    """True: queued. False: the peer is gone or its queue is full. The sender keeps its own descriptors."""
    data = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > JSON_BYTES_MAX or len(fds) > FDS_MAX:
        raise ChannelError(f"message of {len(data)} bytes with {len(fds)} descriptors: {JSON_BYTES_MAX} and {FDS_MAX}")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        return False
    return True


def recv_with_fds(sock: socket.socket) -> Message | None:
    """One message; None when the peer is gone. Raises ChannelError, and BlockingIOError where nothing is there yet."""
    space = socket.CMSG_SPACE(FDS_MAX * array.array("i").itemsize)
    while True:
        try:
            data, ancillary, flags, _ = sock.recvmsg(JSON_BYTES_MAX + 1, space, socket.MSG_CMSG_CLOEXEC)
            break
        except ConnectionResetError:
            continue  # reported once, before what the peer had sent
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    if not data and not fds:
        return None
    try:
        if len(data) > JSON_BYTES_MAX or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ChannelError(f"message of more than {JSON_BYTES_MAX} bytes or {FDS_MAX} descriptors")
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            raise ChannelError("message with descriptors is not JSON: sender and receiver disagree") from None
        if type(fields) is not dict:
            raise ChannelError("message with descriptors is not a JSON object: sender and receiver disagree")
    except ChannelError:
        for fd in fds:
            os.close(fd)
        raise
    return Message(fields, list(fds))
