"""What a policy asks of a board that the board cannot give: each contradiction with the key to look at. Pure, but for a
look at the machine's time zones.

Called for `orind check`, and once more before a governor begins or takes another policy. Invariant: nothing is found
out in the night that the files say already: a budget below idle power, a lowest clock above the highest, a rail that is
not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .board import BoardFacts, Mode
from .errors import Problem, SettingsError
from .nvpmodel import ConfMode
from .policy import Policy
from .schedule import known_zone


def check_policy(policy: Policy, facts: BoardFacts, mode: Mode | ConfMode | None = None,
                 fan_profiles: Sequence[str] = ()) -> None:
    """Raises SettingsError with all contradictions. `mode`: that of nvpmodel which is configured or active, with the
    caps that it has on this board; None where none is known. `fan_profiles`: of its nvfancontrol.conf, none where that
    is not known."""
    problems = (*_of_board(policy, facts), *_of_budgets(policy, facts), *_of_names(policy, facts),
                *_of_clocks(policy, facts, mode), *_of_zone(policy), *_of_fan(policy, fan_profiles))
    if problems:
        raise SettingsError(f"power policy {policy.name!r}", problems)


def _of_board(policy: Policy, facts: BoardFacts) -> Iterator[Problem]:
    if policy.boards and facts.name not in policy.boards:
        yield Problem(("boards",), f"made for {', '.join(policy.boards)}, but the board is {facts.name}")
    limits: list[tuple[tuple[str, ...], int]] = [(("tj_limit_c",), policy.tj_limit_mc)]
    limits += [(("zone_limits_c", name), mc) for name, mc in policy.zone_limits_mc.items()]
    if policy.quiet is not None:
        limits.append((("quiet", "tj_limit_c"), policy.quiet.tj_limit_mc))
        if policy.quiet.tj_limit_mc > policy.tj_limit_mc:
            yield Problem(("quiet", "tj_limit_c"), f"{policy.quiet.tj_limit_mc / 1000:g} C is above tj_limit_c = "
                          f"{policy.tj_limit_mc / 1000:g}: quiet allows less, never more")
    for where, mc in limits:
        if mc >= facts.throttle_mc:
            yield Problem(where, f"{mc / 1000:g} C is not below the module's own throttle at "
                          f"{facts.throttle_mc / 1000:g} C")


def _of_budgets(policy: Policy, facts: BoardFacts) -> Iterator[Problem]:
    for where, mw in policy.budgets():
        if mw <= facts.model.idle_mw:
            yield Problem(where, f"{mw / 1000:g} W is not above the idle power of {facts.title} "
                          f"({facts.model.idle_mw / 1000:g} W)")
        if mw > facts.module_max_mw:
            yield Problem(where, f"{mw / 1000:g} W is above what {facts.title} may draw "
                          f"({facts.module_max_mw / 1000:g} W)")
    if policy.quiet is not None and policy.quiet.budget_mw > policy.budget_mw:
        yield Problem(("quiet", "budget_w"), f"{policy.quiet.budget_mw / 1000:g} W is above budget_w = "
                      f"{policy.budget_mw / 1000:g}: quiet allows less, never more")


def _of_names(policy: Policy, facts: BoardFacts) -> Iterator[Problem]:
    for name in policy.rail_limits_mw:
        if name not in facts.rails:
            yield Problem(("rail_limits_w", name), f"{facts.title} has no rail {name!r} (rails: "
                          f"{', '.join(facts.rails)})")
    # a zone that sleeps with its block would lift its limit by sleeping
    awake = [zone.name for zone in facts.zones if zone.sleeps == "never" and zone.name != "tj"]
    for name in policy.zone_limits_mc:
        if name not in awake:
            yield Problem(("zone_limits_c", name), f"{facts.title} has no zone {name!r} that can always be read "
                          f"(zones: {', '.join(awake)})")


def _of_clocks(policy: Policy, facts: BoardFacts, mode: Mode | ConfMode | None) -> Iterator[Problem]:
    lowest = policy.gpu_min_hz
    if lowest:
        if mode is not None and mode.gpu_max_hz is not None and lowest > mode.gpu_max_hz:
            yield Problem(("gpu_min_mhz",), f"{lowest / 1e6:g} MHz is above the GPU clock that mode {mode.name} allows "
                          f"({mode.gpu_max_hz / 1e6:g} MHz)")
        needed = facts.model.idle_mw + facts.model.dynamic_mw(lowest, 1.0, facts.model.leak_reference_c)
        for where, mw in policy.budgets():
            if facts.model.idle_mw < mw < needed:
                yield Problem(("gpu_min_mhz",), f"at {lowest / 1e6:g} MHz full load needs about {needed / 1000:.1f} W, "
                              f"{Problem(where, '').key} is {mw / 1000:g}")
    cap = None if mode is None else mode.cpu_max_khz
    if cap is not None and policy.cpu_min_khz > cap:
        yield Problem(("cpu_min_mhz",), f"{policy.cpu_min_khz / 1000:g} MHz is above the CPU clock that mode "
                      f"{mode.name if mode else ''} allows ({cap / 1000:g} MHz)")


def _of_zone(policy: Policy) -> Iterator[Problem]:
    if policy.schedule is not None and not known_zone(policy.schedule.time_zone):
        yield Problem(("schedule", "time_zone"), f"no time zone {policy.schedule.time_zone!r} on this machine (such as "
                      "Europe/Berlin; package tzdata)")


def _of_fan(policy: Policy, profiles: Sequence[str]) -> Iterator[Problem]:
    if policy.quiet is not None and profiles and policy.quiet.fan_profile not in ("", *profiles):
        yield Problem(("quiet", "fan_profile"), f"the board's nvfancontrol.conf has no profile "
                      f"{policy.quiet.fan_profile!r} (profiles: {', '.join(profiles)})")
