"""The process that starts all the others, so that main never blocks in a spawn.

Started once by main (`python -m orind.daemon.nursery FD`). Requests on its socket: `spawn` (role, arguments,
descriptors), `kill`, `ping`; reports: `spawned`, `spawn_failed`, `exited`, `pong`. It dies with main, and its
children with it. Invariant: whatever it started it also reaps, and a process id is only signalled while it is
an unreaped child of ours.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from ..ipc.fd_passing import recv_with_fds, send_with_fds
from .blas import ONE_THREAD
from .lifeline import begin_child

ROLES = ("checker", "engine", "decoder", "steward", "http")
CHILD_ENVIRONMENT = {**ONE_THREAD, "PYTHONUNBUFFERED": "1"}
END_GRACE_S = 1.0


class Nursery:
    """Children by request number. One thread, one poll loop."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._roles: dict[int, str] = {}

    def run(self) -> None:
        """Serve until main closes its end."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        serving = True
        while serving:
            for descriptor, _ in poller.poll():
                if descriptor == wake_read:
                    os.read(wake_read, 512)
                    self._reap()
                else:
                    serving = self._serve_one()
        self._end_children()

    def _serve_one(self) -> bool:
        received = recv_with_fds(self._channel)
        if received is None:
            return False
        request, descriptors = received
        try:
            if request["op"] == "spawn":
                self._spawn(request, descriptors)
            elif request["op"] == "ping":
                self._report({"op": "pong", "id": 0})
            else:
                self._kill(request["id"])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _spawn(self, request: dict[str, Any], descriptors: list[int]) -> None:
        number, role = request["id"], request["role"]
        if role not in ROLES:
            self._report({"op": "spawn_failed", "id": number, "text": f"no role '{role}'"})
            return
        command = [sys.executable, "-m", f"orind.daemon.{role}", *map(str, descriptors), *request["arguments"]]
        try:
            child = subprocess.Popen(
                command,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **CHILD_ENVIRONMENT},
            )
        except OSError as error:
            self._report({"op": "spawn_failed", "id": number, "text": f"cannot start {role}: {error}"})
            return
        self._children[number], self._roles[number] = child, role
        self._report({"op": "spawned", "id": number, "pid": child.pid})

    def _kill(self, number: int) -> None:
        child = self._children.get(number)
        if child is not None:
            child.kill()

    def _reap(self) -> None:
        for number, child in list(self._children.items()):
            status = child.poll()
            if status is not None:
                del self._children[number], self._roles[number]
                self._report({"op": "exited", "id": number, "status": status})

    def _end_children(self) -> None:
        """A child with a channel ends by itself when main is gone; the HTTP process has none and holds nothing."""
        for number, child in self._children.items():
            if self._roles[number] == "http":
                child.kill()
        for child in self._children.values():
            try:
                child.wait(END_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _report(self, message: dict[str, Any]) -> None:
        send_with_fds(self._channel, message, [])


def main() -> int:
    begin_child()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(True)
    Nursery(channel).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
