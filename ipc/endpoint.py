"""ZeroMQ sockets made safe: every option that has bitten somebody is set here, once.

Used by source.py, sink.py and client.py. Invariant: LINGER is set on every socket (the default hangs exit for ever), no
high-water mark is below 2 (HWM 1 loses replies, pyzmq #2040), ipc paths are bound under a umask that makes them 0660
(a chmod afterwards would leave a moment open), and a bad endpoint is one clear sentence.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from .errors import EndpointError
from .socket_files import PATH_BYTES_MAX, UMASK

HWM_LEAST = 2
HEARTBEAT_MS = 5_000
RESULT_BYTES_MAX = 1 << 28  # per part that a client accepts

Socket = zmq.Socket[Any]
Context = zmq.Context[Any]


NOBLOCK = int(zmq.NOBLOCK)
READABLE, EVENTS = int(zmq.POLLIN), int(zmq.EVENTS)
_MORE = int(zmq.SNDMORE) | NOBLOCK


def send_parts(sock: Socket, parts: Sequence[bytes]) -> None:
    """As send_multipart(parts, NOBLOCK), with plain ints: arithmetic on enum flags costs more than the sending."""
    send = sock.send
    for part in parts[:-1]:
        send(part, _MORE)
    send(parts[-1], NOBLOCK)


def check_endpoint(endpoint: str) -> None:
    """Raises EndpointError for what ZeroMQ would refuse with a number or accept by mistake."""
    scheme, mark, rest = endpoint.partition("://")
    if not mark or scheme not in ("ipc", "tcp", "inproc") or not rest:
        raise EndpointError(f"endpoint {endpoint!r}: use ipc:///path or tcp://host:port")
    if not rest.isprintable():
        raise EndpointError(f"endpoint {endpoint!r}: it holds control characters")
    if scheme == "ipc":
        _check_ipc(endpoint, rest)
    elif scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if not host or not (port == "*" or (port.isascii() and port.isdigit())):
            raise EndpointError(f"endpoint {endpoint!r}: tcp needs a port, as in tcp://127.0.0.1:5555")
        if port != "*" and not (len(port) <= 5 and 1 <= int(port) <= 65_535):
            raise EndpointError(f"endpoint {endpoint!r}: a port is a number from 1 to 65535")


def _check_ipc(endpoint: str, path: str) -> None:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise EndpointError(f"endpoint {endpoint!r}: an ipc path has at most {PATH_BYTES_MAX} bytes")
    if path == "*":
        raise EndpointError(f"endpoint {endpoint!r}: name the path, nobody would know the one that ZeroMQ makes up")


def check_place(endpoint: str) -> None:
    """Raises EndpointError where binding an ipc path would remove what lies there: ZeroMQ unlinks any file."""
    path = ipc_path(endpoint)
    try:
        mode = Path(path).lstat().st_mode if path else stat.S_IFSOCK
    except OSError:
        return  # nothing there, or the bind itself will say why it cannot be reached
    if stat.S_ISDIR(mode):
        raise EndpointError(f"endpoint {endpoint!r} is a directory: name a file in it")
    if not stat.S_ISSOCK(mode):
        raise EndpointError(f"endpoint {endpoint!r}: a file that is no socket lies there, it would be removed")


def ipc_path(endpoint: str) -> str:
    """The socket file of an endpoint; '' for tcp and for abstract names."""
    scheme, _, rest = endpoint.partition("://")
    return rest if scheme == "ipc" and not rest.startswith("@") else ""


def is_local(endpoint: str) -> bool:
    """Whether only processes of this host can be at the other end: then their CLOCK_MONOTONIC is ours."""
    scheme, _, rest = endpoint.partition("://")
    return scheme != "tcp" or rest.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def make_socket(context: Context, kind: int, *, hwm: int, linger_ms: int, max_bytes: int = -1) -> Socket:
    """A socket with its limits set before it is attached. max_bytes: per part; libzmq drops the peer above.

    Raises EndpointError.
    """
    try:
        sock: Socket = context.socket(kind)
    except zmq.ZMQError as error:
        raise EndpointError(f"no further ZeroMQ socket can be made: {error}") from None
    sock.setsockopt(zmq.LINGER, linger_ms)
    sock.setsockopt(zmq.SNDHWM, max(HWM_LEAST, hwm))
    sock.setsockopt(zmq.RCVHWM, max(HWM_LEAST, hwm))
    sock.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    return sock


def attach(sock: Socket, endpoint: str, *, bind: bool, fd: int | None = None) -> None:
    """Bind or connect. fd: a listening socket from systemd for this endpoint; libzmq owns a duplicate of it afterwards.

    Raises EndpointError, with the socket closed. An ipc endpoint must be guarded by lock.lock_endpoint before.
    """
    try:
        check_endpoint(endpoint)
        if endpoint.startswith("tcp"):
            sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        if fd is not None:
            # libzmq accepts when told that somebody waits; where another holder was quicker, its I/O thread would wait
            os.set_blocking(fd, False)
            sock.setsockopt(zmq.USE_FD, os.dup(fd))
        if not bind:
            sock.connect(endpoint)
            return
        if fd is None:
            check_place(endpoint)
        if endpoint.startswith("ipc://"):
            before = os.umask(UMASK)
            try:
                sock.bind(endpoint)
            finally:
                os.umask(before)
        else:
            sock.bind(endpoint)
    except (zmq.ZMQError, OSError) as error:
        sock.close()
        verb = "bound" if bind else "connected"
        why = "it is in use by another process" if error.errno == zmq.EADDRINUSE else str(error)
        raise EndpointError(f"endpoint {endpoint} cannot be {verb}: {why}") from None
    except EndpointError:
        sock.close()
        raise
