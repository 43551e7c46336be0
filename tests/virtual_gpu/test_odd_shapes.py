"""Convolutions of odd shapes: on the GPU the CPU's codes, or left to the CPU where the kernel's numbers end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from orind.kernels.cpu.executor import GOLDEN_TOLERANCE_HALF

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


def test_split_k_gives_the_same_in_every_launch(pycuda_python: str, library: Path, tmp_path: Path) -> None:
    found = told("deep", pycuda_python, library, tmp_path)
    assert [worst for worst, _ in found[:2]] == [0, 0] and max(worst for worst, _ in found[2:]) < GOLDEN_TOLERANCE_HALF
    assert all(split == 3 for _, split in found), "every convolution, at every batch size"


def test_pads_stay_0_through_a_function_that_is_not_0_there(pycuda_python: str, library: Path, tmp_path: Path) -> None:
    int8, fp16 = told("pads", pycuda_python, library, tmp_path)
    assert int8 == {"differ": [], "cpu": [], "gpu": []}
    assert (fp16["cpu"], fp16["gpu"]) == ([], [])
