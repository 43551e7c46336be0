"""The rungs above the GPU's clock: one at a time, no flapping, everything given back; floors and what cannot be had; a
pinned clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.power.actuators import Caps
from orind.power.board import BoardFacts
from orind.power.budget import Asked, Outside
from orind.power.cpu_clock import CpuClock, Permitted
from orind.power.ladder import Ladder, Need, Rung, wanted
from orind.power.lower_mode import mode_that_holds
from orind.power.plant.board import PlantBoard
from orind.power.steady import SteadyStep

Make = Callable[..., Any]
S, TICK = 10**9, 10**8
FITS = Need(5_000, 9_000, True, False, False)
SHORT = Need(-500, 1_000, True, False, False)
LEAST = Need(-3_000, -500, True, False, False)
OVER = Need(5_000, 9_000, True, True, True)


def _full(_: float) -> float:
    return 1.0


def climb(ladder: Ladder, need: Need, seconds: float, begin_ns: int) -> list[Rung]:
    return [ladder.climb(need, begin_ns + i * TICK) for i in range(round(seconds * 10))]


@pytest.mark.parametrize(("need", "rung", "then"), [
    (FITS, Rung.GPU_CLOCK, Rung.GPU_CLOCK),
    (SHORT, Rung.GPU_CLOCK, Rung.CPU_CLOCK),
    (SHORT._replace(cpu_helps=False), Rung.GPU_CLOCK, Rung.GPU_CLOCK),
    (LEAST, Rung.GPU_CLOCK, Rung.CPU_CLOCK),
    (LEAST, Rung.CPU_CLOCK, Rung.PACING),
    (LEAST, Rung.PACING, Rung.MODE),
    (LEAST, Rung.MODE, Rung.MODE),
    (LEAST, Rung.DEGRADATION, Rung.MODE),
    (OVER, Rung.MODE, Rung.DEGRADATION),
    (OVER._replace(now_over=False), Rung.PACING, Rung.PACING),
    (FITS._replace(floor_spare=499.0), Rung.CPU_CLOCK, Rung.CPU_CLOCK),
    (FITS._replace(floor_spare=501.0), Rung.CPU_CLOCK, Rung.GPU_CLOCK),
])
def test_the_rung_that_suffices(need: Need, rung: Rung, then: Rung) -> None:
    assert wanted(rung, need) is then


def test_each_rung_is_given_its_time_and_left_one_at_a_time() -> None:
    ladder = Ladder()
    up = climb(ladder, OVER, 30, S)
    assert [up.index(rung) for rung in Rung if rung] == [0, 10, 110, 210]
    down = climb(ladder, FITS, 10, 40 * S)
    assert [down.index(rung) for rung in (Rung.MODE, Rung.PACING, Rung.CPU_CLOCK, Rung.GPU_CLOCK)] == [20, 40, 60, 80]


def test_who_comes_back_soon_waits_longer_to_leave() -> None:
    ladder, now, stays = Ladder(), S, []
    for _ in range(8):
        climb(ladder, SHORT, 1, now)
        now += S
        left = climb(ladder, FITS, 70, now).index(Rung.GPU_CLOCK)
        stays.append(left // 10)
        now += (left + 1) * TICK
    assert stays == [2, 4, 8, 16, 32, 64, 64, 64]
    climb(ladder, SHORT, 1, now + 60 * S)
    assert climb(ladder, FITS, 70, now + 61 * S).index(Rung.GPU_CLOCK) == 20, "after a minute it is forgotten"


@given(st.lists(st.tuples(st.sampled_from([FITS, SHORT, LEAST, OVER]), st.integers(1, 80)), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_no_rung_is_ever_skipped(phases: list[tuple[Need, int]]) -> None:
    ladder, now, seen = Ladder(), S, [Rung.GPU_CLOCK]
    for need, ticks in phases:
        seen += climb(ladder, need, ticks / 10, now)
        now += ticks * TICK
    assert all(abs(after - before) <= 1 for before, after in pairwise(seen))
    assert climb(ladder, FITS, 300, now)[-1] is Rung.GPU_CLOCK


# -- on the plant ---------------------------------------------------------------------------------------------------


def test_the_cpus_give_way_before_frames_are_paced(make_loop: Make) -> None:
    loop = make_loop(budget_w=14.5, seed=2)
    loop.run(60, _full)
    assert {r.decision.rung for r in loop.trace.reports[-300:]} == {Rung.CPU_CLOCK}
    assert loop.board.cpu_cap_khz < loop.board.permitted().cpu_top_khz and loop.board.limits.level == "free"
    assert abs(sum(loop.trace.power_w[-300:]) / 300 - 14.5) < 0.5 or loop.trace.step[-300:].count(0) == 300
    assert len({r.decision.cpu_cap_khz for r in loop.trace.reports[-300:]}) == 1, "it does not flap"
    loop.steward._look_outside = lambda: Outside(budget=Asked(14_000, 0, "nobody any more"))
    loop.steward.close()
    assert loop.board.cpu_cap_khz == loop.board.permitted().cpu_top_khz


def test_cpus_that_do_not_obey_lead_further_up(make_loop: Make) -> None:
    loop = make_loop(budget_w=14.5, seed=2)
    loop.board.set_cpu_max = lambda khz: None
    loop.run(40, _full)
    assert loop.trace.reports[-1].decision.rung >= Rung.PACING and loop.board.limits.level == "over_budget"


def test_power_that_obeys_nothing_leads_to_the_last_rung_and_back(make_loop: Make) -> None:
    loop = make_loop(seed=2)
    loop.run(20, _full)
    loop.board.model.extra_w = 25.0
    loop.run(60, _full)
    assert loop.board.limits.degrade and loop.trace.reports[-1].decision.rung is Rung.DEGRADATION
    assert "no live mode is known to hold it" in loop.board.limits.reason
    loop.board.model.extra_w = 0.0
    loop.run(60, _full)
    assert loop.board.limits.level == "free" and not loop.board.limits.degrade
    rungs = [r.decision.rung for r in loop.trace.reports]
    assert all(abs(after - before) <= 1 for before, after in pairwise(rungs))
    assert loop.board.cpu_cap_khz == loop.board.permitted().cpu_top_khz


def test_heat_that_stays_asks_main_to_leave_something_out(make_loop: Make) -> None:
    loop = make_loop(ambient_c=75.0, seed=2)
    loop.run(200, _full)
    hot = [r.decision.limits for r in loop.trace.reports if r.decision.limits.level == "hot"]
    assert hot and not hot[0].degrade and any(limits.degrade for limits in hot)


# -- floors ---------------------------------------------------------------------------------------------------------


def test_the_lowest_clock_holds_while_the_budget_allows_it(make_loop: Make) -> None:
    loop = make_loop(budget_w=30, gpu_min_mhz=612, seed=2)
    loop.run(60, _full)
    clocks = loop.board.gpu_clocks_hz()
    assert min(loop.trace.step[50:]) >= clocks.index(612_000_000)
    loop.steward._look_outside = lambda: Outside(budget=Asked(18_000, 10**18, "test"))
    loop.run(60, _full)
    last = loop.trace.reports[-1].decision
    assert last.short == "gpu_min_mhz of 612 MHz cannot be met within 18 W" and last.short in last.limits.reason
    assert abs(sum(loop.trace.power_w[-300:]) / 300 - 18) < 0.5, "the budget is held, and it is said"
    assert last.rung is Rung.CPU_CLOCK, "the CPUs gave way first"


def test_the_kernel_does_not_go_below_the_lowest_clock_either(make_loop: Make) -> None:
    """Under a light load it would, and every frame would begin too slow."""
    loop = make_loop(budget_w=30, gpu_min_mhz=600, seed=2)
    loop.run(20, lambda _: 0.05)
    clocks = {r.readings.gpu_hz for r in loop.trace.reports[10:]}
    assert loop.board.min_hz == 612_000_000 and clocks == {612_000_000}
    loop.steward._look_outside = lambda: Outside(budget=Asked(14_000, 10**18, "test"))
    loop.run(20, _full)
    assert loop.board.min_hz == loop.board.cap_hz < 612_000_000, "nor is the cap below what is pinned"
    loop.steward._governor.adopt(make_loop(budget_w=30).policy)
    loop.run(20, lambda _: 0.05)
    assert loop.board.min_hz == loop.board.gpu_clocks_hz()[0] == loop.trace.reports[-1].readings.gpu_hz


def test_the_cpus_give_way_to_the_lowest_clock(make_loop: Make) -> None:
    loop = make_loop(budget_w=25, gpu_min_mhz=612, seed=2)
    loop.run(20, _full)
    loop.steward._look_outside = lambda: Outside(budget=Asked(23_000, 10**18, "test"))
    loop.run(40, _full)
    last = loop.trace.reports[-1].decision
    assert last.rung is Rung.CPU_CLOCK and not last.short
    assert loop.trace.step[-1] == loop.board.gpu_clocks_hz().index(612_000_000)
    assert sum(loop.trace.power_w[-200:]) / 200 <= 23.2


def test_the_clock_that_deadlines_need_counts_until_it_is_old(make_loop: Make) -> None:
    loop = make_loop(seed=2)
    until = 30 * S
    loop.steward._look_outside = lambda: Outside(budget=Asked(20_000, 10**18, "x"),
                                                 deadline=Asked(650_000_000, until, "parts"))
    loop.run(20, _full)
    assert loop.trace.reports[-1].decision.short == "deadline floor of 650 MHz cannot be met within 20 W"
    loop.run(15, _full)
    assert loop.trace.reports[-1].decision.short == ""


def test_heat_is_stronger_than_any_floor(make_loop: Make) -> None:
    loop = make_loop(ambient_c=58.0, budget_w=50, gpu_min_mhz=1020, fan="quiet", seed=2)
    loop.run(600, _full)
    assert max(loop.trace.tj_c) <= 85.2
    short = {r.decision.short for r in loop.trace.reports}
    assert "gpu_min_mhz of 1020 MHz cannot be met" in short


class Paced:
    """Frames of so many cycles as fast as the limits let them: what main does, at full load otherwise."""

    def __init__(self, loop: Any, cycles: float) -> None:
        self.loop, self.cycles = loop, cycles

    def __call__(self, _: float) -> float:
        limits = self.loop.board.limits
        if limits is None or limits.pace_hz is None:
            return 1.0
        return min(limits.pace_hz * self.cycles / self.loop.board.cap_hz, 1.0)


@pytest.mark.parametrize(("policy", "deadline_hz"), [({"budget_w": 12.5}, 0), ({"budget_w": 18}, 650_000_000)])
def test_frames_are_paced_as_the_budget_allows_where_their_time_is_known(make_loop: Make, policy: dict[str, float],
                                                                         deadline_hz: int) -> None:
    loop = make_loop(seed=2, **policy)
    cycles = 3_000_000
    outside = Outside(frame=Asked(cycles, 10**18, "parts"),
                      deadline=Asked(deadline_hz, 10**18, "parts") if deadline_hz else None)
    loop.steward._look_outside = lambda: outside
    loop.run(60, Paced(loop, cycles))
    last, seconds = loop.trace.reports[-1].decision, loop.trace.seconds(10)
    assert last.rung in (Rung.PACING, Rung.MODE) and last.limits.pace_hz > 10 * loop.policy.lowest_pace_hz
    assert max(seconds) <= loop.policy.budget_mw / 1000 + 1.5
    assert sum(seconds) / len(seconds) > loop.policy.budget_mw / 1000 - 1, "and not much less"
    if deadline_hz:
        assert last.gpu_cap_hz == 714_000_000 and last.short == "deadline floor of 650 MHz cannot be met within 18 W"


def test_a_pace_that_is_not_kept_gives_the_floor_up_for_a_minute(make_loop: Make) -> None:
    loop = make_loop(budget_w=18, seed=2)
    outside = Outside(frame=Asked(3_000_000, 10**18, "parts"), deadline=Asked(650_000_000, 10**18, "parts"))
    loop.steward._look_outside = lambda: outside
    loop.run(40, _full)
    assert loop.trace.step[-1] < loop.board.gpu_clocks_hz().index(714_000_000)
    assert sum(loop.trace.power_w[-100:]) / 100 <= 18.5


# -- steady ---------------------------------------------------------------------------------------------------------


def test_a_steady_clock_is_pinned_and_does_not_move(make_loop: Make, bursts: Make) -> None:
    loop = make_loop(steady=True, seed=2)
    loop.run(120, bursts(3, 20.0, 5.0))
    assert len(set(loop.trace.step[600:])) == 1
    assert loop.board.min_hz == loop.board.cap_hz
    assert max(loop.trace.seconds(30)) <= 31.5
    clocks, step = loop.board.gpu_clocks_hz(), loop.trace.step[-1]
    above = make_loop(seed=2)
    above.board.cap_hz = clocks[step + 1]
    assert sum(above.board.advance(TICK, lambda _: 1.0) for _ in range(600)) / 600 > 30, "the next one is too much"
    loop.steward.close()
    assert loop.board.min_hz == clocks[0]


def test_steady_goes_down_at_once_and_up_slowly() -> None:
    steady, table = SteadyStep(), [16.0, 18.0, 20.3, 23.1, 26.0]
    assert steady.choose(table, 24.0, 1.0, S) == 3
    assert steady.choose(table, 19.0, 1.0, S + TICK) == 1
    ups = [steady.choose(table, 24.0, 1.0, 2 * S + i * TICK) for i in range(300)]
    assert [ups.index(2), ups.index(3)] == [100, 201] and max(ups) == 3
    assert steady.choose(table, 26.2, 1.0, 40 * S) == 3 and steady.choose(table, 26.2, 1.0, 60 * S) == 3, "no room"
    assert steady.force(0, 61 * S) == 0 and steady.choose(table, 26.2, 1.0, 62 * S) == 0


# -- what is not seen on every board --------------------------------------------------------------------------------


def test_a_live_mode_that_would_hold_is_named(agx: BoardFacts) -> None:
    modes = (*agx.modes, dataclasses.replace(agx.modes[0], id=9, name="FEW_CORES", cpus=4),
             dataclasses.replace(agx.modes[0], id=10, name="FEWER_CORES", cpus=2))
    top = 2_201_600

    def named(budget_mw: int, cpu_khz: int, active: int | None = 0, top_khz: int = top,
              cpu_min_khz: int = 729_600) -> str | None:
        mode = mode_that_holds(agx, modes, Permitted(mode_id=active, cpu_top_khz=top_khz), budget_mw, 17_000.0, cpu_khz,
                               cpu_min_khz)
        return None if mode is None else mode.name

    assert named(15_500, top) == "MODE_50W", "12 cores at 1497.6 MHz save more than enough"
    assert named(15_500, top, cpu_min_khz=1_728_000) == "FEW_CORES", "the policy wants the CPUs faster than MODE_50W"
    assert named(16_000, 1_497_600) is None, "the CPUs are at that clock already, and fewer cores do not save a watt"
    assert named(16_500, 1_497_600) == "FEW_CORES"
    assert named(20_000, top, active=None) is None
    assert named(20_000, 0, top_khz=0) is None


def _with_few_cores(plant: PlantBoard) -> None:
    """An integrator's mode in the board's own conf: MAXN with four cores."""
    file = plant.root / "etc/nvpmodel.conf"
    text = file.read_text()
    begin = text.index("< POWER_MODEL ID=0 ")
    maxn = text[begin:text.index("< POWER_MODEL", begin + 1)].replace("ID=0 NAME=MAXN", "ID=9 NAME=FEW_CORES")
    for core in range(4, 12):
        maxn = maxn.replace(f"CPU_ONLINE CORE_{core} 1", f"CPU_ONLINE CORE_{core} 0")
    file.write_text(text[:begin] + maxn + text[begin:])


def test_a_mode_of_the_board_s_own_conf_is_named(plant: PlantBoard, agx: BoardFacts, make_loop: Make,
                                                  tmp_path: Path) -> None:
    """With the CPUs at the policy's lowest clock no mode of our facts helps; MODE_50W would make them slower."""
    _with_few_cores(plant)
    caps = Caps(plant.root, agx, tmp_path / "state.json")
    caps.gpu_clocks_hz()
    loop = make_loop(budget_w=14.5, cpu_min_mhz=1728)
    loop.run(30, _full)
    assert loop.trace.reports[-1].decision.rung is Rung.MODE
    assert loop.trace.reports[-1].decision.mode_wanted is None
    loop.board.permitted = lambda own=loop.board.permitted: dataclasses.replace(own(), modes=caps.permitted().modes)
    loop.run(1, _full)
    assert loop.trace.reports[-1].decision.mode_wanted == "FEW_CORES"
    masked = [dataclasses.replace(mode, fbp_pg_mask=2) if mode.id == 9 else mode for mode in caps.permitted().modes]
    loop.board.permitted = lambda own=loop.board.permitted: dataclasses.replace(own(), modes=masked)
    loop.run(1, _full)
    assert loop.trace.reports[-1].decision.mode_wanted is None, "another mask needs a reboot"


def test_cpus_whose_clock_is_not_ours() -> None:
    assert CpuClock.shares(Permitted(), 729_600) == () and CpuClock.share_held(Permitted()) == 1.0
    few = Permitted((115_200, 192_000), 192_000, 192_000)
    assert CpuClock.shares(few, 729_600) == ((192_000, 1.0),), "all are below the lowest: the highest of them"
