"""The real daemon under a long run of faults, reloads and bad cameras, all drawn from a seed (scripts/soak).

Three cameras of different patterns and encodings send all the time, as often as keeps the engine busy for LOAD of its
time where it was measured at the begin; events of soak_schedule.py befall the daemon one after another. It passes (exit
code 0) only if the books were exact at every sample, every trigger had exactly one answer with an outcome that it may
have, the daemon was healthy again after every fault, every reload ended as it should, memory, descriptors and threads
of no process grew, and fragmentation stayed below 5 %. Times are printed, never judged.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hostile
import soak_plot
import soak_watch
from built_plans import ROOT, face_plan, part_pictures, part_plan
from figures import machine, spread
from harness import Service, ServiceError
from soak_cameras import Listener, Seen, SteadyCamera
from soak_events import TOKENS_BURST, TOKENS_HZ, Events
from soak_schedule import KINDS, Event, draw

from orind.daemon.terminal import table

SETTLE_S = 30.0
PATTERNS = {"line1": "dealer", "door": "push", "live": "pub"}
RATES_HZ = {"line1": 20.0, "door": 6.0, "live": 12.0}
LOAD = 0.4
MEASURED = 12
# whatever befalls the engines, these are the ends that a camera's frames may have
SERVED_LEAST = 0.5  # of a good camera's triggers, on a machine that others load as well
MAY_END = {
    "line1": {"ok", "expired", "dropped"},
    "door": {"ok", "expired", "dropped", "degraded"},
    "live": {"ok", "expired", "dropped", "stale"},
    "trouble": {"ok", "expired", "dropped"},
    "limited": {"ok", "expired", "dropped", "rejected"},
}
CONFIG: dict[str, Any] = {
    "cameras": {
        "line1": {"model": "parts", "deadline_ms": 3000},
        "door": {"model": "faces", "deadline_ms": 3000, "degraded": "held", "held_age_max_ms": 3000},
        "live": {"model": "parts", "deadline_ms": 3000, "priority": "best_effort"},
        "trouble": {"model": "parts", "deadline_ms": 3000, "optional": True},
        "limited": {
            "model": "parts", "deadline_ms": 3000, "rate_limit_hz": TOKENS_HZ, "rate_burst": TOKENS_BURST,
            "priority": "critical",
        },
    },
    "sources": [
        {"name": "triggers", "endpoint": "ipc://{run_dir}/triggers", "pattern": "router"},
        {"name": "push", "endpoint": "ipc://{run_dir}/push", "pattern": "pull"},
        {"name": "pub", "endpoint": "ipc://{run_dir}/pub", "pattern": "sub"},
    ],
    "results": {"endpoint": "ipc://{run_dir}/results", "send_queue": 10_000},
    "slots": {"count": 64, "bytes": 1 << 20},
    "decode": {"workers": 1},
    "http": {"port": 0},
    "engine": {
        "batch_watchdog_ms": 1500, "heartbeat_missed_ms": 1500, "golden_interval_s": 8, "golden_timeout_ms": 4000,
        "restart_budget": 10_000,
    },
    "degradation": {"enter_after_ms": 500, "leave_after_s": 3},
    "health": {"queue_max": 60, "memory_max_percent": 100},
}


@dataclass
class Soak:
    """What was seen of one soak."""

    seconds: float
    cameras: dict[str, SteadyCamera]
    events: Events
    seen: list[Seen]
    samples: list[soak_watch.Sample]
    first: dict[str, Any]
    last: dict[str, Any]
    wrong: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    seconds = options.minutes * 60
    schedule = draw(seconds, options.seed)
    if options.schedule:
        print("\n".join(map(str, schedule)))
        return 0
    folder = options.output or ROOT / "build" / "soak" / f"{options.minutes:g}-minutes-seed-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedule.txt").write_text("".join(f"{event}\n" for event in schedule))
    print(f"{seconds:g} s, seed {options.seed}, {len(schedule)} events ({folder / 'schedule.txt'})")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="orind-") as name:
        soak = run(Path(name), seconds, options.seed, schedule)
        (folder / "orind.log").write_bytes((Path(name) / "orind.log").read_bytes())
    write_samples(folder / "samples.csv", soak.samples)
    title = f"soak of {seconds:g} s, seed {options.seed}"
    picture = soak_plot.draw(title, seconds, soak.seen, soak.samples, soak.events.done)
    (folder / "soak.svg").write_text(picture)
    return report(soak, folder)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="events:\n" + "\n".join(f"  {kind:13} {what}" for kind, what in KINDS.items())
        + "\n\nexample: scripts/soak --minutes 20 --seed 7",
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default 0)")
    parser.add_argument("--schedule", action="store_true", help="print the schedule and do nothing")
    parser.add_argument("--output", type=Path, help="folder of picture, samples and log (default build/soak/...)")
    options = parser.parse_args(arguments)
    if options.minutes < 0.2:
        parser.error("--minutes must be at least 0.2")
    return options


# -- the run -----------------------------------------------------------------------------------------------------


def run(folder: Path, seconds: float, seed: int, schedule: Sequence[Event]) -> Soak:
    """Start, soak, calm down, stop."""
    plans = [folder / "first.plan", folder / "second.plan"]
    for variant, plan in enumerate(plans):
        plan.write_bytes(part_plan(variant=variant).read_bytes())
    config = {**CONFIG, "models": {"parts": {"plan": str(plans[0])}, "faces": {"plan": str(face_plan())}}}
    with Service(folder, config) as service:
        picture = part_pictures(1, seed=900_000)[0]
        fields = {"encoding": "rgb8", "width": picture.shape[1], "height": picture.shape[0]}
        frame = hostile.Frame(fields, picture.tobytes())
        cameras = make_cameras(service, seed, measure(service, frame))
        events = Events(service, config, plans, cameras, frame)
        began_s = time.monotonic()
        listener = Listener(service.results_endpoint, began_s)
        listener.start()
        first = _await_listener(service, listener, events)
        watch = soak_watch.Watch(service, began_s)
        for thread in (*cameras.values(), watch):
            thread.start()
        try:
            for event in schedule:
                time.sleep(max(0.0, began_s + event.at_s - time.monotonic()))
                if time.monotonic() - began_s > seconds:
                    break
                print(event, file=sys.stderr, flush=True)
                events.act(event, time.monotonic() - began_s)
            time.sleep(max(0.0, began_s + seconds - time.monotonic()))
        finally:
            for camera in cameras.values():
                camera.stop()
        wrong = _calm_down(service, events)
        watch.stop()
        last = service.status()
        time.sleep(0.5)  # results on their way to the listener
        listener.stop()
        wrong += watch.wrong
    return Soak(time.monotonic() - began_s, cameras, events, listener.seen, watch.samples, first, last, wrong)


def measure(service: Service, frame: hostile.Frame) -> float:
    """What the cameras' rates are to be multiplied with, so that they offer LOAD; at most 1."""
    jpeg = hostile.Frame({"encoding": "jpeg"}, photographs()[0])
    spent_s: dict[str, float] = {}
    for camera, shown in (("trouble", frame), ("door", jpeg)):
        before = _busy(service)
        told = hostile.flood(service.endpoint, camera, shown, 0, MEASURED)
        if told.wrong:
            raise ServiceError(f"before the soak began: {told.wrong}")
        after = _busy(service)
        spent_s[camera] = (after[0] - before[0]) / 1e9 / (after[1] - before[1])
    parts_s, faces_s = spent_s["trouble"], spent_s["door"]
    offered = (RATES_HZ["line1"] + RATES_HZ["live"]) * parts_s + RATES_HZ["door"] * faces_s
    scale = min(1.0, LOAD / offered)
    print(f"a frame takes the engine {parts_s * 1e3:.1f} ms (parts), {faces_s * 1e3:.1f} ms (faces): ", end="")
    print(f"rates x {scale:.2f}")
    return scale


def _busy(service: Service) -> tuple[int, int]:
    """ns that engines have worked at frames, and at how many."""
    stages = service.status()["histograms"]
    known = [stages[name] for name in ("preprocess", "engine") if name in stages]
    return sum(stage["sum_ns"] for stage in known), known[0]["count"] if known else 0


def photographs() -> list[bytes]:
    frames = ROOT / "configs" / "frames"
    return [(frames / name).read_bytes() for name in ("astronaut.jpg", "coffee.jpg", "chelsea.jpg")]


def make_cameras(service: Service, seed: int, scale: float) -> dict[str, SteadyCamera]:
    pictures, jpeg = part_pictures(8), photographs()
    given: dict[str, tuple[str, Any, str]] = {
        "line1": ("triggers", pictures, "rgb8"), "door": ("push", jpeg, "jpeg"), "live": ("pub", pictures, "rgb8"),
    }
    return {
        name: SteadyCamera(
            name, f"ipc://{service.run_dir}/{socket}", PATTERNS[name], content, encoding, RATES_HZ[name] * scale,
            seed + n,
        )
        for n, (name, (socket, content, encoding)) in enumerate(given.items())
    }


def _await_listener(service: Service, listener: Listener, events: Events) -> dict[str, Any]:
    """Until a subscription has arrived PUB drops what is published; -> the status from which on everything is heard."""
    for _ in range(100):
        hostile.garbage(service.endpoint, "trouble", hostile.Frame({}, b""), random.Random(0))
        time.sleep(0.1)
        if listener.seen:
            time.sleep(0.5)
            status = service.status()
            listener.seen.clear()
            return status
    raise ServiceError("the listener hears no results")


def _calm_down(service: Service, events: Events) -> list[str]:
    """All answered and healthy again, within a bounded time."""
    try:
        service.wait_for(lambda s: s["frames"]["in_flight"] == 0, "end of what is in flight", SETTLE_S)
        events.recover()
        service.wait_for(lambda s: s["degradation"]["level"] == 0, "end of the degradation", SETTLE_S)
    except ServiceError as error:
        return [f"at the end: {str(error)[:400]}"]
    return []


# -- the verdict -------------------------------------------------------------------------------------------------


def judge(soak: Soak) -> list[str]:
    """Everything that must not be, in words."""
    wrong = [*soak.wrong, *soak.events.wrong]
    wrong += [text for told in soak.events.told for text in told.wrong]
    published = Counter(s.key for s in soak.seen if s.key[1] is not None)
    sure, maybe = set[Any](), set[Any]()
    for camera in soak.cameras.values():
        (maybe if camera.pattern == "pub" else sure).update(camera.sent)
        if camera.error:
            wrong.append(f"camera {camera.camera} failed: {camera.error}")
        if camera.pattern == "dealer":
            short = sum(camera.replies[key] != 1 for key in camera.sent)
            if short or camera.surplus:
                wrong.append(f"camera {camera.camera}: {short} triggers without exactly one reply, "
                             f"{camera.surplus} replies to nothing")
    for told in soak.events.told:
        sure.update(told.sure)
        maybe.update(told.maybe)
    if lost := sure - published.keys():
        wrong.append(f"{len(lost)} of {len(sure)} triggers have no result, such as {sorted(lost, key=str)[:3]}")
    if twice := [key for key, count in published.items() if count > 1]:
        wrong.append(f"{len(twice)} triggers have several results, such as {twice[:3]}")
    if unknown := [key for key in published if key not in sure and key not in maybe]:
        wrong.append(f"{len(unknown)} results are of no trigger that was sent, such as {unknown[:3]}")
    received = soak.last["frames"]["received"] - soak.first["frames"]["received"]
    if received != len(soak.seen):
        wrong.append(f"{received} frames received, {len(soak.seen)} results published")
    wrong += _ends_that_may_not_be(soak) + _served_too_little(soak)
    return wrong + soak_watch.trends(soak.samples, answered_s(soak.seen))[0] + soak_watch.fragmented(soak.samples)[0]


def answered_s(seen: Sequence[Seen]) -> dict[str, list[float]]:
    """When each camera's triggers were answered."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in seen:
        if each.key[2] is not None:
            found[each.key[0] or "?"].append(each.at_s)
    return found


def _served_too_little(soak: Soak) -> list[str]:
    """A daemon that answers everybody in time with nothing but `expired` has exact books as well."""
    wrong = []
    for name, camera in soak.cameras.items():
        sent = set(camera.sent)
        ends = [seen.outcome for seen in soak.seen if seen.key in sent]
        good = sum(outcome in ("ok", "stale") for outcome in ends)
        if "rejected" not in MAY_END.get(name, set()) and good < SERVED_LEAST * len(ends):
            wrong.append(f"camera {name}: only {good} of {len(ends)} triggers were served")
    return wrong


def _ends_that_may_not_be(soak: Soak) -> list[str]:
    """A frame may be poison only where engines were killed."""
    wrong = []
    counts = soak.events.counts
    deaths = sum(counts[kind] for kind in ("kill", "segv", "kill-both", "stop", "kill-standby", "reload-kill"))
    for seen in soak.seen:
        may = MAY_END.get(seen.key[0] or "", set()) if seen.key[1] is not None else {"rejected"}
        poison = seen.outcome == "error" and "engines died of it" in seen.reason and deaths
        if seen.outcome not in may and not poison:
            wrong.append(f"{seen.key}: {seen.outcome}, {seen.reason}")
    return wrong[:5] + ([f"and {len(wrong) - 5} more such ends"] if len(wrong) > 5 else [])


# -- the report --------------------------------------------------------------------------------------------------


def report(soak: Soak, folder: Path) -> int:
    """Tables and verdict: the exit code."""
    by_camera: dict[str, Counter[str]] = defaultdict(Counter)
    for seen in soak.seen:
        by_camera[seen.key[0] or "?" if seen.key[1] is not None else "?"][seen.outcome] += 1
    outcomes = sorted({o for counts in by_camera.values() for o in counts})
    rows: list[list[Any]] = [
        [name, sum(counts.values()), *(counts[o] or "" for o in outcomes)] for name, counts in sorted(by_camera.items())
    ]
    print("\n".join(["", *table(["results of camera", "in all", *outcomes], rows), ""]))
    rows = [[kind, count] for kind, count in sorted(soak.events.counts.items())]
    print("\n".join([*table(["event", "times"], rows), ""]))
    rows = [[code, count] for code, count in sorted(soak.last["reasons"].items())]
    print("\n".join([*table(["not ok because", "times"], rows), ""]))
    _, rows, unjudged = soak_watch.trends(soak.samples, answered_s(soak.seen))
    print("\n".join([*table(["process", "figure", "begin", "end"], rows, left=2), ""]))
    last = soak.last
    latency = last["latency_ms"]["total"]
    print(f"received {last['frames']['received']}, repeated {last['frames']['repeated']}, generation "
          f"{last['generation']}, {last['failovers']} failovers, engines lost: {last['losses']}")
    print(f"latency from capture to answer, ms: P50 {latency['p50']:.1f}, P95 {latency['p95']:.1f}, "
          f"P99 {latency['p99']:.1f} (all outcomes)")
    print(f"highest level of degradation {max(s.level for s in soak.samples)}; "
          f"waiting for a healthy daemon with a ready standby, s: {spread(soak.events.recoveries_s)}, "
          f"at most {max(soak.events.recoveries_s):.1f}")
    print(f"fragmentation: {soak_watch.fragmented(soak.samples)[1]}")
    print(f"{len(soak.samples)} samples, books exact in {sum(s.gap == 0 for s in soak.samples)} of them")
    for text in unjudged:
        print(f"not judged: {text}")
    print(f"picture: {folder / 'soak.svg'}")
    wrong = judge(soak)
    for text in wrong:
        print(f"FAILED: {text}")
    print(f"verdict: {'fail' if wrong else 'pass'} after {soak.seconds:.0f} s")
    return 1 if wrong else 0


def write_samples(path: Path, samples: Sequence[soak_watch.Sample]) -> None:
    """One line a process and sample."""
    lines = ["at_s,state,queue,in_flight,level,gap,received,fragmentation,pid,role,rss_kib,fds,threads,slots_kib"]
    for sample in samples:
        fields = asdict(sample)
        own = [fields[name] for name in lines[0].split(",")[:8]]
        own[0] = f"{sample.at_s:.2f}"
        for process in sample.processes:
            lines.append(",".join(map(str, [*own, *asdict(process).values()])))
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
