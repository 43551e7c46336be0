"""How long a batch takes at a clock, for a simulation: by the time model for a plan, or by a figure that was stated.

Made by `simulate_command.py`, asked by `simulate_line.py` at every step. Neither is a measurement on the board, and
`what` says which it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ..kernels.ir.program import Program
from ..kernels.perf.device import Device
from ..kernels.perf.model import costs
from ..kernels.perf.table import LABEL

HARDWARE_THROTTLE = 0.5
"""Heat can halve the lowest clock as well."""
KNOWN_MAX = 256
"""Clocks whose times are remembered."""


class _Remembered(ABC):
    """The times at the clocks that were asked for last: a governed board has few, and asks twenty times a second."""

    sizes: tuple[int, ...]

    def __init__(self) -> None:
        self._known: dict[float, dict[int, int]] = {}

    def at(self, clock_hz: float) -> dict[int, int]:
        """ns by batch size."""
        found = self._known.get(clock_hz)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[clock_hz] = {size: max(1, round(self._time_ns(size, 1e9 / clock_hz)))
                                             for size in self.sizes}
        return found

    @abstractmethod
    def _time_ns(self, size: int, period_ns: float) -> float: ...


class StatedTimes(_Remembered):
    """`frame_ms` at `mhz`, in proportion to the period of the clock; a batch takes as long as its frames one by one."""

    def __init__(self, frame_ms: float, mhz: float, largest: int) -> None:
        super().__init__()
        self.sizes = tuple(range(1, largest + 1))
        self.what = (f"stated: {frame_ms:g} ms a frame at {mhz:g} MHz, longer in proportion at lower clocks "
                     "(memory's share of the time would not be)")
        self._cycles = frame_ms * 1e-3 * mhz * 1e6

    def _time_ns(self, size: int, period_ns: float) -> float:
        return size * self._cycles * period_ns


class PlanTimes(_Remembered):
    """What the time model predicts for a plan's programs at each clock of the board; between two of them the time is a
    straight line over the period of the clock, which it is exactly where one thing binds."""

    def __init__(self, name: str, programs: Mapping[int, Program], device: Device, clocks_hz: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sorted(programs))
        self.what = f"plan {name} on {device.board}:{device.mode}, {LABEL}"
        points = [clocks_hz[0] * HARDWARE_THROTTLE, *clocks_hz]
        self._periods = [1e9 / hz for hz in reversed(points)]  # ascending
        self._ns = {size: [costs(program, device.at(gpu_hz=round(hz))).ns for hz in reversed(points)]
                    for size, program in programs.items()}

    def _time_ns(self, size: int, period_ns: float) -> float:
        periods, times = self._periods, self._ns[size]
        place = min(max(bisect_left(periods, period_ns), 1), len(periods) - 1)
        begin, end = periods[place - 1], periods[place]
        return times[place - 1] + (times[place] - times[place - 1]) * (period_ns - begin) / (end - begin)
