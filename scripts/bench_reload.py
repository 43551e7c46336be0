"""`orind reload --wait` under a steady load: good ones, alternating two plans, then bad ones (scripts/bench_reload).

Each reload's gap stands beside that of the undisturbed second before it. Invariant: it ends with 0 only if no frame was
lost or answered twice, every frame was `ok`, every good reload took effect, and every bad one was refused with the line
or tensor named and changed nothing; times are printed, never judged.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Load, Service, account_gap, machine, part_pictures, part_plan
from terminal import table

SECOND_NS = 1_000_000_000
SETTLE_S = 1.05
WARM_UP_S = 1.5
SHOWN_CHARACTERS = 150


@dataclass(frozen=True)
class Reload:
    """One good reload; all in ns. duration: of the command, its own start included."""

    duration: int
    gap: int
    quiet_gap: int


@dataclass(frozen=True)
class Refusal:
    """One bad reload: what the command said, whether it names what is wrong, frames answered ok meanwhile."""

    case: str
    names: str
    said: str
    frames: int
    faults: tuple[str, ...]


def main() -> int:
    options = _options()
    print(f"{options.reloads} x orind reload --wait under {options.rate:g} frames/s (part-inspect INT8, two plans)")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="orind-") as name:
        folder = Path(name)
        plans = [folder / "first.plan", folder / "second.plan"]
        for variant, plan in enumerate(plans):
            shutil.copy(part_plan(variant=variant), plan)
        wrong: list[str] = []
        with Service(folder, _config(plans[0])) as service:
            with Load(service, part_pictures(8), options.rate, encoding="rgb8") as load:
                time.sleep(WARM_UP_S)
                reloads = []
                for i in range(options.reloads):
                    reloads.append(reload_once(service, load, plans[(i + 1) % 2], wrong))
                    print(f"reload {i + 1}: gap {reloads[-1].gap / 1e6:.1f} ms", file=sys.stderr, flush=True)
                refusals = refuse_all(service, load, plans[options.reloads % 2], folder)
                load.stop()
            status = service.status()
        return report(reloads, refusals, load, status, wrong)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_reload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/bench_reload --reloads 20",
    )  # fmt: skip
    parser.add_argument("--reloads", type=int, default=20, help="good reloads (default 20)")
    parser.add_argument("--rate", type=float, default=40.0, metavar="HZ", help="frames a second (default 40)")
    options = parser.parse_args()
    if options.reloads < 1 or options.rate <= 0:
        parser.error("--reloads must be at least 1, --rate above 0")
    return options


def _config(plan: Path) -> dict[str, Any]:
    return {"models": {"parts": {"plan": str(plan)}}, "cameras": {"line1": {"model": "parts"}}}


def _reload(service: Service) -> subprocess.CompletedProcess[str]:
    return service.orind("reload", "--wait", "--run-dir", str(service.run_dir))


def _served(status: dict[str, Any]) -> tuple[int, str, str]:
    """Generation, plan and hash in service."""
    model = status["models"]["parts"]
    return status["generation"], model["plan"], model["sha256"]


def reload_once(service: Service, load: Load, plan: Path, wrong: list[str]) -> Reload:
    """Rewrite the YAML to `plan`, reload, and see that it is what serves."""
    time.sleep(SETTLE_S)
    generation = service.status()["generation"]
    service.configure(_config(plan))
    began_ns = time.monotonic_ns()
    done = _reload(service)
    ended_ns = time.monotonic_ns()
    time.sleep(SETTLE_S)
    if done.returncode:
        wrong.append(f"a good reload was refused: {done.stderr.strip() or done.stdout.strip()}")
    elif _served(service.status())[:2] != (generation + 1, str(plan)):
        wrong.append(f"a reload did not take effect: {_served(service.status())}, expected {plan}")
    elif load.answers[-1].result.generation != generation + 1:
        wrong.append(f"answers still come from generation {load.answers[-1].result.generation}")
    return Reload(
        duration=ended_ns - began_ns,
        gap=load.largest_gap_ns(began_ns, ended_ns + SECOND_NS),
        quiet_gap=load.largest_gap_ns(began_ns - SECOND_NS, began_ns),
    )


# -- what must be refused ----------------------------------------------------------------------------------------


def refuse_all(service: Service, load: Load, served: Path, folder: Path) -> list[Refusal]:
    """A broken YAML, a corrupted plan at a new path, the served plan overwritten and truncated in place."""
    good_text, good_plan = service.config_path.read_text(), served.read_bytes()
    offset, tensor = _middle(good_plan)
    corrupted = folder / "corrupted.plan"
    corrupted.write_bytes(good_plan[:offset] + bytes([good_plan[offset] ^ 0x10]) + good_plan[offset + 1 :])
    line = good_text[: good_text.index("plan:")].count("\n") + 1

    def break_yaml() -> None:
        service.write_config(good_text.replace("plan: ", "plan: [", 1))

    def name_corrupted() -> None:
        service.configure(_config(corrupted))

    def overwrite() -> None:
        service.write_config(good_text)
        with served.open("r+b") as file:
            file.seek(offset)
            file.write(os.urandom(64))

    def truncate() -> None:
        served.write_bytes(good_plan)
        os.truncate(served, len(good_plan) // 2)

    # YAML notices a bracket that is never closed where the next key stands, one line below
    lines = rf"orind\.yaml:({line}|{line + 1})\b"
    cases = [
        ("broken YAML", break_yaml, lines, f"line {line}"),
        ("corrupted plan, new path", name_corrupted, rf"tensor {re.escape(tensor)}[:\s]", tensor),
        ("served plan overwritten", overwrite, rf"tensor {re.escape(tensor)}[:\s]", tensor),
        ("served plan truncated", truncate, r"(?i)truncated", "truncated"),
    ]
    refusals = [refuse_once(service, load, name, spoil, pattern, what) for name, spoil, pattern, what in cases]
    served.write_bytes(good_plan)
    done = _reload(service)
    faults = (f"mended, but refused: {done.stderr.strip()}",) if done.returncode else ()
    return [*refusals, Refusal("mended again", "", done.stdout.strip(), 0, faults)]


def refuse_once(service: Service, load: Load, case: str, spoil: Callable[[], None], pattern: str, what: str) -> Refusal:
    """Spoil something, serve on for a second, reload, serve on for another: refused, named, undisturbed."""
    before = service.status()
    first = len(load.sent)
    spoil()
    time.sleep(SETTLE_S)
    done = _reload(service)
    time.sleep(SETTLE_S)
    last = len(load.sent)
    after = service.status()
    while len(load.answers) < last:
        time.sleep(0.005)
    answers = [a for a in list(load.answers) if a.result.seq is not None and first <= a.result.seq < last]
    faults = []
    if done.returncode != 1:
        faults.append(f"{case}: exit code {done.returncode} instead of 1: {done.stdout.strip()}")
    if not re.search(pattern, done.stderr):
        faults.append(f"{case}: {what} is not named: {done.stderr.strip()}")
    if _served(after) != _served(before) or after["failovers"] != before["failovers"]:
        faults.append(f"{case}: what serves has changed: {_served(before)} -> {_served(after)}")
    if len(answers) != last - first or not all(a.result.ok for a in answers):
        faults.append(f"{case}: {last - first} frames sent, {sum(a.result.ok for a in answers)} answered ok")
    said = (done.stderr.strip() or done.stdout.strip()).replace(str(service.work_dir) + "/", "")
    return Refusal(case, what, said.splitlines()[0] if said else "", len(answers), tuple(faults))


def _middle(plan: bytes) -> tuple[int, str]:
    """A byte in the middle of a plan's largest weight tensor, and its name (read as safetensors files are)."""
    (length,) = struct.unpack("<Q", plan[:8])
    header = json.loads(plan[8 : 8 + length])
    del header["__metadata__"]
    spans = {name: e["data_offsets"] for name, e in header.items() if not name.startswith(("golden.", "orind."))}
    name = max(spans, key=lambda n: spans[n][1] - spans[n][0])
    begin, end = spans[name]
    return 8 + length + (begin + end) // 2, name


# -- what came of it ---------------------------------------------------------------------------------------------


def report(reloads: list[Reload], refusals: list[Refusal], load: Load, status: dict[str, Any], wrong: list[str]) -> int:
    """The tables, then the verdict: the exit code."""
    period = f"{load.period_ns / 1e6:g} ms"
    figures = [
        ("duration of orind reload --wait", [r.duration / 1e6 for r in reloads]),
        (f"added gap (largest interval until 1 s after, - {period})", [r.gap / 1e6 for r in reloads]),
        ("  the same in the undisturbed second before (floor)", [r.quiet_gap / 1e6 for r in reloads]),
    ]
    rows = [[name, f"{statistics.median(v):.1f}", f"{max(v):.1f}"] for name, v in figures]
    print("\n".join(["", *table(["ms", "P50", "max"], rows), ""]))
    cells = [[r.case, r.frames or "", r.said[:SHOWN_CHARACTERS]] for r in refusals]
    print("\n".join([*table(["bad reload", "frames ok", "answer"], cells, left=3), ""]))
    lost, surplus, unaccounted, poor = load.lost(), load.surplus(), account_gap(status), load.not_ok()
    wrong += [fault for refusal in refusals for fault in refusal.faults]
    wrong += [f"frame {a.result.seq}: {a.result.outcome}, {a.result.reason}" for a in poor[:5]]
    print(f"sent {len(load.sent)}, ok {len(load.answers) - len(poor)}, generation {status['generation']}")
    print(f"lost {len(lost)} (must be 0), duplicates {surplus} (must be 0), unaccounted {unaccounted} (must be 0)")
    for line in wrong:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if lost or surplus or unaccounted or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
