"""`orind status [--json]`: how the running daemon is."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..ipc.exit_codes import Exit
from ..ipc.outcomes import OUTCOMES
from ..kernels.plan.replacement import NotWritten, replacing
from . import camera_view, energy_view, loss_view, memory_map, memory_report, output_file, process_view, version
from .control_options import add_run_dir, ask
from .placement import in_words, listed

TIMEOUT_S = 5.0
MAP = "status --memory-map"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind status --json | jq .frames\nexit code 1: it runs, but is not fit to serve; 69: not running"
    )
    add_run_dir(parser)
    parser.add_argument(
        "--memory-map", type=Path, metavar="FILE.svg", help="also draw what lies where in the memory of each engine"
    )
    parser.add_argument("--json", action="store_true", help="the whole status as one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.memory_map is not None and (unwritable := _unwritable(options.memory_map)):
        return unwritable
    status = ask(options, {"op": "status"}, TIMEOUT_S)
    if isinstance(status, Exit):
        return status
    if not options.json and (theirs := status.get("version", "older")) != version.installed():
        print(f"orind status: the daemon that runs is orind {theirs}, this is {version.installed()}: restart it, or "
              "ask with --json", file=sys.stderr)
        return Exit.FAILED
    if options.memory_map is not None:
        try:
            with replacing(options.memory_map) as file:
                file.write(memory_map.render(status["engines"], status["processes"], time.monotonic_ns()).encode())
        except NotWritten as error:
            return output_file.failed(MAP, options.memory_map, error)
    print(json.dumps(status) if options.json else "\n".join(lines(status)))
    if options.memory_map is not None:
        output_file.written(options.memory_map, sys.stderr if options.json else sys.stdout)
    return Exit.DONE if status["health"]["ok"] else Exit.FAILED


def _unwritable(output: Path) -> Exit | None:
    """Why the map is not written there: nothing but an earlier picture is replaced, least of all a plan."""
    if refused := output_file.refused(MAP, output, []):
        return refused
    if output.is_file():
        with output.open("rb") as file:
            if file.read(len(memory_map.BEGINS)) not in (memory_map.BEGINS, b""):
                print(f"{MAP} {output}: that is no picture of ours; name another file", file=sys.stderr)
                return Exit.USAGE
    return None


def lines(status: dict[str, Any]) -> list[str]:
    """The status for a person's terminal."""
    frames, power = status["frames"], status["power"]
    renewed = f", engines renewed: {status['renewals']}" if status["renewals"] else ""
    text = [f"{status['state']}, generation {status['generation']}, failovers: {status['failovers']}{renewed}"]
    text += [f"  ! {reason}" for reason in status["health"]["reasons"]]
    for count, meaning in loss_view.counts(status):
        text.append(f"lost     {count} {'engine' if count == 1 else 'engines'}: {meaning}")
    if last := loss_view.last_failover(status, time.monotonic_ns()):
        text.append(f"failover {last}")
    text.append(f"config   {status['config']} (orind {status['version']})")
    if status["reload"]["result"]:
        text.append(f"reload   {status['reload']['result']}")
    if status["http"]:
        text.append(f"http     {status['http']}")
    text.append("frames   " + "  ".join(f"{k} {frames[k]}" for k in ("received", *OUTCOMES, "in_flight", "repeated")))
    text += camera_view.lines(status, time.monotonic_ns())
    degradation = status["degradation"]
    text.append(
        f"load     {degradation['load']:.0%} offered, level {degradation['level']}: {degradation['meaning']}"
    )
    for e in status["engines"]:
        where = f"pid {e['pid']} on {process_view.device(e)} (epoch {e['epoch']})"
        text.append(f"engine   {process_view.standing(e)}: {where}")
        if e["memory"] is not None:
            text.append(f"         memory {memory_report.in_words(e['memory'])}")
    text += [f"process  {line}" for line in process_view.processes(status)]
    text += [f"device   {line}" for line in process_view.devices(status)]
    for name, model in status["models"].items():
        if len(status["models"]) > 1:
            counts = "  ".join(f"{outcome} {count}" for outcome, count in model["frames"].items())
            text.append(f"model    {name}: {counts or 'no frames yet'}")
        if model["placement"] is not None:
            text.append(f"model    {name}: {in_words(model['placement'])}")
            text += [f"         on the CPU: {line}" for line in listed(model["placement"])]
    text += [
        f"latency  {stage:10} P50 {v['p50']:8.2f}  P95 {v['p95']:8.2f}  P99 {v['p99']:8.2f} ms"
        for stage, v in status["latency_ms"].items()
    ]
    if power.get("budget_w") is not None:
        text.append(
            f"power    {_show(power['board_w'], 1)} of {power['budget_w']:.1f} W, "
            f"junction {_show(power['tj_c'], 1)} C, GPU {_show(power['gpu_hz'], 0, 1e6)} "
            f"of at most {_show(power['gpu_cap_hz'], 0, 1e6)} MHz"
        )
        text.append(f"board    {power['board'] or 'unknown'}")
    return text + energy_view.lines(status["energy"])


def _show(value: float | None, digits: int, unit: float = 1.0) -> str:
    return "unreadable" if value is None else f"{value / unit:.{digits}f}"
