"""The control socket in main's poller: who is connected, and where a request goes.

Owned by `daemon.py`. A reply may come turns later (`reload --wait`), by the client's number. Invariant: nobody holds a
place for nothing: a client that asks nothing is closed, and only some may wait for a late reply, each for one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..ipc.control import CLIENTS_MAX, ControlServer, Request
from .poller import Watcher

Reply = Callable[[Mapping[str, Any]], None]
Handler = Callable[[Request, Reply, int], None]
IDLE_NS = 5_000_000_000
WAITING_MAX = CLIENTS_MAX // 2  # the other places stay for `status` and `drain`


class ControlDesk:
    """Clients come, ask and leave; `handle` gets each request with the way to answer it."""

    def __init__(self, path: Path, watcher: Watcher, handle: Handler) -> None:
        """Raises ControlError."""
        self._server = ControlServer(path)
        self._watcher = watcher
        self._handle = handle
        self._visits = itertools.count(1)
        self._visit_of: dict[int, int] = {}
        self._idle_since_ns: dict[int, int] = {}  # by visit
        self._waiting: set[int] = set()  # visits that wait for a late reply
        watcher.watch(self._server.fileno(), self._on_connect)

    def tick(self, now_ns: int) -> None:
        """Close clients that neither ask nor wait for a reply."""
        for client, visit in list(self._visit_of.items()):
            if visit not in self._waiting and now_ns - self._idle_since_ns[visit] > IDLE_NS:
                self._server.drop(client)
                self._forget_gone(client, visit)

    def close(self) -> None:
        for client in self._server.clients:
            self._watcher.forget(client)
        self._watcher.forget(self._server.fileno())
        self._server.close()

    def _on_connect(self, now_ns: int) -> None:
        for client in self._server.accept():
            visit = self._visit_of[client] = next(self._visits)
            self._idle_since_ns[visit] = now_ns
            self._watcher.watch(client, self._reader(client, visit))

    def _reader(self, client: int, visit: int) -> Callable[[int], None]:
        return lambda now_ns: self._on_readable(client, visit, now_ns)

    def _on_readable(self, client: int, visit: int, now_ns: int) -> None:
        request = self._server.receive(client)
        self._idle_since_ns[visit] = now_ns
        if request is not None:
            refusal = self._claim_wait(visit) if request.wait else ""
            if refusal:
                self._server.reply(client, {"ok": False, "error": refusal})
            else:
                self._handle(request, lambda fields: self._reply(client, visit, request.wait, fields), now_ns)
        self._forget_gone(client, visit)

    def _claim_wait(self, visit: int) -> str:
        """Note that a late reply is awaited, or say why it cannot be."""
        if visit in self._waiting:
            return "busy: this client waits for a reply already"
        if len(self._waiting) >= WAITING_MAX:
            return f"busy: {WAITING_MAX} clients wait for a reply already, try again"
        self._waiting.add(visit)
        return ""

    def _reply(self, client: int, visit: int, waited: bool, fields: Mapping[str, Any]) -> None:
        """A descriptor's number is used again when its client has left: only the visit tells whose it is now."""
        if self._visit_of.get(client) == visit:
            if waited:
                self._waiting.discard(visit)
            self._server.reply(client, fields)
            self._forget_gone(client, visit)

    def _forget_gone(self, client: int, visit: int) -> None:
        if client not in self._server.clients and self._visit_of.get(client) == visit:
            del self._visit_of[client], self._idle_since_ns[visit]
            self._waiting.discard(visit)
            self._watcher.forget(client)
