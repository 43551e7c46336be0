"""The classes of faults that scripts/bench_failover inflicts, each on a real engine process of a real daemon.

CPU classes act on the process from outside; CUDA classes through the control file of the virtual GPU
(tests/virtual_gpu). Invariant: `strike` names the engine by its process id and touches no other.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import build_pycuda
import numpy as np
from built_plans import ROOT
from harness import Service
from numpy.typing import NDArray

from orind.kernels.plan.file import PlanFile

# only where a hang is what happens is the watchdog so short: on a shared machine a batch may take long for once
HANG: dict[str, Any] = {"batch_watchdog_ms": 1000, "heartbeat_missed_ms": 1000}
CUDA: dict[str, Any] = {"device": "cuda", "cpu_steps": "allow", "golden_timeout_ms": 60_000}
GOLDEN: dict[str, Any] = {"golden_interval_s": 4, "golden_timeout_ms": 2000}
ENDED = ("died", "untrusted")  # untrusted: main found out first by a message that it could not send
PATTERN_FLOATS = 24  # so many weights in a row are found in an engine's memory where they stand and nowhere else
PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class Target:
    """What is struck: a daemon, its active and standby engine, its plan, the virtual GPU's control file."""

    service: Service
    active: int
    standby: int
    plan: Path
    control: Path


@dataclass(frozen=True)
class Case:
    """One class. `losses`: what the daemon may call it. `takes_over`: whether the active engine is lost at its work."""

    name: str
    what: str
    strike: Callable[[Target], None]
    losses: tuple[str, ...]
    engine: dict[str, Any] = field(default_factory=dict)
    takes_over: bool = True
    mend: Callable[[Target], None] = lambda target: None

    @property
    def cuda(self) -> bool:
        return self.engine.get("device") == "cuda"


def _signal(number: signal.Signals) -> Callable[[Target], None]:
    return lambda target: os.kill(target.active, number)


def _control(fault: str) -> Callable[[Target], None]:
    return lambda target: write_control(target.control, fault.format(pid=target.active))


def write_control(path: Path, line: str) -> None:
    """Replaces the control file as a whole, so that no process reads half of it."""
    for used in path.parent.glob(f"{path.name}*.used.*"):
        used.unlink()
    draft = path.with_name("draft")
    draft.write_text(line + "\n")
    draft.replace(path)


# -- a wrong golden answer: bits of its own weights flip in the engine's memory ----------------------------------


def corrupt(target: Target) -> None:
    """Flips the signs of a row of float32 weights wherever the active engine keeps them."""
    found = 0
    with Path(f"/proc/{target.active}/mem").open("r+b", buffering=0) as memory:
        for row in weight_rows(target.plan):
            found = _replace(memory, target.active, row.tobytes(), (-row).tobytes())
            if found:
                return
    raise SystemExit("none of the plan's weights is found in the engine's memory: has its executor changed?")


@functools.cache
def weight_rows(plan: Path) -> list[NDArray[np.float32]]:
    """Rows of the plan's int8 weights as the CPU executor multiplies them, those with most different values first."""
    with PlanFile.open_path(plan) as file:
        tensors = [t for n, t in file.tensors.items() if t.dtype == np.int8 and t.ndim >= 2 and "golden" not in n]
        rows = [row for t in tensors for row in t.reshape(-1, t.shape[-1]) if len(row) >= PATTERN_FLOATS]
        rows.sort(key=lambda row: -len(np.unique(row)))
        return [row.astype(np.float32) for row in rows[:64]]


def _replace(memory: Any, pid: int, old: bytes, new: bytes) -> int:
    """Replaces `old` in the private writable memory of a process; -> in how many places.

    In small pieces: the load runs in another thread of ours and must not be held up.
    """
    count = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, mode, _, _, inode, *_ = line.split()
        if mode != "rw-p" or inode != "0":
            continue
        begin, end = (int(x, 16) for x in span.split("-"))
        for at in range(begin, end, PIECE_BYTES):
            memory.seek(at)
            piece = memory.read(min(PIECE_BYTES + len(old) - 1, end - at))
            if (place := piece.find(old)) >= 0:
                memory.seek(at + place)
                memory.write(new)
                count += 1
    return count


# -- no memory for the next engine -------------------------------------------------------------------------------


def starve(target: Target) -> None:
    """Lets the nursery's next children have hardly more memory than it has, then ends the standby."""
    nursery = _parent(target.standby)
    size = int(re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{nursery}/status").read_text())[1])  # type: ignore[index]
    resource.prlimit(nursery, resource.RLIMIT_AS, ((size << 10) + (64 << 20), resource.RLIM_INFINITY))
    os.kill(target.standby, signal.SIGKILL)


def feed(target: Target) -> None:
    resource.prlimit(_parent(target.active), resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _parent(pid: int) -> int:
    return int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]


def starve_gpu(target: Target) -> None:
    """The third allocation of a process fails, and when PyCUDA tries again; engines that are up have made theirs."""
    write_control(target.control, "out_of_memory allocation=3\nout_of_memory allocation=4")
    os.kill(target.standby, signal.SIGKILL)


def feed_gpu(target: Target) -> None:
    write_control(target.control, "")


# -- all of them -------------------------------------------------------------------------------------------------

CASES = [
    Case("sigkill", "kill -9 of the active engine", _signal(signal.SIGKILL), ENDED),
    Case("sigsegv", "a segmentation fault in it", _signal(signal.SIGSEGV), ENDED),
    Case("sigstop", "it hangs (stopped)", _signal(signal.SIGSTOP), ("batch_overdue", "silent"), HANG),
    Case("golden", "its weights change in memory", corrupt, ("wrong",), GOLDEN, takes_over=False),
    Case("spawn", "no memory for the next engine", starve, ("died", "reported"), takes_over=False, mend=feed),
    Case("cuda-address", "illegal address", _control("illegal_address graph=+1 pid={pid} once"), ("reported",), CUDA),
    Case("cuda-assert", "assert in a kernel", _control("assert graph=+1 pid={pid} once"), ("reported",), CUDA),
    Case("cuda-lost", "device lost", _control("device_lost graph=+1 pid={pid} once"), ("reported",), CUDA),
    Case("cuda-hang", "a kernel never ends", _control("hang graph=+1 pid={pid} once"), ("batch_overdue",), CUDA | HANG),
    Case("cuda-spawn", "no device memory for the next", starve_gpu, ("died", "reported"), CUDA, False, feed_gpu),
]


def find_virtual_gpu(folder: Path) -> Path:
    """Builds the virtual GPU and PyCUDA if need be; daemons started from here on find it. -> its control file."""
    build_pycuda.ensure(sys.executable)
    build = [sys.executable, str(ROOT / "tests" / "virtual_gpu" / "build.py")]
    library = subprocess.run(build, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    control = folder / "control"
    control.touch()
    os.environ |= {"LD_LIBRARY_PATH": library, "VIRTUAL_GPU_CONTROL": str(control)}
    os.environ.setdefault("ORIND_CACHE", str(Path(tempfile.gettempdir()) / "orind-bench-kernels"))
    return control


def wait_gone(pid: int, timeout_s: float = 30.0) -> None:
    """Until a process that was stopped or struck is no more."""
    end = time.monotonic() + timeout_s
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > end:
            raise SystemExit(f"engine {pid} lives on after it was lost")
        time.sleep(0.01)
