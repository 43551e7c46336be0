"""An executor that finds too little memory on the GPU says so and leaves nothing behind; a process that ends with its
device open, as an engine that refuses a plan does, ends with its own exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.virtual
def test_memory_that_is_short_at_any_allocation(pycuda_python: str, library: Path, tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    settings = {
        "LD_LIBRARY_PATH": str(library),
        "ORIND_CACHE": str(tmp_path),
        "OPENBLAS_NUM_THREADS": "1",
        "VIRTUAL_GPU_CONTROL": str(tmp_path / "control"),
    }
    done = subprocess.run(
        [pycuda_python, str(HERE / "memory_checks.py")],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    # the context is off PyCUDA's stack, whatever failed: it would end the process by abort
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["said"]) > 10 and set(told["left"]) == {0}
    start = "device cuda: the GPU's memory does not hold batch size 1 of this plan (cuMem"
    assert all(text.startswith(start) and text.endswith("out of memory)") for text in told["said"])
    assert re.fullmatch(
        r"device cuda: an engine's plans need 33554432 MiB of the GPU's memory, \d+ MiB are free", told["reservation"]
    )
    memory, fault, of_a_cubin, of_ptx = told["cubins"].values()
    short = "ProgramError: device cuda: the GPU's memory does not hold it (cuModuleLoadDataEx failed: out of memory)"
    assert memory == [[True, True], [short] * 2], "the next kernel's cubin is tried"
    assert fault == [[True, True], ["DeviceFault: GPU fault: cuModuleLoadDataEx failed: an illegal memory access was "
                                    "encountered"] * 2]
    assert of_a_cubin == [[True, False, False], ["loaded"] * 2]
    assert of_ptx[0] == [True, True] and "ProgramError: device cuda: conv_s8_" in of_ptx[1][0], of_ptx
    functions = ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphDestroy"]
    assert told["given_up_capture"] == [[name, 0] for name in functions]
    segments, executables, graphs, alive = told["graphs"]
    assert segments == executables == graphs > 0 == alive, "an executor that is closed leaves no graph"
    assert told["without_stream"] == "device cuda: no GPU can be used (cuStreamCreate failed: unknown error)"


@pytest.mark.parametrize("lost", [False, pytest.param(True, marks=pytest.mark.virtual)])
def test_a_process_ends_with_its_own_code_though_its_device_is_open(
    pycuda_python: str, library: Path, tmp_path: Path, lost: bool
) -> None:
    (tmp_path / "control").touch()
    settings = {"LD_LIBRARY_PATH": str(library), "VIRTUAL_GPU_CONTROL": str(tmp_path / "control")}
    code = (
        "import sys; from pathlib import Path; from orind.kernels.cuda.device import Device\n"
        "from orind.kernels.ir.errors import DeviceFault\n"
        "device = Device(); memory = device.zeros(8)\n"
        "Path(sys.argv[1]).write_text(sys.argv[2])\n"
        "try:\n    with device.watched():\n        device.zeros(8)\n"
        "except DeviceFault:\n    print('lost')\n"
        "sys.exit(7)\n"
    )
    arguments = [pycuda_python, "-c", code, str(tmp_path / "control"), "device_lost\n" if lost else ""]
    done = subprocess.run(arguments, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "lost\n" if lost else ""), done.stderr
    assert "PyCUDA ERROR" not in done.stderr and "Traceback" not in done.stderr
