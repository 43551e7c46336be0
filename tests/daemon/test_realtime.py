"""Each wish of the `realtime` section is granted by the kernel, or refused with what to allow."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from orind.daemon import realtime
from orind.daemon.realtime import RealtimeError
from orind.daemon.sections import Realtime


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "disable", lambda: None)


def test_cpus_are_pinned() -> None:
    before = os.sched_getaffinity(0)
    try:
        realtime.apply(Realtime(cpus=[min(before)]))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_a_cpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(RealtimeError, match=r"realtime.cpus \[4000\].*online are"):
        realtime.apply(Realtime(cpus=[4000]))


def test_cpus_that_a_power_mode_took_offline_are_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "sched_setaffinity", refuse)

    fail(errno.EINVAL)  # as the kernel says it where none of them is online
    realtime.apply(Realtime(cpus=[0]))
    fail(errno.EPERM)
    with pytest.raises(RealtimeError, match=r"realtime.cpus \[0\]: .*not permitted"):
        realtime.apply(Realtime(cpus=[0]))


def test_a_priority_is_set_or_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, kind, p: asked.append((pid, kind, p.sched_priority)))
    realtime.apply(Realtime(fifo_priority=7))
    assert asked == [(0, os.SCHED_FIFO, 7)]

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(RealtimeError, match="LimitRTPRIO"):
        realtime.apply(Realtime(fifo_priority=7))


class Library:
    """mlockall with a given answer."""

    answer = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def mlockall(self, flags: int) -> int:
        assert flags == realtime.MCL_CURRENT | realtime.MCL_FUTURE
        return self.answer


def test_memory_is_locked_or_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime.ctypes, "CDLL", Library)
    realtime.apply(Realtime(lock_memory=True))
    monkeypatch.setattr(Library, "answer", -1)
    with pytest.raises(RealtimeError, match="LimitMEMLOCK=infinity"):
        realtime.apply(Realtime(lock_memory=True))


LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
LIBC.free.restype, LIBC.free.argtypes = None, [ctypes.c_void_p]


def allocate(size: int) -> int:
    """A block of malloc, every page written."""
    block = LIBC.malloc(size)
    ctypes.memset(block, 1, size)
    return int(block)


def anonymous_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


class Circle:
    """Refers to itself: only the collector ends it."""

    def __init__(self) -> None:
        self.itself = self


def test_it_collects_when_idle_and_at_most_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[str] = []
    monkeypatch.setattr(realtime.gc, "collect", lambda: collected.append("all"))
    collector = realtime.IdleCollector()
    for in_flight, now_ns in ((1, 10), (0, 11), (0, 12), (0, 10 + realtime.COLLECT_IDLE_NS), (3, 20_000_000_000)):
        collector.tick(in_flight, now_ns)
    assert collected == ["all"]
    collector.tick(0, 20_000_000_001)
    assert collected == ["all", "all"]


def test_a_circle_that_outlived_a_collection_is_collected_all_the_same() -> None:
    circle = Circle()
    left = weakref.ref(circle)
    gc.collect()
    gc.collect()  # now it is of the oldest
    del circle
    realtime.IdleCollector().tick(0, 1)
    assert left() is None


def test_free_pages_go_back() -> None:
    """4,000 blocks of 16 KiB, every one but the last freed: glibc alone keeps them below the last."""
    blocks = [allocate(1 << 14) for _ in range(4000)]
    held = anonymous_kib()
    for block in blocks[:-1]:
        LIBC.free(block)
    kept = anonymous_kib()
    realtime.IdleCollector().tick(0, 1)
    left = anonymous_kib()
    LIBC.free(blocks[-1])
    assert held - left > 50_000, f"{held} KiB, {kept} once free, {left} after the collection"
