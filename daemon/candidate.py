"""A checked configuration with all that it names: what a generation is made of, and what a rollback goes back to.

Made by `config_check.py` from the checker's answer. Invariant: the plans' sealed memfds belong to one holder at a time,
who closes them or gives the candidate on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from .config import Config
from .plans import ServedPlan

PowerTables = dict[str, Any] | None  # board, mode and policy as the checker read them; None: power is not governed


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the checker answers where nothing is wrong."""

    config: Config
    plans: list[ServedPlan]
    power: PowerTables

    def serves_as(self, other: Candidate) -> bool:
        """Whether both say the same: the configuration, the plans' contents, the policy."""
        return (self.config, self.power) == (other.config, other.power) and [
            replace(plan, fd=-1) for plan in self.plans
        ] == [replace(plan, fd=-1) for plan in other.plans]

    def duplicate(self) -> Candidate:
        """The same with descriptors of its own, of the same memory. Raises OSError with none opened."""
        copies: list[ServedPlan] = []
        made = Candidate(self.config, copies, self.power)
        try:
            for plan in self.plans:
                copies.append(replace(plan, fd=os.dup(plan.fd)))
        except OSError:
            made.close()
            raise
        return made

    def close(self) -> None:
        while self.plans:
            os.close(self.plans.pop().fd)
