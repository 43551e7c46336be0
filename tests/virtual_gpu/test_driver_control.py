"""How the virtual GPU is told what to do, and what it writes: control lines, VIRTUAL_GPU_ variables, counters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import build
import pytest
from driver_calls import Cuda, CudaError, Fresh
from driver_ptx import KERNELS

pytestmark = pytest.mark.virtual

INVALID_VALUE = 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("explode launch=1", "unknown action"),
        ("hang", "needs launch=N or graph=N"),
        ("hang launch=0", "less than 1"),
        ("hang launch=x", "not a whole number"),
        ("hang launch=1 graph=1", "two targets"),
        ("hang launch=1 launch=1", "given twice"),
        ("hang launch=1 often", "means nothing to hang"),
        ("bit_flip launch=1 bit=8", "bit is 0 to 7"),
        ("bit_flip launch=1 node=2", "node goes with graph"),
        ("out_of_memory launch=1", "means nothing to out_of_memory"),
        ("slow_down launch=1", "needs factor"),
        ("slow_down factor=0.5", "not a factor"),
        ("write_counters", "needs id"),
    ],
)
def test_a_control_line_that_is_not_understood_is_refused(
    fresh: Fresh, tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    path = tmp_path / "control"
    path.write_text(f"# a comment\n\n{line}\n")
    with pytest.raises(CudaError, match=f"cuInit: {INVALID_VALUE}"):
        fresh(CONTROL=str(path))
    said = capfd.readouterr().err
    assert f"line '{line}'" in said and says in said


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ORDER", "backward", "takes forward, random, reverse"),
        ("COPIES", "late", "takes deferred, eager"),
        ("CHECKS", "races,luck", "takes all, none, or a list"),
        ("MEMORY_MIB", "0", "a whole number from 1"),
        ("MEMORY_MIB", "32769", "to 32768"),
        ("SEED", "-1", "a whole number"),
        ("THREADS", "1000", "from 1 to 256"),
        ("DRIVER_VERSION", "12061", "takes 12020"),
        ("MEMORY_MB", "8", "is not a variable of the virtual GPU"),
    ],
)
def test_a_variable_that_is_not_understood_is_refused(
    fresh: Fresh, capfd: pytest.CaptureFixture[str], name: str, value: str, says: str
) -> None:
    with pytest.raises(CudaError, match=f"cuInit: {INVALID_VALUE}"):
        fresh(**{name: value})
    said = capfd.readouterr().err
    assert f"VIRTUAL_GPU_{name}" in said and says in said


def test_the_documentation_lists_every_variable(fresh: Fresh, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CudaError):
        fresh(NONE="")
    known = re.findall(r"[A-Z_]{4,}", capfd.readouterr().err.split("it knows VIRTUAL_GPU_")[1])
    text = (build.ROOT / "docs" / "virtual-gpu.md").read_text()
    assert re.findall(r"^\| VIRTUAL_GPU_(\w+) \|", text, re.MULTILINE) and known
    assert set(re.findall(r"^\| VIRTUAL_GPU_(\w+) \|", text, re.MULTILINE)) == set(known)


def test_the_examples_of_the_documentation_are_understood(fresh: Fresh, tmp_path: Path) -> None:
    text = (build.ROOT / "docs" / "virtual-gpu.md").read_text()
    (block,) = [part for part in text.split("```") if part.lstrip().startswith("illegal_address")]
    lines = [line for line in block.strip().splitlines() if not line.startswith("device_lost")]
    assert len(lines) == 9
    (tmp_path / "control").write_text("".join(line + "\n" for line in lines))
    fresh(CONTROL=str(tmp_path / "control"))


def test_settings_can_be_changed_for_the_launches_to_come(shared: Cuda, capfd: pytest.CaptureFixture[str]) -> None:
    configure = shared.library.virtual_gpu_configure
    assert configure(b"VIRTUAL_GPU_ORDER", b"reverse") == 0
    assert configure(b"VIRTUAL_GPU_ORDER", b"forward") == 0
    assert configure(b"VIRTUAL_GPU_ORDER", b"sideways") == 1
    assert configure(b"VIRTUAL_GPU_MEMORY_MIB", b"4") == 1
    assert "before cuInit" in capfd.readouterr().err


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, HERE)
from driver_calls import Cuda, CudaError, Fresh
from driver_ptx import KERNELS
cuda = Cuda(Path(LIBRARY)).initialise()
cuda.create_context()
module, out = cuda.module(KERNELS), cuda.allocate(64)
cuda.run(cuda.function(module, "fill"), out, 1, 4)
cuda.check("cuCtxSynchronize")
"""


def run_script(library: Path, more: str, before: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    script = f"HERE, LIBRARY = {str(build.HERE)!r}, {str(library / build.LIBRARY)!r}\n" + before + SCRIPT + more
    environment = os.environ | {f"VIRTUAL_GPU_{name}": value for name, value in variables.items()}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_counters_are_written_at_exit(library: Path, tmp_path: Path) -> None:
    done = run_script(library, "", COUNTERS=str(tmp_path / "counters.%p.json"))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    counters = json.loads(path.read_text())
    assert path.name == f"counters.{counters['pid']}.json"
    assert (counters["single_launches"], counters["graph_launches"]) == (1, 0)
    assert counters["kernels"]["fill"]["single"] == 1
    assert counters["peak_memory_bytes"] >= 64


def test_counters_are_written_on_request(fresh: Fresh, tmp_path: Path) -> None:
    counters, control = tmp_path / "counters.json", tmp_path / "control"
    control.write_text("")
    cuda = fresh(CONTROL=str(control), COUNTERS=str(counters))
    cuda.run(cuda.function(cuda.module(KERNELS), "nothing"))
    cuda.check("cuCtxSynchronize")
    assert not counters.exists()
    control.write_text("write_counters id=first\n")
    deadline = time.monotonic() + 20
    while not counters.exists():
        assert time.monotonic() < deadline, "an idle process looks at its control file too"
        time.sleep(0.005)
    assert json.loads(counters.read_text())["single_launches"] == 1


def test_a_bad_line_while_running_ends_the_process(library: Path, tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_text("")
    more = f"Path({str(control)!r}).write_text('explode\\n')\ntime.sleep(30)\n"
    done = run_script(library, more, CONTROL=str(control))
    assert done.returncode == -6, "SIGABRT"
    assert "line 'explode': unknown action" in done.stderr


def test_a_process_that_may_not_reserve_the_addresses_is_told(library: Path) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
    done = run_script(library, "", limit)
    assert "cuInit: 2" in done.stderr and "is the address space limited (ulimit -v)?" in done.stderr


def test_a_process_ends_while_a_kernel_runs(library: Path) -> None:
    more = """
flag, words = cuda.pinned(4)
words[0] = 0
cuda.run(cuda.function(module, "gate"), flag, block=(1, 1, 1))
time.sleep(0.05)
"""
    done = run_script(library, more)
    assert (done.returncode, done.stderr) == (0, "")
