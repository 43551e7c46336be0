"""A convolution whose kernel stores into the image of twice the size that the next step makes: the same bits, fewer
steps on the CPU, fewer segments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import GOLDEN_TOLERANCE_HALF
from orind.kernels.spec import ModelSpec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "kernels"))

from doubled_checks import BATCHES, FORMS, pyramid  # noqa: E402  which imports from tests/kernels


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Of `pyramid`, in INT8: its golden data name a step."""
    onnx.save(pyramid(), tmp_path / "net.onnx")
    draw = np.random.default_rng(0)
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", draw.uniform(-1, 1, (1, 3, 12, 10)).astype(np.float32))
    tensors, spec = sorted(tmp_path.glob("*.npy")), ModelSpec.for_tensor("net", (1,))
    build_plan(tmp_path / "net.onnx", spec, tensors, tmp_path / "net.plan", "int8", method="minmax", accept_loss=True)
    return tmp_path / "net.plan"


def test_upsampling_in_the_store(pycuda_python: str, library: Path, plan: Path) -> None:
    done = subprocess.run(
        [pycuda_python, str(HERE / "doubled_checks.py"), str(plan)],
        env=os.environ
        | {"LD_LIBRARY_PATH": str(library), "ORIND_CACHE": str(plan.parent), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    found = {(net["form"], net["precision"], net["batch"], net["separate"]): net for net in told["networks"]}
    assert set(found) == set(product(FORMS, ("int8", "fp16"), BATCHES, (False, True)))
    for (form, precision, _, separate), net in found.items():
        assert net["as_apart"], "of one kernel the same sums"
        assert net["as_cpu"] if precision == "int8" else net["worst"] < GOLDEN_TOLERANCE_HALF
        done_by_kernels, (steps, steps_apart) = net["doubled"], net["steps"]
        assert steps == steps_apart - done_by_kernels
        segments, segments_apart = net["segments"]
        assert segments == segments_apart - done_by_kernels
        if separate:  # nothing lies over what is read: wherever it may be done it is
            assert done_by_kernels == {"pyramid": 1, "chain": 2, "shortcut": 1, "two_readers": 0}[form]
    # in one arena only where that is placed so: in a detector's neck always, as the joined image has its place before
    shared = {form: {net["doubled"] for key, net in found.items() if key[0] == form and not key[3]} for form in FORMS}
    assert shared == {"pyramid": {1}, "chain": {0, 1}, "shortcut": {0, 1}, "two_readers": {0}}
    assert told["right"] == ["", ""]
    assert all("step 'Conv_3' (ConvI8) gives other bits" in said for said in told["planted"]), told["planted"]
