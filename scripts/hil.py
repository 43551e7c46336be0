"""Hardware-in-the-loop scenarios: the same on a simulated board and on a real one (scripts/hil).

On a real board nothing is changed before every setting that a run may touch is on disk, and all of it is put back at
the end, also after Ctrl-C and SIGTERM; after a crash of this script `scripts/hil --restore` does it. Exit codes: 0
every limit was kept; 1 one was not, or something failed; 2 usage, or a real board that may not be used; 3 nothing was
run; 66 no such scenario; 78 a wrong one; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import hil_settings
from built_plans import ROOT, part_plan
from figures import machine
from harness import ServiceError
from hil_board import FASTER, Board, RealBoard, VirtualBoard
from hil_figures import figures
from hil_report import Judged, Outcome, write_report
from hil_run import Runner
from hil_scenario import Case, Limit, read
from hil_settings import RecordError

from orind.daemon.config_file import ConfigError
from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError
from orind.ipc.exit_codes import Exit
from orind.power.envelope import holding_mode
from orind.power.errors import PowerError
from orind.power.held import STATE_NAME
from orind.power.sysfs import Sysfs

SCENARIOS = ROOT / "configs" / "hil"
NOTHING_RUN = 3
ENDS = (signal.SIGTERM, signal.SIGHUP)
SOC = "nvidia,tegra234"
RESTORE_FILE = "var/lib/orind-hil.json"
PACKAGES = ("numpy", "pyzmq", "pydantic", "PyYAML", "pycuda")


@dataclass(frozen=True)
class Place:
    """Where scenarios run. restore_file: of a real board."""

    kind: str
    device: str
    seed: int
    root: Path = Path("/")
    ambient_c: float | None = None
    wiring: str = ""
    restore_file: Path = Path()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    restore_file = options.restore_file or options.root / RESTORE_FILE
    for number in ENDS:
        signal.signal(number, _interrupt)
    if options.restore:
        return _restore(restore_file)
    paths = sorted(SCENARIOS.glob("*.yaml")) if options.all else options.scenarios
    if not paths or (options.all and options.scenarios):
        parser.error("name scenarios (configs/hil/*.yaml), or --all")
    cases, problems = list[Case](), list[str]()
    for path in paths:
        try:
            cases.append(read(path))
        except ConfigError as error:
            problems += error.problems
    if problems:
        print("\n".join(f"hil: {line}" for line in problems), file=sys.stderr)
        return Exit.CONFIGURATION if all(path.exists() for path in paths) else Exit.NO_INPUT
    place = Place(options.board, options.device or ("cuda" if options.board == "real" else "cpu"), options.seed,
                  options.root, options.ambient, options.wiring or "", restore_file)
    if place.kind == "real" and (why := refusal(place, cases, options.yes_this_is_a_test_board, options.run_dir)):
        print(f"hil: {why}", file=sys.stderr)
        return Exit.USAGE
    folder = options.output or ROOT / "build" / "hil" / time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return run_all(cases, place, folder.resolve())
    except KeyboardInterrupt:
        print("hil: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/hil", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/hil configs/hil/power-step.yaml --board virtual\n         scripts/hil --all",
    )
    parser.add_argument("scenarios", nargs="*", type=Path, metavar="SCENARIO.yaml", help="what to run (docs/hil.md)")
    parser.add_argument("--all", action="store_true", help="every scenario of configs/hil")
    parser.add_argument("--board", choices=("virtual", "real"), default="virtual", help="default virtual")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the report (default build/hil/TIME)")
    parser.add_argument("--seed", type=int, default=0, help="of the simulated board's noise (default 0)")
    parser.add_argument("--device", help="of the engines (default: virtual cpu, real cuda)")
    real = parser.add_argument_group("a real board")
    real.add_argument("--yes-this-is-a-test-board", action="store_true",
                      help="it may become hot, lose power budget and engines, and change its mode")
    real.add_argument("--ambient", type=float, metavar="C", help="what a thermometer beside it says")
    real.add_argument("--wiring", type=_wiring, metavar="CHIP:LINE",
                      help="a GPIO line that triggers a camera, such as /dev/gpiochip0:144")
    real.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help="of its tree (default /)")
    real.add_argument("--run-dir", type=Path, default=Path("/run/orind"), metavar="DIR",
                      help="of an orind that may run here (/run/orind)")
    real.add_argument("--restore", action="store_true",
                      help="put back the settings that a run which crashed left behind")
    real.add_argument("--restore-file", type=Path, metavar="FILE", help=f"of those settings (default /{RESTORE_FILE})")
    return parser


def _wiring(text: str) -> str:
    if not re.fullmatch(r"/\S+:[0-9]{1,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no line: such as /dev/gpiochip0:144")
    return text


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: with everything put back."""
    raise KeyboardInterrupt


def _restore(file: Path) -> int:
    try:
        done = hil_settings.restore(file)
    except FileNotFoundError:
        print(f"{file}: no settings are waiting to be put back")
        return Exit.DONE
    except RecordError as error:
        print(f"hil: {error}", file=sys.stderr)
        return Exit.FAILED
    print("\n".join(["put back:", *done] if done else ["everything was as it had been"]))
    return Exit.DONE


def refusal(place: Place, cases: Sequence[Case], sure: bool, run_dir: Path) -> str:
    """Why nothing may be run on this real board, and what to do; '' where it may."""
    if not sure:
        return ("a real board gets hot, loses engines and has its clocks and its mode changed: name a board that "
                "controls nothing, and add --yes-this-is-a-test-board")
    compatible = Sysfs(place.root).read_compatible()
    if SOC not in compatible:
        what = f"it says {compatible[0]}" if compatible else "it has no device tree"
        return f"{place.root} is no Orin ({what}); run this on the board itself, or use --board virtual"
    for case in cases:
        if not case.facts.matches(compatible):
            return f"{case.path} is for {case.facts.title}, and this board is {compatible[0]}; leave it out"
    if place.restore_file.exists():
        return f"{place.restore_file}: an earlier run did not put its settings back; run scripts/hil --restore first"
    if _governs(run_dir):
        return f"orind is running, or has not put its clocks back ({run_dir}); stop it first: sudo systemctl stop orind"
    try:
        recorded = hil_settings.record(place.root, cases[0].facts.gpu_nodes)
    except RecordError as error:
        return str(error)
    if recorded.mode is not None and holding_mode(Sysfs(place.root)) is None:
        return (f"power mode {recorded.mode} waits for a boot, and a run would take it back for good: boot the board, "
                "or enter another mode (orind power modes)")
    if locked := hil_settings.not_writable(recorded):
        return f"/{locked[0]} cannot be written ({len(locked)} such settings); run it as root: sudo scripts/hil ..."
    return ""


def _governs(run_dir: Path) -> bool:
    if (run_dir / STATE_NAME).exists():
        return True
    try:
        with ControlClient(run_dir / "control", 5.0):
            return True  # it holds the clocks also where it hangs and would not answer
    except ControlError:
        return False


# -- running -----------------------------------------------------------------------------------------------------


def run_all(cases: Sequence[Case], place: Place, folder: Path) -> int:
    """One after another, then the report: the exit code."""
    about = describe(place)
    count = "1 scenario" if len(cases) == 1 else f"{len(cases)} scenarios"
    print(f"{count} on the {place.kind} board, report in {folder}", flush=True)
    outcomes, left = list[Outcome](), ""
    part_plan()
    try:
        with _settings_kept(place, cases) as note_daemon:
            for case in cases:
                outcomes.append(run_one(case, place, folder, note_daemon))
                print(outcomes[-1].line(), flush=True)
    except RecordError as error:
        left = str(error)
        print(f"hil: {left}", file=sys.stderr)
    about["machine afterwards"] = machine()
    report = write_report(folder, about, outcomes, left, FASTER if place.kind == "virtual" else 0.0)
    print(f"report: {report}")
    if left or any(outcome.failed for outcome in outcomes):
        return Exit.FAILED
    return Exit.DONE if any(outcome.ran for outcome in outcomes) else NOTHING_RUN


@contextlib.contextmanager
def _settings_kept(place: Place, cases: Sequence[Case]) -> Iterator[Any]:
    """Gives a function that is to be told each daemon's process id. Raises RecordError where something differs."""
    if place.kind != "real":
        yield lambda pid: None
        return
    recorded = hil_settings.record(place.root, cases[0].facts.gpu_nodes)
    hil_settings.save(recorded, place.restore_file)

    def note(pid: int) -> None:
        hil_settings.save(replace(recorded, daemon=hil_settings.daemon_of(pid)), place.restore_file)

    try:
        yield note
    finally:
        # whoever is impatient now must not leave a board half restored
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *ENDS)}
        try:
            done = hil_settings.restore(place.restore_file)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        print("\n".join(["settings put back:", *done] if done else ["all settings are as they were"]), flush=True)


def run_one(case: Case, place: Place, folder: Path, note_daemon: Any) -> Outcome:
    """One scenario, its figures and what they are worth; samples and frames are written down."""
    outcome = Outcome(case.path.stem, case.scenario, case.text)
    outcome.not_run = why_not(case, place)
    if outcome.not_run:
        return outcome
    out = folder / outcome.name
    out.mkdir(exist_ok=True)
    (out / "scenario.yaml").write_text(case.text)
    with tempfile.TemporaryDirectory(prefix="orind-") as work:
        board = _board(case, place, Path(work), out)
        runner = Runner(case.scenario, board, case.facts, dict(case.policy), place.device, Path(work), out,
                        note_daemon, place.wiring)
        try:
            outcome.run = runner.run()
        except (ServiceError, RecordError, PowerError, OSError) as error:
            outcome.broke = str(error)
            return outcome
    outcome.figures = figures(outcome.run)
    outcome.judged = [judge(limit, outcome.figures, place.kind) for limit in case.scenario.parsed_limits()]
    _write_csv(out / "samples.csv", [asdict(sample) for sample in outcome.run.samples])
    _write_csv(out / "frames.csv", [asdict(frame) for frame in outcome.run.frames])
    (out / "figures.json").write_text(json.dumps({"marks": outcome.run.marks, "figures": outcome.figures}, indent=1))
    return outcome


def why_not(case: Case, place: Place) -> str:
    """Why a scenario is not run in this place; '' where it is."""
    if case.scenario.trigger is not None and (place.kind == "virtual" or not place.wiring):
        return "needs wiring: a real board, a GPIO line of which triggers a camera (--wiring CHIP:LINE)"
    return case.scenario.not_on_real(place.ambient_c) if place.kind == "real" else ""


def judge(limit: Limit, found: dict[str, dict[str, float | None]], kind: str) -> Judged:
    """A figure that nothing was seen of does not keep its limit."""
    value = found.get(limit.phase, {}).get(limit.figure)
    if limit.on not in ("", kind):
        return Judged(limit, value, None)
    return Judged(limit, value, value is not None and limit.holds(value))


def _board(case: Case, place: Place, work: Path, out: Path) -> Board:
    if place.kind == "virtual":
        return VirtualBoard(work, case.facts.name, case.scenario.ambient_c, case.scenario.fan, place.seed,
                            out / "board.log")
    breaks = any(step.sensors is not None for step in case.scenario.steps)
    return RealBoard(place.root, case.facts, work / "tap" if breaks else None)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["empty"])
        writer.writeheader()
        writer.writerows(rows)


def describe(place: Place) -> dict[str, str]:
    """Everything that one needs to do it again."""
    about = {"time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "command": " ".join(sys.argv)}
    git = [shutil.which("git") or "git", "-C", str(ROOT)]
    about["commit"] = _said([*git, "rev-parse", "HEAD"]) or "not known: no git here"
    if changed := _said([*git, "status", "--porcelain"]):
        about["commit"] += f", with {len(changed.splitlines())} files changed"
    about["versions"] = ", ".join([f"Python {platform.python_version()}", *(_version(name) for name in PACKAGES)])
    about["machine"], about["kernel"] = machine(), platform.platform()
    about["engines"], about["seed"] = place.device, str(place.seed)
    if place.kind == "virtual":
        about["board"] = (f"simulated (power/plant); thermal time constants divided by {FASTER:g}; the engines run on "
                          "the CPU, so that their times do not follow the simulated GPU's clock; its load does follow "
                          "how busy they are")
    else:
        sysfs = Sysfs(place.root)
        release = sysfs.read_release() or "not known"
        about["board"] = f"{sysfs.read_model() or 'of no known name'}, L4T {release}, {place.root}"
        about["ambient"] = "not known" if place.ambient_c is None else f"{place.ambient_c:g} C, as told"
    return about


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


if __name__ == "__main__":
    sys.exit(main())
