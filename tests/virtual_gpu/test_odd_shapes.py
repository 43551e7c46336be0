"""Convolutions of odd shapes: on the GPU the CPU's codes, or left to the CPU where the kernel's numbers end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def told(which: str, python: str, library: Path, cache: Path) -> Any:
    done = subprocess.run(
        [python, str(HERE / "net_checks.py"), which],
        env=os.environ | {"LD_LIBRARY_PATH": str(library), "ORIND_CACHE": str(cache), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_groups_and_views_of_any_width_give_the_codes_of_the_cpu(
    pycuda_python: str, library: Path, tmp_path: Path
) -> None:
    found = told("random", pycuda_python, library, tmp_path)
    assert [seed for seed, (wrong, _) in enumerate(found) if wrong] == []
    assert sum(on_gpu for _, on_gpu in found) > len(found)


def test_images_and_windows_beyond_the_kernels_numbers_are_left_to_the_cpu(
    pycuda_python: str, library: Path, tmp_path: Path
) -> None:
    # the window's convolution and the one behind it; the second of each pair of edges runs on the CPU
    assert told("edges", pycuda_python, library, tmp_path) == [[[], 2], [[], 1]] * 4
