"""Frame sources, the sink and the lock, over real sockets."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zmq

from orind.ipc import endpoint as endpoints
from orind.ipc.errors import EndpointError
from orind.ipc.lock import InstanceLock, lock_endpoint
from orind.ipc.sink import ResultSink
from orind.ipc.source import OVERSIZE_ROOM, PARTS_MAX, PARTS_PER_DRAIN, RawFrame, Source

WAIT_MS = 10_000
HEADER = b'{"v":1}'


def client(context: zmq.Context[Any], kind: int, endpoint: str, **options: int) -> zmq.Socket[Any]:
    sock = context.socket(kind)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    for name, value in options.items():
        sock.setsockopt(getattr(zmq, name), value)
    sock.connect(endpoint)
    return sock


def next_frame(source: Source) -> RawFrame:
    assert source.socket.poll(WAIT_MS), "nothing arrived"
    (frame,) = source.drain(1)
    return frame


@pytest.mark.parametrize(
    ("kind", "options", "delimiters"),
    [
        (zmq.DEALER, {}, 0),
        (zmq.REQ, {}, 1),
        (zmq.REQ, {"REQ_RELAXED": 1, "REQ_CORRELATE": 1}, 1),
    ],
)
def test_router_echoes_the_whole_envelope(
    context: zmq.Context[Any], endpoint: str, kind: int, options: dict[str, int], delimiters: int
) -> None:
    source = Source(context, "router", endpoint, slot_bytes=100_000)
    sock = client(context, kind, endpoint, **options)
    for payload in (b"pixels", b"", b"x" * 200_000):
        sock.send_multipart([b"cam", HEADER, payload])
        frame = next_frame(source)
        assert (frame.camera, frame.header, bytes(frame.payload), frame.parts) == (b"cam", HEADER, payload, 3)
        assert frame.envelope.count(b"") == delimiters
        assert source.reply(frame.envelope, [b"res/cam", b"{}"])
        assert sock.recv_multipart() == [b"res/cam", b"{}"]
    sock.close()
    source.close()


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ([b"cam"], (b"cam", b"", b"", 1)),
        ([b""], (b"", b"", b"", 1)),
        ([b"cam", HEADER], (b"cam", HEADER, b"", 2)),
        ([b"cam", HEADER, b"p", b"more"], (b"cam", HEADER, b"p", 4)),
        ([b"c" * 500, b"h" * 9000, b"p"], (b"c" * 65, b"h" * 4097, b"p", 3)),
        ([b"cam", b"", b"p"], (b"cam", b"", b"p", 3)),
        ([b"cam", HEADER, *([b"p"] * 50)], (b"cam", HEADER, b"p", PARTS_MAX - 1)),
    ],
)
def test_malformed_messages_come_out_bounded_and_answerable(
    context: zmq.Context[Any], endpoint: str, body: list[bytes], seen: tuple[bytes, bytes, bytes, int]
) -> None:
    source = Source(context, "router", endpoint, slot_bytes=1000)
    sock = client(context, zmq.DEALER, endpoint)
    sock.send_multipart(body)
    frame = next_frame(source)
    assert (frame.camera, frame.header, bytes(frame.payload), frame.parts) == seen
    assert source.reply(frame.envelope, [b"res/?", b"{}"])
    assert sock.recv_multipart()[-2:] == [b"res/?", b"{}"]
    sock.close()
    source.close()


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
def test_behind_a_proxy(context: zmq.Context[Any], tmp_path: Path, kind: int) -> None:
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    source = Source(context, "router", back, slot_bytes=1000)
    outer = context.socket(zmq.ROUTER)
    outer.setsockopt(zmq.LINGER, 0)
    outer.bind(front)
    inner = client(context, zmq.DEALER, back)
    sock = client(context, kind, front)
    sock.send_multipart([b"cam", HEADER, b"p"])
    inner.send_multipart(outer.recv_multipart())
    frame = next_frame(source)
    assert (frame.camera, frame.header, bytes(frame.payload)) == (b"cam", HEADER, b"p")
    assert source.reply(frame.envelope, [b"res/cam", b"{}"])
    outer.send_multipart(inner.recv_multipart())
    assert sock.recv_multipart() == [b"res/cam", b"{}"]
    for each in (sock, inner, outer):
        each.close()
    source.close()


def test_a_client_that_left_is_told_of(context: zmq.Context[Any], endpoint: str) -> None:
    source = Source(context, "router", endpoint, slot_bytes=1000)
    assert source.drain() == []
    assert source.reply([b"nobody"], [b"x"]) is False
    source.close()


def test_a_client_that_does_not_read_is_never_waited_for(context: zmq.Context[Any], endpoint: str) -> None:
    source = Source(context, "router", endpoint, slot_bytes=1000)
    sock = client(context, zmq.DEALER, endpoint, RCVHWM=2)
    sock.send_multipart([b"cam", HEADER, b""])
    frame = next_frame(source)
    answers = 0
    while source.reply(frame.envelope, [b"res/cam", bytes(100_000)]):
        answers += 1
        assert answers < 100_000
    assert answers > 0
    sock.close()
    source.socket.setsockopt(zmq.LINGER, 0)
    source.close()


def test_a_client_that_comes_back_under_its_name_is_heard_while_its_last_messages_still_lie_here(
    context: zmq.Context[Any], endpoint: str
) -> None:
    """More than the queue holds: then ZeroMQ has not even seen the end of the first connection."""
    source = Source(context, "router", endpoint, slot_bytes=1000, hwm=2)
    first = context.socket(zmq.DEALER)
    first.setsockopt(zmq.LINGER, WAIT_MS)
    first.setsockopt(zmq.IDENTITY, b"camera-1")
    first.connect(endpoint)
    for n in range(20):
        first.send_multipart([b"cam", HEADER, b"%d" % n])
    assert source.socket.poll(WAIT_MS)
    first.close()
    again = context.socket(zmq.DEALER)
    again.setsockopt(zmq.LINGER, 0)
    again.setsockopt(zmq.IDENTITY, b"camera-1")
    again.connect(endpoint)
    again.send_multipart([b"cam", HEADER, b"again"])
    heard = []
    while b"again" not in heard:
        assert source.socket.poll(WAIT_MS), "it is not heard"
        for frame in source.drain():
            heard.append(bytes(frame.payload))
    assert source.reply([b"camera-1"], [b"res/cam", b"{}"])
    assert again.poll(WAIT_MS) and again.recv_multipart() == [b"res/cam", b"{}"]
    again.close()
    source.close()


def test_pull_and_sub(context: zmq.Context[Any], tmp_path: Path) -> None:
    pull = Source(context, "pull", f"ipc://{tmp_path}/pull", slot_bytes=1000)
    push = client(context, zmq.PUSH, pull.endpoint)
    for i in range(5):
        push.send_multipart([b"cam", HEADER, bytes([i])])
    got: list[RawFrame] = []
    while len(got) < 5:
        assert pull.socket.poll(WAIT_MS)
        got += pull.drain(2)
    assert [bytes(frame.payload) for frame in got] == [bytes([i]) for i in range(5)]
    assert all(frame.envelope == () for frame in got)
    sub = Source(context, "sub", f"ipc://{tmp_path}/sub", slot_bytes=1000)
    pub = context.socket(zmq.XPUB)
    pub.setsockopt(zmq.LINGER, 0)
    pub.setsockopt(zmq.RCVTIMEO, WAIT_MS)
    pub.connect(sub.endpoint)
    while not pub.poll(10):  # the SUB side attaches a peer only inside its own calls
        assert sub.drain() == []
    assert pub.recv() == b"\x01", "it subscribes to all cameras"
    pub.send_multipart([b"cam1", HEADER, b"yes"])
    assert bytes(next_frame(sub).payload) == b"yes"
    for each in (push, pub):
        each.close()
    pull.close()
    sub.close()


def test_a_frame_above_the_slot_arrives_and_a_monstrous_one_costs_only_its_sender(
    context: zmq.Context[Any], endpoint: str
) -> None:
    source = Source(context, "router", endpoint, slot_bytes=10_000)
    bad, good = client(context, zmq.DEALER, endpoint), client(context, zmq.DEALER, endpoint)
    for size in (40_000, 3 * 4000 * 3000):  # 12 million pixels in colour
        bad.send_multipart([b"cam", HEADER, bytes(size)])
        assert len(next_frame(source).payload) == size
    bad.send_multipart([b"cam", HEADER, bytes(source.max_bytes + 1)])
    good.send_multipart([b"good", HEADER, b"p"])
    assert next_frame(source).camera == b"good"
    for each in (bad, good):
        each.close()
    source.close()


def test_what_is_told_to_be_too_large_grows_with_the_slots(context: zmq.Context[Any], endpoint: str) -> None:
    source = Source(context, "router", endpoint, slot_bytes=32 << 20)
    assert source.max_bytes == source.socket.getsockopt(zmq.MAXMSGSIZE) == (4 * 32 << 20) + OVERSIZE_ROOM
    source.close()


def test_ipc_files_are_0660_whatever_the_umask(context: zmq.Context[Any], tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        source = Source(context, "pull", f"ipc://{tmp_path}/a", slot_bytes=10)
        sink = ResultSink(context, f"ipc://{tmp_path}/b")
        assert os.umask(0o000) == 0o000
    finally:
        os.umask(before)
    for name in "ab":
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o660
    source.close()
    sink.close()


def test_sink_publishes_and_never_waits(context: zmq.Context[Any], endpoint: str) -> None:
    sink = ResultSink(context, endpoint, hwm=2)
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.LINGER, 0)
    sub.subscribe(b"res/")
    sub.connect(endpoint)
    for _ in range(10_000):  # a subscription takes a moment to arrive: publish until the first is heard
        sink.publish([b"res/cam", b"{}", bytes(24)])
        if sub.poll(1):
            break
    assert sub.recv_multipart() == [b"res/cam", b"{}", bytes(24)]
    for number in range(3000):
        sink.publish([b"res/cam", str(number).encode(), bytes(10_000)])
    got = []
    while sub.poll(500):
        got.append(int(sub.recv_multipart()[1]))
    assert got == sorted(set(got)) and 0 < len(got) < 3000, "it dropped for who does not read"
    sub.close()
    sink.socket.setsockopt(zmq.LINGER, 0)
    sink.close()


def test_systemd_style_listening_descriptor(context: zmq.Context[Any], endpoint: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(endpoint[len("ipc://") :])
    listener.listen(8)
    sock = client(context, zmq.DEALER, endpoint)
    sock.send_multipart([b"cam", HEADER, b"sent before anybody served"])
    source = Source(context, "router", endpoint, slot_bytes=10, fd=listener.fileno())
    assert bytes(next_frame(source).payload) == b"sent before anybody served"
    sock.close()
    source.close()
    listener.close()


@pytest.mark.parametrize(
    ("endpoint", "word"),
    [
        ("/run/x", "use ipc://"), ("udp://x", "use ipc://"), ("ipc://", "use ipc://"), ("tcp://host", "needs a port"),
        ("ipc:///" + "x" * 107, "107"), ("tcp://256.1.1.1:5", "cannot be bound"),
        ("ipc:///nonexistent-dir/x", "cannot"), ("ipc://*", "name the path"), ("tcp://127.0.0.1:0", "1 to 65535"),
        ("tcp://127.0.0.1:65536", "1 to 65535"), ("tcp://127.0.0.1:" + "9" * 5000, "1 to 65535"),
        ("tcp://127.0.0.1:**", "needs a port"), ("tcp://:5", "needs a port"),
        ("tcp://127.0.0.1:\u0663", "needs a port"),
        ("ipc:///run/a\0b", "control characters"),
    ],
)
def test_bad_endpoints_are_refused_and_leave_nothing_open(context: zmq.Context[Any], endpoint: str, word: str) -> None:
    with pytest.raises(EndpointError, match=word):
        Source(context, "pull", endpoint, slot_bytes=10)


def test_what_lies_at_an_ipc_path_is_not_removed(context: zmq.Context[Any], tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("a file")
    with pytest.raises(EndpointError, match="no socket lies there"):
        Source(context, "pull", f"ipc://{tmp_path}/precious", slot_bytes=10)
    assert (tmp_path / "precious").read_text() == "a file"
    with pytest.raises(EndpointError, match="is a directory"):
        ResultSink(context, f"ipc://{tmp_path}")


def test_no_socket_to_be_had_is_an_endpoint_error(no_fd_leak: None, tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 1)
    first = Source(context, "pull", f"ipc://{tmp_path}/a", slot_bytes=10)
    with pytest.raises(EndpointError, match="no further ZeroMQ socket"):
        Source(context, "pull", f"ipc://{tmp_path}/b", slot_bytes=10)
    first.close()
    context.term()


@pytest.mark.parametrize("envelope", [[b"x" * 256], [b"id"] * 7])
def test_an_envelope_that_no_socket_makes_is_discarded_and_counted(
    context: zmq.Context[Any], endpoint: str, envelope: list[bytes]
) -> None:
    source = Source(context, "router", endpoint, slot_bytes=1000)
    sock = client(context, zmq.DEALER, endpoint)
    sock.send_multipart([*envelope, b"", b"cam", HEADER, b"p"])
    sock.send_multipart([b"x" * 255, *([b"id"] * 5), b"", b"cam", HEADER, b"p"])
    while not (frames := source.drain()):
        assert source.socket.poll(WAIT_MS)
    assert [(f.camera, len(f.envelope)) for f in frames] == [(b"cam", 8)] and source.discarded == 1
    sock.close()
    source.close()


@pytest.mark.parametrize("kind", ["router", "pull"])
def test_a_message_of_very_many_parts_is_read_over_several_turns(
    context: zmq.Context[Any], endpoint: str, kind: str
) -> None:
    source = Source(context, kind, endpoint, slot_bytes=1000)
    sock = client(context, zmq.DEALER if kind == "router" else zmq.PUSH, endpoint)
    sock.send_multipart([b"cam", HEADER, *([b""] * (4 * PARTS_PER_DRAIN))])
    sock.send_multipart([b"next", HEADER, b"p"])
    assert source.socket.poll(WAIT_MS)
    drains = [source.drain() for _ in range(5)]
    assert [[f.camera for f in frames] for frames in drains[:4]] == [[]] * 4
    seen = [frame for frames in drains for frame in frames]
    while len(seen) < 2:
        assert source.socket.poll(WAIT_MS)
        seen += source.drain()
    assert [(f.camera, f.parts) for f in seen] == [(b"cam", PARTS_MAX - (kind == "router")), (b"next", 3)]
    sock.close()
    source.close()


def test_port_in_use(context: zmq.Context[Any]) -> None:
    first = Source(context, "pull", "tcp://127.0.0.1:*", slot_bytes=10)
    bound = first.socket.getsockopt_string(zmq.LAST_ENDPOINT)
    with pytest.raises(EndpointError, match="in use"):
        Source(context, "pull", bound, slot_bytes=10)
    first.close()


def test_hwm_is_never_one(context: zmq.Context[Any], endpoint: str) -> None:
    sock = endpoints.make_socket(context, zmq.PULL, hwm=1, linger_ms=0)
    assert sock.getsockopt(zmq.RCVHWM) == 2 and sock.getsockopt(zmq.SNDHWM) == 2
    sock.close()


@pytest.mark.usefixtures("no_fd_leak")
class TestLock:
    def test_a_second_holder_is_refused_by_pid(self, tmp_path: Path) -> None:
        with InstanceLock(tmp_path / "lock") as lock:
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n" and not os.get_inheritable(lock.fd)
            with pytest.raises(EndpointError, match=f"pid {os.getpid()}"):
                InstanceLock(tmp_path / "lock")
        InstanceLock(tmp_path / "lock").close()

    def test_another_process_is_refused_and_death_frees_it(self, tmp_path: Path) -> None:
        code = (
            "import sys; from orind.ipc.lock import lock_endpoint\n"
            "lock_endpoint(sys.argv[1]); print('held', flush=True); sys.stdin.read()\n"
        )
        endpoint = f"ipc://{tmp_path}/frames"
        with subprocess.Popen(
            [sys.executable, "-c", code, endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            with pytest.raises(EndpointError, match=f"pid {holder.pid}"):
                lock_endpoint(endpoint)
            holder.kill()
            holder.wait()
            lock = lock_endpoint(endpoint)
            assert lock is not None
            lock.close()

    def test_a_file_that_is_removed_while_another_opens_it_is_no_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = fcntl.flock

        def late(fd: int, how: int) -> None:
            monkeypatch.undo()
            with first:
                first.remove()
            real(fd, how)

        first = InstanceLock(tmp_path / "lock")
        monkeypatch.setattr(fcntl, "flock", late)
        with pytest.raises(EndpointError, match="was removed just now"):
            InstanceLock(tmp_path / "lock")
        assert not (tmp_path / "lock").exists()

    def test_only_ipc_paths_need_one_and_errors_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert lock_endpoint("tcp://127.0.0.1:5555") is None and lock_endpoint("ipc://@abstract") is None
        with pytest.raises(EndpointError, match="No such file"):
            InstanceLock(tmp_path / "missing" / "lock")
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", _no_space)
            with pytest.raises(EndpointError, match="cannot be written: No space left"):
                InstanceLock(tmp_path / "lock")
        with InstanceLock(tmp_path / "lock"), monkeypatch.context() as unreadable:
            unreadable.setattr(os, "pread", _no_space)
            with pytest.raises(EndpointError, match="pid unknown"):
                InstanceLock(tmp_path / "lock")
        (tmp_path / "link").symlink_to("/etc/passwd")
        with pytest.raises(EndpointError, match="cannot be opened"):
            InstanceLock(tmp_path / "link")


def test_the_context_fixture_would_notice(tmp_path: Path) -> None:
    """An open socket keeps term() from returning: in a process of its own, because it really hangs."""
    child = multiprocessing.get_context("spawn").Process(target=_leak_a_socket)
    child.start()
    child.join(1.0)
    assert child.is_alive()
    child.kill()
    child.join()
    child.close()


def _no_space(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _leak_a_socket() -> None:
    context: zmq.Context[Any] = zmq.Context()
    sock = context.socket(zmq.PUSH)
    context.term()
    sock.close()
