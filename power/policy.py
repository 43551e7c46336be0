"""The power policy: what the operator wants held, as read from configs/power/*.yaml or the `power` section.

Read by the daemon, used by governor.py, steward.py and (its lowest pacing) by main. Invariant: a policy that a board
cannot keep is refused by `check_against` before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from .board import BoardFacts
from .errors import Problem, SettingsError
from .fields import Fields
from .limits import Limits

_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """Budgets in mW, temperatures in milli-degrees C, times in ns, pacing in frames/s over all cameras."""

    name: str
    boards: tuple[str, ...]
    budget_mw: int
    tolerance_mw: int
    tj_warn_mc: int
    tj_limit_mc: int
    lowest_pace_hz: float
    batch_max: int
    tick_ns: int
    dwell_ns: int
    limits_ttl_ns: int

    @classmethod
    def from_dict(cls, source: object) -> Policy:
        """Check everything and build; raises SettingsError with all problems and their key paths."""
        f = Fields(source, "power policy")
        policy = cls(
            name=f.text("name", "unnamed"),
            boards=f.texts("boards", ()),
            budget_mw=round(f.number("budget_w", 1, 200) * 1000),
            tolerance_mw=round(f.number("tolerance_w", 0.1, 20, 1.5) * 1000),
            tj_warn_mc=round(f.number("tj_warn_c", 30, 120, 80) * 1000),
            tj_limit_mc=round(f.number("tj_limit_c", 30, 120, 85) * 1000),
            lowest_pace_hz=f.number("lowest_pace_hz", 0.01, 10_000, 5),
            batch_max=f.whole("batch_max", 1, 64, 8),
            tick_ns=f.whole("tick_ms", 20, 500, 100) * _MS,
            dwell_ns=f.whole("dwell_ms", 20, 5_000, 100) * _MS,
            limits_ttl_ns=f.whole("limits_ttl_ms", 200, 10_000, 2_000) * _MS,
        )
        if policy.tj_limit_mc - policy.tj_warn_mc < 2_000:
            f.complain("tj_limit_c", "must lie at least 2 C above tj_warn_c: the governor needs room to act in")
        if policy.dwell_ns < policy.tick_ns:
            f.complain("dwell_ms", "must not be shorter than tick_ms: a step cannot end between two ticks")
        if policy.limits_ttl_ns < 4 * policy.tick_ns:
            f.complain("limits_ttl_ms", "must be at least four ticks, or limits expire while the governor is well")
        f.finish()
        return policy

    def check_against(self, facts: BoardFacts) -> None:
        """Raise SettingsError where this module cannot keep the policy: wrong module, budget below idle, and so on."""
        problems: list[Problem] = []
        if self.boards and facts.name not in self.boards:
            problems.append(Problem(("boards",), f"made for {', '.join(self.boards)}, but the board is {facts.name}"))
        if self.budget_mw <= facts.model.idle_mw:
            problems.append(Problem(("budget_w",), f"{self.budget_mw / 1000:g} W is not above the idle power of "
                                    f"{facts.title} ({facts.model.idle_mw / 1000:g} W)"))
        if self.budget_mw > facts.module_max_mw:
            problems.append(Problem(("budget_w",), f"{self.budget_mw / 1000:g} W is above what {facts.title} may draw "
                                    f"({facts.module_max_mw / 1000:g} W)"))
        if self.tj_limit_mc >= facts.throttle_mc:
            problems.append(Problem(("tj_limit_c",), f"{self.tj_limit_mc / 1000:g} C is not below the module's own "
                                    f"throttle at {facts.throttle_mc / 1000:g} C"))
        if problems:
            raise SettingsError(f"power policy {self.name!r}", tuple(problems))

    def lowest(self, reason: str) -> Limits:
        """The limits that hold when no governor speaks: one frame a batch at the lowest pace; they do not expire."""
        return Limits(expires_ns=None, batch_max=1, pace_hz=self.lowest_pace_hz, level="lowest", reason=reason)
