"""The process that starts all the others, so that main never blocks in a spawn.

Started once by main (`python -m orind.daemon.nursery FD`). Requests on its socket: `spawn` (role, arguments, CPUs,
descriptors), `kill`, `ping` (with main's CPUs); reports: `spawned`, `spawn_failed`, `exited`, `pong` (with what one of
us holds, and who does not run on its CPUs: pins.py). It dies with main, and its children with it. It has imported what
an engine needs, and forks: a child starts in milliseconds and shares the pages.
Invariants: whatever it started it also reaps, and a process id is only signalled while it is an unreaped child of ours;
it has one thread and touches no GPU, so that a fork is a whole process.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from ..ipc.fd_passing import recv_with_fds, send_with_fds
from . import pins, usage
from .lifeline import begin_child, die_with_parent, name_process

ROLES = ("checker", "engine", "decoder", "steward", "http")
PRELOADED = "engine"
END_GRACE_S, END_LOOK_S = 1.0, 0.005


@dataclass(frozen=True, slots=True)
class Birth:
    """What a forked child is to become: it leaves the nursery's loop with this and never comes back."""

    parent: int
    role: str
    arguments: list[str]
    not_ours: list[int]

    def run(self) -> int:
        """The role's own `main`, with nothing of the nursery left open. Returns the exit code."""
        die_with_parent(self.parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in self.not_ours:
            os.close(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.argv = [self.role, *self.arguments]
        name_process(self.role)
        return int(importlib.import_module(f".{self.role}", __package__).main())


class Nursery:
    """Children by request number. One thread, one poll loop."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pids: dict[int, int] = {}
        self._roles: dict[int, str] = {}
        self._cpus: dict[int, list[int]] = {}  # of those that have some of their own
        self._board_root = "/"
        self._turn = 0

    def run(self) -> Birth | None:
        """Serve until main closes its end: None. In a child: what it is to become."""
        ours = os.getpid()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == wake_read:
                    os.read(wake_read, 512)
                    self._reap()
                    continue
                received = recv_with_fds(self._channel)
                if received is None:
                    self._end_children()
                    return None
                request, descriptors = received
                if self._serve(request, descriptors):
                    arguments = [*map(str, descriptors), *request["arguments"]]
                    return Birth(ours, request["role"], arguments, [self._channel.detach(), wake_read, wake_write])
                for descriptor in descriptors:
                    os.close(descriptor)

    def _serve(self, request: dict[str, Any], descriptors: list[int]) -> bool:
        """Whether this is the child that was asked for."""
        if request["op"] == "spawn":
            return self._spawn(request["id"], request["role"], request.get("cpus", []))
        if request["op"] == "ping":
            self._report({"op": "pong", "id": 0, "usage": self._next_usage(), "pins": self._tend(request)})
        else:
            self._kill(request["id"])
        return False

    def _spawn(self, number: int, role: str, cpus: list[int]) -> bool:
        if role not in ROLES:
            self._report({"op": "spawn_failed", "id": number, "text": f"no role '{role}'"})
            return False
        try:
            pid = os.fork()
        except OSError as error:
            self._report({"op": "spawn_failed", "id": number, "text": f"cannot start {role}: {error}"})
            return False
        if pid == 0:
            return True
        self._pids[number], self._roles[number] = pid, role
        if cpus:
            self._cpus[number] = cpus
            pins.tend({pid: self._pins()[pid]}, self._board_root)
        self._report({"op": "spawned", "id": number, "pid": pid})
        return False

    def _pins(self) -> dict[int, pins.Pin]:
        return {self._pids[n]: pins.Pin(self._roles[n], "engine.cpus", cpus) for n, cpus in self._cpus.items()}

    def _tend(self, request: dict[str, Any]) -> list[str]:
        """Main and children on their CPUs, as far as these are online."""
        self._board_root = request["root"]
        main = pins.Pin("main", "realtime.cpus", request["cpus"])
        return pins.tend({os.getppid(): main, **self._pins()}, self._board_root)

    def _next_usage(self) -> dict[str, Any] | None:
        """What one of us holds, another one each time; None for one that has just ended."""
        everybody = [("main", os.getppid()), ("nursery", os.getpid())]
        everybody += [(self._roles[number], pid) for number, pid in self._pids.items()]
        self._turn = (self._turn + 1) % len(everybody)
        role, pid = everybody[self._turn]
        found = usage.read(pid)
        return None if found is None else {"role": role, "pid": pid, **found._asdict()}

    def _kill(self, number: int) -> None:
        if number in self._pids:
            os.kill(self._pids[number], signal.SIGKILL)

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[number], self._roles[number]
                self._cpus.pop(number, None)
                self._report({"op": "exited", "id": number, "status": os.waitstatus_to_exitcode(status)})

    def _end_children(self) -> None:
        """A child with a channel ends by itself when main is gone; the HTTP process has none and holds nothing."""
        for number in self._pids:
            if self._roles[number] == "http":
                self._kill(number)
        end_s = time.monotonic() + END_GRACE_S
        for number, pid in self._pids.items():
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > end_s:
                    self._kill(number)
                    os.waitpid(pid, 0)
                    break
                time.sleep(END_LOOK_S)

    def _report(self, message: dict[str, Any]) -> None:
        send_with_fds(self._channel, message, [])


def main() -> int:
    begin_child()
    name_process("nursery")
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(True)
    importlib.import_module(f".{PRELOADED}", __package__)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages that it shares
    birth = Nursery(channel).run()
    return 0 if birth is None else birth.run()


if __name__ == "__main__":
    sys.exit(main())
