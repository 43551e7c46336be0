"""What deadlines need of the GPU's clock, from fresh measurements only; and that the steward is told, and obeyed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from line import Line
from stand_ins import MS, S
from steward_link import SECTION, Link, told

from orind.daemon.batcher import BELIEVED_NS, WAKE_NS, ServiceTimes
from orind.daemon.deadline_floor import floor_of, frame_cycles
from orind.power.limits import Limits

HZ = 600_000_000
PLANS: Any = {name: SimpleNamespace(sha256=name, sizes=(1, 4)) for name in ("fast", "slow")}
DEADLINES = {"fast": 30 * MS + WAKE_NS, "slow": 60 * MS + WAKE_NS}


def measured(**ms: float) -> ServiceTimes:
    """Long enough for the bound to be the mean."""
    times = ServiceTimes()
    for _ in range(200):
        for name, took in ms.items():
            times.learn(name, 1, HZ, int(took * MS), 5 * S)
    return times


def test_the_floor_is_the_clock_at_which_the_tightest_deadline_is_just_met() -> None:
    floor = floor_of(DEADLINES, PLANS, measured(fast=10, slow=30), HZ, 5 * S)
    assert floor is not None and floor.model == "slow" and floor.value == pytest.approx(HZ / 2, rel=0.01)
    floor = floor_of(DEADLINES, PLANS, measured(fast=40, slow=30), HZ, 5 * S)
    assert floor is not None and floor.model == "fast" and floor.value == pytest.approx(HZ * 4 / 3, rel=0.01)


def test_what_was_not_measured_lately_makes_no_floor() -> None:
    times = measured(slow=30)
    assert floor_of(DEADLINES, PLANS, times, HZ, 5 * S + BELIEVED_NS + 1) is None
    assert floor_of(DEADLINES, PLANS, ServiceTimes(), HZ, 5 * S) is None
    assert floor_of(DEADLINES, PLANS, times, 0, 5 * S) is None, "no clock is known"
    assert floor_of({}, PLANS, times, HZ, 5 * S) is None, "every camera is best effort"


def test_a_frame_takes_the_cycles_of_the_slowest_model_measured_lately() -> None:
    times = measured(fast=10, slow=30)
    found = frame_cycles(PLANS, times, HZ, 5 * S)
    assert found is not None and found.model == "slow" and found.value == pytest.approx(HZ * 0.030, rel=0.01)
    assert frame_cycles(PLANS, times, HZ, 5 * S + BELIEVED_NS + 1) is None
    assert frame_cycles(PLANS, times, 0, 5 * S) is None and frame_cycles({}, times, HZ, 5 * S) is None


# -- from the pipeline to the steward, and back ---------------------------------------------------------------------


@pytest.fixture
def link(tmp_path: Path, no_fd_leak: None) -> Iterator[Link]:
    made = Link(tmp_path)
    made.link.configure({**SECTION, "policy": {"budget_w": 30, "priorities": ["cam"]}}, "/plant")
    made.turn()
    yield made
    made.close()


def test_the_steward_is_told_once_a_second(link: Link) -> None:
    line = Line()
    line.engine()
    with link.steward() as steward:
        told(steward)
        steward.send(json.dumps({"report": {"gpu_cap_hz": HZ}}).encode())
        link.turn()
        name, plan = next(iter(line.pipeline.serving.plans.items()))
        for _ in range(200):
            line.pipeline.times.learn(plan.sha256, plan.sizes[0], HZ, 20 * MS, link.now)
        assert line.pipeline.active is not None
        link.link.restrain(line.pipeline, link.now)
        line.pipeline.active.device = "cuda"  # of an engine on the CPU nothing was told
        link.now += S
        for _ in range(5):
            link.link.restrain(line.pipeline, link.now)
        asked = told(steward)["asked"]
        deadline, frame = asked["deadline"], asked["frame"]
        assert frame[0] == pytest.approx(HZ * 0.020, rel=0.01) and frame[1:] == deadline[1:]
        tightest = line.pipeline.serving.intake.deadlines_ns()[name]
        assert deadline[0] == pytest.approx(HZ * 20 * MS / (tightest - WAKE_NS), rel=0.01)
        assert deadline[1:] == [link.now + 5 * S, f"model {name}"]
        steward.setblocking(False)
        with pytest.raises(BlockingIOError):
            steward.recv(100)
    line.close()


def test_limits_that_ask_for_less_reach_the_levels_and_the_queues(link: Link) -> None:
    line = Line()
    with link.steward() as steward:
        for limits in (Limits(link.now + 10**12, 1, 5.0, "over_budget", "too warm", True),
                       Limits(link.now + 10**12, 8, None, "free", "fine")):
            steward.send(json.dumps({"limits": limits.to_json()}).encode())
            link.turn()
            link.link.restrain(line.pipeline, link.now)
            scarce = limits.degrade
            assert line.pipeline.relief.asked == ("too warm" if scarce else "")
            assert line.pipeline.queues.places == ({"cam": 0} if scarce else {})
    line.close()
