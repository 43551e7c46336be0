"""What engines will hold, as a reload is checked against it: which of them there are, and on which device."""

from __future__ import annotations

from typing import Any

import pytest
from stand_ins import config

from orind.daemon import footprint
from orind.daemon.candidate import Candidate
from orind.daemon.footprint import CONTEXT_BYTES, ENGINE_BYTES, MIB
from orind.daemon.plans import ServedPlan
from orind.ipc.errors import IpcError
from orind.kernels.model import Interface
from orind.kernels.spec import ModelSpec

SPEC, INTERFACE = ModelSpec.for_tensor("m"), Interface("uint8", (4,), 4, 1, (4,))
PLAN = ServedPlan("m", -1, "m.plan", "00", 1, SPEC, INTERFACE, 30 * MIB, 50 * MIB)
ON_GPU = ENGINE_BYTES + CONTEXT_BYTES + (30 + 50 + 64) * MIB


def candidate(device: str = "cpu", last_resort: str = "none", second: str = "") -> Candidate:
    standby: dict[str, Any] = {"last_resort": last_resort, **({"device": second} if second else {})}
    changes = {"engine": {"device": device}, "standby": standby, "memory": {"emergency_reserve_mib": 64}}
    return Candidate(config(**changes), [PLAN], None)


def test_on_the_cpu_neither_context_nor_reserve_nor_weights_of_a_gpu_count() -> None:
    found = footprint.of_engines(candidate())
    assert (found.each, found.last_resort) == (ENGINE_BYTES + 30 * MIB, 0)
    assert str(found) == "2 x 50 MiB and 1 MiB for results"


@pytest.mark.parametrize(("device", "second"), [("cuda", ""), ("cuda:0", ""), ("cuda:1", ""), ("cuda:0", "cuda:1")])
def test_a_gpu_counts_as_one_whatever_its_number(device: str, second: str) -> None:
    assert footprint.of_engines(candidate(device, second=second)).each == ON_GPU


def test_the_last_resort_counts_beside_the_pair() -> None:
    found, pair = footprint.of_engines(candidate("cuda:1", "cpu")), footprint.of_engines(candidate("cuda:1"))
    assert found.each == pair.each and found.last_resort == ENGINE_BYTES + 30 * MIB
    assert 2 * found.results == 3 * pair.results
    footprint.check(candidate("cuda:1"), found.total - 1)
    with pytest.raises(IpcError, match="2 x 364 MiB, 50 MiB for one on the CPU and 1 MiB for results beside"):
        footprint.check(candidate("cuda:1", "cpu"), found.total - 1)
