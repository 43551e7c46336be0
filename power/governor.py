"""The governor: readings in, clock cap and limits with a reason out. Pure: no files, no clock of its own.

Called by steward.py once a tick, by the simulator and the tests. Structure (DESIGN section 8): the cap is the clock at
which the *full-load* model meets the budget, in idle too, so that a burst cannot overshoot; feedback goes through the
observer only; sigma-delta between neighbouring steps; heat is a second, smaller budget; a lost sensor is hot.
Invariant: every decision has a reason, and whatever is not known leads to less power, never to more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .board import BoardFacts
from .dither import Dither
from .limits import Limits
from .observer import Observer
from .policy import Policy
from .sensors import Readings
from .thermal import ThermalBudget
from .trust import SensorTrust

_S = 1_000_000_000
# Over budget plus tolerance for this long, although the cap is right: the clocks are not obeyed, or the load is not
# the GPU's. Pacing is the next rung; it stays until the reading has been calm (less than half the tolerance over the
# budget, where a governed board may stand for ever) for the second time.
_OVER_NS, _BELOW_NS = 2 * _S, 5 * _S
# A step that needs more than the budget by less than this share of the tolerance is taken as it is: changing between it
# and the one below would cost more clock than it saves power, and even latency.
_ROUND_SHARE = 0.1
# The lowest step must fit by this much before pacing ends, so that learning does not make it flap.
_FITS_AGAIN_MW = 500.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do until the next tick. `hot` names the sensor fault, if one; powers in mW."""

    gpu_cap_hz: int
    limits: Limits
    reason: str
    target_mw: float
    expected_mw: float | None
    bias_mw: float
    gain: float
    hot: str | None


class Governor:
    """State of the control loop of one board under one policy."""

    def __init__(self, facts: BoardFacts, policy: Policy) -> None:
        policy.check_against(facts)
        self._policy = policy
        self._observer = Observer(facts.model, facts.sensor_window_ns)
        self._dither = Dither(policy.dwell_ns, policy.tick_ns)
        self._thermal = ThermalBudget(policy.tj_warn_mc, policy.tj_limit_mc, facts.sensor_window_ns)
        self._trust = SensorTrust(facts.model.full_mw)
        self._clocks_hz: tuple[int, ...] = ()
        self._last_ns: int | None = None
        self._last_tj_c = policy.tj_warn_mc / 1000
        # below the cap at the last look: the kernel's own clock governor (idle, light load) or heat
        self._below_hz: int | None = None
        self._over_since_ns: int | None = None
        self._over = False
        self._calm_since_ns: int | None = None
        self._floor_over = False

    def decide(self, seen: Readings, busy: float | None, cap_hz: int, clocks_hz: Sequence[int],
               now_ns: int) -> Decision:
        """One tick. `busy`: share of the time since the last tick that the GPU was busy (None: unknown), `cap_hz`: the
        cap that held in it, `clocks_hz`: the steps allowed now, ascending. Raises ValueError without a step."""
        if not clocks_hz:
            raise ValueError("the governor needs at least one clock step")
        if tuple(clocks_hz) != self._clocks_hz:
            self._clocks_hz = tuple(clocks_hz)
            self._dither = Dither(self._policy.dwell_ns, self._policy.tick_ns)
        lasted_ns = 0 if self._last_ns is None else max(now_ns - self._last_ns, 0)
        self._last_ns = now_ns
        tj_c = self._hottest_c(seen)
        self._observer.note(lasted_ns, self._spent_hz(seen.gpu_hz, cap_hz), busy, tj_c)
        hot = self._trust.judge(seen, busy, self._observer.load_mw(), now_ns)
        if hot is None and seen.board_mw is not None:
            self._observer.learn(seen.board_mw, lasted_ns)
        table = self._observer.full_load_mw(self._clocks_hz, tj_c)
        ceiling = min(float(self._policy.budget_mw), table[-1])
        thermal = self._thermal.budget_mw(tj_c, seen.board_mw, lasted_ns, table[0], ceiling)
        budget = _round_up(table, float(self._policy.budget_mw), _ROUND_SHARE * self._policy.tolerance_mw)
        target = min(budget, thermal) if thermal < ceiling else budget
        self._watch_budget(seen.board_mw, table[0], now_ns)
        if hot is not None or self._thermal.braking:
            index = self._dither.force(0, now_ns)
            why = hot or f"{tj_c:.1f} C has reached the limit; lowest clock until {self._thermal.set_point_c:.1f} C"
            reason = f"hot: {why}"
            limits = self._limits("hot", self._policy.lowest_pace_hz, 1, reason, now_ns)
        else:
            index = self._dither.choose(table, target, 1.0 if busy is None else busy, now_ns)
            reason = self._explain(table, thermal, index, tj_c)
            limits = self._limits_for(reason, seen.board_mw, table[0], now_ns)
        return Decision(
            gpu_cap_hz=self._clocks_hz[index],
            limits=limits,
            reason=reason,
            target_mw=target,
            expected_mw=self._observer.expected_mw(),
            bias_mw=self._observer.bias_mw,
            gain=self._observer.gain,
            hot=hot,
        )

    def _spent_hz(self, gpu_hz: int | None, cap_hz: int) -> int:
        """The clock of the busy part of the last interval. The kernel lowers it in idle and is late to come back: then
        it began where the last look found it. If it began at the cap, its end says nothing: work may be over."""
        began, now = self._below_hz, cap_hz if gpu_hz is None else min(gpu_hz, cap_hz)
        self._below_hz = now if now < cap_hz else None
        return cap_hz if began is None else (min(began, cap_hz) + now) // 2

    def _hottest_c(self, seen: Readings) -> float:
        """The junction or any zone above it; the last known while nothing is readable (trust decides what follows)."""
        known = [*seen.zones_mc.values(), *([] if seen.tj_mc is None else [seen.tj_mc])]
        if known:
            self._last_tj_c = max(known) / 1000
        return self._last_tj_c

    def _watch_budget(self, board_mw: int | None, lowest_mw: float, now_ns: int) -> None:
        """Keep `_over` (reading over budget for long) and `_floor_over` (the lowest step does not fit)."""
        budget = self._policy.budget_mw
        over = board_mw is not None and board_mw > budget + self._policy.tolerance_mw
        self._over_since_ns = _since(self._over_since_ns, over, now_ns)
        below = board_mw is not None and board_mw < budget + self._policy.tolerance_mw / 2
        self._calm_since_ns = _since(self._calm_since_ns, below, now_ns)
        if self._over_since_ns is not None and now_ns - self._over_since_ns >= _OVER_NS:
            self._over = True
        elif self._calm_since_ns is not None and now_ns - self._calm_since_ns >= _BELOW_NS:
            self._over = False
        self._floor_over = lowest_mw > budget - (_FITS_AGAIN_MW if self._floor_over else 0.0)

    def _limits_for(self, reason: str, board_mw: int | None, lowest_mw: float, now_ns: int) -> Limits:
        if self._floor_over:
            text = f"even the lowest clock needs {lowest_mw / 1000:.1f} W at full load, over the budget of " \
                   f"{self._policy.budget_mw / 1000:g} W"
            return self._limits("over_budget", self._policy.lowest_pace_hz, 1, text, now_ns)
        if self._over:
            text = f"board power ({(board_mw or 0) / 1000:.1f} W) stayed over the budget although the clock is capped"
            return self._limits("over_budget", self._policy.lowest_pace_hz, 1, text, now_ns)
        level = "warm" if self._thermal.warm else "free"
        return self._limits(level, None, self._policy.batch_max, reason, now_ns)

    def _limits(self, level: str, pace_hz: float | None, batch: int, reason: str, now_ns: int) -> Limits:
        return Limits(now_ns + self._policy.limits_ttl_ns, batch, pace_hz, level, reason)

    def _explain(self, table: Sequence[float], thermal: float, index: int, tj_c: float) -> str:
        step = f"{self._clocks_hz[index] / 1e6:g} MHz ({table[index] / 1000:.1f} W at full load)"
        if thermal < min(self._policy.budget_mw, table[-1]):
            return f"{step}: temperature ({tj_c:.1f} C) allows {thermal / 1000:.1f} W"
        if table[-1] <= self._policy.budget_mw:
            return f"{step}: the highest clock fits the budget of {self._policy.budget_mw / 1000:g} W"
        return f"{step}: budget {self._policy.budget_mw / 1000:g} W lies between two steps or on one"


def _round_up(table_mw: Sequence[float], budget_mw: float, slack_mw: float) -> float:
    """The budget, or what the next step above needs where that is within the slack."""
    above = min((mw for mw in table_mw if mw > budget_mw), default=budget_mw)
    return above if above <= budget_mw + slack_mw else budget_mw


def _since(since_ns: int | None, holds: bool, now_ns: int) -> int | None:
    """Since when something holds without a break; None while it does not."""
    if not holds:
        return None
    return now_ns if since_ns is None else since_ns
