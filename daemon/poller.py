"""One poller for everything that main waits for: ZeroMQ sockets and plain descriptors, each with what to call.

Invariant: a callback may watch and forget others, also ones that are ready in the same turn; those are not called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import zmq

Call = Callable[[int], None]


class Watcher(Protocol):
    """As much of the poller as the owners of descriptors need."""

    def watch(self, fd: int, call: Call) -> None: ...
    def forget(self, fd: int) -> None: ...


class Poller:
    """Callbacks take the time of the turn in ns."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._calls: dict[int | zmq.Socket[bytes], Call] = {}

    def watch(self, fd: int | zmq.Socket[bytes], call: Call) -> None:
        self._calls[fd] = call
        self._poller.register(fd, zmq.POLLIN)

    def forget(self, fd: int | zmq.Socket[bytes]) -> None:
        if self._calls.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def wait(self, timeout_ns: int) -> list[Call]:
        """What is ready, plain descriptors (engines, signals, control) before ZeroMQ sockets. Rounds up to whole ms."""
        ready = self._poller.poll(-(-timeout_ns // 1_000_000))
        ordered = sorted(ready, key=lambda item: not isinstance(item[0], int))
        return [self._guarded(key, self._calls[key]) for key, _ in ordered]

    def _guarded(self, key: int | zmq.Socket[bytes], call: Call) -> Call:
        """Calls unless it was forgotten since, even if the descriptor's number already belongs to somebody else."""

        def guarded(now_ns: int) -> None:
            if self._calls.get(key) is call:
                call(now_ns)

        return guarded
