"""Main's ZeroMQ sockets: locked, opened together or not at all, kept open over reloads."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from stand_ins import config

from orind.daemon.config import Config
from orind.daemon.endpoints import Endpoints
from orind.daemon.poller import Poller
from orind.ipc.activation import PassedSockets
from orind.ipc.errors import EndpointError
from orind.ipc.source import Source


def entry(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "endpoint": f"ipc://{folder}/{name}", **more}


def made(folder: Path, *sources: dict[str, Any], results: str = "") -> Config:
    more = {"results": {"endpoint": f"ipc://{folder}/{results}"}} if results else {}
    return config(folder, sources=list(sources), **more)


@pytest.fixture
def endpoints(no_fd_leak: None) -> Iterator[Endpoints]:
    own = Endpoints(4096, PassedSockets({}))
    yield own
    own.close()


def test_frames_of_a_source_reach_the_callback_until_forgotten(endpoints: Endpoints, tmp_path: Path) -> None:
    endpoints.open(made(tmp_path, entry(tmp_path, "in", pattern="pull")))
    poller, seen = Poller(), list[bytes]()

    def take(source: Source, now_ns: int) -> None:
        seen.extend(raw.camera for raw in source.drain())

    endpoints.watch(poller, take)
    endpoints.watch(poller, take)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(f"ipc://{tmp_path}/in")
    push.send_multipart([b"cam", b"{}", b"x"])
    for call in poller.wait(10_000_000_000):
        call(0)
    assert seen == [b"cam"]
    endpoints.forget(poller)
    push.send_multipart([b"cam", b"{}", b"x"])
    assert poller.wait(1_000_000) == []
    push.close(linger=0)
    context.term()


def test_results_are_published(endpoints: Endpoints, tmp_path: Path) -> None:
    endpoints.publish([b"res/cam", b"{}"])  # nowhere to go: no results section
    endpoints.open(made(tmp_path, entry(tmp_path, "in"), results="out"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.subscribe(b"")
    sub.connect(f"ipc://{tmp_path}/out")
    while not sub.poll(5):
        endpoints.publish([b"res/cam", b"{}"])  # until the subscription has arrived
    assert sub.recv_multipart() == [b"res/cam", b"{}"]
    sub.close(linger=0)
    context.term()


def test_a_second_instance_is_refused_by_the_lock(endpoints: Endpoints, tmp_path: Path) -> None:
    endpoints.open(made(tmp_path, entry(tmp_path, "in")))
    other = Endpoints(4096, PassedSockets({}))
    with pytest.raises(EndpointError, match="another orind"):
        other.open(made(tmp_path, entry(tmp_path, "in")))
    other.close()


def test_a_reload_adds_and_says_what_needs_a_restart(endpoints: Endpoints, tmp_path: Path) -> None:
    one, two = entry(tmp_path, "one"), entry(tmp_path, "two")
    assert endpoints.open(made(tmp_path, one, results="out")) == []
    assert endpoints.open(made(tmp_path, one, two, results="out")) == []
    assert sorted(endpoints.sources) == ["one", "two"]
    notes = endpoints.open(made(tmp_path, {**two, "receive_queue": 9}, results="elsewhere"))
    assert notes == [
        "sources: 'two' has changed, which takes effect at the next restart",
        "sources: 'one' was removed, it stays open until the next restart",
        "results has changed, which takes effect at the next restart",
    ]
    assert sorted(endpoints.sources) == ["one", "two"]


def test_what_cannot_be_opened_leaves_nothing_open_and_can_be_tried_again(endpoints: Endpoints, tmp_path: Path) -> None:
    endpoints.open(made(tmp_path, entry(tmp_path, "in")))
    in_the_way = tmp_path / "sub"
    wanted = made(tmp_path, entry(tmp_path, "in"), entry(tmp_path, "fresh"), entry(in_the_way, "deep"))
    for _ in range(2):
        with pytest.raises(EndpointError, match="deep"):
            endpoints.open(wanted)
        assert sorted(endpoints.sources) == ["in"]
    in_the_way.mkdir()
    assert endpoints.open(wanted) == [] and sorted(endpoints.sources) == ["deep", "fresh", "in"]


def test_a_port_in_use_is_refused(endpoints: Endpoints, tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    holder = context.socket(zmq.ROUTER)
    port = holder.bind_to_random_port("tcp://127.0.0.1")
    taken = config(tmp_path, sources=[{"name": "in", "endpoint": f"tcp://127.0.0.1:{port}"}])
    with pytest.raises(EndpointError, match="in use"):
        endpoints.open(taken)
    holder.close(linger=0)
    context.term()
    assert endpoints.open(taken) == []


def test_a_connecting_source_takes_no_lock(endpoints: Endpoints, tmp_path: Path) -> None:
    endpoints.open(made(tmp_path, entry(tmp_path, "camera", pattern="sub", attach="connect")))
    assert not list(tmp_path.glob("*.lock"))


def test_the_doors_of_all_that_is_bound_are_shut_and_opened(endpoints: Endpoints, tmp_path: Path) -> None:
    connecting = entry(tmp_path, "camera", pattern="sub", attach="connect")
    endpoints.open(made(tmp_path, entry(tmp_path, "in"), connecting, results="out"))
    endpoints.shut()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_socket()) == ["in.full", "out.full"]
    endpoints.reopen()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_socket()) == ["in", "out"]
    assert endpoints.discarded == 0


def test_a_lock_that_cannot_be_written_is_an_endpoint_error_and_leaves_nothing(
    endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    wanted = made(tmp_path, entry(tmp_path, "in"))
    with monkeypatch.context() as disk, pytest.raises(EndpointError, match="No space left"):
        disk.setattr(os, "pwrite", full)
        endpoints.open(wanted)
    assert endpoints.sources == {} and endpoints.open(wanted) == []


def listening(path: Path) -> int:
    """A descriptor as systemd would pass it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        return listener.detach()


def test_what_systemd_passes_is_served_by_name(
    no_fd_leak: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A source and the results; connected to before anybody served; the paths are there afterwards, as they were."""
    names = {listening(tmp_path / name): name for name in ("frames", "out", "forgotten")}
    own = Endpoints(4096, PassedSockets(names))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    push, sub = context.socket(zmq.PUSH), context.socket(zmq.SUB)
    push.connect(f"ipc://{tmp_path}/frames")
    push.send_multipart([b"cam", b"{}", b"x"])
    sub.subscribe(b"")
    sub.connect(f"ipc://{tmp_path}/out")
    with caplog.at_level(logging.WARNING):
        own.open(
            config(
                tmp_path,
                sources=[{"name": "in", "endpoint": "systemd:frames", "pattern": "pull"}],
                results={"endpoint": "systemd:out"},
            )
        )
    assert [r.getMessage().rpartition(": ")[2] for r in caplog.records] == ["forgotten"]
    source = own.sources["in"][1]
    assert source.socket.poll(10_000) and [raw.camera for raw in source.drain()] == [b"cam"]
    assert source.same_host
    while not sub.poll(5):
        own.publish([b"res/cam", b"{}"])
    rival = Endpoints(4096, PassedSockets({}))
    with pytest.raises(EndpointError, match="another orind"):
        rival.open(made(tmp_path, entry(tmp_path, "frames")))
    rival.close()
    push.close(linger=0)
    sub.close(linger=0)
    context.term()
    own.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_socket()) == ["forgotten", "frames", "out"]


def test_a_socket_where_only_systemd_may_write_needs_no_lock(
    no_fd_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Endpoints(4096, PassedSockets({listening(tmp_path / "frames"): "frames"}))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    own.open(config(tmp_path, sources=[{"name": "in", "endpoint": "systemd:frames"}]))
    assert not list(tmp_path.glob("*.lock"))
    own.close()


def test_a_name_that_systemd_does_not_pass_is_refused_with_what_it_passes(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    wanted = config(tmp_path, sources=[{"name": "in", "endpoint": "systemd:frames"}])
    with pytest.raises(EndpointError, match=r"no socket of this name \(it passes: none at all\)"):
        endpoints.open(wanted)
    assert endpoints.sources == {}
