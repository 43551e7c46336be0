"""The product's own steward, governor and policy over a simulated board, in simulated time.

Used by `orind simulate`, the benchmark of the governor and the tests. What a run tells is the plant's truth, which the
governor never sees. Pure: no files, no clock. Invariant: power times time, summed over the seconds told, is the energy
that the board drew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .board import BoardFacts
from .budget import NOTHING, Outside
from .governor import Governor
from .limits import LEVELS, Limits
from .plant.fault_file import FaultState, set_faults
from .plant.simulated import LoadShare, SimulatedBoard, Work
from .policy import Policy
from .steward import Report, Steward


class ObedientWork(Work, Protocol):
    """Work that the limits hold back, as they do main."""

    def obey(self, limits: Limits) -> None: ...


class IndifferentWork(LoadShare):
    """A load that obeys no limits: what a benchmark of the clocks alone wants."""

    def obey(self, limits: Limits) -> None:
        """Nothing is held back."""


class Tick(NamedTuple):
    """One turn of the governor and the time up to the next: its report, then the plant's true mean power and the GPU's
    busy share in that time."""

    report: Report
    board_w: float
    busy: float


class Second(NamedTuple):
    """What one second was like; the last one may be shorter, and a tick belongs to the second in which it begins.

    Means over it, but `tj_c` is the highest, `level` the most restricting with its reason, and `faults` are all that
    were said; `budget_reason` is the last one. `clock_mhz`: while the GPU worked, None where it did not. `full`: busy
    throughout."""

    at_s: float
    lasted_s: float
    board_w: float
    reading_w: float | None
    budget_w: float
    budget_reason: str
    target_w: float
    tj_c: float
    ambient_c: float
    busy: float
    full: bool
    clock_mhz: float | None
    cap_mhz: float
    fan_pwm: float
    throttled_s: float
    off: bool
    level: str
    reason: str
    faults: tuple[str, ...]


class ClosedLoop:
    """Steward, governor and simulated board; `tick` is one turn of all. Raises SettingsError where the board cannot
    keep the policy."""

    def __init__(self, facts: BoardFacts, policy: Policy, board: SimulatedBoard,
                 look_outside: Callable[[], Outside] = lambda: NOTHING) -> None:
        self.board = board
        self.policy = policy
        self.steward = Steward(board, board, Governor(facts, policy), board.read_busy, board.take_limits, board.clock,
                               look_outside)

    def tick(self, work: ObedientWork) -> Tick:
        """Govern, then let the board work until the next tick."""
        board = self.board
        report = self.steward.tick()
        work.obey(report.decision.limits)
        before_ns = board.busy_ns
        watts = board.run(self.policy.tick_ns, work)
        return Tick(report, watts, (board.busy_ns - before_ns) / self.policy.tick_ns)


@dataclass(slots=True)
class _Sum:
    """The ticks of a second so far."""

    at_s: float
    lasted_s: float = 0.0
    board_j: float = 0.0
    reading_j: float = 0.0
    reading_s: float = 0.0
    budget_j: float = 0.0
    budget_reason: str = ""
    target_j: float = 0.0
    tj_c: float = -273.15
    ambient: float = 0.0
    busy_s: float = 0.0
    full: bool = True
    cycles: float = 0.0
    caps: float = 0.0
    fan: float = 0.0
    throttled_s: float = 0.0
    limits: Limits | None = None
    faults: dict[str, None] | None = None

    def add(self, tick: Tick, board: SimulatedBoard, dt_s: float) -> None:
        report = tick.report
        self.lasted_s += dt_s
        self.board_j += tick.board_w * dt_s
        if report.readings.board_mw is not None:
            self.reading_j += report.readings.board_mw / 1000 * dt_s
            self.reading_s += dt_s
        setting = report.decision.setting
        self.budget_j += setting.budget_mw / 1000 * dt_s
        self.budget_reason = setting.reason
        self.target_j += report.decision.target_mw / 1000 * dt_s
        self.tj_c = max(self.tj_c, board.model.temperature_c("tj"))
        self.ambient += board.model.ambient_c * dt_s
        self.busy_s += tick.busy * dt_s
        self.full = self.full and tick.busy > 0.999
        self.cycles += board.done_hz * dt_s
        self.caps += board.cap_hz * dt_s
        self.fan += board.model.fan_pwm * dt_s
        self.throttled_s += dt_s * (board.kernel.throttled or board.kernel.shut_down)
        limits = report.decision.limits
        if self.limits is None or LEVELS.index(limits.level) > LEVELS.index(self.limits.level):
            self.limits = limits
        if report.faults:
            self.faults = {**(self.faults or {}), **dict.fromkeys(report.faults)}

    def second(self, off: bool) -> Second:
        lasted, limits = self.lasted_s, self.limits
        return Second(
            at_s=self.at_s, lasted_s=lasted, board_w=self.board_j / lasted,
            reading_w=self.reading_j / self.reading_s if self.reading_s else None, budget_w=self.budget_j / lasted,
            budget_reason=self.budget_reason, target_w=self.target_j / lasted,
            tj_c=self.tj_c, ambient_c=self.ambient / lasted, busy=self.busy_s / lasted, full=self.full,
            clock_mhz=self.cycles / self.busy_s / 1e6 if self.busy_s else None, cap_mhz=self.caps / lasted / 1e6,
            fan_pwm=self.fan / lasted, throttled_s=self.throttled_s, off=off,
            level="" if limits is None else limits.level, reason="" if limits is None else limits.reason,
            faults=tuple(self.faults or ()))


def seconds(loop: ClosedLoop, work: ObedientWork, length_s: float, ambient_c: Callable[[float], float],
            faults: Sequence[tuple[float, FaultState]] = ()) -> Iterator[Second]:
    """Run for length_s (whole ticks); `ambient_c` by s since the start, `faults` in the order of their times."""
    board, tick_ns = loop.board, loop.policy.tick_ns
    dt_s, coming = tick_ns / 1e9, list(faults)
    ticks = round(length_s / dt_s)
    found = _Sum(0.0)
    for number in range(ticks):
        now_s = number * tick_ns / 1e9
        while coming and coming[0][0] <= now_s:
            set_faults(board, coming.pop(0)[1])
        board.model.ambient_c = ambient_c(now_s)
        found.add(loop.tick(work), board, dt_s)
        next_s = (number + 1) * tick_ns / 1e9
        if int(next_s) > int(found.at_s) or number == ticks - 1:
            yield found.second(board.kernel.shut_down)
            found = _Sum(next_s)
