"""A simulated board as files: takes the cap that someone wrote, advances the physics, shows the sensors.

Used by runner.py in real time and by tests in simulated time. Invariants: every value appears whole (written beside and
renamed), the clock obeys max_freq and min_freq as devfreq does (max wins, off-table values round down), and nothing but
these files connects the plant with the daemon.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import SysfsError
from ..sysfs import Sysfs
from .model import PlantModel
from .simulated import RAILS
from .tree import DEVFREQ, GATED, GPU, GPU_TABLE_HZ, ZONES, build_tree, rail_files, zone_file


class PlantBoard:
    """The tree below `root` and a PlantModel; `advance` is one step of both."""

    def __init__(self, root: Path, model: PlantModel) -> None:
        build_tree(root)
        self.root = root
        self.model = model
        self._sysfs = Sysfs(root)
        self._shown: dict[str, str] = {}
        self._cap_hz = GPU_TABLE_HZ[-1]
        self._rail_files = rail_files()
        self._show(0.0)

    def gpu_hz(self) -> int:
        """The clock under load: max_freq, rounded to the table and written back if it was off it."""
        try:
            wanted = self._sysfs.read_int(f"{DEVFREQ}/max_freq")
        except SysfsError:
            # a writer is between truncating and writing: the old cap still holds
            return self._cap_hz
        step = max((hz for hz in GPU_TABLE_HZ if hz <= wanted), default=GPU_TABLE_HZ[0])
        if step != wanted:
            self._sysfs.write_int(f"{DEVFREQ}/max_freq", step)
        self._cap_hz = step
        return step

    def advance(self, dt_s: float, busy: float) -> float:
        """Run for dt_s with the GPU busy for a share of it; returns the true mean board power in W."""
        power = self.model.step(dt_s, self.gpu_hz() / 1e6, busy)
        self._show(busy)
        return power

    def _show(self, busy: float) -> None:
        """Write what has changed."""
        try:
            low = min(self._sysfs.read_int(f"{DEVFREQ}/min_freq"), self._cap_hz)
        except SysfsError:
            low = GPU_TABLE_HZ[0]
        clock = self._cap_hz if busy > 0.0 else low
        self._put(f"{DEVFREQ}/cur_freq", clock)
        self._put(f"{DEVFREQ}/target_freq", clock)
        self._put(f"{GPU}/load", round(busy * 1000))
        for zone in ZONES:
            if zone not in GATED:
                self._put(zone_file(zone), self.model.read_temperature_mc(zone))
        for label, (volts, amps) in self._rail_files.items():
            millivolts, milliamps = self.model.read_rail(RAILS[label])
            self._put(volts, millivolts)
            self._put(amps, milliamps)
        self._put("sys/devices/platform/pwm-fan/hwmon/hwmon0/pwm1", round(self.model.fan_pwm))

    def _put(self, path: str, value: int) -> None:
        text = f"{value}\n"
        if self._shown.get(path) == text:
            return
        target = self.root / path
        temporary = target.with_name(f".{target.name}.new")
        temporary.write_text(text)
        temporary.replace(target)
        self._shown[path] = text
