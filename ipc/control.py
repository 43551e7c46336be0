"""The control socket: `orind status`, `reload`, `rollback`, `drain`, `power budget` talk to main here, one JSON
object each way. The power helper's socket is another one of the kind.

A SEQPACKET socket file, mode 0660, served inside main's poller. Invariant: no client, however slow, silent or hostile,
makes main wait: every descriptor is non-blocking, clients and lengths are bounded, and what cannot be sent is dropped
together with its client.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from .errors import ControlError
from .socket_files import PATH_BYTES_MAX, UMASK

OPS = ("status", "reload", "rollback", "drain", "power")
REQUEST_BYTES_MAX = 4096
REPLY_BYTES_MAX = 131_072  # below the kernel's default limit of a datagram (wmem_max 212,992)
CLIENTS_MAX = 16
ACCEPTS_PER_TURN = 4


class Request(NamedTuple):
    """What a client asks. client: for reply(), which may come turns later (`wait`); pid, uid: from the kernel."""

    client: int
    op: str
    wait: bool
    pid: int
    uid: int
    given: Mapping[str, Any]


class Asked(NamedTuple):
    """One JSON object of a client, and who it is, from the kernel."""

    fields: dict[str, Any]
    pid: int
    uid: int


class ControlServer:
    """Main's end. `fileno()` and every one of `clients` go into the poller: accept() and receive() what is ready."""

    def __init__(
        self,
        path: Path | str,
        *,
        clients_max: int = CLIENTS_MAX,
        fd: int | None = None,
        admit: Callable[[socket.socket], bool] = lambda _: True,
    ) -> None:
        """Binds path (0660; the instance lock is held, so a file left there is nobody's). fd: from systemd instead.
        admit: whether a client may ask at all; one who may not is told so and closed."""
        self.path = Path(path)
        self._admit = admit
        self.clients_max = clients_max
        self._owns_path = fd is None
        self._clients: dict[int, tuple[socket.socket, int, int]] = {}
        if fd is not None:
            self._listener = socket.socket(fileno=os.dup(fd))
            self._listener.setblocking(False)
            return
        if len(os.fsencode(self.path)) > PATH_BYTES_MAX:
            raise ControlError(f"control socket {self.path}: a path has at most {PATH_BYTES_MAX} bytes")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        before = os.umask(UMASK)
        try:
            if self.path.is_socket():  # left by a crash; anything else there is not ours to remove
                self.path.unlink()
            self._listener.bind(str(self.path))
            self._listener.listen(clients_max)
        except OSError as error:
            self._listener.close()
            raise ControlError(f"control socket {self.path} cannot be made: {error.strerror}") from None
        finally:
            os.umask(before)

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(self._clients)

    def accept(self) -> list[int]:
        """The listener is ready: -> descriptors of new clients. Above the bound a client is told so and closed."""
        fresh: list[int] = []
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ECONNABORTED, errno.EMFILE, errno.ENFILE):
                    break
                raise
            sock.setblocking(False)
            if len(self._clients) >= self.clients_max:
                _send(sock, {"ok": False, "error": f"busy: {self.clients_max} clients are connected, try again"})
                sock.close()
                continue
            if not self._admit(sock):
                _send(sock, {"ok": False, "error": "not permitted"})
                sock.close()
                continue
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("iII", raw)
            self._clients[sock.fileno()] = (sock, pid, uid)
            fresh.append(sock.fileno())
        return fresh

    def receive(self, client: int) -> Request | None:
        """As take(), for one of OPS."""
        asked = self.take(client)
        if asked is None:
            return None
        op, wait = asked.fields.get("op"), asked.fields.get("wait", False)
        if type(op) is not str or op not in OPS or type(wait) is not bool:
            text = f"unknown request: send op (one of {', '.join(OPS)}) and wait (true or false)"
            self.reply(client, {"ok": False, "error": text})
            return None
        given = {name: value for name, value in asked.fields.items() if name not in ("op", "wait")}
        return Request(client, op, wait, asked.pid, asked.uid, given)

    def take(self, client: int) -> Asked | None:
        """A client's descriptor is ready. None: it said nothing useful (answered with the reason) or left; `clients`
        then tells whether it is still there, so that the poller can forget it.
        """
        held = self._clients.get(client)
        if held is None:
            return None
        sock, pid, uid = held
        try:
            data = sock.recv(REQUEST_BYTES_MAX + 1)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.drop(client)
            return None
        try:
            return Asked(_parse(data, REQUEST_BYTES_MAX), pid, uid)
        except ControlError as error:
            self.reply(client, {"ok": False, "error": str(error)})
            return None

    def reply(self, client: int, fields: Mapping[str, Any]) -> bool:
        """False: the client left or does not read; it is dropped. A reply too large becomes an error reply."""
        held = self._clients.get(client)
        if held is None:
            return False
        if not _send(held[0], fields):
            self.drop(client)
            return False
        return True

    def drop(self, client: int) -> None:
        held = self._clients.pop(client, None)
        if held is not None:
            held[0].close()

    def close(self) -> None:
        for client in self.clients:
            self.drop(client)
        if self._listener.fileno() >= 0:
            self._listener.close()
            if self._owns_path:
                with contextlib.suppress(FileNotFoundError):
                    self.path.unlink()


class ControlClient:
    """The command line's end. Use as a context manager."""

    def __init__(
        self, path: Path | str, timeout_s: float = 5.0, hint: str = "is orind serving? (systemctl status orind)"
    ) -> None:
        """Raises ControlError when nobody serves there (with the hint) or the caller has no permission."""
        self.path = Path(path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(timeout_s)
        try:
            self._sock.connect(str(self.path))
        except (OSError, TimeoutError) as error:
            self._sock.close()
            if isinstance(error, PermissionError):
                hint = "are you in the group orind?"
            raise ControlError(f"{self.path}: {error.strerror or error}: {hint}") from None

    def request(self, fields: Mapping[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
        """{"op": ..., "wait": bool} -> the reply. Raises ControlError on time-out, end of file or a foreign reply."""
        end = time.monotonic() + timeout_s
        try:
            self._sock.settimeout(timeout_s)
            self._sock.send(json.dumps(fields).encode())
            self._sock.settimeout(max(0.001, end - time.monotonic()))
            data = self._sock.recv(REPLY_BYTES_MAX + 1)
        except TimeoutError:
            raise ControlError(f"{self.path}: no answer within {timeout_s:g} s: is orind overloaded?") from None
        except OSError as error:
            # The refusal of one client too many comes with the end of file, before our request is read.
            data = self._last_words() or b""
            if not data:
                raise ControlError(f"{self.path}: {error.strerror}: who serves it ended while it was asked") from None
        if not data:
            raise ControlError(f"{self.path}: who serves it ended before it answered")
        return _parse(data, REPLY_BYTES_MAX)

    def _last_words(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return self._sock.recv(REPLY_BYTES_MAX + 1)
        return None

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parse(data: bytes, limit: int) -> dict[str, Any]:
    if len(data) > limit:
        raise ControlError(f"message of more than {limit} bytes: send one small JSON object")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ControlError("message is not JSON: send one JSON object") from None
    if type(fields) is not dict:
        raise ControlError("message is not a JSON object: send one JSON object")
    return fields


def _send(sock: socket.socket, fields: Mapping[str, Any]) -> bool:
    data = json.dumps(fields, separators=(",", ":")).encode()
    if len(data) > REPLY_BYTES_MAX:
        excuse = f"the reply has {len(data)} bytes: at most {REPLY_BYTES_MAX}"
        data = json.dumps({"ok": False, "error": excuse}).encode()
    try:
        sock.send(data, socket.MSG_NOSIGNAL)
    except OSError:
        return False  # the peer left or its queue is full: the caller drops it
    return True
