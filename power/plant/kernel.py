"""What firmware and kernel do by themselves on a simulated Orin: the GPU's own clock governor, the passive trip, the
hardware throttle, the emergency shutdown, over-current events.

Used by board.py and simulated.py, between a cap that someone wrote and the clock that the physics run at. Invariant:
what a clock file shows (`cur_hz`) knows nothing of hardware throttling and over-current, as on a board.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# nvhost_podgov aims at a load of 70 % (its load_target) [?]; looked at once a step here
_LOAD_TARGET = 0.7
# NVIDIA r36.4.3 table, and trip points of the device tree; passive polling 1000 ms
PASSIVE_C, HARDWARE_C, SHUTDOWN_C = 99.0, 103.0, 104.5
_PASSIVE_POLL_S = 1.0
_HARDWARE_SHARE = 0.5
# one event: 1.07 ms at half clock; counters refreshed by the firmware every 2 s (measured on Orin Nano Super)
_EVENT_S = 0.00107
_COUNTERS_S = 2.0
_GPU_STATES = 10  # max_state of cooling device devfreq-17000000.gpu


class Kernel:
    """State of one board's GPU clock. Hz, C, W, s."""

    def __init__(self, table_hz: Sequence[int], oc_from_w: float, oc_limit_w: float, oc_at_limit_hz: float) -> None:
        self.table_hz = tuple(table_hz)
        self._oc = (oc_from_w, oc_limit_w, oc_at_limit_hz)
        self.cur_hz = self.table_hz[0]
        self.cooling_state = 0
        self._poll_s = 0.0
        self._last_tj_c = 0.0
        self.hardware_throttled = False
        self.shut_down = False
        self.oc3_count = 0  # as the counter file shows it
        self._oc3_true = 0.0
        self._oc3_hz = 0.0
        self._counters_s = 0.0

    @property
    def throttled(self) -> bool:
        """Whether heat makes the board slower than its caps."""
        return self.cooling_state > 0 or self.hardware_throttled

    def step(self, cap_hz: int, min_hz: int, demand: float) -> float:
        """The clock in Hz that the GPU really has in a step whose `demand` is known: see `choose`."""
        clock = self.clock_hz(cap_hz, min_hz)
        self.choose(cap_hz, min_hz, demand)
        return clock

    def clock_hz(self, cap_hz: int, min_hz: int) -> float:
        """The clock in Hz that the GPU really has until `choose` is asked again."""
        if self.shut_down:
            self.cur_hz = 0
            return 0.0
        cap = self.cap_hz(cap_hz)
        self.cur_hz = max(min(self.cur_hz, cap), min(min_hz, cap))
        share = 1.0 - self._oc3_hz * _EVENT_S * (1.0 - _HARDWARE_SHARE)
        return self.cur_hz * share * (_HARDWARE_SHARE if self.hardware_throttled else 1.0)

    def choose(self, cap_hz: int, min_hz: int, demand: float) -> None:
        """The clock governor's turn, after a step. `demand`: the share of that step that the work would have taken at
        the cap. It knows the load of the last step only, so a burst begins one step late."""
        if self.shut_down:
            return
        cap = self.cap_hz(cap_hz)
        if demand >= _LOAD_TARGET:
            wanted = cap
        else:
            step = bisect_left(self.table_hz, cap * demand / _LOAD_TARGET)
            wanted = min(self.table_hz[step], cap)
        self.cur_hz = max(wanted, min(min_hz, cap))

    def cap_hz(self, cap_hz: int) -> int:
        """The cap, lowered by heat."""
        if not self.cooling_state:  # nearly always, and asked thrice a step
            return cap_hz if cap_hz < self.table_hz[-1] else self.table_hz[-1]
        return min(cap_hz, self.table_hz[max(len(self.table_hz) - 1 - self.cooling_state, 0)])

    def cpu_khz(self, table_khz: Sequence[int], cap_khz: int) -> int:
        """The clock of the CPUs under load: the cap, lowered by heat in step with the GPU (28 states against 10)."""
        if not self.cooling_state:
            return cap_khz if cap_khz < table_khz[-1] else table_khz[-1]
        return min(cap_khz, table_khz[len(table_khz) - 1 - self.cpu_state(table_khz)])

    def cpu_state(self, table_khz: Sequence[int]) -> int:
        """Of a cluster's cooling device."""
        return round(min(self.cooling_state / _GPU_STATES, 1.0) * (len(table_khz) - 1))

    def after(self, dt_s: float, tj_c: float, board_w: float) -> None:
        """Look at what the dt_s that ended have led to."""
        self._poll_s += dt_s
        if self._poll_s >= _PASSIVE_POLL_S:
            self._poll_s = 0.0
            # step_wise: a state up while above the trip and rising, one down while below
            if tj_c >= PASSIVE_C and tj_c >= self._last_tj_c:
                self.cooling_state = min(self.cooling_state + 1, _GPU_STATES)
            elif tj_c < PASSIVE_C:
                self.cooling_state = max(self.cooling_state - 1, 0)
            self._last_tj_c = tj_c
        self.hardware_throttled = tj_c >= HARDWARE_C
        self.shut_down = self.shut_down or tj_c >= SHUTDOWN_C
        begin, limit, at_limit = self._oc
        self._oc3_hz = min(max((board_w - begin) / (limit - begin), 0.0), 1.0) * at_limit
        self._oc3_true += self._oc3_hz * dt_s
        self._counters_s += dt_s
        if self._counters_s >= _COUNTERS_S:
            self._counters_s = 0.0
            self.oc3_count = int(self._oc3_true)
