"""The base of every step of a program. Callers: `steps.py`, `flat_steps.py`, `grid_steps.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """`name` is the graph node's name: messages and checksums use it."""

    name: str

    def reads(self) -> tuple[str, ...]:
        names = (getattr(self, k, "") for k in ("x", "a", "b", "condition", "residual"))
        return (*(n for n in names if n), *getattr(self, "xs", ()))

    def writes(self) -> tuple[str, ...]:
        return (self.y,) if hasattr(self, "y") else ()
