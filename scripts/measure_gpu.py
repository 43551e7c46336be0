"""The virtual GPU's tests, its counters and the kernels' speed on this machine's own GPU (scripts/measure_gpu).

1. tests: tests/virtual_gpu on the machine's driver, without those marked `virtual`
2. counters: the same launches on the virtual GPU and under `ncu`, side by side, where ncu is installed
3. sanitizer: the same launches under each tool of compute-sanitizer, where that is installed
4. bench: scripts/bench_gpu.py

Prints Markdown, and writes it to --out. Ends with 1 if a test failed or a tool found a fault; a figure is never judged.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
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
STEP_LIMIT_S = 240
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


def run(*command: str, log: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a step; its output goes to `log` too. A step that takes too long ends with 124."""
    try:
        done = subprocess.run(command, cwd=ROOT, env={**ENVIRONMENT, **environment}, capture_output=True, text=True,
                              check=False, timeout=STEP_LIMIT_S)
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        done = subprocess.CompletedProcess(command, 124, out, f"not done after {STEP_LIMIT_S} s")
    log.write_text(f"$ {' '.join(command)}\n{done.stdout}\n{done.stderr}\nended with {done.returncode}\n")
    return done


def machine() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    version = nvrtc.load().version
    return (
        f"GPU and driver: {gpu}; NVRTC {version[0]}.{version[1]}; {os.cpu_count()} CPUs ({platform.machine()}), "
        f"Python {platform.python_version()}; {time.strftime('%Y-%m-%d', time.gmtime())}."
    )


def test_file(path: Path, logs: Path) -> tuple[str, Counter[str], list[str]]:
    """A file's tests in a process of their own, so that one that hangs holds up no other: name, outcomes, faults."""
    name, xml = path.stem, logs / f"{path.stem}.xml"
    options = ["-v", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60", f"--junitxml={xml}"]
    environment = {"ORIND_REAL_GPU": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    xml.unlink(missing_ok=True)
    done = run(sys.executable, "-m", "pytest", str(path), *options, log=logs / f"{name}.log", **environment)
    outcomes: Counter[str] = Counter()
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


def tests(report: Report, logs: Path) -> None:
    start = time.monotonic()
    with ThreadPoolExecutor(max(2, min(8, (os.cpu_count() or 1) // 2))) as pool:
        told = list(pool.map(lambda path: test_file(path, logs), sorted(TESTS.glob("test_*.py"))))
    taken = time.monotonic() - start
    report.say(
        "## The tests on this GPU", "", f"`ORIND_REAL_GPU=1 pytest tests/virtual_gpu`, a process a file, {taken:.0f} s."
    )
    kinds = ("passed", "failed", "skipped")
    report.table(("file", *kinds), [(f"{name}.py", *(n[k] for k in kinds)) for name, n, _ in told if n])
    if wrong := [line for _, _, lines in told for line in lines]:
        report.wrong("Not passed:", "", *(f"* {line}" for line in wrong), "")


def profiled(logs: Path, cache: Path) -> list[dict[str, int]]:
    """ncu's metrics of each launch, in order."""
    metrics = ",".join(metric for metric, _ in counted.METRICS.values())
    command = ["ncu", "--csv", "--metrics", metrics, "--clock-control", "none"]
    done = run(*command, sys.executable, str(TESTS / "counted.py"), "libcuda.so.1", str(cache), log=logs / "ncu.log")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(lines):
        if row["Metric Name"]:
            value = row["Metric Value"].replace(",", "")
            found.setdefault(row["ID"], {})[row["Metric Name"]] = int(value)
    return list(found.values())


def counters(report: Report, logs: Path) -> None:
    report.say("## Counters: the virtual GPU's / those of NVIDIA's profiler", "")
    cache = logs / "cache"
    virtual = str(build.build() / build.LIBRARY)
    done = run(sys.executable, str(TESTS / "counted.py"), virtual, str(cache), log=logs / "virtual.log")
    ours = json.loads(done.stdout)
    theirs = profiled(logs, cache)
    if len(theirs) != len(ours):
        report.wrong(f"ncu told of {len(theirs)} launches, not {len(ours)}: {logs / 'ncu.log'}", "")
        return
    rows = []
    for mine, other in zip(ours, theirs, strict=True):
        cells = [f"{mine[name]} / {other[metric]}" for name, (metric, _) in counted.METRICS.items()]
        rows.append([mine["kernel"], *cells])
    report.table(("kernel", *counted.METRICS), rows)


def sanitizer(report: Report, logs: Path) -> None:
    report.say("## compute-sanitizer", "")
    rows = []
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable]
        done = run(*command, str(TESTS / "counted.py"), "libcuda.so.1", str(logs / "cache"), log=logs / f"{tool}.log")
        said = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line]
        rows.append((tool, said[-1].lstrip("= ") if said else f"ended with {done.returncode}"))
        report.right = report.right and done.returncode == 0
    report.table(("tool", "said of the launches above"), rows)


def bench(report: Report, logs: Path) -> None:
    report.say("## Speed", "")
    done = run(sys.executable, str(ROOT / "scripts" / "bench_gpu.py"), log=logs / "bench.log")
    report.say("```", *done.stdout.splitlines(), "```")
    if done.returncode:
        report.wrong(f"bench_gpu.py ended with {done.returncode}: {done.stderr[-800:]}")


STEPS: dict[str, tuple[str, Callable[[Report, Path], None]]] = {
    "tests": ("", tests),
    "counters": ("ncu", counters),
    "sanitizer": ("compute-sanitizer", sanitizer),
    "bench": ("", bench),
}
"""Name: the program that it needs, and what does it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/measure_gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the Markdown there too")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep every step's whole output there")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="these steps")
    options = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="orind-") as temporary:
        logs = options.logs or Path(temporary)
        logs.mkdir(parents=True, exist_ok=True)
        report.say("# A real GPU", "", "Measured by `scripts/measure_gpu`.", machine(), "")
        for name in options.only:
            program, step = STEPS[name]
            if program and not shutil.which(program):
                report.say(f"({name}: {program} is not installed.)", "")
                continue
            step(report, logs)
    if options.out:
        options.out.write_text("\n".join(report.lines) + "\n")
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
