"""The physics of a simulated Orin: power by part and rail, temperature by zone, and the sensors' own lag and grain.

Used by board.py (files) and simulated.py (no files), which put kernel.py between a cap and the clock. Closed-form
exponential steps: exact for inputs that are constant within a step, for any step length. Constants: constants.py.
"""

from __future__ import annotations

import math

from .constants import PlantConstants
from .fan import Fan
from .noise import Noise
from .register import RegisterWindow

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
        self._noise = Noise(seed)
        window_ns = c.window_ms * 1_000_000
        self._window = RegisterWindow(window_ns)
        self._decays: dict[float, tuple[float, float, list[tuple[str, float, float, float, float]]]] = {}
        self.rails_w = self._power(0.0, c.cpu_top_mhz, 0.0, 45.0)
        self.board_w = self._total()
        self._window.add(window_ns, self.rails_w)
        self._register_w = dict(self.rails_w)
        self._shown: dict[str, tuple[int, int]] = {}  # what the registers say, by rail
        self._register_age_s = c.window_ms / 1000 * self._noise.uniform()
        # begin where idle has settled
        self.fan = Fan(c.fan[fan_profile], fan_works)
        self._sink_c = self._sink_r() * self.board_w
        self._fast = {name: zone.fast_r * self.board_w for name, zone in c.zones.items()}
        self._slow = {name: zone.slow_r * self.board_w for name, zone in c.zones.items()}
        self._hottest_c = max(fast + self._slow[name] for name, fast in self._fast.items())  # above the heat sink

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
            return self.ambient_c + self._sink_c + self._hottest_c
        return self.ambient_c + self._sink_c + self._fast[zone] + self._slow[zone]

    def step(self, dt_s: float, gpu_mhz: float, busy: float, cpu_mhz: float | None = None) -> float:
        """Advance by dt_s with the GPU at gpu_mhz for a share `busy` of it; returns the true mean board power in W."""
        c = self.constants
        rails = self._power(gpu_mhz, cpu_mhz or c.cpu_top_mhz, busy, self.temperature_c("gpu"))
        self.rails_w = rails
        scale, sink_keeps, zones = self._shares_of(dt_s)
        for part, sigma, noise in zip(PARTS, c.rail_noise, self._noise.many(len(PARTS)), strict=True):
            rails[part] *= 1.0 + sigma * scale * noise
        board = self.board_w = rails["gpu"] + rails["cpu"] + rails["soc"] + rails["system"]
        self._window.add(round(dt_s * 1e9), rails)
        self._step_registers(dt_s)
        if self.fan.due(dt_s):
            self.fan.look(self.temperature_c("tj"))
        sink = self._sink_r() * board
        self._sink_c = sink + (self._sink_c - sink) * sink_keeps
        kept_fast, kept_slow, hottest = self._fast, self._slow, -1e9
        for name, fast_r, fast_keeps, slow_r, slow_keeps in zones:
            to_fast, to_slow = fast_r * board, slow_r * board
            kept_fast[name] = fast = to_fast + (kept_fast[name] - to_fast) * fast_keeps
            kept_slow[name] = slow = to_slow + (kept_slow[name] - to_slow) * slow_keeps
            if fast + slow > hottest:
                hottest = fast + slow
        self._hottest_c = hottest
        return board

    def read_rail(self, label: str) -> tuple[int, int]:
        """(mV, mA) as the INA3221 shows it: mean over a window, in whole current steps."""
        shown = self._shown.get(label)
        if shown is None:
            rail = self.constants.rails[label]
            milliamps = sum(self._register_w[part] for part in rail.parts) * 1e6 / rail.millivolts
            shown = self._shown[label] = rail.millivolts, round(milliamps / rail.step_ma) * rail.step_ma
        return shown

    def read_temperature_mc(self, zone: str) -> int:
        """Milli-degrees C in 1/32 C steps with noise. "tj": the hottest of the readings' true values."""
        noisy = self.temperature_c(zone) + self._noise.one() * self.constants.temperature_noise_c
        return int(round(noisy * 32) * 1000 / 32)

    def busy_cores(self, busy: float) -> float:
        """How many CPU cores' worth of work there is while the GPU is busy for this share."""
        return self.constants.cores_idle + self.constants.cores_full * busy

    def read_temperatures_mc(self) -> dict[str, int]:
        """As `read_temperature_mc` of every zone and of "tj", in this order."""
        base, sigma, slow = self.ambient_c + self._sink_c, self.constants.temperature_noise_c, self._slow
        true = {zone: base + fast + slow[zone] for zone, fast in self._fast.items()}
        true["tj"] = base + self._hottest_c
        return {zone: int(round((value + noise * sigma) * 32) * 1000 / 32)
                for (zone, value), noise in zip(true.items(), self._noise.many(len(true)), strict=True)}

    def _power(self, gpu_mhz: float, cpu_mhz: float, busy: float, gpu_c: float) -> dict[str, float]:
        c = self.constants
        if self.off:
            return {"gpu": 0.0, "cpu": 0.0, "soc": 0.0, "system": _OFF_W, "vddq": 0.0}
        ratio = gpu_mhz / c.gpu_top_mhz
        emc = self.emc_mhz / c.emc_top_mhz
        leak = 1.0 + c.leak_per_c * (gpu_c - c.leak_reference_c)
        cores = self.busy_cores(busy)
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
            self._register_w = self._window.means()
            self._shown.clear()

    def _shares_of(self, dt_s: float) -> tuple[float, float, list[tuple[str, float, float, float, float]]]:
        """How much noise a step of dt_s has, and what is left after it of the heat sink's and each zone's two nodes'
        distance from where they go; remembered, as steps are of few lengths."""
        found = self._decays.get(dt_s)
        if found is None:
            if len(self._decays) >= 64:
                self._decays.clear()
            c = self.constants
            # white noise: its mean over dt shrinks with the root of dt
            scale = math.sqrt(0.01 / dt_s) if dt_s > 0 else 0.0
            zones = [(name, zone.fast_r, math.exp(-dt_s / zone.fast_tau), zone.slow_r, math.exp(-dt_s / zone.slow_tau))
                     for name, zone in c.zones.items()]
            found = self._decays[dt_s] = (scale, math.exp(-dt_s / c.sink_tau), zones)
        return found

    def _sink_r(self) -> float:
        c = self.constants
        # shape between no fan and full fan [?]: half speed already gives most of the cooling
        return c.sink_full_fan_r + (c.sink_no_fan_r - c.sink_full_fan_r) * (1.0 - self.fan.pwm / 255.0) ** 3
