"""kill -9 of the active engine with a frame in flight, again and again, under a steady load (scripts/bench_failover).

Each kill falls at a random moment of a frame's service. Its gap stands beside that of the undisturbed second before it,
so that what the machine does anyway can be seen. Invariant: it ends with 0 only if no frame was lost, none was answered
twice and the daemon's account adds up; times are printed, never judged.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness import Load, Sent, Service, account_gap, machine, part_pictures, part_plan
from terminal import table

SECOND_NS = 1_000_000_000
ATTEMPTS = 20  # a kill that met no frame in flight is repeated, at most so often
WARM_UP_S = 1.5


@dataclass(frozen=True)
class Kill:
    """One kill that met `frames` in flight; all in ns. take_over: from the daemon's record to that frame's answer."""

    detection: int
    take_over: int
    gap: int
    quiet_gap: int
    frames: int


def main() -> int:
    options = _options()
    config = {"models": {"parts": {"plan": str(part_plan())}}, "cameras": {"line1": {"model": "parts"}}}
    print(f"{options.kills} x kill -9 of the active engine under {options.rate:g} frames/s (part-inspect INT8)")
    print(machine(), flush=True)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="orind-") as folder, Service(Path(folder), config) as service:
        with Load(service, part_pictures(8), options.rate, encoding="rgb8") as load:
            time.sleep(WARM_UP_S)
            service_ms = service.status()["latency_ms"]["engine"]["p50"]
            kills: list[Kill] = []
            missed = 0
            while len(kills) < options.kills:
                kill = kill_once(service, load, chance.uniform(0, service_ms / 1e3))
                if kill is None:
                    missed += 1
                    if missed > ATTEMPTS * options.kills:
                        raise SystemExit("the kills never meet a frame in flight: is the rate too low?")
                    continue
                kills.append(kill)
                print(f"kill {len(kills)}: gap {kill.gap / 1e6:.1f} ms", file=sys.stderr, flush=True)
            load.stop()
        status = service.status()
    return report(kills, missed, load, status)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/bench_failover --kills 20 --rate 40",
    )  # fmt: skip
    parser.add_argument("--kills", type=int, default=20, help="kills with a frame in flight (default 20)")
    parser.add_argument("--rate", type=float, default=40.0, metavar="HZ", help="frames a second (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which the kills fall (default 0)")
    options = parser.parse_args()
    if options.kills < 1 or options.rate <= 0:
        parser.error("--kills must be at least 1, --rate above 0")
    return options


def kill_once(service: Service, load: Load, delay_s: float) -> Kill | None:
    """Kill the active engine `delay_s` after a frame left. None if no frame was in flight then."""
    service.wait_for(lambda status: status["state"] == "serving", "ready standby")
    time.sleep(1.05)
    before, pid = service.status(), service.active_pid()
    sent: Sent = load.next_sent()
    time.sleep(delay_s)
    killed_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.05)
    record = service.wait_for(lambda status: status["failovers"] > before["failovers"], "failover")["failover"]
    answer = next((a for a in list(load.answers) if a.result.seq == sent.seq), None)
    if not record["frames"] or answer is None or answer.at_ns < record["at_ns"]:
        return None
    return Kill(
        detection=record["at_ns"] - killed_ns,
        take_over=answer.at_ns - record["at_ns"],
        gap=load.largest_gap_ns(killed_ns, killed_ns + SECOND_NS),
        quiet_gap=load.largest_gap_ns(killed_ns - SECOND_NS, killed_ns),
        frames=record["frames"],
    )


def report(kills: list[Kill], missed: int, load: Load, status: dict[str, object]) -> int:
    """The tables, then the verdict on losses and accounts: the exit code."""
    stages = status["latency_ms"]
    assert isinstance(stages, dict)
    service_ms = stages["engine"]["p50"]
    figures = [
        ("detection (kill -> the daemon's record)", [k.detection / 1e6 for k in kills]),
        ("take-over (record -> answer of the frame in flight)", [k.take_over / 1e6 for k in kills]),
        (f"added gap (largest interval within 1 s, - {load.period_ns / 1e6:g} ms)", [k.gap / 1e6 for k in kills]),
        ("  the same in the undisturbed second before (floor)", [k.quiet_gap / 1e6 for k in kills]),
        ("added gap - one service time (aim: <= 30 at P99)", [k.gap / 1e6 - service_ms for k in kills]),
    ]
    rows = [[name, f"{statistics.median(v):.1f}", f"{max(v):.1f}"] for name, v in figures]
    rows.insert(2, ["one service time (engine stage, median)", f"{service_ms:.1f}", ""])
    print("\n".join(["", *table(["ms", "P50", "max"], rows), ""]))
    ratio = statistics.median(k.gap for k in kills) / 1e6 / service_ms
    print(f"added gap / one service time: {ratio:.2f} (P50)")
    print(f"frames in flight at the kills: {sum(k.frames for k in kills)}; {missed} kills met none and were repeated")
    outcomes = Counter(a.result.outcome for a in load.answers)
    lost, surplus, unaccounted = load.lost(), load.surplus(), account_gap(status)
    print(f"sent {len(load.sent)}, outcomes {dict(outcomes)}, failovers {status['failovers']}")
    print(f"lost {len(lost)} (must be 0), duplicates {surplus} (must be 0), unaccounted {unaccounted} (must be 0)")
    return 1 if lost or surplus or unaccounted else 0


if __name__ == "__main__":
    sys.exit(main())
