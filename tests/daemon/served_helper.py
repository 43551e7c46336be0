"""A power helper that serves in a thread, on a listening socket as systemd would pass it."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

from orind.daemon.power_helper import serve
from orind.ipc.control import CLIENTS_MAX, ControlServer
from orind.power.privileged import Privileged


class Helper:
    """`serve` in a thread, on a listening socket as systemd would pass it."""

    def __init__(self, folder: Path, board: Path, silent_s: float = 20.0) -> None:
        self.path, self.board, self.permitted = folder / "power.sock", board, True
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(CLIENTS_MAX)
        self._server = ControlServer(self.path, fd=self._listener.fileno(), admit=lambda _: self.permitted)
        privileged = Privileged(board, folder / "power-state.json")
        self._thread = threading.Thread(target=serve, args=(self._server, privileged, 0.2, silent_s))
        self._thread.start()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(20)
        sock.connect(str(self.path))
        return sock

    def raw(self, data: bytes) -> dict[str, Any]:
        with self.connect() as sock:
            sock.send(data)
            answer: dict[str, Any] = json.loads(sock.recv(65_536))
            return answer

    def ask(self, **fields: Any) -> dict[str, Any]:
        return self.raw(json.dumps(fields).encode())

    def close(self) -> None:
        """It ends by itself: nobody is there any more."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._server.close()
        self._listener.close()
