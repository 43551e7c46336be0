"""A simulated board as files: takes the caps that someone wrote, advances the physics, shows the sensors.

Used by runner.py in real time and by tests in simulated time. Invariants: every value of a sensor appears whole
(written beside and renamed), clocks obey max and min as devfreq and cpufreq do (max wins, off-table values round down;
while heat holds a clock its cap file shows that), and nothing but these files connects the plant with the daemon.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import SysfsError
from ..sysfs import Sysfs
from .cap_file import CapFile
from .faults import Faults
from .kernel import Kernel
from .model import PlantModel
from .modules import AGX_ORIN, GATED, JETPACKS, ZONES, JetPack, Module
from .proc import STAT, CpuTimes
from .services import Services
from .tree import Layout, build_tree, write_hwmons

_STEP_S = 0.05
NVPMODEL_FAULTS = ("", "container", "reverts", "refused", "hangs")


class PlantBoard:
    """The tree below `root`, a PlantModel and the kernel between them; `advance` is one step of all. `model` must be
    that of `module` (its constants)."""

    def __init__(self, root: Path, model: PlantModel, module: Module = AGX_ORIN,
                 jetpack: JetPack = JETPACKS["6"]) -> None:
        self.layout = Layout(module, jetpack, jetpack.hwmon)
        build_tree(root, self.layout)
        self.root = root
        self.model = model
        self.faults = Faults()
        c = model.constants
        self.kernel = Kernel(module.gpu_table_hz, c.oc_from_w, c.oc_limit_w, c.oc_at_limit_hz)
        self._sysfs = Sysfs(root)
        self._shown: dict[str, str] = {}
        self._gpu_cap = CapFile(self._sysfs, self.layout.max_freq, module.gpu_table_hz, rounds=True)
        self._cpu_caps = [CapFile(self._sysfs, f"{policy}/scaling_max_freq", module.cpu_table_khz, rounds=False)
                          for policy in self.layout.cpu_policies()]
        self._elapsed_s = 0.0
        self._services = Services(root, self.layout, model, self._put)
        self._cpu_times = CpuTimes(module.cpus)
        self._show(0.0)

    def gpu_hz(self) -> int:
        """The cap that was asked for in max_freq, rounded to the table."""
        return self._gpu_cap.settle(self.kernel.cap_hz(self.layout.module.gpu_table_hz[-1]), self.faults.refuse_writes)

    def cpu_khz(self) -> int:
        """The lowest cap that was asked for of the CPU clusters, rounded to the table."""
        table = self.layout.module.cpu_table_khz
        most = self.kernel.cpu_khz(table, table[-1])
        return min(cap.settle(most) for cap in self._cpu_caps)

    def advance(self, dt_s: float, busy: float) -> float:
        """Run for dt_s with the GPU busy for a share of it; returns the true mean board power in W."""
        self._services.look()
        cap, cpu_cap, low = self.gpu_hz(), self.cpu_khz(), self._min_hz()
        energy, left = 0.0, dt_s
        while left > 1e-9:
            step = min(left, _STEP_S)
            clock = self.kernel.step(cap, low, busy)
            cpu = self.kernel.cpu_khz(self.layout.module.cpu_table_khz, cpu_cap)
            energy += self.model.step(step, clock / 1e6, busy, cpu / 1e3) * step
            self.kernel.after(step, self.model.temperature_c("tj"), self.model.board_w)
            self.model.off = self.kernel.shut_down
            left -= step
        self._elapsed_s += dt_s
        self._cpu_times.add(dt_s, self.model.busy_cores(busy), self._services.online)
        self._show(busy)
        return energy / dt_s

    def renumber_hwmons(self) -> None:
        """A driver was loaded anew: every hwmon has another number."""
        old = self.layout
        self.layout = Layout(old.module, old.jetpack, old.hwmon + 7)
        write_hwmons(self.root, self.layout)
        self._shown.clear()
        self._show(0.0)

    def reset_mode(self, mode_id: int, gpu_max_hz: int | None) -> None:
        """What a restart of nvpmodel.service does behind everybody's back: the mode's cap, whatever was set."""
        module = self.layout.module
        self._sysfs.write_int(self.layout.max_freq, gpu_max_hz or module.gpu_table_hz[-1])
        (self.root / "var/lib/nvpmodel/status").write_text(f"pmode:{mode_id:04d} fmode:{module.fan_profile}\n")

    def break_nvpmodel(self, how: str) -> None:
        """One of NVPMODEL_FAULTS, from its next start on; "" makes it well."""
        fault = self.root / ".nvpmodel-fault"
        if how:
            fault.write_text(how)
        else:
            fault.unlink(missing_ok=True)

    def reboot(self) -> None:
        """Enters the mode of nvpmodel's status file, one that needed a boot too."""
        self._shown.clear()
        self._services.reboot()

    def _min_hz(self) -> int:
        try:
            return self._sysfs.read_int(f"{self.layout.devfreq}/min_freq")
        except SysfsError:
            return self.layout.module.gpu_table_hz[0]

    def _show(self, busy: float) -> None:
        """Write what has changed."""
        layout = self.layout
        self._put(f"{layout.devfreq}/cur_freq", self.kernel.cur_hz)
        self._put(f"{layout.devfreq}/target_freq", self.kernel.cur_hz)
        self.gpu_hz()
        table = layout.module.cpu_table_khz
        cpu_khz = self.kernel.cpu_khz(table, self.cpu_khz())
        for kind, top in layout.cooling().items():
            if kind.startswith("devfreq"):
                self._put(layout.cooling_file(kind), min(self.kernel.cooling_state, top))
            elif kind.startswith("cpufreq"):
                self._put(layout.cooling_file(kind), self.kernel.cpu_state(table))
        for policy in layout.cpu_policies():
            self._put(f"{policy}/scaling_cur_freq", cpu_khz)
        self._put(f"{layout.gpu}/load", round(busy * 1000))
        for zone in ZONES:
            if zone not in GATED:
                self._put_sensor(zone, self.model.read_temperature_mc(zone), layout.zone_file(zone))
        for label, (volts, amps) in layout.rail_files().items():
            millivolts, milliamps = self.model.read_rail(label)
            self._put(volts, millivolts)
            self._put_sensor(label, milliamps, amps)
        self._put(f"{layout.hwmon_folder('fan')}/pwm1", round(self.model.fan_pwm))
        self._put(f"{layout.hwmon_folder('tach')}/rpm", round(self.model.fan_pwm / 255 * layout.module.fan_rpm))
        self._put(f"{layout.hwmon_folder('oc')}/oc3_event_cnt", self.kernel.oc3_count)
        self._put(STAT, self._cpu_times.text(self._services.online))

    def _put_sensor(self, name: str, value: int, path: str) -> None:
        """As the faults let it be seen; a missing one is a file that is not there."""
        shown = self.faults.shown(name, value, self._elapsed_s)
        if shown is None:
            (self.root / path).unlink(missing_ok=True)
            self._shown.pop(path, None)
        else:
            self._put(path, shown)

    def _put(self, path: str, value: int | str) -> None:
        text = f"{value}\n"
        if self._shown.get(path) == text:
            return
        target = self.root / path
        temporary = target.with_name(f".{target.name}.new")
        temporary.write_text(text)
        temporary.replace(target)
        self._shown[path] = text
