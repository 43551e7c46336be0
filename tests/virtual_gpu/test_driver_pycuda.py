"""Unmodified PyCUDA on the virtual GPU: pycuda_checks.py, each function in a process of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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
    """What `orind doctor` relies on: importing asks the driver for nothing, so a bad setting shows at init."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(library), "VIRTUAL_GPU_ORDER": "sideways"}
    code = "import pycuda.driver as cuda\nprint('imported')\ncuda.init()"
    done = subprocess.run([pycuda_python, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n" and done.returncode == 1
    assert "VIRTUAL_GPU_ORDER=sideways: takes forward, random, reverse" in done.stderr
