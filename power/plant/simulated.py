"""The plant without files: the same sensors and caps as the steward takes, in simulated time.

Used by tests and simulations, where two hours must take seconds. Invariant: the steward, governor and policy that run
here are the ones that run on a board; only the two ends differ. Faults are set from outside on `lost` and `forced`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..board import BoardFacts
from ..limits import Limits
from ..sensors import Readings
from .model import PlantModel

# label of the board -> rail of the model
RAILS = {"VDD_GPU_SOC": "gpu", "VDD_CPU_CV": "cpu", "VIN_SYS_5V0": "system", "VDDQ_VDD2_1V8AO": "vddq"}
AGX_TABLE_HZ = tuple(mhz * 100_000 for mhz in (3060, 4080, 5100, 6120, 7140, 8160, 9180, 10200, 11220, 12240, 13005))


class SimulatedBoard:
    """Sensors, caps, busy counter and clock over one PlantModel. `advance` moves time; `busy_at` is the load."""

    def __init__(self, model: PlantModel, facts: BoardFacts, table_hz: tuple[int, ...] = AGX_TABLE_HZ,
                 start_ns: int = 1_000_000_000) -> None:
        self.model = model
        self._facts = facts
        self._table_hz = table_hz
        self.now_ns = start_ns
        self.busy_ns = 0
        self.cap_hz = table_hz[-1]
        self.restored = False
        self.limits: Limits | None = None
        self.lost: set[str] = set()  # names of zones and rails that answer nothing
        self.forced: dict[str, int] = {}  # name -> value that a zone or rail shows instead

    # -- sensors
    def read(self) -> Readings:
        """As sensors.Sensors.read()."""
        rails = {label: self._shown(label, _power_mw(self.model.read_rail(rail))) for label, rail in RAILS.items()}
        zones = {name: self._shown(name, self.model.read_temperature_mc(name))
                 for name in (*self.model.constants.zones, "tj")}
        rails_mw = {label: value for label, value in rails.items() if value is not None}
        zones_mc = {name: value for name, value in zones.items() if value is not None}
        whole = all(label in rails_mw for label in self._facts.total)
        return Readings(
            board_mw=sum(rails_mw[label] for label in self._facts.total) if whole else None,
            rails_mw=rails_mw, tj_mc=zones_mc.get("tj"), zones_mc=zones_mc, gpu_hz=self.cap_hz,
            faults=tuple(f"{name}: lost" for name in sorted(self.lost)),
        )

    def _shown(self, name: str, value: int) -> int | None:
        return None if name in self.lost else self.forced.get(name, value)

    # -- caps
    def gpu_clocks_hz(self) -> tuple[int, ...]:
        """As actuators.Caps."""
        return self._table_hz

    def gpu_cap_hz(self) -> int:
        """As actuators.Caps."""
        return self.cap_hz

    def set_gpu_max(self, hz: int, reason: str) -> int:
        """As actuators.Caps: the highest step not above."""
        self.cap_hz = max((f for f in self._table_hz if f <= hz), default=self._table_hz[0])
        return self.cap_hz

    def restore(self) -> tuple[str, ...]:
        """As actuators.Caps."""
        self.cap_hz, self.restored = self._table_hz[-1], True
        return (f"max_freq: {self.cap_hz}",)

    # -- the rest of the steward's ends
    def read_busy(self) -> tuple[int, int]:
        """(now_ns, busy_ns) of the simulated engine."""
        return self.now_ns, self.busy_ns

    def take_limits(self, limits: Limits) -> None:
        """Remember the latest limits."""
        self.limits = limits

    def clock(self) -> int:
        """Simulated CLOCK_MONOTONIC."""
        return self.now_ns

    def advance(self, dt_ns: int, busy_at: Callable[[int], float], step_ns: int = 50_000_000) -> float:
        """Run the plant for dt_ns under the load `busy_at(now_ns)` (share in 0..1, taken at each step's start); returns
        the true mean board power in W."""
        energy = 0.0
        left = dt_ns
        while left > 0:
            step = min(step_ns, left)
            busy = busy_at(self.now_ns)
            energy += self.model.step(step / 1e9, self.cap_hz / 1e6, busy) * step
            self.busy_ns += round(busy * step)
            self.now_ns += step
            left -= step
        return energy / dt_ns


def _power_mw(shown: tuple[int, int]) -> int:
    return shown[0] * shown[1] // 1000
