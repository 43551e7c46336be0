"""The physics of a simulated Orin: power by part and rail, temperature by zone, and the sensors' own lag and grain.

Used by board.py (files) and simulated.py (no files), which put kernel.py between a cap and the clock. Closed-form
exponential steps: exact for inputs that are constant within a step, for any step length. Constants: constants.py.
"""

from __future__ import annotations

import math
import random

from ..window import SlidingMean
from .constants import PlantConstants
from .fan import Fan

PARTS = ("gpu", "cpu", "soc", "system")
_OFF_W = 0.1  # a module that has switched itself off: its supervisor [?]


class PlantModel:
    """State of one board. Units: s in `step`, W and C inside, mW, mA and milli-degrees in the sensors' methods."""

    def __init__(self, constants: PlantConstants | None = None, ambient_c: float = 25.0, seed: int = 0,
                 fan_works: bool = True, fan_profile: str = "cool") -> None:
        c = self.constants = constants or PlantConstants()
        self.ambient_c = ambient_c
        self.extra_w = 0.0  # a load that no model knows of, on the system rail
        self.emc_mhz = c.emc_top_mhz
        self.emc_busy = 0.0  # share of what the memory can carry at its clock
        self.powered_tpcs = c.powered_tpcs
        self.off = False
        self._random = random.Random(seed)
        window_ns = c.window_ms * 1_000_000
        self._means = {part: SlidingMean(window_ns) for part in (*PARTS, "vddq")}
        self._decays: dict[float, list[tuple[str, float, float]]] = {}
        self.rails_w = self._power(0.0, c.cpu_top_mhz, 0.0, 45.0)
        self.board_w = self._total()
        for part, mean in self._means.items():
            mean.add(window_ns, self.rails_w[part])
        self._register_w = dict(self.rails_w)
        self._register_age_s = self._random.uniform(0.0, c.window_ms / 1000)
        # begin where idle has settled
        self.fan = Fan(c.fan[fan_profile], fan_works)
        self._sink_c = self._sink_r() * self.board_w
        self._fast = {name: zone.fast_r * self.board_w for name, zone in c.zones.items()}
        self._slow = {name: zone.slow_r * self.board_w for name, zone in c.zones.items()}

    @property
    def fan_works(self) -> bool:
        """Whether the fan turns; setting it to False is the fault."""
        return self.fan.works

    @fan_works.setter
    def fan_works(self, works: bool) -> None:
        self.fan.works = works

    @property
    def fan_pwm(self) -> float:
        """0 to 255."""
        return self.fan.pwm

    def temperature_c(self, zone: str) -> float:
        """The true temperature of a zone, or of "tj", the hottest."""
        if zone == "tj":
            slow = self._slow
            return self.ambient_c + self._sink_c + max([fast + slow[name] for name, fast in self._fast.items()])
        return self.ambient_c + self._sink_c + self._fast[zone] + self._slow[zone]

    def step(self, dt_s: float, gpu_mhz: float, busy: float, cpu_mhz: float | None = None) -> float:
        """Advance by dt_s with the GPU at gpu_mhz for a share `busy` of it; returns the true mean board power in W."""
        c = self.constants
        self.rails_w = self._power(gpu_mhz, cpu_mhz or c.cpu_top_mhz, busy, self.temperature_c("gpu"))
        # white noise: its mean over dt shrinks with the root of dt
        scale = math.sqrt(0.01 / dt_s) if dt_s > 0 else 0.0
        for part, sigma in zip(PARTS, c.rail_noise, strict=True):
            self.rails_w[part] *= 1.0 + sigma * scale * self._random.gauss(0.0, 1.0)
        board = self.board_w = self._total()
        lasted_ns = round(dt_s * 1e9)
        for part, mean in self._means.items():
            mean.add(lasted_ns, self.rails_w[part])
        self._step_registers(dt_s)
        self.fan.step(dt_s, self.temperature_c("tj"))
        sink = self._sink_r() * board
        self._sink_c = sink + (self._sink_c - sink) * math.exp(-dt_s / c.sink_tau)
        for name, fast_keeps, slow_keeps in self._decays_of(dt_s):
            zone = c.zones[name]
            fast, slow = zone.fast_r * board, zone.slow_r * board
            self._fast[name] = fast + (self._fast[name] - fast) * fast_keeps
            self._slow[name] = slow + (self._slow[name] - slow) * slow_keeps
        return board

    def read_rail(self, label: str) -> tuple[int, int]:
        """(mV, mA) as the INA3221 shows it: mean over a window, in whole current steps."""
        rail = self.constants.rails[label]
        milliamps = sum(self._register_w[part] for part in rail.parts) * 1e6 / rail.millivolts
        return rail.millivolts, round(milliamps / rail.step_ma) * rail.step_ma

    def read_temperature_mc(self, zone: str) -> int:
        """Milli-degrees C in 1/32 C steps with noise. "tj": the hottest of the readings' true values."""
        noisy = self.temperature_c(zone) + self._random.gauss(0.0, self.constants.temperature_noise_c)
        return int(round(noisy * 32) * 1000 / 32)

    def _power(self, gpu_mhz: float, cpu_mhz: float, busy: float, gpu_c: float) -> dict[str, float]:
        c = self.constants
        if self.off:
            return {"gpu": 0.0, "cpu": 0.0, "soc": 0.0, "system": _OFF_W, "vddq": 0.0}
        ratio = gpu_mhz / c.gpu_top_mhz
        emc = self.emc_mhz / c.emc_top_mhz
        leak = 1.0 + c.leak_per_c * (gpu_c - c.leak_reference_c)
        cores = c.cores_idle + c.cores_full * busy
        traffic = busy * min(c.traffic * (c.traffic_fixed + (1.0 - c.traffic_fixed) * ratio), emc)
        self.emc_busy = traffic / emc
        dynamic = c.gpu_full_w * c.gpu_activity * self.powered_tpcs / c.tpcs * busy * leak
        return {
            "gpu": c.gpu_idle_w + dynamic * ratio**c.gpu_exponent,
            "cpu": c.cpu_idle_w + c.cpu_core_w * cores * (cpu_mhz / c.cpu_top_mhz) ** c.cpu_exponent,
            "soc": c.soc_idle_w + c.soc_full_w * traffic,
            "system": c.system_idle_w - c.memory_idle_w * (1.0 - emc) + c.system_full_w * traffic + self.extra_w,
            "vddq": c.vddq_idle_w + c.vddq_full_w * traffic,
        }

    def _total(self) -> float:
        return self.rails_w["gpu"] + self.rails_w["cpu"] + self.rails_w["soc"] + self.rails_w["system"]

    def _step_registers(self, dt_s: float) -> None:
        # renewed at the end of the step in which the window ends, so steps should be well below the window
        self._register_age_s += dt_s
        window_s = self.constants.window_ms / 1000
        if self._register_age_s >= window_s or not self.constants.register_held:
            self._register_age_s %= window_s
            self._register_w = {part: mean.mean() or 0.0 for part, mean in self._means.items()}

    def _decays_of(self, dt_s: float) -> list[tuple[str, float, float]]:
        """What is left of each zone's two nodes after dt_s; remembered, as steps are of few lengths."""
        found = self._decays.get(dt_s)
        if found is None:
            if len(self._decays) >= 64:
                self._decays.clear()
            found = [(name, math.exp(-dt_s / zone.fast_tau), math.exp(-dt_s / zone.slow_tau))
                     for name, zone in self.constants.zones.items()]
            self._decays[dt_s] = found
        return found

    def _sink_r(self) -> float:
        c = self.constants
        # shape between no fan and full fan [?]: half speed already gives most of the cooling
        return c.sink_full_fan_r + (c.sink_no_fan_r - c.sink_full_fan_r) * (1.0 - self.fan.pwm / 255.0) ** 3
