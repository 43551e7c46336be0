"""Which budget and which temperatures hold now: policy, schedule, quiet mode, ambient temperature, what someone asked.
Pure.

Called by governor.py once a tick. Order: what was asked for, else the schedule's window, else the policy's own budget;
then the smaller of that and what the ambient temperature allows. Invariant: what is not known leads to less, never to
more: a clock that is not set and an ambient temperature that nobody told mean the lowest budget that the policy has
there.
"""

from __future__ import annotations

from dataclasses import dataclass

from .policy import Policy
from .polyline import interpolated

# A board without a battery begins in 1970 or at its image's build, until the network tells the time.
CLOCK_SET_S = 1_600_000_000.0  # 2020-09-13


@dataclass(frozen=True, slots=True)
class Asked:
    """What someone asked for or told: until when (CLOCK_MONOTONIC) it holds, and who. mW, milli-degrees C, Hz,
    cycles."""

    value: int
    until_ns: int
    by: str


@dataclass(frozen=True, slots=True)
class Outside:
    """What the governor is told from outside of the board. `wall_s`: s since 1970 UTC, None where nobody says.
    `deadline`: the GPU clock below which the engine cannot meet the cameras' deadlines; `frame`: GPU cycles that one
    frame takes, of the slowest model."""

    wall_s: float | None = None
    budget: Asked | None = None
    ambient: Asked | None = None
    deadline: Asked | None = None
    frame: Asked | None = None


NOTHING = Outside()


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds now, and why. `fan_profile`: the one of nvfancontrol that it was made for, '' for any."""

    budget_mw: int
    tj_warn_mc: int
    tj_limit_mc: int
    reason: str
    fan_profile: str = ""


def setting_now(policy: Policy, outside: Outside, now_ns: int) -> Setting:
    """The setting that holds at now_ns."""
    chosen = _asked(policy, outside, now_ns) or _scheduled(policy, outside) or _own(policy, policy.budget_mw, "policy")
    if not policy.ambient:
        return chosen
    told = outside.ambient
    if told is None or now_ns >= told.until_ns:
        allowed, why = policy.ambient[-1][1], "ambient temperature not told, the hottest row holds"
    else:
        rows_mc, rows_mw = zip(*policy.ambient, strict=True)
        allowed, why = round(interpolated(rows_mc, rows_mw, told.value)), f"ambient {told.value / 1000:.1f} C"
    if allowed >= chosen.budget_mw:
        return chosen
    return Setting(allowed, chosen.tj_warn_mc, chosen.tj_limit_mc, why, chosen.fan_profile)


def highest_mw(policy: Policy) -> int:
    """The most that may be asked for: the largest budget that the policy itself has outside of its ambient table."""
    return max([mw for where, mw in policy.budgets() if where[0] != "ambient"])


def _own(policy: Policy, budget_mw: int, reason: str) -> Setting:
    return Setting(budget_mw, policy.tj_warn_mc, policy.tj_limit_mc, reason)


def _asked(policy: Policy, outside: Outside, now_ns: int) -> Setting | None:
    asked = outside.budget
    if asked is None or now_ns >= asked.until_ns:
        return None
    left_s = (asked.until_ns - now_ns) / 1e9
    return _own(policy, asked.value, f"asked for by {asked.by}, {left_s:.0f} s left")


def _scheduled(policy: Policy, outside: Outside) -> Setting | None:
    schedule = policy.schedule
    if schedule is None:
        return None
    if outside.wall_s is None or outside.wall_s < CLOCK_SET_S:
        lowest = min(mw for where, mw in policy.budgets() if where[0] != "ambient")
        cool = policy.quiet or policy
        why = "the wall clock is not set, the lowest budget of the policy holds"
        return Setting(lowest, cool.tj_warn_mc, cool.tj_limit_mc, why)
    window = schedule.window_at(outside.wall_s)
    if window is None:
        return None
    if window.budget_mw is not None:
        return _own(policy, window.budget_mw, f"schedule, {window.name}")
    quiet = policy.quiet
    assert quiet is not None  # or Policy.from_dict refuses the window
    return Setting(quiet.budget_mw, quiet.tj_warn_mc, quiet.tj_limit_mc, f"quiet, {window.name}", quiet.fan_profile)
