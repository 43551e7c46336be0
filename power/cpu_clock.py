"""Picks the CPUs' cap while the ladder stands on its rung: as high as the budget at the lowest GPU clock allows. Pure.

Called by governor.py. Invariants: never below the policy's lowest clock, always a step of the board's own table; up
only where there is room to spare, so that learning does not move it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .board import Mode
from .ladder import FITS_AGAIN_MW
from .model import PowerModel
from .nvpmodel import ConfMode


@dataclass(frozen=True, slots=True)
class Permitted:
    """What the board allows beside the GPU's clocks. `cpu_clocks_khz`: steps that the mode allows, ascending, none
    where the CPUs' clock is not ours; `cpu_top_khz`: the highest that the board has; `cpu_cap_khz`: the cap that held;
    `mode_id`: of nvpmodel; `modes`: those that the board has, none where our facts say which."""

    cpu_clocks_khz: Sequence[int] = ()
    cpu_top_khz: int = 0
    cpu_cap_khz: int | None = None
    mode_id: int | None = None
    modes: Sequence[Mode | ConfMode] = ()


UNKNOWN = Permitted()


class CpuClock:
    """State: the cap in use, and the one before it, which the board was seen to obey or not."""

    def __init__(self) -> None:
        self._khz: int | None = None
        self._before_khz: int | None = None

    @staticmethod
    def share_held(permitted: Permitted) -> float:
        """What the CPUs draw at the cap that held, of what they draw at their highest clock; 1 where nothing is
        known."""
        if permitted.cpu_cap_khz is None or not permitted.cpu_top_khz:
            return 1.0
        return PowerModel.cpu_share(min(permitted.cpu_cap_khz, permitted.cpu_top_khz), permitted.cpu_top_khz)

    @staticmethod
    def shares(permitted: Permitted, lowest_khz: int) -> tuple[tuple[int, float], ...]:
        """(kHz, share) of the steps from the policy's lowest on; empty where the CPUs' clock is not ours."""
        return _shares(tuple(permitted.cpu_clocks_khz), permitted.cpu_top_khz, lowest_khz)

    def release(self) -> None:
        """The rung was left: the next time begins anew."""
        self._khz = self._before_khz = None

    def choose(self, steps: Sequence[tuple[int, float]], needed_mw: Callable[[float], float],
               budget_mw: float) -> tuple[int, float]:
        """(kHz, share) from now on. `needed_mw`: full load at the GPU clock that is wanted, by the CPUs' share."""
        index = next((i for i, (khz, _) in enumerate(steps) if khz == self._khz), None)
        fits = [i for i, (_, share) in enumerate(steps) if needed_mw(share) <= budget_mw]
        highest = max(fits, default=0)
        if index is None or highest < index:
            index = highest
        else:
            with_room = [i for i in fits if needed_mw(steps[i][1]) <= budget_mw - FITS_AGAIN_MW]
            index = max(index, max(with_room, default=0))
        self._before_khz, self._khz = self._khz, steps[index][0]
        return steps[index]

    def obeyed(self, permitted: Permitted) -> float:
        """The share at the cap that held where one was asked for before and is still asked for: a refused write saves
        nothing. 0 for a cap that has just changed."""
        return self.share_held(permitted) if self._before_khz == self._khz else 0.0


@lru_cache(maxsize=8)
def _shares(clocks_khz: tuple[int, ...], top_khz: int, lowest_khz: int) -> tuple[tuple[int, float], ...]:
    """A board has few tables of steps, and asks ten times a second."""
    steps = [khz for khz in clocks_khz if khz >= lowest_khz] or clocks_khz[-1:]
    return tuple((khz, PowerModel.cpu_share(khz, top_khz)) for khz in steps)
