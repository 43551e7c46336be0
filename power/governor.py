"""The governor: readings in, clock caps and limits with a reason out. Pure: no files, no clock of its own.

Called by steward.py once a tick, by the simulator and the tests. Structure (DESIGN section 8): the cap is the clock at
which the *full-load* model meets the budget, in idle too, so that a burst cannot overshoot; feedback goes through the
observer only; sigma-delta between neighbouring steps; heat is a second, smaller budget; a lost sensor is hot. What the
clock alone does not hold, the ladder does. Invariant: every decision has a reason, and whatever is not known leads to
less power, never to more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .board import BoardFacts
from .budget import NOTHING, Outside, Setting, setting_now
from .cpu_clock import UNKNOWN, CpuClock, Permitted
from .dither import Dither
from .floor import Floor, floor_of
from .ladder import Ladder, Need, Rung
from .limits import Limits
from .lower_mode import mode_that_holds
from .observer import Observer
from .overrun import Overrun
from .pacing import Pacing
from .policy import Policy
from .policy_check import check_policy
from .rail_limits import RailLimits
from .sensors import Readings
from .steady import SteadyStep
from .thermal import ThermalBudget
from .trust import SensorTrust

_S = 1_000_000_000
# A step that needs more than the budget by less than this share of the tolerance is taken as it is: changing between it
# and the one below would cost more clock than it saves power, and even latency.
_ROUND_SHARE = 0.1
# What lowering the CPUs' clock must save at least to be worth a slower main.
_CPU_HELPS_MW = 100.0
# Heat at its limit for so long although clock and pacing are at their lowest: main is to leave something out.
_HOT_DEGRADES_NS = 10 * _S


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do until the next tick. `hot` names the sensor fault, if one; powers in mW. None: the clock is not ours
    to set. `mode_wanted`: a live mode that would hold the budget. `short`: what cannot be had together, or ''."""

    gpu_cap_hz: int
    limits: Limits
    reason: str
    target_mw: float
    expected_mw: float | None
    bias_mw: float
    gain: float
    hot: str | None
    setting: Setting
    rung: Rung = Rung.GPU_CLOCK
    gpu_min_hz: int | None = None
    cpu_cap_khz: int | None = None
    mode_wanted: str | None = None
    short: str = ""


class Governor:
    """State of the control loop of one board under one policy at a time."""

    def __init__(self, facts: BoardFacts, policy: Policy) -> None:
        """Raises SettingsError where the board cannot keep the policy."""
        check_policy(policy, facts)
        self._facts = facts
        self._policy = policy
        self._observer = Observer(facts.model, facts.sensor_window_ns)
        self._rails = RailLimits(facts, policy.rail_limits_mw)
        self._stepper = _stepper(policy)
        self._thermal = ThermalBudget(policy.tj_warn_mc, policy.tj_limit_mc, facts.sensor_window_ns)
        self._trust = SensorTrust(facts.model.full_mw)
        self._trust.watch(policy.zone_limits_mc)
        self._overrun = Overrun()
        self._ladder = Ladder()
        self._cpu = CpuClock()
        self._pacing = Pacing()
        self._clocks_hz: tuple[int, ...] = ()
        self._last_ns: int | None = None
        self._last_tj_c = policy.tj_warn_mc / 1000
        self._heat = ""  # what is hottest, in words
        # below the cap at the last look: the kernel's own clock governor (idle, light load) or heat
        self._below_hz: int | None = None
        self._hot_since_ns: int | None = None

    def adopt(self, policy: Policy) -> None:
        """Govern under another policy from the next tick on: what was learned of the board, its heat and its sensors
        stays. Raises SettingsError, with nothing changed."""
        check_policy(policy, self._facts)
        old, self._policy = self._policy, policy
        if (old.steady, old.dwell_ns, old.tick_ns) != (policy.steady, policy.dwell_ns, policy.tick_ns):
            self._stepper = _stepper(policy)
        self._rails.adopt(policy.rail_limits_mw)
        self._trust.watch(policy.zone_limits_mc)

    @property
    def power_doubted(self) -> bool:
        """Whether the board power of the last decision was lost or cannot be true."""
        return self._trust.power_doubted

    def decide(self, seen: Readings, busy: float | None, cap_hz: int, clocks_hz: Sequence[int], now_ns: int,
               permitted: Permitted = UNKNOWN, outside: Outside = NOTHING) -> Decision:
        """One tick. `busy`: share of the time since the last tick that the GPU was busy (None: unknown), `cap_hz`: the
        cap that held in it, `clocks_hz`: the steps allowed now, ascending. Raises ValueError without a step."""
        if not clocks_hz:
            raise ValueError("the governor needs at least one clock step")
        if tuple(clocks_hz) != self._clocks_hz:
            self._clocks_hz = tuple(clocks_hz)
            self._stepper = _stepper(self._policy)
        setting = setting_now(self._policy, outside, now_ns)
        self._thermal.set_limits(setting.tj_warn_mc, setting.tj_limit_mc)
        lasted_ns = 0 if self._last_ns is None else max(now_ns - self._last_ns, 0)
        self._last_ns = now_ns
        tj_c = self._hottest_c(seen, setting.tj_limit_mc)
        hot = self._learn(seen, busy, cap_hz, lasted_ns, tj_c, permitted, now_ns)
        self._overrun.watch(seen.board_mw, setting.budget_mw, self._policy.tolerance_mw, now_ns)
        floor = floor_of(self._policy, self._clocks_hz, outside, now_ns)
        self._pacing.look(self._overrun.over, now_ns)
        # where the time of a frame is known, frames can be paced at the lowest wanted clock; else clocks go below first
        least = floor.index if self._pacing.known(outside.frame, now_ns) else 0
        cpu, table, least_mw = self._climb(setting.budget_mw, floor, least, tj_c, permitted, now_ns)
        ceiling = min(float(setting.budget_mw), table[-1])
        thermal = self._thermal.budget_mw(tj_c, seen.board_mw, lasted_ns, table[0], ceiling)
        budget = _round_up(table, float(setting.budget_mw), _ROUND_SHARE * self._policy.tolerance_mw)
        rail_mw, rail_why = self._rails.allowed(self._clocks_hz, table, tj_c, cpu[1])
        target, why = budget, ""
        if rail_mw < target:
            target, why = rail_mw, rail_why
        if thermal < min(ceiling, target):
            target, why = thermal, f"{self._heat} allows {thermal / 1000:.1f} W"
        short = floor.short_of(table, target, setting.budget_mw, why)
        paced = self._ladder.rung >= Rung.PACING and not self._overrun.over
        if not short or (paced and least and not why):
            target = max(target, table[floor.index])
        pace_hz = self._pacing.rate_hz(outside.frame if paced else None, self._clocks_hz[least], self._observer.idle_mw,
                                       table[least], setting.budget_mw, self._policy.lowest_pace_hz, now_ns)
        braking = hot is not None or self._thermal.braking
        self._hot_since_ns = (self._hot_since_ns or now_ns) if braking else None
        # a load that no model knows is in the reading only
        needed_mw = max(least_mw, seen.board_mw or 0.0) if self._overrun.over else least_mw
        mode = self._mode_wanted(setting.budget_mw, needed_mw, cpu[0], permitted)
        if braking:
            index = self._stepper.force(0, now_ns)
            why = hot or f"{self._heat}, the limit was reached; lowest clock until the set point is regained"
            limits = self._limits("hot", f"hot: {why}", now_ns, self._policy.lowest_pace_hz, self._hot_for_long(now_ns))
            reason = limits.reason
        else:
            index = self._stepper.choose(table, target, 1.0 if busy is None else busy, now_ns)
            reason = self._explain(table, index, setting, why, short)
            limits = self._limits_for(reason, seen.board_mw, setting, least_mw, mode, pace_hz, now_ns)
        gpu_hz = self._clocks_hz[index]
        return Decision(
            gpu_cap_hz=gpu_hz,
            limits=limits,
            reason=reason,
            target_mw=target,
            expected_mw=self._observer.expected_mw(),
            bias_mw=self._observer.bias_mw,
            gain=self._observer.gain,
            hot=hot,
            setting=setting,
            rung=self._ladder.rung,
            gpu_min_hz=gpu_hz if self._policy.steady else floor.pin_hz(self._clocks_hz, gpu_hz),
            cpu_cap_khz=cpu[0],
            mode_wanted=mode,
            short=short,
        )

    def _learn(self, seen: Readings, busy: float | None, cap_hz: int, lasted_ns: int, tj_c: float, permitted: Permitted,
               now_ns: int) -> str | None:
        """Compare what was seen with what ran; returns why the sensors cannot be believed, or None."""
        spent_hz, share = self._spent_hz(seen.gpu_hz, cap_hz), self._cpu.share_held(permitted)
        self._observer.note(lasted_ns, spent_hz, busy, tj_c, share)
        self._rails.note(lasted_ns, spent_hz, busy, tj_c, share)
        hot = self._trust.judge(seen, busy, self._observer.load_mw(), now_ns)
        if hot is None and seen.board_mw is not None:
            self._observer.learn(seen.board_mw, lasted_ns)
            self._rails.learn(seen.rails_mw, lasted_ns)
        return hot

    def _climb(self, budget_mw: int, floor: Floor, least: int, tj_c: float, permitted: Permitted,
               now_ns: int) -> tuple[tuple[int | None, float], list[float], float]:
        """The CPUs' cap and share, full load by GPU clock with it, and full load at the lowest clocks that may be taken
        (`least`: of the GPU's)."""
        steps = self._cpu.shares(permitted, self._policy.cpu_min_khz)
        top = steps[-1][1] if steps else self._cpu.share_held(permitted)
        table = self._observer.full_load_mw(self._clocks_hz, tj_c, top)
        saves_mw = self._observer.cpu_mw(top - steps[0][1]) if steps else 0.0
        helps = saves_mw >= _CPU_HELPS_MW
        least_mw = table[least] - (saves_mw if helps else 0.0)
        need = Need(budget_mw - table[floor.index], budget_mw - least_mw, helps, self._overrun.over,
                    self._overrun.now_over)
        rung = self._ladder.climb(need, now_ns)
        if rung is Rung.GPU_CLOCK or not helps:
            self._cpu.release()
            return (steps[-1][0] if steps else None, top), table, least_mw
        wanted_mw = 0.0 if self._overrun.over else float(budget_mw)
        cpu = self._cpu.choose(steps, lambda share: table[floor.index] - self._observer.cpu_mw(top - share), wanted_mw)
        saved_mw = self._observer.cpu_mw(top - max(cpu[1], self._cpu.obeyed(permitted)))
        return cpu, [mw - saved_mw for mw in table], least_mw

    def _mode_wanted(self, budget_mw: int, needed_mw: float, cpu_khz: int | None, permitted: Permitted) -> str | None:
        if self._ladder.rung < Rung.MODE or cpu_khz is None:
            return None
        mode = mode_that_holds(self._facts, permitted.modes or self._facts.modes, permitted, budget_mw, needed_mw,
                               cpu_khz, self._policy.cpu_min_khz)
        return None if mode is None else mode.name

    def _spent_hz(self, gpu_hz: int | None, cap_hz: int) -> int:
        """The clock of the busy part of the last interval. The kernel lowers it in idle and is late to come back: then
        it began where the last look found it. If it began at the cap, its end says nothing: work may be over."""
        began, now = self._below_hz, cap_hz if gpu_hz is None else min(gpu_hz, cap_hz)
        self._below_hz = now if now < cap_hz else None
        return cap_hz if began is None else (min(began, cap_hz) + now) // 2

    def _hottest_c(self, seen: Readings, limit_mc: int) -> float:
        """The junction or any zone above it, a zone with a limit of its own as if that were the junction's; the last
        known while nothing is readable (trust decides what follows)."""
        known = [*seen.zones_mc.values(), *([] if seen.tj_mc is None else [seen.tj_mc])]
        own = {name: seen.zones_mc[name] + limit_mc - own_mc for name, own_mc in self._policy.zone_limits_mc.items()
               if name in seen.zones_mc}
        if known:
            self._last_tj_c = max([*known, *own.values()]) / 1000
            self._heat = f"temperature ({self._last_tj_c:.1f} C)"
            if own and (name := max(own, key=own.__getitem__)) and own[name] > max(known):
                self._heat = f"zone {name} ({seen.zones_mc[name] / 1000:.1f} C, limited to " \
                             f"{self._policy.zone_limits_mc[name] / 1000:g})"
        return self._last_tj_c

    def _hot_for_long(self, now_ns: int) -> bool:
        return self._hot_since_ns is not None and now_ns - self._hot_since_ns >= _HOT_DEGRADES_NS

    def _limits_for(self, reason: str, board_mw: int | None, setting: Setting, least_mw: float, mode: str | None,
                    pace_hz: float, now_ns: int) -> Limits:
        rung = self._ladder.rung
        if rung < Rung.PACING:
            return self._limits("warm" if self._thermal.warm else "free", reason, now_ns)
        if self._overrun.over:
            text = f"board power ({(board_mw or 0) / 1000:.1f} W) stayed over the budget although the clock is capped"
        else:
            text = f"even the lowest clock that may be taken needs {least_mw / 1000:.1f} W at full load, over the " \
                   f"budget of {setting.budget_mw / 1000:g} W"
        if rung >= Rung.MODE:
            text += f"; the live mode {mode} would hold it" if mode else "; no live mode is known to hold it"
        return self._limits("over_budget", text, now_ns, pace_hz, degrade=rung is Rung.DEGRADATION)

    def _limits(self, level: str, reason: str, now_ns: int, pace_hz: float | None = None,
                degrade: bool = False) -> Limits:
        policy = self._policy
        batch = policy.batch_max if pace_hz is None else 1
        return Limits(now_ns + policy.limits_ttl_ns, batch, pace_hz, level, reason, degrade)

    def _explain(self, table: Sequence[float], index: int, setting: Setting, why: str, short: str) -> str:
        step = f"{self._clocks_hz[index] / 1e6:g} MHz ({table[index] / 1000:.1f} W at full load)"
        budget = f"{setting.budget_mw / 1000:g} W" + ("" if setting.reason == "policy" else f" ({setting.reason})")
        if not why:
            above = bisect_right(table, setting.budget_mw)
            if above == len(table):
                why = f"the highest clock fits the budget of {budget}"
            elif above == 0:
                why = f"the budget of {budget} is below what the lowest clock needs"
            else:
                low, high = (self._clocks_hz[step] / 1e6 for step in (above - 1, above))
                why = f"the budget of {budget} falls between {low:g} and {high:g} MHz"
        return f"{step}: {why}" + (f"; {short}" if short else "")


def _stepper(policy: Policy) -> Dither | SteadyStep:
    return SteadyStep() if policy.steady else Dither(policy.dwell_ns, policy.tick_ns)


def _round_up(table_mw: Sequence[float], budget_mw: float, slack_mw: float) -> float:
    """The budget, or what the next step above needs where that is within the slack."""
    place = bisect_right(table_mw, budget_mw)
    above = table_mw[place] if place < len(table_mw) else budget_mw
    return above if above <= budget_mw + slack_mw else budget_mw
