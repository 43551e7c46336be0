"""Leaks by trend: synthetic records with and without one, a planted one in a real process, and what is read of it."""

from __future__ import annotations

import logging
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from stand_ins import S

from orind.daemon import usage
from orind.daemon.daemon import TICK_NS
from orind.daemon.descriptors import GENERATIONS
from orind.daemon.leaks import BUCKETS, LONG, PROCESSES_MAX, LeakWatch, growth, in_words
from orind.daemon.nursery_client import PING_NS
from orind.daemon.orders import Seat
from orind.daemon.sections import LEAK_MINUTES_MIN, Decode, Memory

MIB = 1 << 20
MINUTES, STEP_S = 30.0, 10
Record = Callable[[float], float]  # minutes -> MiB


def sample(role: str = "engine", pid: int = 7, mib: float = 50, descriptors: int | None = 20, threads: int = 1) -> Any:
    return {
        "role": role, "pid": pid, "private": int(mib * MIB), "descriptors": descriptors, "threads": threads
    }


def play(watch: LeakWatch, record: Record, minutes: float, start: float = 0, role: str = "engine") -> list[float]:
    """Feed a record of private memory; -> the minutes at which a leak began to be seen or ceased to be."""
    changes, seen = [], bool(watch.problems())
    for step in range(int(start * 60 / STEP_S), int((start + minutes) * 60 / STEP_S)):
        at = step * STEP_S / 60
        watch.note_process(sample(role, mib=record(at)), (1000 + step * STEP_S) * S)
        if bool(watch.problems()) != seen:
            seen = not seen
            changes.append(at)
    return changes


def noisy(record: Record, seed: int = 1, mib: float = 1.5) -> Record:
    """With noise, and peaks of work now and then."""
    rng = random.Random(seed)
    return lambda at: record(at) + rng.gauss(0, mib) + (40 if rng.random() < 0.1 else 0)


SOUND: dict[str, Record] = {
    "steady": lambda at: 50,
    "a warm-up that ends": lambda at: 50 + 60 * min(at / 5, 1),
    "caches that fill ever slower": lambda at: 50 + 60 * (1 - math.exp(-at / 4)),
    "caches that fill ever slower, slowly": lambda at: 50 + 60 * (1 - math.exp(-at / 12)),
    "a step, as by a larger picture": lambda at: 50 + 30 * (at > 40),
    "steps": lambda at: 50 + 12 * min(at // 35, 2),
    "a saw, as by a collector": lambda at: 50 + 4 * (at % 7),
    "day and night": lambda at: 50 + 10 * math.sin(at / 60),
    "shrinking": lambda at: max(50, 200 - at),
    "too little to matter": lambda at: 50 + 0.02 * at,
}


@pytest.mark.parametrize("name", SOUND)
def test_no_alarm_without_a_leak(name: str) -> None:
    for seed in range(2):
        assert play(LeakWatch(MINUTES), noisy(SOUND[name], seed), 600) == [], (name, seed)


@pytest.mark.parametrize("rate", [0.5, 2, 10])
def test_a_leak_is_seen_when_the_window_is_full_and_recovers_when_it_ends(
    rate: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orind")
    watch = LeakWatch(MINUTES)
    # from minute 60 to minute 120
    began, *_, ended = play(watch, noisy(lambda at: 50 + rate * min(max(at - 60, 0), 60), mib=0.3), 900)
    assert 70 <= began <= 60 + 1.5 * MINUTES and 120 < ended <= 120 + MINUTES
    said = [r.getMessage() for r in caplog.records]
    assert said[0].startswith("engine (pid 7) may leak: private memory grows without a rest, by ")
    assert said[0].endswith(" MiB in 30 minutes") and said[-1].startswith("no longer: engine (pid 7) may leak: ")
    assert len(said) < 8, "said once, not with each sample"


def test_a_slow_leak_is_seen_by_the_long_window() -> None:
    watch = LeakWatch(MINUTES)
    (began,) = play(watch, noisy(lambda at: 50 + 0.1 * at), 24 * 60)  # 144 MiB a day
    assert began <= (LONG + 1) * MINUTES
    assert watch.problems()[0].endswith("in 480 minutes")


@pytest.mark.parametrize("what", ["descriptors", "threads"])
def test_descriptors_and_threads_that_are_never_given_back(what: str) -> None:
    watch = LeakWatch(MINUTES)
    for step in range(240):
        watch.note_process(sample(**{what: 20 + step // 4}), step * STEP_S * S)
    (problem,) = watch.problems()
    assert problem.startswith(f"engine (pid 7) may leak: {what} grows without a rest, by 4")
    (row,) = watch.table()
    assert row["leaks"] == [what] and row[what] == 79 and in_words(row).endswith(f"; grows: {what}")


def test_one_thread_is_one_thread() -> None:
    assert in_words({"name": "http", "descriptors": 1, "threads": 1, "leaks": []}) == "http: 1 descriptor, 1 thread"
    assert in_words({"name": "main", "descriptors": 20, "threads": 2, "leaks": []}) == "main: 20 descriptors, 2 threads"


def test_a_process_that_ended_is_told_of_no_more() -> None:
    watch = LeakWatch(MINUTES)
    for step in range(240):
        watch.note_process(sample(threads=20 + step // 4), step * STEP_S * S)
    assert watch.problems() and watch.table()
    watch.ended(7)
    watch.ended(8)
    assert not watch.problems() and not watch.table()


def test_main_fills_its_memory_of_answers_for_hours_and_is_no_leak_but_one_shows() -> None:
    def filling(at: float) -> float:
        return 60 + 90 * min(at / 300, 1)  # 4,096 answers of each camera, at a slow one

    assert play(LeakWatch(MINUTES), noisy(filling), 900, role="main") == []
    assert play(LeakWatch(MINUTES), noisy(lambda at: 60 + 0.5 * at), 900, role="main") != []


def test_device_memory_that_gets_less() -> None:
    watch = LeakWatch(MINUTES)
    for step in range(240):
        watch.note_device("cuda", (4000 - step) * MIB, step * STEP_S * S)
        watch.note_device("cpu", None, step * STEP_S * S)
    (problem,) = watch.problems()
    assert problem.startswith("device cuda may leak: device memory grows without a rest")
    assert watch.table()[0]["device_free"] == 3761 * MIB and "3761.0 MiB free" in in_words(watch.table()[0])


def test_what_a_device_may_lose_is_the_same_however_large_it_is() -> None:
    """Only what is free is told: three per cent of that, or of minus that, would say nothing."""
    for free_mib in (400, 60_000):
        for lost_mib, seen in ((70, True), (60, False)):
            watch, steps = LeakWatch(MINUTES), int(MINUTES * 60 / STEP_S)
            for step in range(2 * steps):
                free = free_mib - lost_mib * step / steps * BUCKETS / (BUCKETS - 1)
                watch.note_device("cuda", int(free * MIB), step * STEP_S * S)
            assert bool(watch.problems()) is seen, (free_mib, lost_mib)


def processes_max() -> int:
    """Main, nursery, HTTP, steward, a checker; the decode workers; the engines of all generations there can be."""
    workers = Decode(workers=16).workers
    with pytest.raises(ValidationError):
        Decode(workers=workers + 1)
    return 5 + workers + GENERATIONS * len(Seat)


def test_the_shortest_window_fills_with_as_many_processes_as_there_can_be() -> None:
    """As the nursery tells them, one a ping; a loop of main may be late by a tick. A shorter window is refused."""
    everybody, watch, now_ns = processes_max(), LeakWatch(LEAK_MINUTES_MIN), S
    for turn in range(2 * LEAK_MINUTES_MIN * 60):
        now_ns += PING_NS + TICK_NS
        pid = turn % everybody
        watch.note_process(sample(pid=pid, mib=50 + 0.1 * turn), now_ns)
    assert len(watch.problems()) == everybody
    shorter, now_ns = LeakWatch(1), S
    for turn in range(600):
        now_ns += PING_NS + TICK_NS
        shorter.note_process(sample(pid=turn % 7, mib=50 + turn), now_ns)
    assert not shorter.problems(), "it never fills"
    for minutes in (1, LEAK_MINUTES_MIN - 0.1, -(10**400)):
        with pytest.raises(ValidationError, match="at least 15: one process is looked at a second"):
            Memory(leak_minutes=minutes)
    with pytest.raises(ValidationError, match="valid number"):
        Memory(leak_minutes=True)
    assert Memory(leak_minutes=LEAK_MINUTES_MIN).leak_minutes == 15


def test_a_gap_another_length_and_an_end_begin_anew() -> None:
    def leak(at: float) -> float:
        return 50 + 5 * at

    watch = LeakWatch(MINUTES)
    assert play(watch, leak, 40) != []
    play(watch, leak, 3, start=43)
    assert watch.problems() == [], "nobody knows what was meanwhile"
    play(watch, leak, 40, start=46)
    assert watch.problems() != []
    watch.adopt(MINUTES)
    assert watch.problems() != []
    watch.adopt(2 * MINUTES)
    play(watch, leak, 1, start=86)
    assert watch.problems() == []
    watch.note_process(sample(pid=8), 10_000 * S)
    assert [row["name"] for row in watch.table()] == ["engine (pid 8)"], "who is not heard of has ended"
    watch.note_process(sample(role="decoder", pid=8), 10_001 * S)
    assert [row["name"] for row in watch.table()] == ["decoder (pid 8)"], "a process id that came again"


def test_what_the_kernel_does_not_tell_is_left_out_and_the_number_of_processes_is_bounded() -> None:
    watch = LeakWatch(MINUTES)
    watch.note_process(sample(descriptors=None), S)
    assert "descriptors" not in watch.table()[0] and "descriptors" not in in_words(watch.table()[0])
    for pid in range(2 * PROCESSES_MAX):
        watch.note_process(sample(pid=pid), S)
    assert len(watch.table()) == PROCESSES_MAX


def test_growth_is_judged_by_medians_not_by_ends() -> None:
    line = [float(n) for n in range(BUCKETS)]
    assert growth(line, 10, 0.1) == BUCKETS - 1 and growth(line, 24, 0.1) == 0 and growth(line[::-1], 10, 0.1) == 0
    spoiled = [1000.0, *line[1:-1], -1000.0]
    assert growth(spoiled, 10, 0.1) == pytest.approx(BUCKETS - 1, rel=0.1)
    assert growth([n + 1000 for n in line], 10, 0.1) == 0, "a small part of what it holds"


CHILD = """
import os, sys, threading
kept, waits = [], threading.Event()
def thread():
    kept.append(threading.Thread(target=waits.wait, daemon=True))
    kept[-1].start()
act = {
    "memory": lambda: kept.append(bytearray(os.urandom(1)) * (1 << 20)),
    "nothing": lambda: bytearray(b"x") * (4 << 20),
    "descriptors": lambda: kept.append(os.open("/dev/null", os.O_RDONLY)),
    "threads": thread,
}[sys.argv[1]]
for line in sys.stdin:
    act()
    print(flush=True)
"""


@contextmanager
def child(kind: str) -> Iterator[tuple[int, Callable[[], None]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None

    def work() -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline()

    try:
        yield process.pid, work
    finally:
        process.communicate()


@pytest.mark.parametrize(
    ("kind", "what"),
    [("memory", "private memory"), ("descriptors", "descriptors"), ("threads", "threads"), ("nothing", "")],
)
def test_a_planted_leak_in_a_real_process(kind: str, what: str) -> None:
    """Real samples; the time between them is played faster."""
    watch = LeakWatch(MINUTES)
    with child(kind) as (pid, work):
        for step in range(int(1.2 * MINUTES * 60 / 10)):
            work()
            found = usage.read(pid)
            assert found is not None
            watch.note_process({"role": "engine", "pid": pid, **found._asdict()}, (1 + step * 10) * S)
    problems = watch.problems()
    if what:
        assert len(problems) == 1 and f"may leak: {what} grows without a rest" in problems[0]
    else:
        assert problems == []
    assert usage.read(pid) is None, "it has ended"


def test_what_is_read_of_a_process(tmp_path: Path) -> None:
    own = usage.read(os.getpid())
    assert own is not None and own.private > MIB and own.threads >= 1 and own.descriptors
    folder = tmp_path / "5"
    folder.mkdir()
    (folder / "statm").write_text("900 300 100 1 0 200 0\n")
    (folder / "stat").write_text("5 (a b) c) S " + " ".join(str(n) for n in range(4, 53)) + "\n")
    assert usage.read(5, tmp_path) == (200 * usage.PAGE_BYTES, None, 20), "descriptors that cannot be counted"
    assert usage.read(6, tmp_path) is None
