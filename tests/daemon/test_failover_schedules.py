"""Random schedules of faults over the real machine, generation and pipeline in simulated time (failover_world.py).

A sample of them by default; by hand as many as wanted, beginning anywhere, one of them with the daemon's log;
from a hundred on, everything that can happen must have happened:
ORIND_SCHEDULES=10000 ORIND_FIRST_SCHEDULE=0 scripts/test tests/daemon/test_failover_schedules.py
"""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest
from failover_world import World

from orind.daemon.faults import Fault

SCHEDULES, FIRST = int(os.environ.get("ORIND_SCHEDULES", "100")), int(os.environ.get("ORIND_FIRST_SCHEDULE", "0"))


def test_every_trigger_has_one_outcome_whatever_happens_to_the_engines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO if SCHEDULES == 1 else logging.CRITICAL, "orind")
    met: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + SCHEDULES):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"schedule {seed}, {world.now / 1e9:.3f} s: {error}") from error
        met.update(order.fault.value for _, order in world.fences)
        met.update(outcome for outcome, _ in world.answers.values())
        met["failed"] += bool(world.generation.machine.failed)
        met["renewals"] += world.renewals
        met["reloads"] += world.generation.number - 1
    print(f"{SCHEDULES} schedules: {dict(met)}")
    happened = {"ok", "degraded", "error", "expired", "failed", "reloads", "renewals"}
    if SCHEDULES >= 100:
        assert {fault.value for fault in Fault} | happened <= set(met)
