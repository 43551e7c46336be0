"""How long a batch takes at a clock, for a simulation: by the time model for a plan, or by a figure that was stated.

Made by `simulate_command.py`, asked by `simulate_line.py` at every step. Neither is a measurement on the board, and
`what` says which it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ..kernels.ir.program import Program
from ..kernels.perf.device import Device
from ..kernels.perf.model import costs
from ..kernels.perf.table import LABEL

HARDWARE_THROTTLE = 0.5
"""Heat can halve the lowest clock as well."""


class StatedTimes:
    """`frame_ms` at `mhz`, in proportion to the period of the clock; a batch takes as long as its frames one by one."""

    def __init__(self, frame_ms: float, mhz: float, largest: int) -> None:
        self.sizes = tuple(range(1, largest + 1))
        self.what = (f"stated: {frame_ms:g} ms a frame at {mhz:g} MHz, longer in proportion at lower clocks "
                     "(memory's share of the time would not be)")
        self._cycles = frame_ms * 1e-3 * mhz * 1e6
        self._known: dict[float, dict[int, int]] = {}

    def at(self, clock_hz: float) -> dict[int, int]:
        """ns by batch size."""
        found = self._known.get(clock_hz)
        if found is None:
            if len(self._known) >= 256:
                self._known.clear()
            one_ns = self._cycles / clock_hz * 1e9
            found = self._known[clock_hz] = {size: max(1, round(size * one_ns)) for size in self.sizes}
        return found


class PlanTimes:
    """What the time model predicts for a plan's programs at each clock of the board; between two of them the time is a
    straight line over the period of the clock, which it is exactly where one thing binds."""

    def __init__(self, name: str, programs: Mapping[int, Program], device: Device, clocks_hz: Sequence[int]) -> None:
        self.sizes = tuple(sorted(programs))
        self.what = f"plan {name} on {device.board}:{device.mode}, {LABEL}"
        points = [clocks_hz[0] * HARDWARE_THROTTLE, *clocks_hz]
        self._periods = [1e9 / hz for hz in reversed(points)]  # ascending
        self._ns = {size: [costs(program, device.at(gpu_hz=round(hz))).ns for hz in reversed(points)]
                    for size, program in programs.items()}
        self._known: dict[float, dict[int, int]] = {}

    def at(self, clock_hz: float) -> dict[int, int]:
        """ns by batch size."""
        found = self._known.get(clock_hz)
        if found is None:
            if len(self._known) >= 256:
                self._known.clear()
            found = self._known[clock_hz] = {size: self._time_ns(size, 1e9 / clock_hz) for size in self.sizes}
        return found

    def _time_ns(self, size: int, period: float) -> int:
        periods, times = self._periods, self._ns[size]
        place = min(max(bisect_left(periods, period), 1), len(periods) - 1)
        begin, end = periods[place - 1], periods[place]
        value = times[place - 1] + (times[place] - times[place - 1]) * (period - begin) / (end - begin)
        return max(1, round(value))
