"""A board whose files say no: EAGAIN of a gated cv zone, EIO of a GPU zone, EBUSY and EINVAL of writes, by FUSE."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    script = Path(__file__).with_name("over_fuse.py")
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", sys.executable,
               str(script), str(tmp_path_factory.mktemp("fuse"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_a_gated_cv_zone_is_no_alarm(told: dict[str, Any]) -> None:
    assert told["cv"] == errno.EAGAIN, "as on a board"
    assert told["well"] == {"faults": [], "hot": None, "level": "free",
                            "zones": ["cpu", "gpu", "soc0", "soc1", "soc2", "tj"]}


def test_a_gpu_zone_that_cannot_be_read_is_one_under_load_only(told: dict[str, Any]) -> None:
    assert told["gated in idle"] == {**told["well"], "zones": ["cpu", "soc0", "soc1", "soc2", "tj"]}
    loaded = told["gated under load"]
    assert loaded["hot"] == "GPU temperature lost" and loaded["level"] == "hot"
    assert "taken for hot: GPU temperature lost" in loaded["faults"]


def test_a_refused_write_is_reported(told: dict[str, Any]) -> None:
    path = "/sys/class/devfreq/17000000.gpu/max_freq"
    assert told["refused"]["faults"] == [f"GPU cap: {path}: cannot be written: EINVAL (Invalid argument)"]
    assert told["mask"].endswith("tpc_pg_mask: cannot be written: EBUSY (Device or resource busy)")
    assert told["cap"].endswith("max_freq: cannot be written: EINVAL (Invalid argument)")
