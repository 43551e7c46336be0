"""Main's side of the nursery: ask for a process, hear of its start and its end.

Owned by main. Requests never block; reports arrive through the poller and go to the callbacks given at the request.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ipc.fd_passing import recv_with_fds, send_with_fds
from .blas import ONE_THREAD

log = logging.getLogger("orind")
GONE = "the nursery process ended: main cannot replace engines any more and stops"


HUNG = "the nursery process has not answered for {:.0f} s: main cannot replace engines any more and stops"
PING_NS = 1_000_000_000
SILENT_NS = 10_000_000_000  # a spawn takes milliseconds, on a board that swaps a second


class NurseryDied(Exception):
    """The nursery is gone or hangs, and no engine could be replaced any more: main can only end."""


@dataclass(slots=True)
class Child:
    """A process that was asked for. `pid` is 0 until it was started; `status` is set when it has ended."""

    number: int
    role: str
    pid: int = 0
    status: int | None = None
    on_failed: Callable[[str], None] | None = None


class NurseryClient:
    """Spawns through the nursery, which main starts here, once, before it serves (the only Popen of main).

    `on_usage`: called with what a process holds, now and then, and the time; `on_ended` with the id of one that ended.
    """

    board_root = "/"
    main_cpus: Sequence[int] = ()
    """Main's own CPUs, on which the nursery keeps it; empty: all."""
    misplaced: tuple[str, ...] = ()
    """Why who does not run on its CPUs."""
    on_usage: Callable[[Mapping[str, Any], int], None] | None = None
    on_ended: Callable[[int], None] | None = None

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "orind.daemon.nursery", str(theirs.fileno())]
        environment = {**os.environ, **ONE_THREAD, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment
        )
        theirs.close()
        ours.setblocking(False)
        self.channel = ours
        self._gone = False
        self._pinged_ns = self._next_ping_ns = 0
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}

    def spawn(
        self,
        role: str,
        fds: list[int],
        arguments: list[str],
        *,
        cpus: Sequence[int] = (),
        on_failed: Callable[[str], None] | None = None,
    ) -> Child:
        """Ask for `python -m orind.daemon.ROLE FD... ARGUMENTS...` on these CPUs (empty: all). The descriptors stay the
        caller's to close.

        Raises ChannelError where the arguments are too long, OSError where descriptors are short, NurseryDied.
        """
        child = Child(next(self._numbers), role, on_failed=on_failed)
        request = {"op": "spawn", "id": child.number, "role": role, "arguments": arguments, "cpus": list(cpus)}
        self._send(request, fds)
        self._children[child.number] = child
        return child

    def kill(self, child: Child) -> None:
        """SIGKILL, if it has not ended yet. The nursery's own end has ended it too."""
        if child.status is None and not self._gone:
            self._send({"op": "kill", "id": child.number}, [])

    def tick(self, now_ns: int) -> None:
        """Ask whether it lives, once a second. Raises NurseryDied when it has not answered for SILENT_NS."""
        if self._pinged_ns:
            if now_ns - self._pinged_ns > SILENT_NS:
                self._gone = True
                raise NurseryDied(HUNG.format(SILENT_NS / 1e9))
        elif now_ns >= self._next_ping_ns:
            self._next_ping_ns, self._pinged_ns = now_ns + PING_NS, now_ns
            self._send({"op": "ping", "id": 0, "root": self.board_root, "cpus": list(self.main_cpus)}, [])

    def on_readable(self) -> None:
        """Take one report. Raises NurseryDied at end of file."""
        received = recv_with_fds(self.channel)
        if received is None:
            self._gone = True
            raise NurseryDied(GONE)
        self._pinged_ns = 0
        report, _ = received
        if report["op"] == "pong":
            self._note(tuple(report["pins"]))
            if report["usage"] is not None and self.on_usage is not None:
                self.on_usage(report["usage"], time.monotonic_ns())
            return
        child = self._children[report["id"]]
        if report["op"] == "spawned":
            child.pid = report["pid"]
        elif report["op"] == "spawn_failed":
            del self._children[child.number]
            child.status = -1
            if child.on_failed is not None:
                child.on_failed(report["text"])
        else:
            del self._children[child.number]
            child.status = report["status"]
            if self.on_ended is not None:
                self.on_ended(child.pid)

    def _note(self, misplaced: tuple[str, ...]) -> None:
        if misplaced == self.misplaced:
            return
        for text in misplaced:
            log.warning("%s", text)
        if not misplaced:
            log.warning("every process runs on its CPUs again")
        self.misplaced = misplaced

    def close(self, timeout_s: float = 3.0) -> None:
        """End the nursery and all its children."""
        self.channel.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: dict[str, object], fds: list[int]) -> None:
        if not send_with_fds(self.channel, message, fds):
            self._gone = True
            raise NurseryDied(GONE)
