"""The control socket in main's poller: who is connected, and where a request goes.

Owned by `daemon.py`. A reply may come turns later (`reload --wait`), by the client's number.
"""

from __future__ import annotations

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
        watcher.watch(self._server.fileno(), self._on_connect)

    def close(self) -> None:
        for client in self._server.clients:
            self._watcher.forget(client)
        self._watcher.forget(self._server.fileno())
        self._server.close()

    def _on_connect(self, now_ns: int) -> None:
        for client in self._server.accept():
            self._watcher.watch(client, self._reader(client))

    def _reader(self, client: int) -> Callable[[int], None]:
        return lambda now_ns: self._on_readable(client, now_ns)

    def _on_readable(self, client: int, now_ns: int) -> None:
        request = self._server.receive(client)
        if request is not None:
            self._handle(request, lambda fields: self._reply(client, fields), now_ns)
        self._forget_gone(client)

    def _reply(self, client: int, fields: Mapping[str, Any]) -> None:
        self._server.reply(client, fields)
        self._forget_gone(client)

    def _forget_gone(self, client: int) -> None:
        if client not in self._server.clients:
            self._watcher.forget(client)
