"""The reservations of a generation's engines, as they told them last, and what is to be said and done about them.

Owned by `generation.py`. The judgement is pure: two readings and the limits in, a reason out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .memory_report import from_text, mib
from .sections import Memory

TRIFLE_BYTES = 1 << 20


@dataclass(slots=True)
class Told:
    """Of one engine. `first` is its fragmentation before it served, in percent."""

    first: float
    table: dict[str, Any]


class EngineMemory:
    """By epoch."""

    def __init__(self, limits: Memory) -> None:
        self._limits = limits
        self._told: dict[int, Told] = {}

    def note(self, epoch: int, text: str) -> str:
        """Keep it. Returns why the engine is worn, or ''. Raises ValueError for what is no report."""
        table = from_text(text)
        told = self._told.setdefault(epoch, Told(table["fragmentation_percent"], table))
        told.table = table
        return worn(told.first, table, self._limits)

    def forget(self, epoch: int) -> None:
        self._told.pop(epoch, None)

    def table(self, epoch: int) -> dict[str, Any] | None:
        """None until it has told."""
        told = self._told.get(epoch)
        return None if told is None else told.table

    def device_free(self, epoch: int) -> int | None:
        """Bytes that the engine's GPU had free when it told; None on the CPU, or until it has told."""
        table = self.table(epoch)
        return None if table is None else table["device_free"]

    def problems(self) -> list[str]:
        """For the health's reasons."""
        limit, found = self._limits.fragmentation_alarm_percent, []
        for epoch, told in self._told.items():
            table = told.table
            if table["fragmentation_percent"] >= limit and not _trifle(table):
                found.append(
                    f"engine {epoch}: {table['fragmentation_percent']:.1f} % of its free memory is in pieces, the "
                    f"limit is {limit:g} %"
                )
            if table["reserve_used"]:
                found.append(
                    f"engine {epoch}: {mib(table['reserve_used'])} of its emergency reserve of {mib(table['reserve'])} "
                    "are in use"
                )
        return found


def _trifle(table: dict[str, Any]) -> bool:
    """Whether so little is in pieces that no block of any size that matters could be missed."""
    return bool(table["free"] - table["largest_free"] < TRIFLE_BYTES)


def worn(first: float, table: dict[str, Any], limits: Memory) -> str:
    """Why a new engine would do better: too much in pieces, and more than it began with; else ''."""
    percent = table["fragmentation_percent"]
    if percent < limits.fragmentation_renew_percent or percent <= first:
        return ""
    return (
        f"{percent:.1f} % of its free memory is in pieces, {first:.1f} % when it was new: an engine is renewed at "
        f"{limits.fragmentation_renew_percent:g} %"
    )
