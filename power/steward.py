"""One tick of the power loop: read busy time and sensors, decide, set the cap, send the limits.

The daemon runs it as the steward process and calls `tick` every policy tick; tests and the simulator give it other
sensors, caps and another clock. Invariants: limits are sent in every tick, whatever failed; a failure of a sensor or
an actuator becomes a fault in the report, never an exception; `close` puts the clocks back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .budget import NOTHING, Outside
from .cpu_clock import Permitted
from .energy import PowerSample
from .errors import PowerError, SysfsError
from .governor import Decision, Governor
from .ladder import Rung
from .limits import Limits
from .over_current import ALARM_HZ, OverCurrentRate
from .policy import Policy
from .sensors import Readings

_MAX_REPEATS = 3


class SensorSource(Protocol):
    """What the steward needs of sensors.Sensors."""

    def read(self) -> Readings: ...


class ClockCaps(Protocol):
    """What the steward needs of actuators.Caps."""

    def gpu_clocks_hz(self) -> tuple[int, ...]: ...
    def gpu_cap_hz(self) -> int: ...
    def set_gpu_max(self, hz: int, reason: str) -> int: ...
    def set_gpu_min(self, hz: int | None) -> None: ...
    def permitted(self) -> Permitted: ...
    def set_cpu_max(self, khz: int | None) -> None: ...
    def restore(self) -> tuple[str, ...]: ...
    def mode(self) -> tuple[str | None, str | None]: ...
    def notes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Report:
    """What one tick saw and did, for status and metrics. `gpu_cap_hz`: the cap as the board says it, after setting;
    `oc_hz`: over-current events a second; `mode`: nvpmodel's that holds, and the one that waits for a boot; `notes`:
    what others changed since the last tick, each said once; `power_doubted`: board power is lost, or cannot be true."""

    now_ns: int
    readings: Readings
    decision: Decision
    gpu_cap_hz: int | None
    busy: float | None
    faults: tuple[str, ...]
    oc_hz: float | None = None
    mode: tuple[str | None, str | None] = (None, None)
    notes: tuple[str, ...] = ()
    power_doubted: bool = False

    def power_sample(self, idle_mw: float) -> PowerSample:
        """For the books of energy. `idle_mw`: of the board's facts, which the learned bias corrects."""
        board_mw = None if self.power_doubted else self.readings.board_mw
        return PowerSample(self.now_ns, board_mw, max(round(idle_mw + self.decision.bias_mw), 0), bool(self.busy))

    def to_dict(self) -> dict[str, object]:
        """The `power` section of `orind status --json`: W, C, Hz."""
        seen = self.readings
        return {
            "board_w": None if seen.board_mw is None else seen.board_mw / 1000,
            "budget_w": self.decision.setting.budget_mw / 1000,
            "budget_reason": self.decision.setting.reason,
            "fan_profile": self.decision.setting.fan_profile,
            "target_w": round(self.decision.target_mw / 1000, 3),
            "tj_c": None if seen.tj_mc is None else seen.tj_mc / 1000,
            "gpu_hz": seen.gpu_hz,
            "gpu_cap_hz": self.gpu_cap_hz,
            "busy": None if self.busy is None else round(self.busy, 4),
            "cpu_khz": seen.cpu_khz,
            "fan_pwm": seen.fan_pwm,
            "over_current_hz": None if self.oc_hz is None else round(self.oc_hz, 2),
            "cpu_cap_khz": self.decision.cpu_cap_khz,
            "level": self.decision.limits.level,
            "rung": self.decision.rung.name.lower(),
            "mode_wanted": self.decision.mode_wanted,
            "short": self.decision.short,
            "reason": self.decision.limits.reason,
            "model": {"bias_w": round(self.decision.bias_mw / 1000, 3), "gain": round(self.decision.gain, 4)},
            "rails_w": {label: mw / 1000 for label, mw in seen.rails_mw.items()},
            "zones_c": {name: mc / 1000 for name, mc in seen.zones_mc.items()},
            "mode": self.mode[0],
            "waiting_mode": self.mode[1],
            "notes": list(self.notes),
            "faults": list(self.faults),
        }


class BusyShare:
    """Turns a monotonic busy counter into the share of time since the last look."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._share: float | None = None
        self._repeats = 0

    def take(self, now_and_busy_ns: tuple[int, int] | None) -> float | None:
        """Share in 0..1, or None when it is not known: first look, no reading, counter went back (a new writer), or the
        same reading for the fourth time. Before that the last share holds: writer and reader have their own beats."""
        last, self._last = self._last, now_and_busy_ns
        if last is None or now_and_busy_ns is None:
            self._share = None
            return None
        lasted, busy = now_and_busy_ns[0] - last[0], now_and_busy_ns[1] - last[1]
        if lasted == 0 and busy == 0 and self._repeats < _MAX_REPEATS:
            self._repeats += 1
            return self._share
        self._repeats = 0
        self._share = None if lasted <= 0 or busy < 0 else min(busy / lasted, 1.0)
        return self._share


class Steward:
    """Owns the loop's parts; `read_busy` gives (now_ns, busy_ns) of the engines or None, `send_limits` tells main,
    `look_outside` says what the board does not: wall time, what was asked for, what deadlines need."""

    def __init__(self, sensors: SensorSource, caps: ClockCaps, governor: Governor,
                 read_busy: Callable[[], tuple[int, int] | None], send_limits: Callable[[Limits], None],
                 clock: Callable[[], int] = time.monotonic_ns,
                 look_outside: Callable[[], Outside] = lambda: NOTHING) -> None:
        self._sensors = sensors
        self._caps = caps
        self._governor = governor
        self._read_busy = read_busy
        self._send_limits = send_limits
        self._clock = clock
        self._look_outside = look_outside
        self._share = BusyShare()
        self._over_current = OverCurrentRate()
        self._clocks_hz: Sequence[int] = caps.gpu_clocks_hz()
        self._cap_hz: int | None = None

    def tick(self) -> Report:
        """Do one round. Exceptions come from `send_limits` only (main is gone)."""
        faults: list[str] = []
        # busy time and rails are read next to each other: their windows must end at the same moment
        busy = self._share.take(self._read_busy())
        now_ns = self._clock()
        readings = self._sensors.read()
        faults.extend(readings.faults)
        cap_hz = self._look_at_caps(faults)
        decision = self._governor.decide(readings, busy, cap_hz, self._clocks_hz, now_ns, self._caps.permitted(),
                                         self._look_outside())
        if decision.hot is not None:
            faults.append(f"taken for hot: {decision.hot}")
        self._set_clocks(decision, faults)
        self._send_limits(decision.limits)
        oc_hz = self._over_current.take(readings.oc_count, now_ns)
        if oc_hz is not None and oc_hz >= ALARM_HZ:
            faults.append(f"the hardware throttles: {oc_hz:.0f} over-current events a second, which no clock shows")
        return Report(now_ns, readings, decision, self._cap_hz, busy, tuple(faults), oc_hz, self._caps.mode(),
                      self._caps.notes(), self._governor.power_doubted)

    def adopt(self, policy: Policy) -> None:
        """Govern under another policy; nothing that was learned is lost. Raises SettingsError, with nothing changed."""
        self._governor.adopt(policy)

    def close(self) -> tuple[str, ...]:
        """Put the clocks back; returns a line for each. Raises PowerError where that failed."""
        return self._caps.restore()

    def _look_at_caps(self, faults: list[str]) -> int:
        """The cap that held since the last tick. Unreadable: the highest clock, which assumes the most power spent."""
        try:
            self._clocks_hz = self._caps.gpu_clocks_hz()
            self._cap_hz = self._caps.gpu_cap_hz()
        except SysfsError as error:
            faults.append(f"GPU cap: {error}")
            self._cap_hz = None
        return self._clocks_hz[-1] if self._cap_hz is None else self._cap_hz

    def _set_clocks(self, decision: Decision, faults: list[str]) -> None:
        """The GPU's cap first: it is what holds the budget, whatever becomes of the others."""
        try:
            self._cap_hz = self._caps.set_gpu_max(decision.gpu_cap_hz, decision.reason)
            self._caps.set_gpu_min(decision.gpu_min_hz)
        except PowerError as error:
            faults.append(f"GPU cap: {error}")
        try:
            # at its highest the CPUs' clock is not ours: it may be capped by somebody else
            self._caps.set_cpu_max(decision.cpu_cap_khz if decision.rung > Rung.GPU_CLOCK else None)
        except PowerError as error:
            faults.append(f"CPU cap: {error}")
