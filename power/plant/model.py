"""The physics of a simulated AGX Orin 64: power by rail, temperature by zone, and the sensors' own lag and grain.

Used by board.py (files) and simulated.py (no files). Closed-form exponential steps: exact for inputs that are constant
within a step, for any step length. Every constant has its source; [I] marks our own inference, [?] an assumption.
Nothing here was measured by this project on an Orin.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from itertools import pairwise

from ..window import SlidingMean


@dataclass(frozen=True, slots=True)
class ZoneConstants:
    """Zone = heat sink + own nodes, driven by board power: R in C/W, tau in s."""

    fast_r: float
    fast_tau: float
    slow_r: float
    slow_tau: float


@dataclass(frozen=True, slots=True)
class PlantConstants:
    """AGX Orin 64 by default. Powers in W, clocks in MHz."""

    # GPU rail (VDD_GPU_SOC): 3.4 + 37.0 x (f/1300.5)^1.94 x powered TPCs / 8. Reproduces the four published stress
    # rows, 40.4 (MAXN) 18.4 (50W, 816) 7.6 (30W, 612, 4 TPCs) 5.2 (15W, 408, 3 TPCs), within 7 % (forum 323456) [I]
    gpu_idle_w: float = 3.4
    gpu_full_w: float = 37.0
    gpu_exponent: float = 1.94
    gpu_top_mhz: float = 1300.5
    # CPU rail (VDD_CPU_CV): 0.8 + 1.2 x busy cores x (f/2201.6)^2.64. Rows 15.2 / 6.0 / 5.6 / 1.6 W (12 cores at
    # 2201.6, 12 at 1497.6, 8 at 1728, 4 at 1113.6) within 5 % (same source) [I]
    cpu_idle_w: float = 0.8
    cpu_core_w: float = 1.2
    cpu_exponent: float = 2.64
    cpu_top_mhz: float = 2201.6
    # 5 V system rail (memory, IO): idle total of the three rails about 11 W in MAXN (published) less the above [I];
    # + 2.5 W at full memory traffic [?]
    system_idle_w: float = 5.6
    system_full_w: float = 2.5
    # VDDQ hangs off VIN_SYS_5V0 and is part of it: 1091 mW in an idle tegrastats trace; + 0.8 W with traffic [?]
    vddq_idle_w: float = 1.09
    vddq_full_w: float = 0.8
    # cores kept busy by the system alone, and by serving at full load [?]
    cores_idle: float = 0.9
    cores_full: float = 2.7
    # 1 to 2 % per C is said of leakage; taken on the GPU's dynamic power, which is the harder case [?]
    leak_per_c: float = 0.012
    leak_reference_c: float = 60.0
    # Heat sink: sum 0.25 + 0.4 + 0.35 = 1.0 C/W at full fan: AGX devkit 49-53 W at 69-80 C gives 0.9 to 1.0 C/W;
    # 3 C/W without fan (facts: suggested plant, 200 s) [I]
    sink_full_fan_r: float = 0.35
    sink_no_fan_r: float = 3.0
    sink_tau: float = 200.0
    # gpu and cpu instant parts and the others' shape: fit of an Orin Nano trace, 0.25 / 0.07 / 0.04 / 0.01 / 0.11 C/W
    # within 0.1 to 0.6 s, then 20 to 50 s [I]
    zones: dict[str, ZoneConstants] = field(default_factory=lambda: {
        "cpu": ZoneConstants(0.07, 0.1, 0.40, 20.0),
        "gpu": ZoneConstants(0.25, 0.1, 0.40, 20.0),
        "soc0": ZoneConstants(0.04, 0.4, 0.45, 43.0),
        "soc1": ZoneConstants(0.01, 0.6, 0.47, 50.0),
        "soc2": ZoneConstants(0.11, 0.2, 0.40, 32.0),
    })
    # INA3221 with 512 samples: about 430 ms mean; 2 mOhm shunt and 40 uV: 20 mA steps (facts 2.4)
    window_ms: int = 430
    # the averaged registers are renewed once per window (datasheet: after the last of the averaged conversions), so a
    # reading is up to one window old [I]; False: a sliding window, the kinder assumption
    register_held: bool = True
    current_step_ma: int = 20
    gpu_rail_mv: int = 19_000  # 12 to 20 V supply; 19.5 V in traces
    system_rail_mv: int = 5_000
    # temperatures come in 1/32 C with 0.12 C idle noise on cpu and gpu, 0.07 C on soc (tegrastats trace) [I]
    temperature_noise_c: float = 0.1
    # rail noise per 10 ms, as shares of the rail [?]
    rail_noise: tuple[float, float, float] = (0.02, 0.03, 0.01)
    powered_tpcs: int = 8


# nvfancontrol "cool" profile of AGX Orin: margin below 105 C -> PWM (nvfancontrol_p3701_0000.conf)
_FAN = ((0.0, 255.0), (18.0, 255.0), (30.0, 202.0), (45.0, 149.0), (60.0, 88.0), (105.0, 0.0))
_GROUP_MAX_C = 105.0


class PlantModel:
    """State of one board. Units: s in `step`, W and C inside, mW, mA and milli-degrees in the sensors' methods."""

    def __init__(self, constants: PlantConstants | None = None, ambient_c: float = 25.0, seed: int = 0,
                 fan_works: bool = True) -> None:
        self.constants = constants or PlantConstants()
        self.ambient_c = ambient_c
        self.fan_works = fan_works
        self.extra_w = 0.0  # a load that no model knows of, on the 5 V rail
        self._random = random.Random(seed)
        window_ns = self.constants.window_ms * 1_000_000
        self._rails = {name: SlidingMean(window_ns) for name in ("gpu", "cpu", "system", "vddq")}
        self.rails_w = self._power(0.0, self.constants.cpu_top_mhz, 0.0, 45.0)
        self.board_w = self._total()
        for name, mean in self._rails.items():
            mean.add(window_ns, self.rails_w[name])
        self._register_w = dict(self.rails_w)
        self._register_age_s = self._random.uniform(0.0, self.constants.window_ms / 1000)
        # begin where idle has settled
        self.fan_pwm = 88.0
        self._fan_wait_s = 0.0
        self._sink_c = self._sink_r() * self.board_w
        self._fast = {name: zone.fast_r * self.board_w for name, zone in self.constants.zones.items()}
        self._slow = {name: zone.slow_r * self.board_w for name, zone in self.constants.zones.items()}

    def temperature_c(self, zone: str) -> float:
        """The true temperature of a zone, or of "tj", the hottest."""
        if zone == "tj":
            return max(self.temperature_c(name) for name in self._fast)
        return self.ambient_c + self._sink_c + self._fast[zone] + self._slow[zone]

    def step(self, dt_s: float, gpu_mhz: float, busy: float, cpu_mhz: float | None = None) -> float:
        """Advance by dt_s with the GPU at gpu_mhz for a share `busy` of it; returns the true mean board power in W."""
        c = self.constants
        self.rails_w = self._power(gpu_mhz, cpu_mhz or c.cpu_top_mhz, busy, self.temperature_c("gpu"))
        # white noise: its mean over dt shrinks with the root of dt
        scale = math.sqrt(0.01 / dt_s) if dt_s > 0 else 0.0
        for name, sigma in zip(("gpu", "cpu", "system"), c.rail_noise, strict=True):
            self.rails_w[name] *= 1.0 + sigma * scale * self._random.gauss(0.0, 1.0)
        self.board_w = self._total()
        for name, mean in self._rails.items():
            mean.add(round(dt_s * 1e9), self.rails_w[name])
        self._step_registers(dt_s)
        self._step_fan(dt_s)
        self._sink_c = _relax(self._sink_c, self._sink_r() * self.board_w, dt_s, c.sink_tau)
        for name, zone in c.zones.items():
            self._fast[name] = _relax(self._fast[name], zone.fast_r * self.board_w, dt_s, zone.fast_tau)
            self._slow[name] = _relax(self._slow[name], zone.slow_r * self.board_w, dt_s, zone.slow_tau)
        return self.board_w

    def read_rail(self, name: str) -> tuple[int, int]:
        """(mV, mA) as the INA3221 shows it: mean over a window, in whole current steps."""
        c = self.constants
        millivolts = c.gpu_rail_mv if name in ("gpu", "cpu") else c.system_rail_mv
        milliamps = self._register_w[name] * 1e6 / millivolts
        return millivolts, round(milliamps / c.current_step_ma) * c.current_step_ma

    def read_temperature_mc(self, zone: str) -> int:
        """Milli-degrees C in 1/32 C steps with noise. "tj": the hottest of the readings' true values."""
        noisy = self.temperature_c(zone) + self._random.gauss(0.0, self.constants.temperature_noise_c)
        return int(round(noisy * 32) * 1000 / 32)

    def _power(self, gpu_mhz: float, cpu_mhz: float, busy: float, gpu_c: float) -> dict[str, float]:
        c = self.constants
        ratio = gpu_mhz / c.gpu_top_mhz
        leak = 1.0 + c.leak_per_c * (gpu_c - c.leak_reference_c)
        cores = c.cores_idle + c.cores_full * busy
        return {
            "gpu": c.gpu_idle_w + c.gpu_full_w * busy * leak * ratio**c.gpu_exponent * c.powered_tpcs / 8,
            "cpu": c.cpu_idle_w + c.cpu_core_w * cores * (cpu_mhz / c.cpu_top_mhz) ** c.cpu_exponent,
            "system": c.system_idle_w + c.system_full_w * busy * ratio + self.extra_w,
            "vddq": c.vddq_idle_w + c.vddq_full_w * busy * ratio,
        }

    def _total(self) -> float:
        return self.rails_w["gpu"] + self.rails_w["cpu"] + self.rails_w["system"]

    def _step_registers(self, dt_s: float) -> None:
        # renewed at the end of the step in which the window ends, so steps should be well below the window
        self._register_age_s += dt_s
        window_s = self.constants.window_ms / 1000
        if self._register_age_s >= window_s or not self.constants.register_held:
            self._register_age_s %= window_s
            self._register_w = {name: mean.mean() or 0.0 for name, mean in self._rails.items()}

    def _step_fan(self, dt_s: float) -> None:
        self._fan_wait_s -= dt_s
        if self._fan_wait_s <= 0.0:
            self._fan_wait_s = 2.0  # POLLING_INTERVAL of nvfancontrol.conf
            self.fan_pwm = _interpolate(_FAN, _GROUP_MAX_C - self.temperature_c("tj")) if self.fan_works else 0.0

    def _sink_r(self) -> float:
        c = self.constants
        # shape between no fan and full fan [?]: half speed already gives most of the cooling
        return c.sink_full_fan_r + (c.sink_no_fan_r - c.sink_full_fan_r) * (1.0 - self.fan_pwm / 255.0) ** 3


def _relax(value: float, final: float, dt_s: float, tau_s: float) -> float:
    """First order, exact for a constant `final`."""
    return final + (value - final) * math.exp(-dt_s / tau_s)


def _interpolate(points: tuple[tuple[float, float], ...], x: float) -> float:
    """Piecewise linear, clamped at both ends; points ascending in x."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]
