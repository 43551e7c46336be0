"""Does something grow that should not? Memory, descriptors and threads of each process, and the device's memory.

Owned by `daemon.py`, fed with samples by the nursery's answers and the engines' reports; pure. A sample is kept as the
least of its bucket of time, so that peaks of work do not count; a window has BUCKETS of them. One window lasts
`memory.leak_minutes`, the other LONG times that, for what grows slowly. Invariant: a verdict needs a whole window, and
growth through all of it: what a process takes while it warms up ends, a leak does not.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

log = logging.getLogger("orind")
BUCKETS, LONG = 24, 16
LONG_FLOORS = 3  # what may grow in the long window: so many times as much, for days and nights differ
STEADY, STRAIGHT = 0.5, 0.15  # of a half's slope to the other's; of the values' distance to what they grow
PROCESSES_MAX = 128
FORGET_NS = 120_000_000_000  # not heard of for so long: it has ended
PRIVATE, DESCRIPTORS, THREADS, DEVICE = "private memory", "descriptors", "threads", "device memory"
KEYS = {PRIVATE: "private", DESCRIPTORS: "descriptors", THREADS: "threads", DEVICE: "device_free"}  # in the status
MIB = 1 << 20
# what may grow within a window and mean nothing, and the part of the level that may (of a device only what is free is
# told, which is no level)
FLOORS: Mapping[str, tuple[float, float]] = {
    PRIVATE: (8 * MIB, 0.03), DESCRIPTORS: (16, 0.1), THREADS: (4, 0.1), DEVICE: (64 * MIB, 0),
}
# Main remembers thousands of answers of each camera (repeats.py), which at a slow camera takes hours to fill
MAIN, MAIN_FLOOR = "main", (48 * MIB, 0.1)


def growth(values: Sequence[float], floor: float, share: float) -> float:
    """How much a whole window of values grows from begin to end by its robust slope; 0.0 where that is no leak.

    No leak is: less than `floor` or `share` of the level; growth that slows down, as that of caches does, or that was
    not there in the first half, as after a step; and values that lie beside the line, as those of a saw.
    """
    half = len(values) // 2
    early, late, whole = slope(values[:half]), slope(values[half:]), slope(values)
    grown, level, middle = whole * (len(values) - 1), statistics.median(values), (len(values) - 1) / 2
    beside = statistics.median(abs(value - level - whole * (i - middle)) for i, value in enumerate(values))
    steady = late >= STEADY * early and early >= STEADY * late and beside <= STRAIGHT * grown
    return grown if grown >= max(floor, share * level) and steady else 0.0


def slope(values: Sequence[float]) -> float:
    """Theil and Sen's: the median over all pairs."""
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(values), 2))


@dataclass(slots=True)
class Window:
    """The last BUCKETS buckets of `bucket_ns` each. `grown`: by the last verdict."""

    bucket_ns: int
    least: deque[float] = field(default_factory=lambda: deque(maxlen=BUCKETS))
    grown: float = 0.0
    _begin_ns: int = 0
    _lowest: float = 0.0

    def add(self, value: float, now_ns: int, floor: float, share: float) -> None:
        """A gap of more than a bucket begins the window anew: nobody knows what was meanwhile."""
        passed_ns = now_ns - self._begin_ns
        if passed_ns >= 2 * self.bucket_ns:
            if self._begin_ns:
                self.least.clear()
                self.grown = 0.0
            self._begin_ns, self._lowest = now_ns, value
        elif passed_ns >= self.bucket_ns:
            self.least.append(self._lowest)
            self._begin_ns, self._lowest = self._begin_ns + self.bucket_ns, value
            self.grown = growth(list(self.least), floor, share) if len(self.least) == BUCKETS else 0.0
        else:
            self._lowest = min(self._lowest, value)

    @property
    def minutes(self) -> float:
        return BUCKETS * self.bucket_ns / 60e9


@dataclass(slots=True)
class Watched:
    """A process, or a device: its last sample and its windows by what is counted."""

    name: str
    heard_ns: int = 0
    last: dict[str, int] = field(default_factory=dict)
    windows: dict[str, list[Window]] = field(default_factory=dict)

    def leaks(self) -> dict[str, str]:
        """By what is counted: how it grows."""
        found = {}
        for what, windows in self.windows.items():
            for window in windows:
                if window.grown:
                    found[what] = f"{_amount(what, window.grown)} in {window.minutes:.0f} minutes"
                    break
        return found


class LeakWatch:
    """By process id, and by name for devices."""

    def __init__(self, minutes: float) -> None:
        self._watched: dict[int | str, Watched] = {}
        self._told: dict[str, str] = {}
        self.adopt(minutes)

    def adopt(self, minutes: float) -> None:
        """Another length of the windows begins all of them anew."""
        bucket_ns = int(minutes * 60e9 / BUCKETS)
        if bucket_ns != getattr(self, "_bucket_ns", None):
            self._bucket_ns = bucket_ns
            self._watched.clear()

    def note_process(self, usage: Mapping[str, Any], now_ns: int) -> None:
        """As the nursery tells it: role, pid, private, descriptors (or None), threads."""
        counted = {PRIVATE: usage["private"], DESCRIPTORS: usage["descriptors"], THREADS: usage["threads"]}
        role, pid = usage["role"], usage["pid"]
        self._note(pid, f"{role} (pid {pid})", counted, now_ns, main=role == MAIN)

    def ended(self, pid: int) -> None:
        """Nothing of a process that is no more can grow."""
        if self._watched.pop(pid, None) is not None:
            self._tell()

    def note_device(self, name: str, free: int | None, now_ns: int) -> None:
        """As an engine tells it. What counts is what is used by anybody: that much less is free."""
        if free is not None:
            self._note(f"device {name}", f"device {name}", {DEVICE: -free}, now_ns)

    def _note(
        self, key: int | str, name: str, counted: Mapping[str, int | None], now_ns: int, main: bool = False
    ) -> None:
        for known in [k for k, w in self._watched.items() if now_ns - w.heard_ns > FORGET_NS]:
            del self._watched[known]
        watched = self._watched.get(key)
        if watched is None or watched.name != name:
            if len(self._watched) >= PROCESSES_MAX:
                return
            watched = self._watched[key] = Watched(name)
        watched.heard_ns = now_ns
        watched.last = {what: value for what, value in counted.items() if value is not None}
        for what, value in watched.last.items():
            slow = main and what == PRIVATE
            if what not in watched.windows:
                watched.windows[what] = [Window(n * self._bucket_ns) for n in ((LONG,) if slow else (1, LONG))]
            floor, share = MAIN_FLOOR if slow else FLOORS[what]
            for window in watched.windows[what]:
                times = 1 if window.bucket_ns == self._bucket_ns else LONG_FLOORS
                window.add(value, now_ns, times * floor, share)
        self._tell()

    def _tell(self) -> None:
        """Once when a leak is seen, once when it has ended."""
        found = self._found()
        for key in found.keys() - self._told.keys():
            log.warning("%s", found[key])
        for key in self._told.keys() - found.keys():
            log.info("no longer: %s", self._told[key])
        self._told = found

    def _found(self) -> dict[str, str]:
        return {
            f"{watched.name} {what}": f"{watched.name} may leak: {what} grows without a rest, by {text}"
            for watched in self._watched.values()
            for what, text in watched.leaks().items()
        }

    def problems(self) -> list[str]:
        """For the health's reasons."""
        return list(self._told.values())

    def table(self) -> list[dict[str, Any]]:
        """For the status: each process or device with its last sample and what of it grows."""
        return [
            {"name": watched.name, **({"pid": key} if isinstance(key, int) else {}),
             **{KEYS[what]: abs(value) for what, value in watched.last.items()}, "leaks": sorted(watched.leaks())}
            for key, watched in self._watched.items()
        ]


def _amount(what: str, grown: float) -> str:
    return f"{grown / MIB:.1f} MiB" if what in (PRIVATE, DEVICE) else f"{grown:.0f}"


def in_words(process: Mapping[str, Any]) -> str:
    """One line of the table, for people."""
    parts = [f"{process[key] / MIB:.1f} MiB {text}" for key, text in (("private", "private"), ("device_free", "free"))
             if key in process]
    parts += [f"{process[key]} {key if process[key] != 1 else key[:-1]}" for key in ("descriptors", "threads")
              if key in process]
    grows = f"; grows: {', '.join(process['leaks'])}" if process["leaks"] else ""
    return f"{process['name']}: {', '.join(parts)}{grows}"
