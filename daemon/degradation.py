"""Levels of degradation under overload: when to leave something out, when to take it up again. Pure.

Called by `relief.py` a few times a second. Invariant: a level is left for the one below after `leave_after_ns`, and
only when what comes back has room; a level that the configuration gives nothing to is skipped and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """Each includes the ones before it."""

    FULL = 0
    NO_OPTIONAL = 1
    NO_BATCHING = 2
    HELD = 3


MEANINGS = {
    Level.FULL: "nothing is left out",
    Level.NO_OPTIONAL: "frames of optional cameras are left out",
    Level.NO_BATCHING: "no batching",
    Level.HELD: "held results, where a camera allows them",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Shares are of 1, times in ns. More at `enter_lost` or `enter_age`; less where all three `leave_*` shares hold."""

    enter_lost: float
    enter_age: float
    enter_after_ns: int
    leave_lost: float
    leave_age: float
    leave_load: float
    leave_after_ns: int


class Facts(NamedTuple):
    """lost: share of the frames that ended lately which came too late or found no slot; age: the largest share of its
    time that a waiting frame has used; load: time that the offered frames need, over the time there is.

    impossible: levels that cannot be taken, and why. paced: the power limits slow the engine down. asked: why the power
    governor wants something left out, whatever the frames do; or ''.
    """

    lost: float
    age: float
    load: float
    impossible: Mapping[Level, str]
    paced: bool
    asked: str = ""


class Standing(NamedTuple):
    """The level in force since `since_ns`. hot_ns, calm_ns: since when the facts ask for more or less, 0: they do not.

    exhausted: why overload goes on and no further level is there to take; else ''.
    """

    level: Level
    since_ns: int
    reason: str
    hot_ns: int = 0
    calm_ns: int = 0
    exhausted: str = ""


START = Standing(Level.FULL, 0, "no overload")


def decide(rules: Rules, standing: Standing, facts: Facts, now_ns: int) -> Standing:
    """The level that holds from now on, with its reason."""
    if standing.level in facts.impossible:
        why = f"level {int(standing.level)} is left: {facts.impossible[standing.level]}"
        return Standing(_below(standing.level, facts), now_ns, why)
    overload = _overload(rules, facts)
    if overload:
        hot_ns = standing.hot_ns or now_ns
        if now_ns - hot_ns < rules.enter_after_ns:
            return standing._replace(hot_ns=hot_ns, calm_ns=0)
        above = next((level for level in Level if level > standing.level and level not in facts.impossible), None)
        if above is not None:
            skipped = [f"level {int(n)} is skipped: {facts.impossible[n]}" for n in Level if standing.level < n < above]
            return Standing(above, now_ns, "; ".join([overload, *skipped]))
        left = [facts.impossible[level] for level in Level if level > standing.level]
        return standing._replace(hot_ns=hot_ns, calm_ns=0, exhausted="; ".join([overload, *left]))
    if not _calm(rules, facts):
        return standing._replace(hot_ns=0, calm_ns=0)
    calm_ns = standing.calm_ns or now_ns
    if now_ns - calm_ns < rules.leave_after_ns or now_ns - standing.since_ns < rules.leave_after_ns:
        return standing._replace(hot_ns=0, calm_ns=calm_ns)
    if standing.level is Level.FULL:
        return standing._replace(hot_ns=0, calm_ns=calm_ns, exhausted="")
    quiet = f"{facts.lost:.0%} of the frames lost and {facts.load:.0%} load for {rules.leave_after_ns / 1e9:g} s"
    return Standing(_below(standing.level, facts), now_ns, quiet)


def _below(level: Level, facts: Facts) -> Level:
    return max(each for each in Level if each < level and each not in facts.impossible)


def _overload(rules: Rules, facts: Facts) -> str:
    """Why this is overload, or ''."""
    said = [f"the power governor asks for less: {facts.asked}"] if facts.asked else []
    if facts.lost >= rules.enter_lost:
        said.append(f"{facts.lost:.0%} of the frames come too late or find no slot")
    if facts.age >= rules.enter_age:
        said.append(f"a waiting frame has used {facts.age:.0%} of its time")
    if said and facts.paced and not facts.asked:
        said.append("the power limits slow the engine down")
    return ", ".join(said)


def _calm(rules: Rules, facts: Facts) -> bool:
    return facts.lost <= rules.leave_lost and facts.age <= rules.leave_age and facts.load <= rules.leave_load
