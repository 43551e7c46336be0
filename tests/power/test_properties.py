"""Properties of the governor over random plants (every constant +-30 %), loads and faults, on all modules."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise
from typing import Any

from closed_loop import BUDGETS_W, Loop, facts_of, new_loop
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.power.budget import NOTHING, Asked, Outside
from orind.power.ladder import Rung
from orind.power.plant.constants import PlantConstants, ZoneConstants
from orind.power.plant.modules import MODULES

SETTLE = 60 * 10  # ticks in which a plant that is 30 % off is learned
FIXED = ("tpcs", "powered_tpcs", "gpu_top_mhz", "cpu_top_mhz", "emc_top_mhz", "window_ms", "traffic_fixed",
         "leak_reference_c")
FAULTS = ("none", "lost", "absurd", "stuck", "refused", "reset", "fan")


def _vary(constants: PlantConstants, r: random.Random) -> PlantConstants:
    """Every number of the plant within +-30 %; what is a label, a table, or defines the others' unit stays."""
    changed: dict[str, object] = {f.name: getattr(constants, f.name) * r.uniform(0.7, 1.3)
                                  for f in dataclasses.fields(constants)
                                  if type(getattr(constants, f.name)) in (int, float) and f.name not in FIXED}
    changed["zones"] = {name: ZoneConstants(*(value * r.uniform(0.7, 1.3) for value in dataclasses.astuple(zone)))
                        for name, zone in constants.zones.items()}
    return dataclasses.replace(constants, **changed)  # type: ignore[arg-type]


def _make(name: str, seed: int, **policy: Any) -> Loop:
    r = random.Random(seed)
    return new_loop(_vary(MODULES[name].constants, r), r.uniform(20, 45), seed, name=name, **policy)


def _policy(name: str, kind: str, r: random.Random) -> dict[str, Any]:
    """A policy of a kind that the module's facts do not contradict."""
    facts = facts_of(name)
    clocks = MODULES[name].gpu_table_hz
    least = facts.model.idle_mw + facts.model.dynamic_mw(clocks[0], 1.0, facts.model.leak_reference_c)
    budget_w = r.uniform(least / 1000 + 1.0, facts.module_max_mw / 1000)
    fits = [hz for hz in clocks if facts.model.idle_mw + facts.model.dynamic_mw(hz, 1.0, 60.0) < budget_w * 1000]
    more: dict[str, dict[str, Any]] = {
        "plain": {},
        "steady": {"steady": True},
        "lowest": {"gpu_min_mhz": r.choice(fits) / 1e6, "cpu_min_mhz": r.uniform(500, 1500)},
        "rail": {"rail_limits_w": {facts.rails[r.randrange(2)]: r.uniform(2.0, budget_w)}},
        "zone": {"zone_limits_c": {r.choice(["cpu", "soc0", "soc1", "soc2"]): r.uniform(60, 80)}},
        "tight": {},
        "deadline": {},
    }
    if kind == "tight":
        budget_w = r.uniform(facts.model.idle_mw / 1000 + 0.5, least / 1000 + 1.0)
    return {"budget_w": round(budget_w, 2), **more[kind]}


def _over_for(loop: Loop, begin: int, budget_w: float = 0.0, end: int | None = None) -> int:
    """Longest run of ticks whose sliding mean over a second lies above budget + 1.5 W."""
    limit, longest, now = (budget_w or loop.policy.budget_mw / 1000) + 1.5, 0, 0
    power = loop.trace.power_w[begin:end]
    for mean in (sum(power[i:i + 10]) / 10 for i in range(len(power) - 9)):
        now = now + 1 if mean > limit else 0
        longest = max(longest, now)
    return longest


NAMES = st.sampled_from(sorted(BUDGETS_W))
SEEDS = st.integers(0, 2**32)


@given(NAMES, SEEDS)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_stationary_load_stays_on_two_neighbouring_steps_within_the_budget(name: str, seed: int) -> None:
    loop = _make(name, seed)
    loop.run(130, lambda _: 1.0)
    steps, power = loop.trace.step, loop.trace.power_w
    assert all(max(steps[i:i + 10]) - min(steps[i:i + 10]) <= 1 for i in range(SETTLE, len(steps) - 9))
    budget, mean = loop.policy.budget_mw / 1000, sum(power[-300:]) / 300
    top, bottom = steps[-300:].count(len(loop.board.gpu_clocks_hz()) - 1) == 300, steps[-300:].count(0) == 300
    warm = any(r.decision.limits.level == "warm" for r in loop.trace.reports[-300:])
    assert abs(mean - budget) <= 0.5 or (mean < budget and (top or warm)) or (
        bottom and loop.board.limits is not None and loop.board.limits.level == "over_budget")
    if not bottom:
        assert _over_for(loop, SETTLE) <= 10
    assert max(loop.trace.tj_c) <= 86
    assert loop.steward.close() and loop.board.cap_hz == loop.board.gpu_clocks_hz()[-1]


@given(NAMES, SEEDS, st.sampled_from(FAULTS), st.sampled_from(["tj", "gpu", "total"]))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_limits_hold_under_random_loads_and_faults(name: str, seed: int, fault: str, what: str) -> None:
    r = random.Random(seed)
    loop = _make(name, seed)
    on_s, off_s = r.uniform(0.5, 20), r.uniform(0.3, 10)
    loop.run(80, lambda t: float(t % (on_s + off_s) < on_s))
    lowest_fits = loop.board.limits is not None and loop.board.limits.level != "over_budget"
    loop.run(5, lambda _: 1.0)
    label = next(iter(loop.board.model.constants.rails)) if what == "total" else what
    faults = loop.board.faults
    if fault == "lost":
        faults.missing.add(label)
    elif fault == "absurd":
        faults.forced["tj"] = r.choice([-62_000, 0, 125_000])
    elif fault == "stuck":
        faults.stuck.add(label)
    elif fault == "refused":
        faults.refuse_writes = True
    elif fault == "reset":
        loop.board.cap_hz = loop.board.gpu_clocks_hz()[-1]
    elif fault == "fan":
        loop.board.model.fan_works = False
    loop.run(1, lambda _: 1.0)
    limits = loop.board.limits
    assert limits is not None and limits.reason and limits.expires_ns is not None
    if fault in ("lost", "absurd"):
        assert limits.level == "hot" and limits.pace_hz == loop.policy.lowest_pace_hz and limits.batch_max == 1
        assert loop.board.cap_hz == loop.board.gpu_clocks_hz()[0]
    loop.run(30, lambda t: float(t % 3 < 2))
    faults.missing.clear()
    faults.forced.clear()
    faults.stuck.clear()
    faults.refuse_writes = False
    loop.board.model.fan_works = True
    begin = len(loop.trace.power_w)
    loop.run(15, lambda _: 1.0)
    if lowest_fits:
        assert loop.board.limits is not None and loop.board.limits.level in ("free", "warm"), "well again"
        assert _over_for(loop, begin + 50) <= 10
    assert max(loop.trace.tj_c) < 99 and not loop.board.kernel.throttled
    assert loop.steward.close() and loop.board.cap_hz == loop.board.gpu_clocks_hz()[-1]


KINDS = ("plain", "steady", "lowest", "rail", "zone", "tight", "deadline")
CYCLES = 4_000_000  # of a frame


@given(NAMES, SEEDS, st.sampled_from(KINDS))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_every_kind_of_policy_keeps_its_limits_under_changes_of_budget(name: str, seed: int, kind: str) -> None:
    r = random.Random(seed)
    loop = _make(name, seed, **_policy(name, kind, r))
    needed_hz = r.choice(loop.board.gpu_clocks_hz())
    told = NOTHING if kind != "deadline" else Outside(
        frame=Asked(CYCLES, 10**18, "test"), deadline=Asked(needed_hz, 10**18, "test"))

    def load(_: float) -> float:
        """As much as is allowed: main's frames wait for their pace."""
        pace_hz = None if loop.board.limits is None else loop.board.limits.pace_hz
        return 1.0 if pace_hz is None or kind != "deadline" else min(pace_hz * CYCLES / loop.board.cap_hz, 1.0)

    loop.steward._look_outside = lambda: told
    loop.run(80, load)
    lower_w = r.uniform(0.7, 1.0) * loop.policy.budget_mw / 1000
    for begin, watts in ((600, loop.policy.budget_mw / 1000), (800, lower_w), (900, loop.policy.budget_mw / 1000)):
        if begin > 600:
            asked = dataclasses.replace(told, budget=Asked(round(watts * 1000), 10**18, "test"))
            loop.steward._look_outside = lambda asked=asked: asked
            loop.run(10, load)
        reports = loop.trace.reports[begin:]
        if kind == "deadline" or all(r.decision.rung < Rung.PACING for r in reports):
            # another clock, and the CPUs' rung, are learned anew on a plant whose exponents are 30 % off; that a right
            # one is held within a second is in test_budget.py
            assert _over_for(loop, begin, watts, begin + 100) <= 40
        if kind == "steady":
            assert all(r.decision.gpu_min_hz == r.decision.gpu_cap_hz for r in reports)
    decisions = [r.decision for r in loop.trace.reports]
    assert all(abs(after.rung - before.rung) <= 1 for before, after in pairwise(decisions)), "no rung is skipped"
    moves = [after.rung - before.rung for before, after in pairwise(decisions[600:800]) if after.rung != before.rung]
    assert sum(before != after for before, after in pairwise(moves)) <= 1, "no flapping under a steady load"
    for index in range(600, 791):
        steps = loop.trace.step[index:index + 10]
        assert max(steps) - min(steps) <= 1
    assert max(loop.trace.tj_c[600:]) < 86 and not loop.board.kernel.throttled
    floor_hz = loop.policy.gpu_min_hz
    for decision in decisions:
        assert decision.gpu_cap_hz >= floor_hz or decision.short or decision.limits.level == "hot"
    top = loop.board.permitted().cpu_top_khz
    assert loop.steward.close() and loop.board.cap_hz == loop.board.gpu_clocks_hz()[-1]
    assert (loop.board.cpu_cap_khz, loop.board.min_hz) == (top, loop.board.gpu_clocks_hz()[0])
