"""Datagrams between processes: a killed peer's last words, bounds, descriptors."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orind.ipc import channel, fd_passing
from orind.ipc.channel import Channel, Received, make_pair
from orind.ipc.errors import ChannelError

pytestmark = pytest.mark.usefixtures("no_fd_leak")


def test_both_ways_and_the_end() -> None:
    ours, theirs = make_pair()
    child = Channel(theirs, blocking=True)
    assert ours.recv_all() == Received([], False)
    assert ours.send(b"one") and ours.send(b"two")
    assert (child.receive(), child.receive()) == (b"one", b"two")
    assert all(child.send(bytes([i])) for i in range(5))
    assert ours.recv_all(limit=3) == Received([b"\x00", b"\x01", b"\x02"], False)
    child.close()
    assert ours.recv_all() == Received([b"\x03", b"\x04"], True)
    assert ours.recv_all() == Received([], True)
    assert ours.send(b"late") is False
    ours.close()


PEER = """
import socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
for i in range(3): s.send(b'answer %d' % i)
sys.stdout.write('x'); sys.stdout.flush()
sys.stdin.read()
"""


def test_a_peer_killed_with_unread_input_still_yields_its_last_answers() -> None:
    """The kernel says ECONNRESET first here; taking it for the end would replay frames that were answered."""
    ours, theirs = make_pair()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PEER, str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as peer:
        theirs.close()
        assert peer.stdout is not None and peer.stdout.read(1) == b"x"
        assert ours.send(b"a batch that it never reads")
        peer.send_signal(signal.SIGKILL)
        peer.wait()
        assert select.select([ours], [], [], 10)[0]
        assert ours.recv_all() == Received([b"answer 0", b"answer 1", b"answer 2"], True)
    ours.close()


def test_blocking_receive_reads_on_after_a_reset() -> None:
    ours, theirs = make_pair()
    child = Channel(theirs, blocking=True)
    assert ours.send(b"last word") and child.send(b"unread")
    ours.close()
    assert child.receive() == b"last word"
    assert child.receive() is None
    child.close()


def test_full_queue_is_false_not_a_wait() -> None:
    ours, theirs = make_pair()
    sent = 0
    while ours.send(bytes(channel.MESSAGE_BYTES_MAX)):
        sent += 1
        assert sent < 10_000
    assert sent > 0
    theirs.close()
    ours.close()


def test_bounds() -> None:
    ours, theirs = make_pair()
    for data in (b"", bytes(channel.MESSAGE_BYTES_MAX + 1)):
        with pytest.raises(ChannelError, match="can be sent"):
            ours.send(data)
    theirs.send(bytes(channel.MESSAGE_BYTES_MAX + 1))
    with pytest.raises(ChannelError, match="not one of ours"):
        ours.recv_all()
    theirs.close()
    ours.close()
    stream, other = socket.socketpair()
    with stream, other, pytest.raises(ChannelError, match="SEQPACKET"):
        Channel(stream, blocking=False)


def test_from_fd() -> None:
    ours, theirs = make_pair()
    child = Channel.from_fd(theirs.detach(), blocking=True)
    assert child.send(b"hello") and ours.recv_all().messages == [b"hello"]
    child.close()
    ours.close()


def test_descriptors_travel_and_are_close_on_exec(tmp_path: Path) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = tmp_path / "f"
    path.write_text("through")
    with left, right:
        fd = os.open(path, os.O_RDONLY)
        assert fd_passing.send_with_fds(left, {"op": "spawn", "n": 1}, [fd, fd])
        os.close(fd)
        message = fd_passing.recv_with_fds(right)
        assert message is not None and message.fields == {"op": "spawn", "n": 1} and len(message.fds) == 2
        assert os.read(message.fds[0], 20) == b"through" and not os.get_inheritable(message.fds[1])
        for got in message.fds:
            os.close(got)
        right.setblocking(False)
        with pytest.raises(BlockingIOError):
            fd_passing.recv_with_fds(right)
        assert fd_passing.send_with_fds(right, {"unread": True})
        assert fd_passing.send_with_fds(left, {"last": True})
        left.close()
        message = fd_passing.recv_with_fds(right)
        assert message == fd_passing.Message({"last": True}, [])
        assert fd_passing.recv_with_fds(right) is None
        assert fd_passing.send_with_fds(right, {}) is False


@pytest.mark.parametrize("data", [b"not json", b"[1]", b"[" * 60_000, b"x" * (fd_passing.JSON_BYTES_MAX + 1)])
def test_a_refused_message_does_not_leak_its_descriptor(data: bytes) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        socket.send_fds(left, [data], [0])
        with pytest.raises(ChannelError):
            fd_passing.recv_with_fds(right)


def test_too_many_descriptors_and_too_much_json() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        with pytest.raises(ChannelError):
            fd_passing.send_with_fds(left, {}, [0] * (fd_passing.FDS_MAX + 1))
        with pytest.raises(ChannelError):
            fd_passing.send_with_fds(left, {"x": "y" * fd_passing.JSON_BYTES_MAX})
        socket.send_fds(left, [b"{}"], [0] * (fd_passing.FDS_MAX + 5))
        with pytest.raises(ChannelError, match="descriptors"):
            fd_passing.recv_with_fds(right)


def test_fuzz_received_json() -> None:
    rng = random.Random(5)
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        for _ in range(500):
            left.send(rng.randbytes(rng.randint(1, 40)))
            with pytest.raises(ChannelError):
                fd_passing.recv_with_fds(right)
