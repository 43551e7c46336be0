"""The control socket in main's poller: who is connected, and where a request goes.

Owned by `daemon.py`. A reply may come turns later (`reload --wait`), by the client's number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..ipc.control import ControlServer, Request
from .poller import Watcher

Reply = Callable[[Mapping[str, Any]], None]
Handler = Callable[[Request, Reply, int], None]


class ControlDesk:
    """Clients come, ask and leave; `handle` gets each request with the way to answer it."""

    def __init__(self, path: Path, watcher: Watcher, handle: Handler) -> None:
        """Raises ControlError."""
        self._server = ControlServer(path)
        self._watcher = watcher
        self._handle = handle
        self._visits = itertools.count(1)
        self._visit_of: dict[int, int] = {}
        watcher.watch(self._server.fileno(), self._on_connect)

    def close(self) -> None:
        for client in self._server.clients:
            self._watcher.forget(client)
        self._watcher.forget(self._server.fileno())
        self._server.close()

    def _on_connect(self, now_ns: int) -> None:
        for client in self._server.accept():
            visit = self._visit_of[client] = next(self._visits)
            self._watcher.watch(client, self._reader(client, visit))

    def _reader(self, client: int, visit: int) -> Callable[[int], None]:
        return lambda now_ns: self._on_readable(client, visit, now_ns)

    def _on_readable(self, client: int, visit: int, now_ns: int) -> None:
        request = self._server.receive(client)
        if request is not None:
            self._handle(request, lambda fields: self._reply(client, visit, fields), now_ns)
        self._forget_gone(client, visit)

    def _reply(self, client: int, visit: int, fields: Mapping[str, Any]) -> None:
        """A descriptor's number is used again when its client has left: only the visit tells whose it is now."""
        if self._visit_of.get(client) == visit:
            self._server.reply(client, fields)
            self._forget_gone(client, visit)

    def _forget_gone(self, client: int, visit: int) -> None:
        if client not in self._server.clients and self._visit_of.get(client) == visit:
            del self._visit_of[client]
            self._watcher.forget(client)
