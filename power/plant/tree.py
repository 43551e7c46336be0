"""Writes the directory tree of a simulated module under a JetPack's names: what a board's /sys, /etc and device tree
would hold. The values that move are kept up by board.py.

Used by board.py. Paths, labels and tables: modules.py. Plain files cannot fail on read, so a cv zone, which answers
EAGAIN on a board, is an empty file. Invariant: it never touches a directory that holds anything but an earlier plant.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import PowerError
from .fan import fan_conf_text
from .modes import conf_text, widest_of
from .modules import GATED, ZONES, JetPack, Module
from .proc import proc_texts

MARKER = ".orind-plant"
THERMAL = "sys/devices/virtual/thermal"
CPU = "sys/devices/system/cpu"
EMC = "sys/kernel/debug/bpmp/debug/clk/emc"
EMC_ACTIVITY = "sys/kernel/debug/cactmon/mc_all"
FAN_UNIT = "etc/systemd/system/nvfancontrol.service"
PROGRAMS = {"nvpmodel": "usr/sbin/nvpmodel", "nvfancontrol": "usr/sbin/nvfancontrol",
            "jetson_clocks": "usr/bin/jetson_clocks", "systemctl": "usr/bin/systemctl"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie below the root, for one module under one JetPack. `hwmon`: the first number used."""

    module: Module
    jetpack: JetPack
    hwmon: int

    @property
    def gpu(self) -> str:
        return self.jetpack.gpu

    @property
    def devfreq(self) -> str:
        return self.jetpack.devfreq

    @property
    def max_freq(self) -> str:
        return f"{self.jetpack.devfreq}/max_freq"

    @property
    def emc_top_hz(self) -> int:
        return round(self.module.constants.emc_top_mhz * 1e6)

    def zone_file(self, zone: str) -> str:
        """The temp file of a zone."""
        return f"{THERMAL}/thermal_zone{ZONES.index(zone)}/temp"

    def hwmons(self) -> dict[str, tuple[str, int]]:
        """Device -> (its directory, number of its hwmon)."""
        j, first = self.jetpack, self.hwmon
        devices = {"fan": "sys/devices/platform/pwm-fan",
                   **{address: f"{j.i2c}/{address}" for address in self.module.rails},
                   "oc": "sys/devices/platform/soctherm-oc-event", "tach": f"{j.bus}/39c0000.tachometer"}
        return {name: (path, first + i) for i, (name, path) in enumerate(devices.items())}

    def hwmon_folder(self, device: str) -> str:
        """The hwmon directory of a device: "fan", "oc", "tach" or an I2C address."""
        path, number = self.hwmons()[device]
        return f"{path}/hwmon/hwmon{number}"

    def rail_files(self) -> dict[str, tuple[str, str]]:
        """Label -> (voltage file in mV, current file in mA)."""
        files: dict[str, tuple[str, str]] = {}
        for address, channels in self.module.rails.items():
            base = self.hwmon_folder(address)
            for channel, label in channels.items():
                files[label] = (f"{base}/in{channel}_input", f"{base}/curr{channel}_input")
        return files

    def cooling(self) -> dict[str, int]:
        """Cooling devices in the order of their numbers: type -> max_state."""
        m = self.module
        return {"pwm-fan": 3, **{f"cpufreq-cpu{first}": len(m.cpu_table_khz) - 1 for first in range(0, m.cpus, 4)},
                f"devfreq-{self.jetpack.devfreq_name}": len(m.gpu_table_hz) - 1,
                **{f"{zone}-throttle-alert": 1 for zone in ZONES[:-1]}, "hot-surface-alert": 1}

    def cooling_file(self, kind: str) -> str:
        """The cur_state of a cooling device."""
        return f"{THERMAL}/cooling_device{list(self.cooling()).index(kind)}/cur_state"

    def cpu_policies(self) -> list[str]:
        """The cpufreq policies: one for each cluster of up to four cores."""
        return [f"{CPU}/cpufreq/policy{first}" for first in range(0, self.module.cpus, 4)]


class _Writer:
    def __init__(self, root: Path) -> None:
        self._root = root

    def file(self, path: str, value: object) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{value}\n")

    def raw(self, path: str, value: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(value)

    def program(self, path: str, source: str) -> None:
        self.file(path, f"#!{sys.executable} -IS\n{source}")
        (self._root / path).chmod(0o755)

    def link(self, at: str, to: str) -> None:
        place = self._root / at
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(os.path.relpath(self._root / to, place.parent))


def build_tree(root: Path, layout: Layout) -> None:
    """Create or renew the tree. Raises PowerError for "/" and for a directory that is neither empty nor a plant's."""
    root = root.resolve()
    if root == Path("/"):
        raise PowerError("a plant cannot be built at /: give it a directory of its own")
    if root.is_dir() and any(root.iterdir()) and not (root / MARKER).exists():
        raise PowerError(f"{root} holds something else; give the plant an empty directory")
    for old in ("etc", "proc", "root", "sys", "usr", "var"):
        shutil.rmtree(root / old, ignore_errors=True)  # another module's, or another JetPack's names
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).write_text(f"a simulated {layout.module.title}; made by python -m orind.power.plant\n")
    w = _Writer(root)
    _write_identity(w, layout)
    _write_gpu(w, layout)
    _write_cpus(w, layout)
    _write_thermal(w, layout)
    write_hwmons(root, layout)
    w.file(layout.jetpack.emc_cap, 0)
    for name, value in {"rate": layout.emc_top_hz, "max_rate": layout.emc_top_hz, "min_rate": 204_000_000,
                        "mrq_rate_locked": 0}.items():
        w.file(f"{EMC}/{name}", value)
    w.file(EMC_ACTIVITY, 0)
    # GPU memory by process, as nvmap lists it: nobody has any
    for name in ("maps", "clients"):
        w.file(f"sys/kernel/debug/nvmap/iovmm/{name}", f"{'CLIENT':<30}{'PROCESS':>15}{'PID':>9}{'SIZE':>12}\n"
               f"{'total':<54}{'0K':>12}")
    for name, path in PROGRAMS.items():
        w.program(path, (Path(__file__).with_name("programs") / f"{name}.py").read_text())


def _write_identity(w: _Writer, layout: Layout) -> None:
    w.file("etc/nv_tegra_release", layout.jetpack.release)
    base = "sys/firmware/devicetree/base"
    w.raw(f"{base}/model", layout.module.model.encode() + b"\0")
    w.raw(f"{base}/compatible", b"".join(name.encode() + b"\0" for name in layout.module.compatible))
    w.raw(f"{base}/serial-number", b"1421521000001\0")
    for name, text in proc_texts(layout.module).items():
        w.file(f"proc/{name}", text)
    w.link("proc/device-tree", base)
    w.file("etc/nvpmodel.conf", conf_text(layout.module, layout.jetpack))
    module = layout.module
    w.file("etc/nvfancontrol.conf", fan_conf_text(module.constants.fan, module.fan_profile, module.fan_rpm))
    w.file(FAN_UNIT, "[Unit]\nDescription=nvfancontrol service\n\n[Service]\nExecStart=/usr/sbin/nvfancontrol")
    w.file("var/lib/nvfancontrol/status", f"FAN1:FAN_PROFILE:{module.fan_profile}\nFAN1:FAN_GOVERNOR:cont\n"
           "FAN1:FAN_CONTROL:close_loop")
    w.file("var/lib/nvpmodel/status", f"pmode:{widest_of(layout.module.name).id:04d} fmode:{layout.module.fan_profile}")


def _write_gpu(w: _Writer, layout: Layout) -> None:
    gpu, devfreq, table = layout.gpu, layout.devfreq, layout.module.gpu_table_hz
    files = {"load": 0, "railgate_enable": 1, "tpc_pg_mask": widest_of(layout.module.name).tpc_pg_mask,
             "fbp_pg_mask": layout.module.fbp_pg_mask or 0, "golden_img_status": 1, "power/control": "auto"}
    if layout.jetpack.enable_3d_scaling:
        files["enable_3d_scaling"] = 1
    for name, value in files.items():
        w.file(f"{gpu}/{name}", value)
    w.raw(f"{gpu}/of_node/name", layout.jetpack.node.encode() + b"\0")
    for name, value in {"cur_freq": table[0], "target_freq": table[0], "min_freq": table[0], "max_freq": table[-1],
                        "available_frequencies": " ".join(map(str, table)), "governor": "nvhost_podgov",
                        "available_governors": "nvhost_podgov userspace powersave performance simple_ondemand"}.items():
        w.file(f"{devfreq}/{name}", value)
    w.link(f"{devfreq}/device", gpu)
    w.link(f"sys/class/devfreq/{layout.jetpack.devfreq_name}", devfreq)
    w.link(f"{gpu}/devfreq_dev", devfreq)
    for alias in layout.jetpack.aliases:
        w.link(alias, gpu)


def _write_cpus(w: _Writer, layout: Layout) -> None:
    table, cpus = layout.module.cpu_table_khz, layout.module.cpus
    w.file(f"{CPU}/online", f"0-{cpus - 1}")
    for cpu in range(cpus):
        w.file(f"{CPU}/cpu{cpu}/online", 1)
        w.link(f"{CPU}/cpu{cpu}/cpufreq", f"{CPU}/cpufreq/policy{cpu // 4 * 4}")
    for policy in layout.cpu_policies():
        for name, value in {"scaling_min_freq": 729_600, "scaling_max_freq": table[-1], "scaling_cur_freq": table[-1],
                            "cpuinfo_min_freq": table[0], "cpuinfo_max_freq": table[-1],
                            "scaling_governor": "schedutil",
                            "scaling_available_frequencies": " ".join(map(str, table))}.items():
            w.file(f"{policy}/{name}", value)


def _write_thermal(w: _Writer, layout: Layout) -> None:
    for number, kind in enumerate(layout.jetpack.zone_types(layout.module)):
        base = f"{THERMAL}/thermal_zone{number}"
        w.file(f"{base}/type", kind)
        w.raw(f"{base}/temp", b"" if number < len(ZONES) and ZONES[number] in GATED else b"45000\n")
        # NVIDIA patch "arm64: tegra: Add thermal support for Tegra234": passive, critical, hot surface
        for trip, (temp, what, hysteresis) in enumerate(((99_000, "passive", 0), (104_500, "critical", 0),
                                                          (70_000, "passive", 8_000))):
            w.file(f"{base}/trip_point_{trip}_temp", temp)
            w.file(f"{base}/trip_point_{trip}_type", what)
            w.file(f"{base}/trip_point_{trip}_hyst", hysteresis)
        w.link(f"sys/class/thermal/thermal_zone{number}", base)
    for number, (kind, top) in enumerate(layout.cooling().items()):
        base = f"{THERMAL}/cooling_device{number}"
        for name, value in {"type": kind, "cur_state": 0, "max_state": top}.items():
            w.file(f"{base}/{name}", value)
        w.link(f"sys/class/thermal/cooling_device{number}", base)


def write_hwmons(root: Path, layout: Layout) -> None:
    """The hwmon directories under the numbers of `layout`; those of other numbers go (a driver was loaded anew)."""
    w = _Writer(root)
    shutil.rmtree(root / "sys/class/hwmon", ignore_errors=True)
    for device, (path, number) in layout.hwmons().items():
        shutil.rmtree(root / path / "hwmon", ignore_errors=True)
        base = f"{path}/hwmon/hwmon{number}"
        for name, value in _hwmon_values(layout, device).items():
            w.file(f"{base}/{name}", value)
        w.link(f"sys/class/hwmon/hwmon{number}", base)
        if device in layout.module.rails:
            w.file(f"{path}/name", "ina3221")
            w.link(f"sys/bus/i2c/devices/{device}", path)


def _hwmon_values(layout: Layout, device: str) -> dict[str, object]:
    if device == "fan":
        return {"name": "pwmfan", "pwm1": 88, "pwm1_enable": 1}
    if device == "oc":
        return {"name": "soctherm_oc", **{f"oc{n}_event_cnt": 0 for n in (1, 2, 3)}, "oc3_throt_en": 1}
    if device == "tach":
        return {"name": "pwm_tach", "rpm": 1000}
    values: dict[str, object] = {"name": "ina3221", "in7_label": "sum of shunt voltages", "in7_input": 0}
    for channel, label in layout.module.rails[device].items():
        values |= {f"in{channel}_label": label, f"in{channel}_input": 0, f"curr{channel}_input": 0,
                   f"curr{channel}_max": 32_760, f"curr{channel}_crit": 32_760, f"in{channel}_enable": 1}
    # the second monitor of AGX Orin: nothing is connected there, and nothing can be read
    for channel in {1, 2, 3} - set(layout.module.rails[device]):
        values |= {f"in{channel}_label": "NC", f"in{channel}_enable": 0}
    return values
