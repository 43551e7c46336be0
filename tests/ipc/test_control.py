"""The control socket: requests and replies, and clients that are slow, silent, hostile or too many."""

from __future__ import annotations

import json
import os
import random
import select
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orind.ipc import control
from orind.ipc.control import ControlClient, ControlServer, Request
from orind.ipc.errors import ControlError


@pytest.fixture
def server(tmp_path: Path, no_fd_leak: None) -> Iterator[ControlServer]:
    made = ControlServer(tmp_path / "control", clients_max=3)
    yield made
    made.close()


def turn(server: ControlServer) -> list[Request]:
    """One turn of a poller, as main does it."""
    ready, _, _ = select.select([server, *server.clients], [], [], 10)
    requests = []
    for item in ready:
        if item is server:
            server.accept()
        else:
            requests.append(server.receive(item))
    return [request for request in requests if request is not None]


def serve_one(server: ControlServer, reply: dict[str, Any]) -> threading.Thread:
    def loop() -> None:
        while not (requests := turn(server)):
            pass
        server.reply(requests[0].client, {**reply, "op": requests[0].op, "wait": requests[0].wait})

    thread = threading.Thread(target=loop)
    thread.start()
    return thread


def test_a_request_and_its_reply(server: ControlServer) -> None:
    thread = serve_one(server, {"ok": True, "state": "serving"})
    with ControlClient(server.path) as client:
        reply = client.request({"op": "reload", "wait": True}, timeout_s=10)
    thread.join()
    assert reply == {"ok": True, "state": "serving", "op": "reload", "wait": True}


def test_kernel_says_who_asks_and_the_reply_may_come_later(server: ControlServer) -> None:
    with ControlClient(server.path) as client:
        client._sock.send(b'{"op":"status"}')
        requests: list[Request] = []
        while not requests:
            requests = turn(server)
        (request,) = requests
        assert (request.op, request.wait, request.pid, request.uid) == ("status", False, os.getpid(), os.getuid())
        assert server.receive(request.client) is None and request.client in server.clients
        assert server.reply(request.client, {"n": 1}) and json.loads(client._sock.recv(100)) == {"n": 1}


def test_mode_is_0660_and_a_stale_file_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(tmp_path / "control"))
    server = ControlServer(tmp_path / "control")
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o660
    server.close()
    assert not server.path.exists()
    server.close()


@pytest.mark.parametrize(
    "data",
    [
        b"hello", b"[]", b'{"op":"rm"}', b'{"op":["status"]}', b'{"op":"status","wait":1}', b"{}", b"\x80\x04K\x01.",
        b"[" * 4000, b" " * 5000,
    ],
)
def test_a_bad_request_is_answered_with_the_reason(server: ControlServer, data: bytes) -> None:
    with ControlClient(server.path) as client:
        client._sock.send(data)
        while not select.select([client._sock], [], [], 0)[0]:
            assert turn(server) == []
        reply = json.loads(client._sock.recv(1000))
        assert reply["ok"] is False and reply["error"]
        assert len(server.clients) == 1  # it may try again


def test_one_client_too_many_is_told(server: ControlServer) -> None:
    clients = [ControlClient(server.path) for _ in range(3)]
    while len(server.clients) < 3:
        server.accept()
    late = ControlClient(server.path)
    while select.select([server], [], [], 0)[0]:
        server.accept()
    assert len(server.clients) == 3
    reply = late.request({"op": "status"}, timeout_s=10)
    assert reply == {"ok": False, "error": "busy: 3 clients are connected, try again"}
    for client in (*clients, late):
        client.close()
    while server.clients:
        turn(server)


def test_a_client_that_leaves_or_never_reads_is_dropped(server: ControlServer) -> None:
    leaver, sleeper = ControlClient(server.path), ControlClient(server.path)
    while len(server.clients) < 2:
        server.accept()
    leaver.close()
    while len(server.clients) > 1:
        turn(server)
    (client,) = server.clients
    sent = 0
    while server.reply(client, {"x": "y" * 60_000}):
        sent += 1
        assert sent < 1000
    assert server.clients == () and server.reply(client, {}) is False and server.receive(client) is None
    sleeper.close()


def test_a_reply_too_large_becomes_an_error(server: ControlServer) -> None:
    thread = serve_one(server, {"x": "y" * control.REPLY_BYTES_MAX})
    with ControlClient(server.path) as client:
        assert "at most" in client.request({"op": "status"}, timeout_s=10)["error"]
    thread.join()


def test_fuzz_requests(server: ControlServer) -> None:
    rng = random.Random(3)
    with ControlClient(server.path) as client:
        while not server.clients:
            server.accept()
        (number,) = server.clients
        for _ in range(500):
            client._sock.send(rng.randbytes(rng.randint(1, 50)))
            assert server.receive(number) is None
            assert json.loads(client._sock.recv(1000))["ok"] is False


@pytest.mark.usefixtures("no_fd_leak")
class TestClient:
    def test_nobody_serves(self, tmp_path: Path) -> None:
        with pytest.raises(ControlError, match="is orind serving"):
            ControlClient(tmp_path / "control")

    def test_no_permission(self, tmp_path: Path) -> None:
        server = ControlServer(tmp_path / "control")
        code = (
            "import os, sys; from orind.ipc.control import ControlClient\n"
            "if os.getuid() == 0: os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
            "ControlClient(sys.argv[1])\n"
        )
        server.path.chmod(0)
        done = subprocess.run([sys.executable, "-c", code, server.path], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "Permission denied: are you in the group orind?" in done.stderr
        server.close()

    def test_time_out(self, tmp_path: Path) -> None:
        server = ControlServer(tmp_path / "control")
        with ControlClient(server.path) as client, pytest.raises(ControlError, match="no answer within"):
            client.request({"op": "status"}, timeout_s=0.05)
        server.close()

    def test_the_server_ends_first(self, tmp_path: Path) -> None:
        server = ControlServer(tmp_path / "control")
        with ControlClient(server.path) as client:
            server.accept()
            server.close()
            with pytest.raises(ControlError, match="ended"):
                client.request({"op": "status"})

    def test_the_server_ends_after_reading(self, tmp_path: Path) -> None:
        server = ControlServer(tmp_path / "control")
        with ControlClient(server.path) as client:
            ender = threading.Thread(target=lambda: (turn(server), turn(server), server.close()))
            ender.start()
            with pytest.raises(ControlError, match="ended"):
                client.request({"op": "status"}, timeout_s=10)
            ender.join()

    def test_no_directory_and_a_path_too_long(self, tmp_path: Path) -> None:
        with pytest.raises(ControlError, match="cannot be made"):
            ControlServer(tmp_path / "missing" / "control")
        with pytest.raises(ControlError, match="107"):
            ControlServer(tmp_path / ("x" * 120))
        (tmp_path / "precious").write_text("a file, not a socket")
        with pytest.raises(ControlError, match="in use"):
            ControlServer(tmp_path / "precious")
        assert (tmp_path / "precious").read_text() == "a file, not a socket"

    def test_listening_descriptor_from_systemd(self, tmp_path: Path) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(tmp_path / "control"))
        listener.listen(4)
        server = ControlServer(tmp_path / "control", fd=listener.fileno())
        listener.close()
        thread = serve_one(server, {"ok": True})
        with ControlClient(server.path) as client:
            assert client.request({"op": "drain"}, timeout_s=10)["op"] == "drain"
        thread.join()
        server.close()
        assert server.path.exists()  # systemd's, not ours to remove
