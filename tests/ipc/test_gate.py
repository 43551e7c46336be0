"""The door of a bound socket: shut to newcomers only, open again, and never in the way of the next daemon."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from orind.ipc.gate import SHUT_SUFFIX
from orind.ipc.sink import ResultSink
from orind.ipc.source import Source

WAIT_MS = 10_000


def connected(context: zmq.Context[Any], source: Source) -> zmq.Socket[Any]:
    """A client whose frame has arrived."""
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.LINGER, 0)
    sock.connect(source.socket.getsockopt_string(zmq.LAST_ENDPOINT))
    send(sock, source)
    return sock


def send(sock: zmq.Socket[Any], source: Source) -> None:
    sock.send_multipart([b"cam", b"{}", b"p"])
    assert source.socket.poll(WAIT_MS)
    (frame,) = source.drain()
    assert frame.camera == b"cam"


def knock(source: Source) -> socket.socket:
    """A plain connection attempt that does not wait."""
    endpoint = source.socket.getsockopt_string(zmq.LAST_ENDPOINT)
    if endpoint.startswith("tcp"):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((host, int(port)))
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.connect_ex(endpoint.removeprefix("ipc://"))
    return sock


def is_connected(sock: socket.socket, wait_s: float) -> bool:
    select.select([], [sock], [], wait_s)
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def test_an_ipc_door_is_shut_to_newcomers_only(context: zmq.Context[Any], endpoint: str) -> None:
    source = Source(context, "router", endpoint, slot_bytes=1000)
    assert source.gate is not None
    inside = connected(context, source)
    source.gate.shut()
    source.gate.shut()
    with knock(source) as outside:
        assert source.gate.is_shut and not is_connected(outside, 0)
    send(inside, source)
    source.gate.open()
    source.gate.open()
    connected(context, source).close()
    send(inside, source)
    inside.close()
    source.close()


def test_a_tcp_door_drops_what_knocks_until_it_is_open_again(context: zmq.Context[Any]) -> None:
    source = Source(context, "router", "tcp://127.0.0.1:*", slot_bytes=1000)
    assert source.gate is not None
    inside = connected(context, source)
    source.gate.shut()
    outside = knock(source)
    assert not is_connected(outside, 0.1)
    send(inside, source)
    source.gate.open()
    assert is_connected(outside, 30.0), "the kernel knocks again by itself"
    outside.close()
    inside.close()
    source.close()


def test_an_abstract_name_is_given_up_and_taken_again(context: zmq.Context[Any], tmp_path: Path) -> None:
    source = Source(context, "router", f"ipc://@orind-{tmp_path.name}-{id(context)}", slot_bytes=1000)
    assert source.gate is not None
    source.gate.shut()
    while source.gate.is_shut:
        with contextlib.suppress(OSError):  # libzmq gives the name up in its own time
            source.gate.open()
    connected(context, source).close()
    source.close()


def test_a_socket_that_is_closed_behind_a_shut_door_leaves_nothing(context: zmq.Context[Any], tmp_path: Path) -> None:
    sink = ResultSink(context, f"ipc://{tmp_path}/out")
    assert sink.gate is not None
    sink.gate.shut()
    assert [p.name for p in tmp_path.iterdir()] == ["out" + SHUT_SUFFIX]
    sink.close()
    assert not list(tmp_path.iterdir())


def test_a_socket_that_is_closed_leaves_no_path_but_what_is_removed_already_is_no_error(
    context: zmq.Context[Any], tmp_path: Path
) -> None:
    for removed in (False, True):
        sink = ResultSink(context, f"ipc://{tmp_path}/out")
        if removed:
            (tmp_path / "out").unlink()
        sink.close()
        assert not list(tmp_path.iterdir())


def test_what_a_dead_daemon_left_aside_is_removed(context: zmq.Context[Any], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/out{SHUT_SUFFIX}")
    sink = ResultSink(context, f"ipc://{tmp_path}/out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    sink.close()


def test_a_door_that_cannot_be_moved_stays_open(context: zmq.Context[Any], tmp_path: Path) -> None:
    sink = ResultSink(context, f"ipc://{tmp_path}/out")
    assert sink.gate is not None
    (tmp_path / "out").unlink()
    with pytest.raises(OSError, match="No such file"):
        sink.gate.shut()
    assert not sink.gate.is_shut
    sink.close()


def passed(tmp_path: Path, tcp: bool) -> tuple[socket.socket, str]:
    """A listening socket as systemd would pass it, and its endpoint."""
    listener = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0) if tcp else str(tmp_path / "in"))
    listener.listen()
    return listener, f"tcp://127.0.0.1:{listener.getsockname()[1]}" if tcp else f"ipc://{tmp_path}/in"


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("dies", [False, True])
def test_systemds_socket_is_open_again_for_the_next_daemon(
    context: zmq.Context[Any], tmp_path: Path, tcp: bool, dies: bool
) -> None:
    """Shut and opened as others; and whether a daemon ends or dies behind a shut door, its successor finds it open."""
    listener, endpoint = passed(tmp_path, tcp)
    first = Source(context, "router", endpoint, slot_bytes=1000, fd=listener.fileno())
    assert first.gate is not None
    inside = connected(context, first)
    first.gate.shut()
    outside = knock(first)
    assert not is_connected(outside, 0.1)
    send(inside, first)
    if dies:
        first.gate.is_shut = False  # it never comes to closing its door
    first.close()
    assert not os.get_blocking(listener.fileno()), "two that accept would race, and the slower one's thread hang"
    second = Source(context, "router", endpoint, slot_bytes=1000, fd=listener.fileno())
    connected(context, second).close()
    for sock in (outside, inside, listener):
        sock.close()
    second.close()
