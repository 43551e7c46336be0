"""Sockets that systemd passes: found by name, and looked at before libzmq believes them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from orind.ipc.activation import PassedSockets, socket_name
from orind.ipc.errors import EndpointError


def listener(family: int, address: object) -> int:
    with socket.socket(family) as sock:
        sock.bind(address)  # type: ignore[arg-type]
        sock.listen()
        return sock.detach()


def test_where_each_kind_listens(no_fd_leak: None, tmp_path: Path) -> None:
    unix, four = listener(socket.AF_UNIX, str(tmp_path / "s")), listener(socket.AF_INET, ("127.0.0.1", 0))
    six = listener(socket.AF_INET6, ("::1", 0))
    passed = PassedSockets({unix: "frames", four: "port", six: "port6"})
    assert passed.take("systemd:frames") == (f"ipc://{tmp_path}/s", unix)
    assert passed.take("systemd:port")[0].startswith("tcp://127.0.0.1:")
    assert passed.take("systemd:port6")[0].startswith("tcp://[::1]:")
    assert passed.unclaimed(["systemd:port", "ipc:///x", "systemd:frames"]) == ["port6"]
    passed.close()
    passed.close()


def test_a_name_that_is_not_passed_or_passed_twice(no_fd_leak: None, tmp_path: Path) -> None:
    passed = PassedSockets({listener(socket.AF_UNIX, str(tmp_path / name)): "twice" for name in "ab"})
    with pytest.raises(EndpointError, match=r"it passes: twice\).*FileDescriptorName=frames"):
        passed.take("systemd:frames")
    with pytest.raises(EndpointError, match="passes 2 sockets of this name"):
        passed.take("systemd:twice")
    passed.close()


def unbound(tmp_path: Path) -> int:
    return socket.socket(socket.AF_UNIX).detach()


def bound(tmp_path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        return sock.detach()


@pytest.mark.parametrize(("make", "words"), [
    (lambda _: os.open("/dev/null", os.O_RDONLY), "is no socket: use ListenStream="),
    (lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), "no stream socket"),
    (lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).detach(), "no stream socket"),
    (lambda _: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).detach(), "family 16 cannot be served"),
    (unbound, "does not listen"),
    (bound, "does not listen: the socket unit must say Accept=no"),
    (lambda path: listener(socket.AF_UNIX, f"\0{path.name}-{os.getpid()}"), "abstract name"),
])
def test_what_cannot_be_served_is_refused_by_name(
    no_fd_leak: None, tmp_path: Path, make: Callable[[Path], int], words: str
) -> None:
    passed = PassedSockets({make(tmp_path): "frames"})
    with pytest.raises(EndpointError, match=f"endpoint systemd:frames: .*{words}"):
        passed.take("systemd:frames")
    passed.close()


@pytest.mark.parametrize("endpoint", ["systemd:", "systemd:a b", "systemd:" + "x" * 65, "systemd:a/b", "systemd:a\n"])
def test_a_name_that_cannot_be(endpoint: str) -> None:
    with pytest.raises(EndpointError, match="FileDescriptorName= of the socket unit"):
        socket_name(endpoint)


def test_other_endpoints_are_not_systemds() -> None:
    assert socket_name("ipc:///run/orind/frames") == socket_name("tcp://127.0.0.1:5") == ""
