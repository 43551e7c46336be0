"""Processes stay on their CPUs, as far as these are online: real processes and threads, and a list of CPUs of ours."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins import S
from test_nursery import Live

from orind.daemon import pins
from orind.daemon.pins import Pin, place, tend

ALL = sorted(os.sched_getaffinity(0))
ENGINE, MAIN = "engine.cpus", "realtime.cpus"
pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="one CPU: nothing can be moved")


@pytest.mark.parametrize(("cpus", "online", "where", "why"), [
    ((), (0, 1), set(), ""), ((2, 3), (0, 1, 2, 3), {2, 3}, ""),
    ((2, 3), (0, 1, 2), {2}, "engine.cpus: CPU 3 offline (a power mode?); the engine process runs on CPU 2"),
    ((4, 5), (0, 1, 2), {0, 1, 2},
     "engine.cpus: CPUs 4, 5 offline (a power mode?); the engine process runs on any CPU")])
def test_where_a_process_is_to_run(cpus: tuple[int, ...], online: tuple[int, ...], where: set[int], why: str) -> None:
    assert place(Pin("engine", ENGINE, cpus), online) == (where, why)


class Board:
    """A root that says which CPUs are online."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = root / "sys/devices/system/cpu/online"
        self._file.parent.mkdir(parents=True)
        self.say(ALL)

    def say(self, cpus: list[int]) -> None:
        self._file.write_text(",".join(map(str, cpus)) + "\n")

    def remove(self) -> None:
        self._file.unlink()


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "board")


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The id of a real process."""
    with subprocess.Popen([sys.executable, "-ISc", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


def _affinity(pid: int) -> set[int]:
    return os.sched_getaffinity(pid)


def test_a_core_that_goes_and_comes_back(board: Board, sleeper: int) -> None:
    first, second = ALL[0], ALL[1]
    engine = {sleeper: Pin("engine", ENGINE, (second,))}
    assert tend(engine, str(board.root)) == [] and _affinity(sleeper) == {second}
    board.say([cpu for cpu in ALL if cpu != second])
    said = tend(engine, str(board.root))
    assert said == [f"engine.cpus: CPU {second} offline (a power mode?); the engine process runs on any CPU"]
    assert _affinity(sleeper) == set(ALL) - {second}
    board.say(ALL)
    assert tend(engine, str(board.root)) == [] and _affinity(sleeper) == {second}, "put back"
    os.sched_setaffinity(sleeper, ALL)  # as the kernel leaves it where the core was gone between two looks
    assert tend(engine, str(board.root)) == [] and _affinity(sleeper) == {second}
    both = {sleeper: Pin("engine", ENGINE, (first, second)), os.getpid(): Pin("main", MAIN, ())}
    before = _affinity(0)
    board.say([first])
    assert len(tend(both, str(board.root))) == 1 and _affinity(sleeper) == {first} and _affinity(0) == before


def test_all_threads_move(board: Board) -> None:
    before, seen, go, gone = _affinity(0), [], threading.Event(), threading.Event()

    def thread() -> None:
        go.wait(20)
        seen.append(os.sched_getaffinity(0))
        gone.set()

    threading.Thread(target=thread).start()
    try:
        assert tend({os.getpid(): Pin("main", MAIN, (ALL[1],))}, str(board.root)) == []
        go.set()
        assert gone.wait(20) and seen == [{ALL[1]}]
    finally:
        pins.move(os.getpid(), before)


def test_what_cannot_be_done_is_said_once(board: Board, sleeper: int) -> None:
    two = {pid: Pin("engine", ENGINE, (1000,)) for pid in (sleeper, os.getpid())}
    board.say([0, 1000])  # a board that is not this machine
    said = "engine.cpus: the engine process cannot be put on CPU [1000]: Invalid argument"
    assert tend(two, str(board.root)) == [said]
    board.say([4000])
    assert "holds '4000', not a list of CPUs" in tend(two, str(board.root))[0]
    board.remove()
    (said,) = tend(two, str(board.root))
    assert said.startswith("which CPUs are online is not known (/sys/devices/system/cpu/online: cannot be read: ENOENT")
    assert tend({sleeper: Pin("engine", ENGINE, ())}, str(board.root)) == [], "nobody is pinned"


def test_a_process_that_has_ended_is_nobody_s_trouble(board: Board, sleeper: int) -> None:
    os.kill(sleeper, signal.SIGKILL)
    os.waitpid(sleeper, 0)
    assert tend({sleeper: Pin("engine", ENGINE, (ALL[0],))}, str(board.root)) == []
    with pytest.raises(ProcessLookupError):
        pins.move(sleeper, ALL)


def test_the_nursery_keeps_its_children_and_main_there(board: Board, caplog: pytest.LogCaptureFixture) -> None:
    live, before, now_ns = Live(), _affinity(0), 1 * S
    first, second = ALL[0], ALL[1]

    def ping() -> None:
        nonlocal now_ns
        now_ns += 2 * S
        live.client.tick(now_ns)
        live.until(lambda: not live.client._pinged_ns)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    slots = os.memfd_create("slots")
    os.ftruncate(slots, 4096)
    try:
        live.client.board_root, live.client.main_cpus = str(board.root), [first]
        with theirs:
            child = live.client.spawn("decoder", [theirs.fileno(), slots], ['{"slots": [1, 4096]}'], cpus=[second])
        live.until(lambda: child.pid > 0)
        assert _affinity(child.pid) == {second}, "from its start on"
        ping()
        assert _affinity(0) == {first} and live.client.misplaced == ()
        board.say([first])
        with caplog.at_level(logging.WARNING):
            ping()
            ping()
            board.say(ALL)
            ping()
        said = f"engine.cpus: CPU {second} offline (a power mode?); the decoder process runs on any CPU"
        assert [r.getMessage() for r in caplog.records] == [said, "every process runs on its CPUs again"]
        assert live.client.misplaced == () and _affinity(child.pid) == {second}
        live.client.kill(child)
        live.until(lambda: child.status is not None)
        ping()
    finally:
        pins.move(os.getpid(), before)
        live.client.close(30)
        ours.close()
        os.close(slots)
