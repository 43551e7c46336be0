"""What was asked for on the control socket: another budget, or what the ambient temperature is, each for a while.

Owned by `power_link.py`, which passes it on to the steward. Pure but for the log, which is the audit: who asked for
what, how long, and how it ended. Invariant: a request is within what policy and board allow, and ends by itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..power.board import BoardFacts
from ..power.budget import Asked, highest_mw
from ..power.policy import Policy

log = logging.getLogger("orind")
FOR_S_MAX = 86_400
ASKS_MAX, ASKS_WITHIN_NS = 20, 10_000_000_000  # each has a line in the journal
STORM = f"more than {ASKS_MAX} requests within {ASKS_WITHIN_NS // 10**9} s are refused"
AMBIENT_C = (-40, 85)
UNITS = {"budget": ("budget_w", "W"), "ambient": ("ambient_c", "C")}
"""What may be asked for: by name, the key of the request and its unit."""


class PowerRequests:
    """`standing`: by name, what holds until its time is over."""

    def __init__(self) -> None:
        self.standing: dict[str, Asked] = {}
        self._asked_ns: deque[int] = deque(maxlen=ASKS_MAX)
        self._storm = False

    def ask(self, given: Mapping[str, Any], by: str, policy: Policy, facts: BoardFacts, now_ns: int) -> str:
        """Take `{"budget_w": 18, "for_s": 600}` or the same with `ambient_c`; a value of null ends what stands.

        Returns why it is refused, or ''."""
        if len(self._asked_ns) == ASKS_MAX and now_ns - self._asked_ns[0] < ASKS_WITHIN_NS:
            if not self._storm:
                log.warning("power: %s; the last one is of %s", STORM, by)
            self._storm = True
            return STORM
        self._asked_ns.append(now_ns)
        self._storm = False
        names = [name for name, (key, _) in UNITS.items() if key in given]
        if len(names) != 1 or set(given) - {UNITS[names[0]][0], "for_s"}:
            return "send budget_w or ambient_c, with for_s"
        name = names[0]
        key, unit = UNITS[name]
        value = given[key]
        if value is None:
            self._end(name, f"{by} ended it")
            return ""
        low, high = (facts.model.idle_mw / 1000, highest_mw(policy) / 1000) if name == "budget" else AMBIENT_C
        if not _within(value, low, high):
            why = "idle power to the policy's highest budget" if name == "budget" else "what a board can stand in"
            return f"{key} must lie in {low:g} to {high:g} {unit} ({why}), not {value!r}"
        for_s = given.get("for_s")
        if not _within(for_s, 1, FOR_S_MAX):
            return f"for_s must lie in 1 to {FOR_S_MAX}, not {for_s!r}: what is asked for ends by itself"
        if name == "ambient" and not policy.ambient:
            return "the policy has no ambient table: the temperature would change nothing"
        self.standing[name] = Asked(round(value * 1000), now_ns + int(float(given["for_s"]) * 1e9), by)
        log.warning("power: %s of %g %s for %g s, asked for by %s", name, value, unit, for_s, by)
        return ""

    def fit(self, policy: Policy) -> None:
        """Another policy holds from now on: a request that it does not allow ends."""
        budget = self.standing.get("budget")
        if budget is not None and budget.value > highest_mw(policy):
            self._end("budget", "it is above the new policy's highest budget")
        if not policy.ambient:
            self._end("ambient", "the new policy has no ambient table")

    def tick(self, now_ns: int) -> None:
        """End what is over."""
        for name in [name for name, asked in self.standing.items() if now_ns >= asked.until_ns]:
            self._end(name, "its time is over")

    def message(self) -> dict[str, list[Any] | None]:
        """For the steward: everything that stands, and nothing else."""
        found = {name: self.standing.get(name) for name in UNITS}
        return {name: None if a is None else [a.value, a.until_ns, a.by] for name, a in found.items()}

    def _end(self, name: str, why: str) -> None:
        asked = self.standing.pop(name, None)
        if asked is not None:
            unit = UNITS[name][1]
            log.warning("power: %s of %g %s, asked for by %s, ended: %s", name, asked.value / 1000, unit, asked.by, why)


def _within(value: object, low: float, high: float) -> bool:
    """Whether it is a finite number in [low, high]; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
