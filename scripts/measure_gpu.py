"""The virtual GPU's tests, its counters and the kernels' speed on this machine's own GPU (scripts/measure_gpu).

1. tests: tests/virtual_gpu on the machine's driver, without those marked `virtual`
2. counters: the same launches on the virtual GPU and under `ncu`, side by side, where ncu is installed
3. sanitizer: the same launches under each tool of compute-sanitizer, where that is installed
4. bench: scripts/bench_gpu.py

Prints Markdown, and writes it to --out. All of it is over in LIMIT_S: what was not reached by then is told as not run.
Ends with 1 if a test failed, a tool found a fault or something was not run for want of time; a figure is never judged.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "virtual_gpu"
sys.path[:0] = [str(TESTS)]

import build  # noqa: E402  the virtual GPU's, which the line above makes importable
import counted  # noqa: E402  likewise

from orind.kernels.cuda import nvrtc  # noqa: E402

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
LIMIT_S = 470
"""Of the whole run, from the start of scripts/measure_gpu."""
STEP_LIMIT_S = 240
"""Of a command."""
LEAST_S = 5
"""With less time left no command is begun."""
KILL_LIMIT_S = 3
"""For what is killed to be gone, which a GPU that is lost may hold."""
POLL_S = 0.2
"""How soon a command ends once all are to."""
QUERY_LIMIT_S = 30
"""Of nvidia-smi, which a GPU that is lost may hold."""
PATHS = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": PATHS}


@dataclass
class Report:
    """Lines of Markdown, and whether all was right."""

    lines: list[str] = field(default_factory=list)
    right: bool = True

    def say(self, *lines: str) -> None:
        self.lines += lines
        print("\n".join(lines), flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.say("", *(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)), "")

    def wrong(self, *lines: str) -> None:
        self.right = False
        self.say(*lines)


class NotReached(Exception):
    """There was no time left to begin."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs commands, all over by `end` (time.monotonic()), or once `stop` is set. `logs` keeps what they print too."""

    logs: Path
    end: float
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, *command: str, log: str, most: float | None = None,
            **environment: str) -> subprocess.CompletedProcess[str]:
        """A command that takes too long ends with 124, and its process group with it. Raises NotReached."""
        limit = min(most or STEP_LIMIT_S, self.end - KILL_LIMIT_S - time.monotonic())
        if limit < LEAST_S or self.stop.is_set():
            raise NotReached
        with tempfile.TemporaryDirectory(prefix="orind-") as folder:
            # files: a pipe would be held open by whatever the command leaves behind in a session of its own
            said, told = Path(folder, "out"), Path(folder, "error")
            with said.open("w") as stdout, told.open("w") as stderr:
                started = subprocess.Popen(command, cwd=ROOT, env={**ENVIRONMENT, **environment}, stdout=stdout,
                                           stderr=stderr, start_new_session=True)
            try:
                code = self._wait(started, limit)
            except BaseException:  # Ctrl-C, which does not reach another session
                _kill(started)
                raise
            more = "" if code is not None else f"\nnot done after {limit:.0f} s{_kill(started)}"
            out, error = said.read_text(errors="replace"), told.read_text(errors="replace") + more
        code = 124 if code is None else code
        (self.logs / log).write_text(f"$ {' '.join(command)}\n{out}\n{error}\nended with {code}\n")
        return subprocess.CompletedProcess(command, code, out, error)

    def _wait(self, started: subprocess.Popen[bytes], limit: float) -> int | None:
        over = time.monotonic() + limit
        while not self.stop.is_set() and (left := over - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return started.wait(min(POLL_S, left))
        return None


def _kill(started: subprocess.Popen[bytes]) -> str:
    """With its group: a profiler's child too, which would keep the GPU busy. What is to be told of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    try:
        started.wait(KILL_LIMIT_S)
    except subprocess.TimeoutExpired:
        return ", nor gone when it was killed"
    return ""


def machine(runner: Runner) -> str:
    """Raises nvrtc.CompileError. A Jetson has no nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = runner.run(*query, log="nvidia-smi.log", most=QUERY_LIMIT_S)
        gpu = f"not known (nvidia-smi ended with {done.returncode})" if done.returncode else done.stdout.strip()
    except FileNotFoundError as error:
        gpu = f"not known ({error})"
    except NotReached:
        gpu = "not known (no time was left)"
    version = nvrtc.load().version
    return (
        f"GPU and driver: {gpu}; NVRTC {version[0]}.{version[1]}; {os.cpu_count()} CPUs ({platform.machine()}), "
        f"Python {platform.python_version()}; {time.strftime('%Y-%m-%d', time.gmtime())}."
    )


def test_file(path: Path, runner: Runner) -> tuple[str, Counter[str], list[str]]:
    """A file's tests in a process of their own, so that one that hangs holds up no other: name, outcomes, faults."""
    name, xml = path.stem, runner.logs / f"{path.stem}.xml"
    options = ["-v", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60", f"--junitxml={xml}"]
    environment = {"ORIND_REAL_GPU": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    xml.unlink(missing_ok=True)
    outcomes: Counter[str] = Counter()
    try:
        done = runner.run(sys.executable, "-m", "pytest", str(path), *options, log=f"{name}.log", **environment)
    except NotReached:
        return name, outcomes, [f"{name}: not run"]
    if not xml.exists():
        started = [line.split()[0] for line in done.stdout.splitlines() if "::" in line]
        return name, outcomes, [f"{name}: ended with {done.returncode} in {started[-1] if started else 'its set-up'}"]
    # 0 and 1: all ran; 5: every test here is marked `virtual`
    wrong = [] if done.returncode in (0, 1, 5) else [f"{name}: ended with {done.returncode}"]
    for case in ET.parse(xml).getroot().iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        outcomes["failed" if bad else "skipped" if case.find("skipped") is not None else "passed"] += 1
        if bad:
            wrong.append(f"{name}: {case.get('name')}")
    return name, outcomes, wrong


def tests(report: Report, runner: Runner) -> None:
    start = time.monotonic()
    pool = ThreadPoolExecutor(max(2, min(8, (os.cpu_count() or 1) // 2)))
    try:
        told = list(pool.map(lambda path: test_file(path, runner), sorted(TESTS.glob("test_*.py"))))
    except BaseException:
        runner.stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    taken = time.monotonic() - start
    report.say(
        "## The tests on this GPU", "", f"`ORIND_REAL_GPU=1 pytest tests/virtual_gpu`, a process a file, {taken:.0f} s."
    )
    kinds = ("passed", "failed", "skipped")
    report.table(("file", *kinds), [(f"{name}.py", *(n[k] for k in kinds)) for name, n, _ in told if n])
    if wrong := [line for _, _, lines in told for line in lines]:
        report.wrong("Not passed:", "", *(f"* {line}" for line in wrong), "")


def profiled(runner: Runner, cache: Path) -> list[dict[str, int]]:
    """ncu's metrics of each launch, in order."""
    metrics = ",".join(metric for metric, _ in counted.METRICS.values())
    command = ["ncu", "--csv", "--metrics", metrics, "--clock-control", "none"]
    done = runner.run(*command, sys.executable, str(TESTS / "counted.py"), "libcuda.so.1", str(cache), log="ncu.log")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(lines):
        if row["Metric Name"]:
            value = row["Metric Value"].replace(",", "")
            found.setdefault(row["ID"], {})[row["Metric Name"]] = int(value)
    return list(found.values())


def counters(report: Report, runner: Runner) -> None:
    report.say("## Counters: the virtual GPU's / those of NVIDIA's profiler", "")
    cache = runner.logs / "cache"
    virtual = str(build.OUT / build.LIBRARY)
    if (made := runner.run(sys.executable, str(TESTS / "build.py"), log="virtual-gpu.log")).returncode:
        report.wrong(f"the virtual GPU was not built: {made.stderr[-800:]}", "")
        return
    done = runner.run(sys.executable, str(TESTS / "counted.py"), virtual, str(cache), log="virtual.log")
    if done.returncode:
        report.wrong(f"on the virtual GPU counted.py ended with {done.returncode}: {done.stderr[-800:]}", "")
        return
    ours = json.loads(done.stdout)
    theirs = profiled(runner, cache)
    if len(theirs) != len(ours):
        report.wrong(f"ncu told of {len(theirs)} launches, not {len(ours)}: {runner.logs / 'ncu.log'}", "")
        return
    rows = []
    for mine, other in zip(ours, theirs, strict=True):
        cells = [f"{mine[name]} / {other[metric]}" for name, (metric, _) in counted.METRICS.items()]
        rows.append([mine["kernel"], *cells])
    report.table(("kernel", *counted.METRICS), rows)


def sanitizer(report: Report, runner: Runner) -> None:
    report.say("## compute-sanitizer", "")
    rows = []
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable]
        cache = str(runner.logs / "cache")
        try:
            done = runner.run(*command, str(TESTS / "counted.py"), "libcuda.so.1", cache, log=f"{tool}.log")
        except NotReached:
            rows.append((tool, "not run"))
            report.right = False
            continue
        said = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line]
        rows.append((tool, said[-1].lstrip("= ") if said else f"ended with {done.returncode}"))
        report.right = report.right and done.returncode == 0
    report.table(("tool", "said of the launches above"), rows)


def bench(report: Report, runner: Runner) -> None:
    report.say("## Speed", "")
    done = runner.run(sys.executable, str(ROOT / "scripts" / "bench_gpu.py"), log="bench.log")
    report.say("```", *done.stdout.splitlines(), "```")
    if done.returncode:
        report.wrong(f"bench_gpu.py ended with {done.returncode}: {done.stderr[-800:]}")


STEPS: dict[str, tuple[str, Callable[[Report, Runner], None]]] = {
    "tests": ("", tests),
    "counters": ("ncu", counters),
    "sanitizer": ("compute-sanitizer", sanitizer),
    "bench": ("", bench),
}
"""Name: the program that it needs, and what does it."""


def measure(options: argparse.Namespace) -> Report:
    """Raises OSError where something cannot be written, nvrtc.CompileError without NVRTC."""
    report, end = Report(), time.monotonic() + LIMIT_S - options.gone
    with tempfile.TemporaryDirectory(prefix="orind-") as temporary:
        logs = options.logs or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        if options.out:
            options.out.open("a").close()  # refused now, not after eight minutes
        runner = Runner(logs, end)
        about = machine(runner)
        (logs / "machine.log").write_text(f"{about}\n")
        report.say("# A real GPU", "", "Measured by `scripts/measure_gpu`.", about, "")
        for name in options.only:
            program, step = STEPS[name]
            if program and not shutil.which(program):
                report.say(f"({name}: {program} is not installed.)", "")
                continue
            try:
                step(report, runner)
            except NotReached:
                report.wrong(f"Not run: {name}, no time was left of {LIMIT_S} s.", "")
    if options.out:
        options.out.write_text("\n".join(report.lines) + "\n")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/measure_gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the Markdown there too")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep every step's whole output there")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="these steps")
    parser.add_argument("--gone", type=float, default=0, metavar="S", help="seconds that preparing has taken already")
    try:
        return 0 if measure(parser.parse_args()).right else 1
    except (OSError, nvrtc.CompileError) as error:
        print(f"measure_gpu: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
