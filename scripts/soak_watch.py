"""Continuous observation of a soaked daemon: its books, its state, memory, descriptors and threads of all processes.

Called by `soak.py`. Invariant: judgements are functions of what was sampled; nothing is judged that was not seen for
long enough, and what was not judged is said.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Service, account_gap

from orind.ipc.errors import ControlError
from orind.ipc.identity import WINDOW

PERIOD_S = 0.5
UNREACHABLE_S = 5.0
TREND_LEAST_S = 240.0
KEPT_KIB = 1.25
"""What main keeps of an answer with a few objects: 0.84 KiB by tracemalloc, which the allocator rounds up."""
GROWTH_SHARE, GROWTH_KIB = 0.03, 3072
SPARE_FDS, SPARE_THREADS = 2, 1
PAGE_KIB = 4
FRAGMENTATION_MAX = 0.05
MAP_AS_THEY_READ = ("engine", "decoder")
"""In these the frame slots become resident as they are read; in main they are so from the start."""
SLOTS = "/memfd:orind-slots "


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int
    role: str
    rss_kib: int
    fds: int
    threads: int
    slots_kib: int = 0
    """Of rss_kib: the slots, where they are mapped as they are read. Their number and size are fixed."""

    @property
    def judged_kib(self) -> int:
        return self.rss_kib - self.slots_kib


@dataclass(frozen=True)
class Sample:
    """at_s: from the begin of the soak. gap: frames that the books do not account for."""

    at_s: float
    state: str
    queue: int
    in_flight: int
    level: int
    gap: int
    received: int
    fragmentation: float | None
    processes: tuple[Process, ...]


@dataclass
class Watch(threading.Thread):
    """Samples twice a second from start() to stop()."""

    service: Service
    began_s: float
    samples: list[Sample] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(name="watch", daemon=True)
        self._over = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        answered_s = time.monotonic()
        while not self._over.wait(PERIOD_S):
            try:
                status = self.service.status()
            except ControlError as error:
                if time.monotonic() - answered_s > UNREACHABLE_S:
                    self.wrong.append(f"{self._at():.1f} s: no status for {UNREACHABLE_S:g} s: {error}")
                    answered_s = time.monotonic()
                continue
            answered_s = time.monotonic()
            self.samples.append(self._sample(status))

    def _at(self) -> float:
        return time.monotonic() - self.began_s

    def _sample(self, status: dict[str, Any]) -> Sample:
        frames = status["frames"]
        gap = account_gap(status)
        if gap:
            self.wrong.append(f"{self._at():.1f} s: {gap} frames are not accounted for: {frames}")
        return Sample(
            self._at(), status["state"], status["queue"]["length"], frames["in_flight"], status["degradation"]["level"],
            gap, frames["received"], fragmentation(status["engines"]), tuple(processes(self.service.pid)),
        )

    def stop(self) -> None:
        self._over.set()
        self.join(10)


def fragmentation(engines: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest of all engines that tell it, as a share."""
    told = [engine["memory"]["fragmentation_percent"] / 100 for engine in engines if engine.get("memory")]
    return max(told, default=None)


def processes(main: int) -> Iterable[Process]:
    """Main and everything that it or its children started; one that ends meanwhile is left out."""
    parents: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[int(stat.rpartition(")")[2].split()[1])].append(int(folder.name))
    waiting = [main]
    while waiting:
        pid = waiting.pop()
        waiting += parents[pid]
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            # what the nursery forks names itself; it and main are Python
            role = "main" if pid == main else name.removeprefix("orind-") if name.startswith("orind-") else "nursery"
            slots = slots_kib(Path(f"/proc/{pid}/smaps").read_text()) if role in MAP_AS_THEY_READ else 0
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            fds, threads = (len(list(Path(f"/proc/{pid}/{what}").iterdir())) for what in ("fd", "task"))
        except OSError:
            continue
        yield Process(pid, role, resident * PAGE_KIB, fds, threads, slots)


def slots_kib(smaps: str) -> int:
    """How much of the frame slots is resident in a process, of its /proc/PID/smaps."""
    _, *of_slots = smaps.split(SLOTS)
    return sum(int(after.partition("\nRss:")[2].split(maxsplit=1)[0]) for after in of_slots)


# -- judgement ---------------------------------------------------------------------------------------------------


def filling_kib(answered_s: Mapping[str, Sequence[float]], from_s: float, to_s: float) -> float:
    """By how much main may grow since it still fills its windows of recent answers. answered_s: when, by camera."""

    def kept(until_s: float) -> int:
        return sum(min(WINDOW, sum(at_s < until_s for at_s in times)) for times in answered_s.values())

    return KEPT_KIB * (kept(to_s) - kept(from_s))


def trends(
    samples: Sequence[Sample], answered_s: Mapping[str, Sequence[float]]
) -> tuple[list[str], list[list[str]], list[str]]:
    """-> what is wrong, a table of (role, figure, begin, end), what was not judged. answered_s: as in `filling_kib`.

    Resident memory (of engines and decoders without the slots) by the last half of the soak, descriptors and
    threads by all of it; engines and decoders by the median of whoever lives, since they are renewed all the time.
    """
    wrong, rows, unjudged = list[str](), list[list[str]](), list[str]()
    series: dict[str, list[tuple[float, int, int, int]]] = defaultdict(list)
    for sample in samples:
        by_role = defaultdict(list)
        for process in sample.processes:
            by_role[process.role].append(process)
        for role, alive in by_role.items():
            middle = [int(statistics.median_low(values)) for values in
                      ([p.judged_kib for p in alive], [p.fds for p in alive], [p.threads for p in alive])]
            series[role].append((sample.at_s, *middle))
    for role, points in sorted(series.items()):
        memory = "RSS without slots" if role in MAP_AS_THEY_READ else "RSS"
        if role == "checker" or len(points) < 8:
            continue  # a checker lives for the moment of a reload
        late = [p for p in points if p[0] >= samples[-1].at_s / 2]
        if late and late[-1][0] - late[0][0] >= TREND_LEAST_S:
            begin, end = (statistics.median(p[1] for p in part) for part in _ends(late, 4))
            rows.append([role, f"{memory}, MiB", f"{begin / 1024:.1f}", f"{end / 1024:.1f}"])
            filling = filling_kib(answered_s, late[0][0], late[-1][0]) if role == "main" else 0.0
            if end - begin > max(GROWTH_SHARE * begin, GROWTH_KIB) + filling:
                known = f", {filling:.0f} of it known" if filling else ""
                wrong.append(f"{role}: {memory} grew from {begin:.0f} to {end:.0f} KiB in the last half{known}")
        else:
            rows.append([role, f"{memory}, MiB", f"{points[0][1] / 1024:.1f}", f"{points[-1][1] / 1024:.1f}"])
            unjudged.append(f"{memory} of {role}: less than {2 * TREND_LEAST_S:.0f} s were seen")
        for column, name, spare in ((2, "descriptors", SPARE_FDS), (3, "threads", SPARE_THREADS)):
            begin, end = (int(statistics.median(p[column] for p in part)) for part in _ends(points, 3))
            rows.append([role, name, str(begin), str(end)])
            if end > begin + spare:
                wrong.append(f"{role}: {name} grew from {begin} to {end}")
    return wrong, rows, unjudged


def _ends(points: Sequence[Any], parts: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """The first and the last of so many parts."""
    share = max(1, len(points) // parts)
    return points[:share], points[-share:]


def fragmented(samples: Sequence[Sample]) -> tuple[list[str], str]:
    """-> what is wrong, and the figure in words."""
    seen = [s.fragmentation for s in samples if s.fragmentation is not None]
    if not seen:
        return ["no engine ever told its fragmentation"] if samples else [], "not shown by the status"
    worst = max(seen)
    wrong = [f"fragmentation reached {worst:.1%}"] if worst >= FRAGMENTATION_MAX else []
    return wrong, f"at most {worst:.1%} of {len(seen)} samples"
