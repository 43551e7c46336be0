"""A real nursery process: spawn, report, kill, exit; it dies with its parent and takes its children along."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_ins import S

from orind.daemon.nursery import Nursery
from orind.daemon.nursery_client import SILENT_NS, Child, NurseryClient, NurseryDied
from orind.ipc.errors import ChannelError
from orind.ipc.fd_passing import recv_with_fds

END_S = 30.0


class Live:
    """A client, and waiting for what it reports."""

    def __init__(self) -> None:
        self.client = NurseryClient()

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            ready, _, _ = select.select([self.client.channel], [], [], END_S)
            assert ready, "the nursery said nothing"
            self.client.on_readable()


@pytest.fixture
def live() -> Iterator[Live]:
    made = Live()
    yield made
    made.client.close(END_S)


def test_a_child_is_started_reported_and_its_end_with_its_status(live: Live) -> None:
    child = live.client.spawn("checker", [], ["not a number"])
    live.until(lambda: child.status is not None)
    assert child.pid > 0 and child.status == 1


def test_descriptors_reach_the_child_as_its_first_arguments(live: Live, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        child = live.client.spawn("checker", [theirs.fileno()], [str(tmp_path / "none.yaml")])
    ours.settimeout(END_S)
    data, rights, _, _ = ours.recvmsg(4096, socket.CMSG_SPACE(4))
    assert b"checked" in data and len(rights) == 1
    os.close(int.from_bytes(rights[0][2], sys.byteorder))
    live.until(lambda: child.status is not None)
    assert child.status == 0
    ours.close()


def sleeper(live: Live) -> tuple[Child, socket.socket, int]:
    """A decode worker that waits for jobs, its channel, and its slots' descriptor."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    slots = os.memfd_create("slots")
    os.ftruncate(slots, 4096)
    with theirs:
        child = live.client.spawn("decoder", [theirs.fileno(), slots], ['{"slots": [1, 4096]}'])
    return child, ours, slots


def test_kill_ends_a_child_and_says_by_which_signal(live: Live) -> None:
    child, ours, slots = sleeper(live)
    ours.settimeout(END_S)
    assert ours.recv(4096)  # it is ready
    live.client.kill(child)
    live.until(lambda: child.status is not None)
    assert child.status == -9 and ours.recv(4096) == b""
    live.client.kill(child)  # has ended: nothing is sent
    ours.close()
    os.close(slots)


def test_kill_of_a_child_that_ended_but_was_not_heard_of_is_ignored(live: Live) -> None:
    child = live.client.spawn("checker", [], ["x"])
    live.until(lambda: child.pid > 0)
    live.client.kill(child)
    live.client.kill(child)
    live.until(lambda: child.status is not None)
    other = live.client.spawn("checker", [], ["x"])
    live.until(lambda: other.status is not None)
    assert other.status == 1


def test_an_unknown_role_is_refused(live: Live) -> None:
    failed: list[str] = []
    child = live.client.spawn("shell", [], [], on_failed=failed.append)
    live.until(lambda: bool(failed))
    assert failed == ["no role 'shell'"] and child.status == -1


def test_what_the_system_cannot_start_is_refused(monkeypatch: pytest.MonkeyPatch, no_fd_leak: None) -> None:
    def none_left() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        monkeypatch.setattr(os, "fork", none_left)
        assert not Nursery(theirs)._serve({"op": "spawn", "id": 4, "role": "checker", "arguments": []}, [])
        answer = recv_with_fds(ours)
        assert answer is not None and answer.fields["op"] == "spawn_failed" and answer.fields["id"] == 4
        assert answer.fields["text"] == "cannot start checker: [Errno 11] Resource temporarily unavailable"


def test_the_loop_reaps_and_ends_its_children_with_main(live: Live) -> None:
    """One child ends by itself, one is killed, two are left at the end: one that holds no channel, one that hangs."""
    first = live.client.spawn("checker", [], ["x"])
    live.until(lambda: first.status is not None)
    killed, *held = sleeper(live)
    live.until(lambda: killed.pid > 0)
    live.client.kill(killed)
    live.until(lambda: killed.status is not None)
    assert (first.status, killed.status) == (1, -9)
    for pid in (first.pid, killed.pid):
        assert not Path(f"/proc/{pid}").exists(), "reaped"
    http, (hung, *more) = live.client.spawn("http", [], []), sleeper(live)
    live.until(lambda: http.pid > 0 and hung.pid > 0)
    os.kill(hung.pid, signal.SIGSTOP)
    watched = [os.pidfd_open(child.pid) for child in (http, hung)]
    live.client.close(END_S)
    for fd in watched:
        assert select.select([fd], [], [], END_S)[0], "a process outlived main"
        os.close(fd)
    for channel, slots in (held, more):
        channel.close()
        os.close(slots)


def test_a_child_has_nothing_of_the_nursery_open_and_says_what_it_is(live: Live) -> None:
    """A copy of the nursery's channel in an engine would keep main from hearing of the nursery's death."""
    child, ours, slots = sleeper(live)
    ours.settimeout(END_S)
    assert ours.recv(4096)
    live.until(lambda: child.pid > 0)
    folder = Path(f"/proc/{child.pid}")
    held = {str(link.readlink()) for link in (folder / "fd").iterdir()}
    nursery = {str(link.readlink()) for link in Path(f"/proc/{live.client._process.pid}/fd").iterdir()}
    shared = {to for to in held & nursery if to.startswith(("socket:", "pipe:"))}
    assert shared <= {str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in (1, 2)}
    assert (folder / "comm").read_text().strip() == "orind-decoder"
    assert Path(f"/proc/{live.client._process.pid}/comm").read_text().strip() == "orind-nursery"
    assert str((folder / "fd" / "0").readlink()) == os.devnull
    ours.close()
    os.close(slots)


def test_a_dead_nursery_is_reported_and_kill_is_harmless_then(live: Live) -> None:
    child, ours, slots = sleeper(live)
    live.until(lambda: child.pid > 0)
    ours.settimeout(END_S)
    assert ours.recv(4096)
    os.kill(live.client._process.pid, 9)
    with pytest.raises(NurseryDied, match="main cannot replace engines"):
        live.until(lambda: child.status is not None)
    assert ours.recv(4096) == b"", "its children die with it"
    live.client.kill(child)
    with pytest.raises(NurseryDied):
        live.client.spawn("checker", [], [])
    ours.close()
    os.close(slots)


PARENT = """
import os, socket, sys, time
from orind.daemon.nursery import Nursery
from orind.daemon.nursery_client import NurseryClient
client = NurseryClient()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
slots = os.memfd_create("slots")
os.ftruncate(slots, 4096)
child = client.spawn("decoder", [theirs.fileno(), slots], ['{"slots": [1, 4096]}'])
theirs.close()
ours.recv(4096)
client.channel.setblocking(True)
client.on_readable()
print(client._process.pid, child.pid, flush=True)
sys.stdin.read()
"""


def test_the_nursery_and_its_children_die_with_main() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    watched = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait(END_S)
    for fd in watched:
        assert select.select([fd], [], [], END_S)[0], "a process outlived main"
        os.close(fd)
    parent.stdin.close()
    parent.stdout.close()


def test_a_nursery_that_hangs_is_known_and_one_that_lives_is_left_in_peace(live: Live) -> None:
    live.client.tick(1 * S)
    live.client.tick(1 * S + SILENT_NS)
    live.until(lambda: live.client._pinged_ns == 0)
    os.kill(live.client._process.pid, signal.SIGSTOP)
    live.client.tick(100 * S)
    live.client.tick(100 * S + SILENT_NS)
    with pytest.raises(NurseryDied, match="has not answered for 10 s"):
        live.client.tick(100 * S + SILENT_NS + 1)
    os.kill(live.client._process.pid, signal.SIGKILL)


def test_a_request_that_is_too_long_is_refused_and_forgotten(live: Live) -> None:
    with pytest.raises(ChannelError, match="65536"):
        live.client.spawn("checker", [], ["x" * 70_000])
    assert live.client._children == {}


def test_each_answer_to_a_ping_tells_what_another_process_holds(live: Live) -> None:
    told: dict[str, int] = {}
    live.client.on_usage = lambda usage, now_ns: told.update({usage["role"]: usage["pid"]})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        child = live.client.spawn("decoder", [theirs.fileno()], ["not started rightly"])
        ended: list[int] = []
        live.client.on_ended = ended.append
        live.until(lambda: child.status is not None)
    assert ended == [child.pid]
    now_ns = S
    while {"main", "nursery"} - told.keys():
        live.client.tick(now_ns)
        live.until(lambda: not live.client._pinged_ns)
        now_ns += S
    assert told["main"] == os.getpid() and told["nursery"] == live.client._process.pid and "decoder" not in told
