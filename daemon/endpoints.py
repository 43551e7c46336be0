"""Main's ZeroMQ sockets: the sources that frames come from, and the results socket.

Owned by `daemon.py`. Invariant: every ipc path that we bind is locked first, because ZeroMQ would let a second instance
steal it without an error. A reload adds endpoints and never closes one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq

from ..ipc.activation import PassedSockets, socket_name
from ..ipc.endpoint import Context, ipc_path
from ..ipc.gate import Gate
from ..ipc.lock import InstanceLock, lock_endpoint
from ..ipc.sink import ResultSink
from ..ipc.source import Source
from .config import Config
from .poller import Poller
from .sections import Results, SourceEntry

log = logging.getLogger("orind")
OnFrames = Callable[[Source, int], None]


class Endpoints:
    """All sockets of the daemon. Opening one raises EndpointError."""

    def __init__(self, slot_bytes: int, passed: PassedSockets) -> None:
        """passed: by systemd; closed with the rest."""
        self._passed = passed
        self._context: Context = zmq.Context()
        self._slot_bytes = slot_bytes
        self._locks: dict[str, InstanceLock | None] = {}
        self.sources: dict[str, tuple[SourceEntry, Source]] = {}
        self._sink: tuple[Results, ResultSink] | None = None

    def open(self, config: Config) -> list[str]:
        """Open what the configuration names and is not open yet. Returns what differs but needs a restart.

        Raises EndpointError with nothing opened: a socket that is bound but not served would swallow frames.
        """
        fresh: list[str] = []
        try:
            return self._open(config, fresh)
        except BaseException:
            for name in fresh:
                self.sources.pop(name)[1].close()
            raise

    def _open(self, config: Config, fresh: list[str]) -> list[str]:
        notes = []
        for entry in config.sources:
            known = self.sources.get(entry.name)
            if known is None:
                self.sources[entry.name] = (entry, self._source(entry))
                fresh.append(entry.name)
            elif known[0] != entry:
                notes.append(f"sources: '{entry.name}' has changed, which takes effect at the next restart")
        for name in set(self.sources) - {entry.name for entry in config.sources}:
            notes.append(f"sources: '{name}' was removed, it stays open until the next restart")
        if self._sink is not None and self._sink[0] != config.results:
            notes.append("results has changed, which takes effect at the next restart")
        elif self._sink is None and config.results is not None:
            endpoint, fd = self._place(config.results.endpoint)
            self._sink = (config.results, ResultSink(self._context, endpoint, hwm=config.results.send_queue, fd=fd))
        named = [entry.endpoint for entry in config.sources] + ([config.results.endpoint] if config.results else [])
        if unclaimed := self._passed.unclaimed(named):
            log.warning(
                "systemd passes sockets that no endpoint names, whoever connects waits: %s", ", ".join(unclaimed)
            )
        return notes

    def watch(self, poller: Poller, on_frames: OnFrames) -> None:
        """Have the poller call `on_frames` for each source; a source that is watched already is watched anew."""
        for _, source in self.sources.values():
            poller.watch(source.socket, _bound(on_frames, source))

    def forget(self, poller: Poller) -> None:
        """Stop taking frames; replies still go out."""
        for _, source in self.sources.values():
            poller.forget(source.socket)

    def shut(self) -> None:
        """Take no new connections; those that are there stay. Raises OSError."""
        for gate in self._gates():
            gate.shut()

    def reopen(self) -> None:
        """Take connections again. Raises OSError."""
        for gate in self._gates():
            gate.open()

    @property
    def discarded(self) -> int:
        """Messages that could not be answered, because no socket of ZeroMQ makes such an envelope."""
        return sum(source.discarded for _, source in self.sources.values())

    def _gates(self) -> list[Gate]:
        sockets = [source for _, source in self.sources.values()] + ([self._sink[1]] if self._sink is not None else [])
        return [each.gate for each in sockets if each.gate is not None]

    def publish(self, parts: Sequence[bytes]) -> None:
        if self._sink is not None:
            self._sink[1].publish(parts)

    def close(self) -> None:
        """Close everything; what was sent has half a second to leave (LINGER)."""
        for _, source in self.sources.values():
            source.close()
        if self._sink is not None:
            self._sink[1].close()
        self._context.term()
        for lock in self._locks.values():
            if lock is not None:
                lock.close()
        self._passed.close()

    def _source(self, entry: SourceEntry) -> Source:
        bind = entry.attach == "bind"
        endpoint, fd = self._place(entry.endpoint) if bind else (entry.endpoint, None)
        return Source(
            self._context,
            entry.pattern,
            endpoint,
            slot_bytes=self._slot_bytes,
            bind=bind,
            hwm=entry.receive_queue,
            fd=fd,
        )

    def _place(self, endpoint: str) -> tuple[str, int | None]:
        """Where to bind, locked, with systemd's descriptor if it is systemd's. Raises EndpointError."""
        if not socket_name(endpoint):
            self._lock(endpoint)
            return endpoint, None
        where, fd = self._passed.take(endpoint)
        # systemd's socket may lie where only systemd may write; then no other orind of this user can take the path
        if (path := ipc_path(where)) and os.access(Path(path).parent, os.W_OK):
            self._lock(where)
        return where, fd

    def _lock(self, endpoint: str) -> None:
        """Once, for the life of the process: an endpoint whose opening failed can be tried again by the next reload."""
        if endpoint not in self._locks:
            self._locks[endpoint] = lock_endpoint(endpoint)


def _bound(on_frames: OnFrames, source: Source) -> Callable[[int], None]:
    return lambda now_ns: on_frames(source, now_ns)
