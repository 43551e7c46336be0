"""Learns what the power model gets wrong: a slow bias always, a gain only when excited. Pure.

Called by governor.py. The feedback is never the reading, only reading minus model, where the model has gone through the
sensor's own averaging window with the clocks really applied and the busy time really spent: so a burst is no error,
and nothing has to wait for the sensor. An INA3221 averages into a register that it renews once per window, so a reading
may also be up to one window old, and nothing says how old: a comparison counts the less, the more the model's windowed
power has moved in that time. Invariant: bias and gain stay in bounds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .model import PowerModel
from .window import SlidingMean

# The bias follows in 2.5 s, the gain in about 7 s of load; both well above the 430 ms window, so that they average over
# it and do not chase quantisation (380 mW on a 19 V rail of AGX Orin).
_BIAS_RATE_PER_S = 0.4
# twice that at first, until so many seconds of load have been seen
_GAIN_RATE_PER_S = 0.15
_GAIN_HASTE_S = 40.0
_GAIN_LOW, _GAIN_HIGH = 0.5, 2.0
# "excited": from this share of full load on, an error says as much about the gain as about the bias. Below, it says
# less with the square: at the lowest clock an error of the bias would turn into several times that share of the gain,
# and the next burst at a high clock would overshoot.
_EXCITED_SHARE = 0.4
# a comparison counts half when the model moved by this share of full load within the possible age of the reading:
# 1 W on AGX Orin, more than two steps taken in turn make, far less than a burst
_MOVED_SHARE = 0.025


class Observer:
    """Model, window, bias (mW) and gain of one board."""

    def __init__(self, model: PowerModel, window_ns: int, gain_low: float = _GAIN_LOW) -> None:
        self._model = model
        self._gain_low = gain_low
        self._window = SlidingMean(window_ns)
        self._window_ns = window_ns
        self._full_mw = model.full_mw
        # windowed dynamic power at the last ticks, reaching back over one window: what a reading may stand for
        self._candidates: deque[tuple[int, float]] = deque()
        self._candidates_ns = 0
        self._bias_bound_mw = model.idle_mw
        self.bias_mw = 0.0
        self.gain = 1.0
        self._excited_s = 0.0

    def note(self, lasted_ns: int, gpu_hz: int, busy: float | None, tj_c: float, cpu_share: float = 1.0) -> None:
        """What ran in the interval that ended now. An unknown busy share empties the window: nothing is learned."""
        if busy is None:
            self._window.clear()
            self._candidates.clear()
            self._candidates_ns = 0
            return
        self._window.add(lasted_ns, self._model.dynamic_mw(gpu_hz, busy, tj_c, cpu_share))
        mean = self._window.mean()
        if mean is not None and self._window.full:
            self._candidates.append((lasted_ns, mean))
            self._candidates_ns += lasted_ns
            while self._candidates_ns - self._candidates[0][0] > self._window_ns:
                self._candidates_ns -= self._candidates.popleft()[0]

    def expected_mw(self) -> float | None:
        """What the sensor should read now; None until the window is covered."""
        dynamic = self._window.mean()
        if dynamic is None or not self._window.full:
            return None
        return self._model.idle_mw + self.bias_mw + self.gain * dynamic

    def load_mw(self) -> float | None:
        """The part of `expected_mw` that the load makes: it moves with the load, not with what is learned of idle."""
        dynamic = self._window.mean()
        return None if dynamic is None or not self._window.full else self.gain * dynamic

    def learn(self, reading_mw: int, lasted_ns: int) -> None:
        """Compare a reading, taken now, with what was expected, and correct."""
        if not self._candidates:
            return
        means = [mean for _, mean in self._candidates]
        dynamic = sum(means) / len(means)
        moved = self.gain * (max(means) - min(means)) / (_MOVED_SHARE * self._full_mw)
        error = (reading_mw - self._model.idle_mw - self.bias_mw - self.gain * dynamic) / (1.0 + moved * moved)
        dt_s = min(lasted_ns / 1e9, 0.3)
        bound = self._bias_bound_mw
        self.bias_mw = min(max(self.bias_mw + _BIAS_RATE_PER_S * dt_s * error, -bound), bound)
        excited = min(dynamic / (_EXCITED_SHARE * self._full_mw), 1.0)
        if excited > 0.0:
            rate = _GAIN_RATE_PER_S * (1.0 + math.exp(-self._excited_s / _GAIN_HASTE_S))
            self._excited_s += excited * dt_s
            step = rate * dt_s * excited * excited * error / dynamic
            self.gain = min(max(self.gain + step, self._gain_low), _GAIN_HIGH)

    def full_load_mw(self, clocks_hz: Sequence[int], tj_c: float, cpu_share: float = 1.0) -> list[float]:
        """Board power at full load for each clock, as learned so far; ascending with the clocks."""
        base = self._model.idle_mw + self.bias_mw
        return [base + self.gain * each for each in self._model.full_load_mw(clocks_hz, tj_c, cpu_share)]

    def cpu_mw(self, share: float) -> float:
        """What a share of the CPUs' part of full load is, as learned so far."""
        return self.gain * share * self._model.cpu_full_mw

    @property
    def idle_mw(self) -> float:
        """Board power in idle, as learned so far."""
        return self._model.idle_mw + self.bias_mw
