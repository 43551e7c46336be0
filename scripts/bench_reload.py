"""`orind reload --wait` under a steady load: good ones that change everything in turn, then bad ones of every kind.

Seconds in which a reload runs stand beside quiet ones: share of late answers, gap between answers. Memory and
descriptors of main and of the nursery are compared between the first and the last reloads. Invariant: it ends with 0
only if no frame was lost or answered twice, every answer was `ok` or late, every good reload took effect, every bad one
was refused with its reason and changed nothing, and the account, descriptors and memory hold. Times are printed, never
judged, but for the share of late answers, which both kinds of seconds have from the same machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_reload_cases import BAD, CYCLE, Bad, Bench, Plans, good, matches
from built_plans import part_pictures
from camera_load import Answered, Load
from figures import machine
from harness import Service, account_gap

from orind.daemon.terminal import plot, table
from orind.ipc.identity import WINDOW

SECOND_NS = 1_000_000_000
WARM_UP_S, SETTLE_S = 1.5, 20.0
LATE_MORE, RSS_PART = 0.001, 0.01
FLOOR_EVERY = 10
LOOKS, BETWEEN_LOOKS_S = 3, 0.01  # at descriptors: the nursery reads /proc at every ping, what is leaked stays
SHOWN_CHARACTERS = 110
JUDGED_FRAMES = 3000  # below, one late answer more or less would decide
NOTES = """quiet: from the end of a reload to the beginning of the next. late: answered `expired`, or here after more
than the deadline. The floor is `python -c 'import numpy'` under the same load in the same run.
"""


@dataclass(frozen=True)
class Window:
    """A time in which a reload ran, or none; ns."""

    begin: int
    end: int


@dataclass(frozen=True)
class Held:
    """What main and the nursery hold in a quiet moment. `own` is `rss` without shared memory (slots, result areas): in
    the whole, whose greater part never changes, what main leaks would be a small share."""

    rss: tuple[int, int]
    own: tuple[int, int]
    descriptors: tuple[int, int]


@dataclass
class Course:
    """All that was seen. wrong: everything that must not be, in words."""

    reloads: list[Window] = field(default_factory=list)
    quiet: list[Window] = field(default_factory=list)
    floor_ns: list[int] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    refusals: list[tuple[Bad, str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    print(f"{options.reloads} good and {options.bad} bad reloads under {options.rate:g} frames/s, ", end="")
    print(f"deadline {options.deadline:g} ms (part-inspect, CPU engines)")
    print(machine(), flush=True)
    plans, course = Plans.build(), Course()
    with tempfile.TemporaryDirectory(prefix="orind-") as name:
        folder = Path(name)
        with Service(folder, good(plans, 0, options.deadline)) as service:
            with Load(service, part_pictures(8), options.rate, encoding="rgb8") as load:
                warm_up(load, options.reloads >= 2 * CYCLE)
                for number in range(1, options.reloads + 1):
                    reload_once(service, load, plans, number, options, course)
                for number in range(options.bad):
                    refuse_once(BAD[(options.first + number) % len(BAD)], service, load, plans, number, course)
                load.stop()
            status = service.status()
    return report(course, load, status, options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_reload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="bad reloads:\n" + "\n".join(f"  {n:2} {case.name}" for n, case in enumerate(BAD))
        + "\n\nexample: scripts/bench_reload --reloads 300 --bad 50",
    )
    parser.add_argument("--reloads", type=int, default=20, help="good reloads (default 20)")
    parser.add_argument("--bad", type=int, default=len(BAD), help=f"bad reloads (default {len(BAD)}: one of each kind)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the bad kind to begin with (default 0)")
    parser.add_argument("--rate", type=float, default=40.0, metavar="HZ", help="frames a second (default 40)")
    parser.add_argument("--deadline", type=float, default=200.0, metavar="MS", help="of every frame (default 200)")
    parser.add_argument("--quiet", type=float, default=1.0, metavar="S", help="between good reloads (default 1)")
    options = parser.parse_args(arguments)
    if options.reloads < 1 or options.bad < 0 or options.rate <= 0 or options.deadline <= 0:
        parser.error("--reloads must be at least 1, --bad at least 0, --rate and --deadline above 0")
    return options


def warm_up(load: Load, whole: bool) -> None:
    """`whole`: until main remembers as many answers for repeats as it ever will and has replaced them once. Its memory
    grows up to then, by 1 % in the second round: new answers are longer or shorter than the holes of the old ones."""
    time.sleep(WARM_UP_S)
    while whole and len(load.sent) < 2 * WINDOW:
        print(f"warming up: {len(load.sent)} of {2 * WINDOW} frames", file=sys.stderr, flush=True)
        time.sleep(10 * WARM_UP_S)


def _reload(service: Service) -> subprocess.CompletedProcess[str]:
    return service.orind("reload", "--wait", "--run-dir", str(service.run_dir))


def _served(status: dict[str, Any]) -> tuple[int, list[tuple[str, str]]]:
    """Generation, and each model with the hash of its plan."""
    return status["generation"], [(name, model["sha256"]) for name, model in status["models"].items()]


# -- good ----------------------------------------------------------------------------------------------------------


def reload_once(
    service: Service, load: Load, plans: Plans, number: int, options: argparse.Namespace, course: Course
) -> None:
    """Write the next configuration, reload, see that it is what serves; then a quiet time."""
    before = service.status()["generation"]
    config = good(plans, number, options.deadline)
    service.configure(config)
    begun = time.monotonic_ns()
    done = _reload(service)
    ended = time.monotonic_ns()
    course.reloads.append(Window(begun, ended))
    if done.returncode:
        course.wrong.append(f"a good reload was refused: {done.stderr.strip() or done.stdout.strip()}")
    status = service.wait_for(lambda s: s["state"] == "serving", "ready standby", SETTLE_S)
    paths = {name: model["plan"] for name, model in status["models"].items()}
    if status["generation"] != before + 1 or paths != {name: m["plan"] for name, m in config["models"].items()}:
        course.wrong.append(f"reload {number} did not take effect: generation {status['generation']}, {paths}")
    time.sleep(options.quiet)
    course.quiet.append(Window(ended, time.monotonic_ns()))
    course.held.append(_held(service))
    if number % FLOOR_EVERY == 1:
        begun = time.monotonic_ns()
        subprocess.run([sys.executable, "-c", "import numpy"], check=True)
        course.floor_ns.append(time.monotonic_ns() - begun)
    print(f"reload {number}: {(ended - course.reloads[-1].begin) / 1e6:.0f} ms", file=sys.stderr, flush=True)


def _held(service: Service) -> Held:
    nursery = int(Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()[0])
    rss, own, descriptors = [], [], []
    for pid in (service.pid, nursery):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        kib = {words[0]: int(words[1]) for words in lines if words and words[0].startswith("Rss")}
        rss.append(sum(kib.values()) * 1024)
        own.append(rss[-1] - kib["RssShmem:"] * 1024)
        descriptors.append(min(_descriptors(pid) for _ in range(LOOKS)))
    return Held((rss[0], rss[1]), (own[0], own[1]), (descriptors[0], descriptors[1]))


def _descriptors(pid: int) -> int:
    time.sleep(BETWEEN_LOOKS_S)
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


# -- bad -----------------------------------------------------------------------------------------------------------


def refuse_once(case: Bad, service: Service, load: Load, plans: Plans, number: int, course: Course) -> None:
    """Spoil something, reload, mend it: refused, named, nothing changed, frames served meanwhile."""
    bench = Bench(service, plans, service.work_dir, number)
    with case.spoil(bench) or nullcontext():
        before, first = service.status(), len(load.answers)
        done = _reload(service)
        after = service.status()
    load.next_sent()
    served = sum(a.result.ok for a in load.answers[first:])
    if service.config_path.exists():
        service.config_path.unlink()
    service.write_config(bench.text)
    said = (done.stderr.strip() or done.stdout.strip()).replace(f"{service.work_dir}/", "")
    course.refusals.append((case, said.splitlines()[0] if said else "", served))
    if done.returncode != 1:
        course.wrong.append(f"{case.name}: exit code {done.returncode} instead of 1: {done.stdout.strip()}")
    if not matches(case, done.stderr):
        course.wrong.append(f"{case.name}: not named as such: {done.stderr.strip()}")
    changed = [key for key in ("failovers", "losses", "generation") if after[key] != before[key]]
    if changed or _served(after) != _served(before) or after["state"] != before["state"]:
        course.wrong.append(f"{case.name}: {', '.join(changed) or 'what serves'} has changed")
    print(f"bad reload {number + 1}, {case.name}: {said[:80]}", file=sys.stderr, flush=True)


# -- what came of it -----------------------------------------------------------------------------------------------


def report(course: Course, load: Load, status: dict[str, Any], options: argparse.Namespace) -> int:
    """The tables, then the verdict: the exit code."""
    windows = {"reloads": course.reloads, "quiet": course.quiet}
    late = {name: _late(load, spans, options.deadline) for name, spans in windows.items()}
    gaps = {name: [load.largest_gap_ns(w.begin, w.end) / 1e6 for w in spans] for name, spans in windows.items()}
    rows = [
        [name, f"{sum(w.end - w.begin for w in spans) / SECOND_NS:.0f}", late[name][0], late[name][1],
         f"{100 * _share(late[name]):.3f} %", *(f"{x:.1f}" for x in _three(gaps[name]))]
        for name, spans in windows.items()
    ]
    head = ["seconds", "s", "frames", "late", "share", "added gap P50 ms", "P99", "max"]
    print("\n".join(["", *table(head, rows), ""]))
    took = [(w.end - w.begin) / 1e6 for w in course.reloads]
    floor = statistics.median(course.floor_ns) / 1e6
    durations = ["orind reload --wait", *(f"{x:.0f}" for x in _three(took)), f"{statistics.median(took) / floor:.2f}"]
    print("\n".join(table(["ms", "P50", "P99", "max", "P50 / floor"], [durations])))
    print(f"floor {floor:.0f} ms\n{NOTES}")
    if len(took) > 1:
        print("\n".join([*plot("duration of each reload", "ms", took, height=4), ""]))
    judge_held(course)
    cells = [[case.name, served, said[:SHOWN_CHARACTERS]] for case, said, served in course.refusals]
    if cells:
        print("\n".join([*table(["bad reload", "frames ok", "answer"], cells, left=3), ""]))
    judge(course, load, status, late)
    for line in course.wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if course.wrong else 0


def _late(load: Load, windows: Sequence[Window], deadline_ms: float) -> tuple[int, int]:
    """Frames sent in these windows, and those of them that were answered late."""
    sent = {s.seq: s.at_ns for s in load.sent if any(w.begin <= s.at_ns < w.end for w in windows)}
    late = sum(
        a.result.outcome == "expired" or a.at_ns - sent[a.result.seq] > deadline_ms * 1e6
        for a in load.answers
        if a.result.seq in sent
    )
    return len(sent), late


def _share(counts: tuple[int, int]) -> float:
    return counts[1] / max(1, counts[0])


def _three(values: Sequence[float]) -> list[float]:
    """Median, 99th percentile (nearest rank), maximum."""
    ordered = sorted(values)
    return [statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1]]


def judge_held(course: Course) -> None:
    """Memory and descriptors of the first reloads against those of the last, whole cycles of configurations of each."""
    count = min(50, len(course.held) // 2) // CYCLE * CYCLE or min(50, len(course.held) // 2)
    first, last = course.held[:count], course.held[-count:] if count else []
    if not count:
        return
    rows = []
    comparable = count % CYCLE == 0 and len(course.held) % CYCLE == 0
    for who, name in enumerate(("main", "nursery")):
        fds = [Counter(h.descriptors[who] for h in part) for part in (first, last)]
        shown = [" ".join(f"{n} x {fd}" for fd, n in sorted(part.items())) for part in fds]
        for what, of in (("RSS", lambda h: h.rss), ("RSS that is not shared", lambda h: h.own)):
            then, now = (statistics.mean(of(h)[who] for h in part) for part in (first, last))
            change = f"{100 * (now / then - 1):+.2f} %"
            rows.append([f"{name}, {what}", f"{then / 2**20:.2f}", f"{now / 2**20:.2f}", change])
            if comparable and abs(now / then - 1) > RSS_PART:
                course.wrong.append(f"{name}: {what} changed by {change} over the reloads")
        rows.append([f"{name}, descriptors", *shown, ""])
        if comparable and fds[0] != fds[1]:
            course.wrong.append(f"{name}: descriptors changed over the reloads: {shown[0]}, then {shown[1]}")
    head = ["MiB; reloads", f"first {count}", f"last {count}", "change"]
    print("\n".join([*table(head, rows), ""]))
    if not comparable:
        print(f"memory and descriptors are judged over whole cycles only: {2 * CYCLE} reloads, multiples of {CYCLE}\n")


def judge(course: Course, load: Load, status: dict[str, Any], late: dict[str, tuple[int, int]]) -> None:
    """The account, and what kinds of answers there were."""
    lost, surplus, unaccounted = load.lost(), load.surplus(), account_gap(status)
    outcomes = Counter(a.result.outcome for a in load.answers)
    if lost or surplus or unaccounted:
        course.wrong.append(f"{len(lost)} frames lost, {surplus} answers too many, {unaccounted} not accounted for")
    poor: list[Answered] = [a for a in load.answers if a.result.outcome not in ("ok", "expired")]
    course.wrong += [f"frame {a.result.seq}: {a.result.outcome}, {a.result.reason}" for a in poor[:5]]
    if late["reloads"][0] < JUDGED_FRAMES:
        print(f"late answers are judged from {JUDGED_FRAMES} frames in reload seconds on\n")
    elif _share(late["reloads"]) > _share(late["quiet"]) + LATE_MORE:
        course.wrong.append(f"late answers: {late['reloads']} in reload seconds, {late['quiet']} in quiet ones")
    if status["reload"]["done"] < len(course.reloads):
        course.wrong.append(f"{status['reload']['done']} reloads done")
    print(f"sent {len(load.sent)}: " + ", ".join(f"{n} {name}" for name, n in sorted(outcomes.items())), end="; ")
    print(f"lost {len(lost)}, twice {surplus}, unaccounted {unaccounted} (must be 0)")


if __name__ == "__main__":
    sys.exit(main())
