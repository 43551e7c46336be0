"""The memory's clock for the steward's report: from debugfs where that can be read, else from the power helper.

Used by steward.py, once a tick. Invariant: it never waits; a helper that is not there, does not answer or says nonsense
means "not known", which is no fault, and never the value of a while ago.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..power.errors import SysfsError
from ..power.sysfs import Sysfs
from .power_helper import SOCKET

EVERY_NS = 1_000_000_000
STALE_NS = 3_000_000_000
AGAIN_NS = 10_000_000_000  # after a connection that was refused or lost
REPLY_BYTES_MAX = 4096
UNKNOWN: dict[str, int | None] = {"emc_hz": None, "emc_percent": None}


class MemoryClock:
    """`look(now_ns)` gives {emc_hz, emc_percent}."""

    def __init__(self, root: Path, path: Path = SOCKET) -> None:
        self._sysfs = Sysfs(root)
        self._path = path
        # a simulated board has no debugfs that only root reads, and the helper's board is the real one
        self._helped = root.resolve() == Path("/")
        self._socket: socket.socket | None = None
        self._seen, self._seen_ns = UNKNOWN, 0
        self._next_ns = 0

    def look(self, now_ns: int) -> dict[str, int | None]:
        """What is known now."""
        self._receive(now_ns)
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EVERY_NS
            try:
                hz, percent = self._sysfs.read_emc()
                self._seen, self._seen_ns = {"emc_hz": hz, "emc_percent": percent}, now_ns
            except SysfsError:
                if self._helped and not self._ask():
                    self._next_ns = now_ns + AGAIN_NS
        return self._seen if now_ns - self._seen_ns < STALE_NS else UNKNOWN

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                self._socket.connect(str(self._path))
            self._socket.send(b'{"op":"emc"}', socket.MSG_NOSIGNAL)
        except OSError:
            self.close()
            return False
        return True

    def _receive(self, now_ns: int) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(REPLY_BYTES_MAX)
        except BlockingIOError:
            return  # it is busy with somebody else
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        seen = _parse(data)
        if seen is not None:
            self._seen, self._seen_ns = seen, now_ns


def _parse(data: bytes) -> dict[str, int | None] | None:
    """A good answer, or None."""
    got: Any = None
    with suppress(ValueError):
        got = json.loads(data)
    if type(got) is not dict or got.get("ok") is not True or type(got.get("emc_hz")) is not int:
        return None
    percent = got.get("emc_percent")
    return {"emc_hz": got["emc_hz"], "emc_percent": percent if type(percent) is int else None}
