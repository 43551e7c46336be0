"""Unmodified PyCUDA on the virtual GPU: pycuda_checks.py, each function in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from driver_calls import REAL

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    "name", ["device_and_memory", "launches_streams_and_events", "a_graph_through_ctypes", "errors_are_exceptions"]
)
def test_pycuda(pycuda_python: str, library: Path, name: str) -> None:
    done = subprocess.run(
        [pycuda_python, str(HERE / "pycuda_checks.py"), name],
        env=os.environ | {"LD_LIBRARY_PATH": str(library)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.virtual
def test_an_import_needs_no_device(pycuda_python: str, library: Path) -> None:
    """What `orind check` relies on: importing asks the driver for nothing, so a bad setting shows at init."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "VIRTUAL_GPU_ORDER": "sideways"}
    code = "import pycuda.driver as cuda\nprint('imported')\ncuda.init()"
    done = subprocess.run([pycuda_python, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n" and done.returncode == 1
    assert "VIRTUAL_GPU_ORDER=sideways: takes forward, random, reverse" in done.stderr


@pytest.mark.parametrize("lost", [False, pytest.param(True, marks=pytest.mark.virtual)])
def test_doctor_names_the_gpu(pycuda_python: str, library: Path, tmp_path: Path, lost: bool) -> None:
    (tmp_path / "control").write_text("device_lost\n" if lost else "")
    settings = {"LD_LIBRARY_PATH": str(library), "VIRTUAL_GPU_CONTROL": str(tmp_path / "control")}
    command = [pycuda_python, "-m", "orind.daemon.cli", "doctor", "--json"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
    [found] = [finding for finding in json.loads(done.stdout) if finding["name"] == "cuda"]
    if lost:
        assert found["level"] == "absent"
        assert found["text"].startswith("the driver finds no GPU: cuInit: no CUDA-capable device is detected (100)")
    else:
        assert found["level"] == "ok" and ", NVRTC 12.6 (" in found["text"]
        assert REAL or found["text"].startswith("Orin (virtual GPU) (driver: CUDA 12.6)")
