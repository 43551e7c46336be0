"""Faults of the active engine with a frame in flight, again and again, under a steady load (scripts/bench_failover).

By class of fault: detection, take-over, added gap between answers, lost and doubled answers. Each gap stands beside
that of the undisturbed time before it, so that what the machine does anyway can be seen. Invariant: it ends with 0 only
if no frame was lost, none was answered twice, all were `ok`, every fault was called what it is, and the account adds
up; times are printed, never judged. What a CUDA class shows of time is the virtual GPU's, not a board's.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_faults import CASES, Case, Target, find_virtual_gpu, wait_gone
from built_plans import part_pictures, part_plan, tiny_plan, tiny_tensors
from camera_load import Load
from figures import machine
from harness import Service, account_gap

from orind.daemon.terminal import plot, table

SECOND_NS = 1_000_000_000
ATTEMPTS = 20  # a fault that met no frame in flight is repeated, at most so often
WARM_UP_S = 1.5
QUIET_S, AFTER_S = 0.6, 0.4
NOTES = """
All in ms. gap: the largest interval between answers, less the {:g} ms of the load; quiet: the same before the fault.
take-over: from the daemon's record to the next answer. golden and spawn are seen by asking every 20 ms; a wrong engine
is found at its turn, within golden_interval_s = 4. P99 of fewer than 100 faults is their maximum.
"""


@dataclass(frozen=True)
class Struck:
    """One fault; all in ns. detection: until the daemon's record. take_over: from there to the answer of the frame in
    flight, None where nobody had to take over. quiet_gap: in the time just before."""

    detection: int
    take_over: int | None
    gap: int
    quiet_gap: int


@dataclass
class Outcome:
    """What came of one class. wrong: everything that must not be, in words."""

    case: Case
    service_ms: float = 0.0
    struck: list[Struck] = field(default_factory=list)
    missed: int = 0
    sent: int = 0
    lost: int = 0
    twice: int = 0
    wrong: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    cases = [case for case in CASES if case.name in options.classes]
    print(f"{options.faults} faults a class under {options.rate:g} frames/s; CPU classes: part-inspect INT8, ", end="")
    print("CUDA classes: one convolution on the virtual GPU")
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="orind-") as folder:
        control = find_virtual_gpu(Path(folder)) if any(case.cuda for case in cases) else Path(folder) / "control"
        plans = {cuda: tiny_plan() if cuda else part_plan() for cuda in {case.cuda for case in cases}}
        outcomes = [strike_all(case, options, Path(folder), plans[case.cuda], control) for case in cases]
    return report(outcomes, 1e3 / options.rate)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        prog="scripts/bench_failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="classes:\n" + "\n".join(f"  {c.name:13} {c.what}" for c in CASES)
        + "\n\nexample: scripts/bench_failover --faults 200 --classes sigkill,sigstop",
    )
    parser.add_argument("--faults", type=int, default=5, help="faults of each class (default 5)")
    parser.add_argument("--classes", default=",".join(names), help="separated by commas (default: all)")
    parser.add_argument("--rate", type=float, default=40.0, metavar="HZ", help="frames a second (default 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which the faults fall (default 0)")
    options = parser.parse_args(arguments)
    options.classes = options.classes.split(",")
    if options.faults < 1 or options.rate <= 0:
        parser.error("--faults must be at least 1, --rate above 0")
    if unknown := set(options.classes) - set(names):
        parser.error(f"no class {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return options


# -- one class ---------------------------------------------------------------------------------------------------


def strike_all(case: Case, options: argparse.Namespace, folder: Path, plan: Path, control: Path) -> Outcome:
    """A daemon and a load of its own, and all faults of the class."""
    frames, encoding = (tiny_tensors(8), "tensor") if case.cuda else (part_pictures(8), "rgb8")
    config = {
        "models": {"m": {"plan": str(plan)}}, "cameras": {"line1": {"model": "m"}}, "engine": case.engine,
        "stop": {"drain_timeout_s": 30},
    }
    outcome, chance = Outcome(case), random.Random(options.seed)
    with Service(folder / case.name, config) as service:
        with Load(service, frames, options.rate, encoding=encoding) as load:
            time.sleep(WARM_UP_S)
            outcome.service_ms = service.status()["latency_ms"]["engine"]["p50"]
            while len(outcome.struck) < options.faults:
                struck = strike(case, service, load, plan, control, chance.uniform(0, outcome.service_ms / 1e3))
                if struck is None:
                    outcome.missed += 1
                    if outcome.missed > ATTEMPTS * options.faults:
                        raise SystemExit("the faults never meet a frame in flight: is the rate too low?")
                    continue
                outcome.struck.append(struck)
                done = f"{case.name} {len(outcome.struck)}: gap {struck.gap / 1e6:.1f} ms"
                print(done, file=sys.stderr, flush=True)
            load.stop()
        _judge(outcome, load, service.status())
    return outcome


def strike(case: Case, service: Service, load: Load, plan: Path, control: Path, delay_s: float) -> Struck | None:
    """One fault, `delay_s` after a frame left; a CUDA fault waits for a frame itself, and counts from when that left.

    None if no frame was in flight, where the class is one of an engine at its work.
    """
    before = service.wait_for(lambda status: status["state"] == "serving", "ready standby")
    time.sleep(QUIET_S)
    engines = {engine["role"]: engine["pid"] for engine in service.status()["engines"]}
    target = Target(service, engines["active"], engines["standby"], plan, control)
    load.next_sent()
    if case.takes_over and not case.cuda:
        time.sleep(delay_s)
    struck_ns = time.monotonic_ns()
    case.strike(target)
    noticed, noticed_ns = _await_loss(case, service, before)
    case.mend(target)
    time.sleep(AFTER_S)
    wait_gone(target.active if case.takes_over or case.name == "golden" else target.standby)
    record = noticed["failover"] if case.takes_over else {"at_ns": noticed_ns, "frames": 0}
    answer = next((a for a in list(load.answers) if a.at_ns > record["at_ns"]), None)
    if case.takes_over and (not record["frames"] or answer is None):
        return None
    if case.cuda and case.takes_over and answer is not None:
        struck_ns = load.sent[answer.result.seq or 0].at_ns
    return Struck(
        detection=record["at_ns"] - struck_ns,
        take_over=answer.at_ns - record["at_ns"] if case.takes_over and answer is not None else None,
        gap=load.largest_gap_ns(struck_ns, record["at_ns"] + SECOND_NS),
        quiet_gap=load.largest_gap_ns(struck_ns - int(QUIET_S * SECOND_NS), struck_ns),
    )


def _await_loss(case: Case, service: Service, before: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """-> the first status that shows what the class must lead to, and when it was seen."""
    more = 2 if case.mend is not Case.mend else 1  # a start that fails comes after the loss of the standby

    def shown(status: dict[str, Any]) -> bool:
        if case.takes_over:
            return bool(status["failovers"] > before["failovers"])
        return sum(status["losses"].values()) >= sum(before["losses"].values()) + more

    return service.wait_for(shown, f"the loss by {case.name}"), time.monotonic_ns()


def _judge(outcome: Outcome, load: Load, status: dict[str, Any]) -> None:
    """Fills in the account, and what is wrong with it."""
    case, struck = outcome.case, len(outcome.struck) + outcome.missed
    outcome.sent, outcome.lost, outcome.twice = len(load.sent), len(load.lost()), load.surplus()
    if outcome.lost or outcome.twice:
        outcome.wrong.append(f"{outcome.lost} frames lost, {outcome.twice} answers too many")
    if gap := account_gap(status):
        outcome.wrong.append(f"{gap} frames are not accounted for")
    outcome.wrong += [f"frame {a.result.seq}: {a.result.outcome}, {a.result.reason}" for a in load.not_ok()[:5]]
    if unknown := set(status["losses"]) - set(case.losses):
        outcome.wrong.append(f"engines were lost otherwise: {', '.join(sorted(unknown))}")
    if status["failovers"] != (struck if case.takes_over else 0):
        outcome.wrong.append(f"{status['failovers']} take-overs after {struck} faults")


# -- the report --------------------------------------------------------------------------------------------------


def report(outcomes: list[Outcome], period_ms: float) -> int:
    """Table, plots and verdict: the exit code."""
    head = ["class", "faults", "detection P50", "P99", "max", "take-over P50", "max"]
    head += ["added gap P50", "P99", "max", "quiet P50", "service", "lost", "twice"]
    print("\n".join(["", *table(head, [_row(outcome) for outcome in outcomes])]))
    print(NOTES.format(period_ms))
    for outcome in outcomes:
        gaps = [struck.gap / 1e6 for struck in outcome.struck]
        if len(gaps) > 1:
            print("\n".join([*plot(f"{outcome.case.name}: added gap of each fault", "ms", gaps, height=4), ""]))
    for outcome in outcomes:
        if outcome.missed:
            print(f"{outcome.case.name}: {outcome.missed} faults met no frame in flight and were repeated")
        for line in outcome.wrong:
            print(f"FAILED: {outcome.case.name}: {line}", file=sys.stderr)
    wrong = sum(map(len, (outcome.wrong for outcome in outcomes)))
    print(
        f"{sum(o.sent for o in outcomes)} frames sent; {'all answered once, ok' if not wrong else f'{wrong} failures'}"
    )
    return 1 if wrong else 0


def _row(outcome: Outcome) -> list[str]:
    ms = [(s.detection / 1e6, s.gap / 1e6, s.quiet_gap / 1e6) for s in outcome.struck]
    detection, gap, quiet = zip(*ms, strict=True)
    takes = [s.take_over / 1e6 for s in outcome.struck if s.take_over is not None]
    taken = [statistics.median(takes), max(takes)] if takes else []
    figures = [*_three(detection), *taken] + [math.nan] * (2 - len(taken)) + [*_three(gap), statistics.median(quiet)]
    cells = ["-" if math.isnan(x) else f"{x:.1f}" for x in [*figures, outcome.service_ms]]
    return [outcome.case.name, str(len(outcome.struck)), *cells, str(outcome.lost), str(outcome.twice)]


def _three(values: Sequence[float]) -> list[float]:
    """Median, 99th percentile (nearest rank), maximum."""
    ordered = sorted(values)
    return [statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], ordered[-1]]


if __name__ == "__main__":
    sys.exit(main())
