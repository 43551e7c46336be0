"""The launches that scripts/measure_gpu counts beside NVIDIA's profiler, on the virtual GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import build
import pytest
from counted import CASES, METRICS


@pytest.mark.virtual
def test_every_launch_is_counted_and_only_look_ups_conflict(library: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("counted.py")
    done = subprocess.run(
        [sys.executable, str(script), str(library / build.LIBRARY), str(tmp_path)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = json.loads(done.stdout)
    assert [launch["kernel"] for launch in told] == [kernel.name for kernel, _ in CASES]
    for launch in told:
        assert all(launch[name] > 0 for name in METRICS if name != "of these bank conflicts"), launch
        assert (launch["of these bank conflicts"] > 0) == ("table" in launch["kernel"]), launch
