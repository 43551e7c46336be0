"""Restarts of the installed unit under a real systemd, under a load of 40 frames/s (scripts/bench_restarts).

The unit as shipped, in a machine of its own (tests/systemd/machine.py). The camera program uses the client library with
its ordinary re-sending. Invariant: it ends with 0 only if every trigger was answered exactly once to the application,
and `ok`; times are printed, never judged. The time without an answer holds systemd's RestartSec (1 s, kill -9 only),
`orind doctor`, the check of the configuration and the engines' first golden answers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOUSE / "tests" / "systemd"))

import built_plans  # noqa: E402  beside this file
import figures  # noqa: E402  beside this file
from installed import UNIT, Installed  # noqa: E402  from tests/systemd
from machine import Machine, why_not  # noqa: E402
from restarts import (  # noqa: E402
    KINDS,
    RATE_HZ,
    SOCKET,
    Knocking,
    Restarts,
    held_by_systemd,
    restart_under_load,
    shipped_config,
)

from orind.daemon.terminal import table  # noqa: E402


def main() -> int:
    options = _options()
    if reason := why_not():
        print(f"bench_restarts: {reason}", file=sys.stderr)
        return 1
    turns = [kind for i in range(max(options.graceful, options.kills)) for kind, n in
             zip(KINDS, (options.graceful, options.kills), strict=True) if i < n]
    whose = f"socket held by {SOCKET}" if options.socket else "socket bound by orind"
    print(f"{options.graceful} x systemctl restart, {options.kills} x kill -9 of main, {RATE_HZ:g} frames/s, {whose}")
    print(figures.machine(), flush=True)
    with Machine() as machine:
        orind = Installed(machine)
        config = shipped_config(orind.put_plan(built_plans.part_plan()))
        orind.configure(held_by_systemd(config) if options.socket else config)
        orind.systemctl("start", *([SOCKET] if options.socket else []), UNIT)
        try:
            with Knocking(orind.endpoint.removeprefix("ipc://")) as others:
                result = restart_under_load(orind, turns, lambda text: print(text, file=sys.stderr, flush=True))
            return report(result, others)
        except BaseException:
            print(orind.journal(), file=sys.stderr)
            raise


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_restarts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/bench_restarts --graceful 10 --kills 10",
    )
    parser.add_argument("--graceful", type=int, default=10, metavar="N", help="systemctl restart so often (10)")
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="kill -9 of main so often (10)")
    parser.add_argument("--socket", action="store_true", help="with orind.socket, which then is never refused")
    return parser.parse_args()


def report(result: Restarts, others: Knocking) -> int:
    """The table, then the verdict: the exit code."""
    rows = [[kind, len(gaps), f"{statistics.median(gaps):.0f}", f"{max(gaps):.0f}"]
            for kind, gaps in result.gaps_ms.items() if gaps]
    print("\n".join(["", *table(["without an answer, ms", "restarts", "P50", "max"], rows), ""]))
    poor = [f"frame {a.result.seq}: {a.result.outcome}, {a.result.reason}" for a in result.load.not_ok()]
    lost, twice = result.unanswered(), result.answered_twice()
    print(f"triggers {len(result.load.sent)}, sent again {result.resent}, repeats suppressed {result.suppressed}")
    print(f"connections tried beside, 50 a second: {others.accepted} taken, {others.refused} refused")
    print(f"each must be 0: unanswered {len(lost)}, answered twice {len(twice)}, not ok {len(poor)}")
    for line in poor[:5]:
        print(f"FAILED: {line}", file=sys.stderr)
    return 1 if lost or twice or poor else 0


if __name__ == "__main__":
    sys.exit(main())
