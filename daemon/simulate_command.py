"""`orind simulate POLICY`: what a policy does to a simulated board under a load: power, heat, clocks, frames in time.

The governor, its policy and the batcher are the daemon's own; the board is `power/plant`. Two hours take seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import sys
from pathlib import Path

from ..ipc.exit_codes import Exit
from ..kernels.plan.replacement import NotWritten, replacing
from ..power.simulation import seconds
from . import named_inputs, output_file, panels, simulate_report
from .progress import Progress
from .simulate_report import Told, clock
from .simulate_setup import SAID, Refused, Setup, set_up

HOURS_MAX = 48.0
NUMBER_MAX = 600_000.0  # ms (ten minutes), or MHz


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: orind simulate policy.yaml --board agx-orin --ambient 45 --load trace.csv --frame-ms 8@1300.5 "
        "--deadline-ms 100 --plot run.png\n"
        "The load is CSV: t_s,frames_per_s or t_s,frames_per_s,camera; a rate holds until the next line, and a last "
        "line T,repeat begins anew at T seconds.\n"
        "exit code 1: an output cannot be written; 2: wrong usage, no such board; 65: the load, the ambient file, the "
        "faults or the plan cannot be used; 66: no such file; 69: --plot without matplotlib; 78: the policy or the "
        "configuration is wrong, or the board cannot keep it"
    )
    parser.add_argument("policy", metavar="POLICY.yaml", type=Path, help="power policy, such as those of configs/power")
    parser.add_argument("--board", metavar="BOARD[:MODE]", required=True,
                        help="a board of configs/boards, in a mode of it (default: the one that caps nothing)")
    parser.add_argument("--ambient", metavar="C|FILE.csv", type=_ambient, required=True,
                        help="ambient temperature, or CSV t_s,ambient_c with straight lines between the points")
    parser.add_argument("--load", metavar="FILE.csv", type=Path, required=True, help="frames that come; see below")
    times = parser.add_mutually_exclusive_group(required=True)
    times.add_argument("--plan", metavar="PLAN", type=Path,
                       help="the time of a frame at each clock is what the time model predicts for this plan")
    times.add_argument("--frame-ms", metavar="MS@MHZ", type=_frame_ms,
                       help="the time of a frame at a GPU clock, longer in proportion at lower ones: 8@1300.5")
    rules = parser.add_mutually_exclusive_group(required=True)
    rules.add_argument("--deadline-ms", metavar="MS", type=_positive, help="from capture to answer, of all frames")
    rules.add_argument("--config", metavar="CONFIG.yaml", type=Path,
                       help="deadlines by camera, batching, queue depth and slots of this configuration")
    parser.add_argument("--hours", type=_hours, default=2.0, help=f"simulated time (default 2, at most {HOURS_MAX:g})")
    parser.add_argument("--start", metavar="2026-03-02T06:00",
                        help="when the run begins, in the time zone of the policy's schedule; where it has one")
    parser.add_argument("--fan", choices=("quiet", "cool"), help="nvfancontrol profile (default: the module's)")
    parser.add_argument("--faults", metavar="FILE.json", type=Path,
                        help='faults of the board, as the plant takes them, or a list with "t_s" (docs/simulation.md)')
    parser.add_argument("--seed", type=int, default=0, help="of the sensors' noise and the cameras' phases (default 0)")
    parser.add_argument("--json", metavar="FILE|-", help="figures and course as JSON; -: instead of the text")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="the course as a picture (needs orind[plot])")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"must be a number above 0, at most {NUMBER_MAX:.0f}, not {text!r}")
    return value


def _hours(text: str) -> float:
    value = _positive(text)
    if not 1 / 3600 <= value <= HOURS_MAX:
        raise argparse.ArgumentTypeError(f"must lie in a second to {HOURS_MAX:g} hours, not {text}")
    return value


def _frame_ms(text: str) -> tuple[float, float]:
    found = re.fullmatch(r"([0-9.]+)@([0-9.]+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a time and a clock such as 8@1300.5, not {text!r}")
    return _positive(found[1]), _positive(found[2])


def _ambient(text: str) -> float | str:
    """A number of degrees, or the name of a file."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not -40 <= value <= 80:
        raise argparse.ArgumentTypeError(f"must lie in -40 to 80 C, not {text}")
    return value


def run(options: argparse.Namespace) -> int:
    named = [("policy", options.policy), ("load", options.load), ("plan", options.plan),
             ("configuration", options.config), ("file of faults", options.faults),
             ("ambient file", Path(options.ambient) if isinstance(options.ambient, str) else None)]
    inputs = [(what, path) for what, path in named if path is not None]
    if missing := named_inputs.refused(SAID, [path for _, path in inputs]):
        return missing
    outputs = [("--plot", options.plot), ("--json", None if options.json in (None, "-") else Path(options.json))]
    for option, path in outputs:
        if path is not None and (unwritable := output_file.refused(f"{SAID} {option}", path, inputs)):
            return unwritable
    if options.plot is not None and options.json == str(options.plot):
        print(f"orind {SAID}: --plot and --json both name {options.plot}", file=sys.stderr)
        return Exit.USAGE
    try:
        if options.plot is not None:
            panels.check_available()
        told = _simulate(set_up(options))
    except panels.CannotDraw as error:
        print(f"orind {SAID}: --plot: {error}", file=sys.stderr)
        return Exit.UNAVAILABLE
    except Refused as error:
        print("\n".join(f"orind {SAID}: {line}" for line in error.problems), file=sys.stderr)
        return error.code
    return _write(options, told)


def _simulate(setup: Setup) -> Told:
    told, line = Told(setup.about), setup.line
    told.marks = setup.marks()
    before = dataclasses.replace(line.counts)
    with Progress() as progress:
        tenth = -1
        for second in seconds(setup.loop, line, setup.length_s, setup.ambient_c, setup.faults):
            if (now := int(10 * second.at_s / setup.length_s)) > tenth:
                tenth = now
                progress.say(f"simulated {clock(second.at_s)} of {clock(setup.length_s)}")
            told.seconds.append(second)
            told.frames.append(line.counts.since(before))
            before = dataclasses.replace(line.counts)
    told.counts, told.waiting = before, line.waiting
    return told


def _write(options: argparse.Namespace, told: Told) -> int:
    files: list[tuple[str, Path, bytes]] = []
    if options.json is not None:
        text = json.dumps(simulate_report.to_json(told))
        if options.json == "-":
            print(text)
        else:
            files.append(("--json", Path(options.json), text.encode() + b"\n"))
    if options.plot is not None:
        files.append(("--plot", options.plot, simulate_report.picture(told)))
    for option, path, content in files:
        try:
            with replacing(path) as file:
                file.write(content)
        except NotWritten as error:
            return output_file.failed(f"{SAID} {option}", path, error)
    if options.json != "-":
        written = [f"{path}  {len(content)} bytes" for _, path, content in files]
        print("\n".join([*simulate_report.lines(told), *written]))
    return Exit.DONE
