"""The simulated line: frames are conserved, the daemon's batch rule and the limits hold, times follow the clock."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.daemon import prediction
from orind.daemon.batcher import Adaptive, Rule
from orind.daemon.simulate_line import Counts, LineRules, SimulatedLine, arrivals
from orind.daemon.simulate_times import PlanTimes, StatedTimes
from orind.daemon.trace_file import Series
from orind.kernels.ir.program import programs_from_text
from orind.kernels.perf.model import costs
from orind.kernels.plan.file import PlanFile
from orind.power.limits import Limits
from orind.power.plant.modules import AGX_ORIN

MS, S = 1_000_000, 1_000_000_000
TOP_HZ = 1_300_500_000
STEP = 50 * MS
ONE = Rule(1, 0)


def _line(rate: float, deadline_ms: int = 100, rule: Rule = ONE, slots: int = 32, frame_ms: float = 10.0,
          depth: int = 2) -> SimulatedLine:
    times = StatedTimes(frame_ms, TOP_HZ / 1e6, rule.max_size)
    return SimulatedLine({"a": Series((0.0,), (rate,))}, {"a": deadline_ms * MS}, times, LineRules(rule, depth, slots),
                         S, 7)


def _run(line: SimulatedLine, seconds: float, clock_hz: float = TOP_HZ, cap_hz: int = TOP_HZ,
         begin_ns: int = S) -> list[tuple[float, float]]:
    return [line.run(begin_ns + n * STEP, STEP, clock_hz, cap_hz) for n in range(round(seconds * S / STEP))]


def _whole(counts: Counts, waiting: int) -> bool:
    return counts.offered == counts.answered + counts.expired + counts.dropped + waiting


def test_a_line_that_is_not_full_answers_everything_and_is_busy_as_it_must_be() -> None:
    line = _line(40.0)
    told = _run(line, 60)
    assert line.counts.answered == line.counts.offered - line.waiting
    assert line.counts.expired == line.counts.dropped == 0
    assert abs(line.counts.offered - 2400) <= 1 and line.waiting <= 1
    assert sum(busy for busy, _ in told) / len(told) == pytest.approx(40 * 0.010, rel=0.01)
    assert all(demand == pytest.approx(busy, abs=0.21) for busy, demand in told), "at the cap both are the same work"


@pytest.mark.parametrize("clock_hz", [TOP_HZ, TOP_HZ / 2])
def test_a_line_that_is_too_full_answers_what_the_clock_allows(clock_hz: float) -> None:
    line = _line(150.0)
    told = _run(line, 100, clock_hz)
    assert line.counts.answered == pytest.approx(100 / 0.010 * clock_hz / TOP_HZ, rel=0.01)
    assert line.counts.expired > 0 == line.counts.dropped and line.counts.paced == 0
    assert all(busy == 1.0 for busy, _ in told[20:]) and _whole(line.counts, line.waiting)


def test_without_a_slot_a_frame_is_dropped() -> None:
    line = _line(150.0, deadline_ms=1000, slots=4)
    _run(line, 10)
    assert line.counts.dropped > 400 and line.counts.expired == 0 and line.waiting <= 4
    assert _whole(line.counts, line.waiting)


def test_pacing_is_obeyed_and_ends_at_once() -> None:
    line = _line(40.0)
    line.obey(Limits(None, 1, 5.0, "hot", "test"))
    _run(line, 20)
    assert line.counts.answered == pytest.approx(100, abs=3)
    assert line.counts.paced == line.counts.expired > 600 and _whole(line.counts, line.waiting)
    line.obey(Limits(None, 8, None, "free", "test"))
    before = line.counts.expired
    _run(line, 10, begin_ns=21 * S)
    assert line.counts.expired - before <= 8 and _whole(line.counts, line.waiting)


@pytest.mark.parametrize(("allowed", "largest"), [(8, 4), (2, 2)])
def test_batches_are_as_large_as_rule_and_limits_allow(allowed: int, largest: int) -> None:
    line = _line(90.0, rule=Rule(4, None), deadline_ms=300)
    line.obey(Limits(None, allowed, None, "free", "test"))
    sizes = set()
    for n in range(400):
        line.run(S + n * STEP, STEP, TOP_HZ, TOP_HZ)
        sizes |= {len(batch.frames) for batch in line._engine}
    assert max(sizes) == largest and line.counts.expired == 0


def test_a_board_that_is_off_answers_nothing_and_loses_no_count() -> None:
    line = _line(40.0)
    _run(line, 1)
    answered = line.counts.answered
    assert _run(line, 5, clock_hz=0.0, begin_ns=2 * S)[-1] == (0.0, 0.0)
    assert line.counts.answered == answered and line.counts.expired > 150 and _whole(line.counts, line.waiting)


def test_work_left_over_is_demand() -> None:
    line = _line(30.0, deadline_ms=1000, frame_ms=30)
    busy, demand = _run(line, 2, clock_hz=TOP_HZ / 4)[-1]
    assert busy == 1.0 and demand == 1.0, "at the cap it would take 0.9, and more is waiting in the engine"


RULES = st.sampled_from([Rule(1, 0), Rule(4, None), Rule(8, 5 * MS), Rule(8, 20 * MS, Adaptive(2, 8, MS))])


@given(st.integers(0, 2**32), RULES, st.integers(1, 3), st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_frames_are_conserved_at_every_step(seed: int, rule: Rule, depth: int, slots: int) -> None:
    r = Random(seed)
    load = {name: Series((0.0, r.uniform(0.1, 2)), (r.uniform(0, 200), r.uniform(0, 200)), r.choice([0.0, 3.0]))
            for name in ("a", "b", "c")[: r.randint(1, 3)]}
    deadlines = {name: r.randint(5, 300) * MS for name in load}
    line = SimulatedLine(load, deadlines, StatedTimes(r.uniform(1, 40), 1300.5, rule.max_size),
                         LineRules(rule, depth, slots), S, seed)
    for n in range(80):
        if n % 2 == 0:
            line.obey(Limits(None, r.choice([1, 2, 64]), r.choice([None, None, 5.0, 50.0]), "free", "test"))
        clock_hz = r.choice([0.0, *AGX_ORIN.gpu_table_hz]) if r.random() < 0.1 else r.choice(AGX_ORIN.gpu_table_hz)
        busy, demand = line.run(S + n * STEP, STEP, clock_hz, TOP_HZ)
        assert 0.0 <= busy <= 1.0 and 0.0 <= demand <= 1.0
        assert _whole(line.counts, line.waiting) and line.waiting <= slots
        assert line.counts.paced <= line.counts.expired


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_as_many_frames_come_as_the_trace_says(seed: int) -> None:
    r = Random(seed)
    at_s = sorted({round(r.uniform(0, 20), 3) for _ in range(r.randint(1, 6))})
    series = Series(tuple(at_s), tuple(r.choice([0.0, r.uniform(0, 90)]) for _ in at_s), r.choice([0.0, 21.5]))
    wanted, end_s, at, rate = 0.0, 60.0, 0.0, 0.0
    for from_s, value in takewhile(lambda step: step[0] < end_s, series.steps()):
        wanted += rate * (from_s - at)
        at, rate = from_s, value
    wanted += rate * (end_s - at)
    came = list(takewhile(lambda at_ns: at_ns < 61 * S, arrivals(series, r.random(), S))) if any(series.values) else []
    assert abs(len(came) - wanted) <= 1 and came == sorted(came)


# -- how long a batch takes ---------------------------------------------------------------------------------------


def test_a_stated_time_goes_with_the_period_of_the_clock() -> None:
    times = StatedTimes(8, 1300.5, 4)
    assert times.sizes == (1, 2, 3, 4) and times.at(TOP_HZ) == {1: 8 * MS, 2: 16 * MS, 3: 24 * MS, 4: 32 * MS}
    assert times.at(TOP_HZ / 2)[1] == 16 * MS and "stated: 8 ms a frame at 1300.5 MHz" in times.what
    for n in range(600):
        assert times.at(1e9 + n)[1] > 0


def test_a_plans_time_is_the_time_models_at_each_clock(identity_plan: Path) -> None:
    with PlanFile.open_path(identity_plan) as plan:
        programs = programs_from_text(plan.metadata["program"])
    device = prediction.devices("agx-orin:MAXN")[0]
    table = AGX_ORIN.gpu_table_hz
    times = PlanTimes("identity.plan", programs, device, table)
    for hz in (table[0], table[4], table[-1]):
        assert times.at(hz) == {n: round(costs(program, device.at(gpu_hz=hz)).ns) for n, program in programs.items()}
    between = times.at((table[3] + table[4]) / 2)[1]
    assert times.at(table[4])[1] < between < times.at(table[3])[1] < times.at(table[0] / 2)[1]
    assert "a model's prediction, not a measurement" in times.what and "agx-orin:MAXN" in times.what
    for n in range(600):
        assert times.at(5e8 + n)[1] > 0
