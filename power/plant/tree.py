"""Writes the directory tree of an AGX Orin 64 with JetPack 6.2 names below a root: what a board's /sys, /etc and
device tree would hold. The values that move are kept up by board.py.

Used by board.py. Paths, labels and tables: facts of JetPack 6 (L4T 36.4.3), checked there against jetson-stats and
NVIDIA's device trees. Plain files cannot fail on read, so a cv zone, which answers EAGAIN on a board, is an empty file.
Invariant: it never touches a directory that holds anything but an earlier plant.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import PowerError

MARKER = ".orind-plant"
GPU = "sys/devices/platform/bus@0/17000000.gpu"
DEVFREQ = f"{GPU}/devfreq/17000000.gpu"
THERMAL = "sys/devices/virtual/thermal"
ZONES = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj")
GATED = ("cv0", "cv1", "cv2")
I2C = "sys/devices/platform/bus@0/c240000.i2c/i2c-1"
GPU_TABLE_MHZ = (306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0, 1020.0, 1122.0, 1224.0, 1300.5)
GPU_TABLE_HZ = tuple(round(mhz * 1e6) for mhz in GPU_TABLE_MHZ)
CPUS = 12
# 115200 + k x 76800 up to 2188800, then 2201600: 29 entries
CPU_TABLE_KHZ = (*range(115_200, 2_188_801, 76_800), 2_201_600)
# I2C address -> hwmon number and channels: label
INA3221 = {
    "1-0040": (1, {1: "VDD_GPU_SOC", 2: "VDD_CPU_CV", 3: "VIN_SYS_5V0"}),
    "1-0041": (2, {2: "VDDQ_VDD2_1V8AO"}),
}


def rail_files() -> dict[str, tuple[str, str]]:
    """Label -> (voltage file in mV, current file in mA), below the root."""
    files: dict[str, tuple[str, str]] = {}
    for address, (number, channels) in INA3221.items():
        for channel, label in channels.items():
            base = f"{I2C}/{address}/hwmon/hwmon{number}"
            files[label] = (f"{base}/in{channel}_input", f"{base}/curr{channel}_input")
    return files


def zone_file(zone: str) -> str:
    """The temp file of a zone, below the root."""
    return f"{THERMAL}/thermal_zone{ZONES.index(zone)}/temp"


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

    def link(self, at: str, to: str) -> None:
        place = self._root / at
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(os.path.relpath(self._root / to, place.parent))


def build_tree(root: Path) -> None:
    """Create or renew the tree. Raises PowerError for "/" and for a directory that is neither empty nor a plant's."""
    root = root.resolve()
    if root == Path("/"):
        raise PowerError("a plant cannot be built at /: give it a directory of its own")
    if root.is_dir() and any(root.iterdir()) and not (root / MARKER).exists():
        raise PowerError(f"{root} holds something else; give the plant an empty directory")
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).write_text("a simulated Jetson AGX Orin; made by python -m orind.power.plant\n")
    w = _Writer(root)
    _write_identity(w)
    _write_gpu(w)
    _write_cpus(w)
    _write_thermal(w)
    _write_rails(w)
    _write_rest(w)


def _write_identity(w: _Writer) -> None:
    w.file("etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, "
           "DATE: Wed Jan  8 01:49:37 UTC 2025\n# KERNEL_VARIANT: oot\nTARGET_USERSPACE_LIB_DIR=nvidia\n"
           "TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia")
    base = "sys/firmware/devicetree/base"
    w.raw(f"{base}/model", b"NVIDIA Jetson AGX Orin Developer Kit (simulated)\0")
    w.raw(f"{base}/compatible", b"nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0")
    w.raw(f"{base}/serial-number", b"1421521000001\0")
    # MAXN: the widest envelope; the budget is held within it
    w.file("var/lib/nvpmodel/status", "pmode:0000 fmode:cool")


def _write_gpu(w: _Writer) -> None:
    for name, value in {"load": 0, "railgate_enable": 1, "tpc_pg_mask": 0, "fbp_pg_mask": 0, "enable_3d_scaling": 1,
                        "power/control": "auto"}.items():
        w.file(f"{GPU}/{name}", value)
    w.raw(f"{GPU}/of_node/name", b"gpu\0")
    for name, value in {"cur_freq": GPU_TABLE_HZ[0], "target_freq": GPU_TABLE_HZ[0], "min_freq": GPU_TABLE_HZ[0],
                        "max_freq": GPU_TABLE_HZ[-1], "available_frequencies": " ".join(map(str, GPU_TABLE_HZ)),
                        "governor": "nvhost_podgov",
                        "available_governors": "nvhost_podgov userspace powersave performance simple_ondemand"}.items():
        w.file(f"{DEVFREQ}/{name}", value)
    w.link(f"{DEVFREQ}/device", GPU)
    w.link("sys/class/devfreq/17000000.gpu", DEVFREQ)
    w.link(f"{GPU}/devfreq_dev", DEVFREQ)
    w.link("sys/devices/platform/17000000.gpu", GPU)
    w.link("sys/devices/platform/gpu.0", GPU)


def _write_cpus(w: _Writer) -> None:
    base = "sys/devices/system/cpu"
    w.file(f"{base}/online", f"0-{CPUS - 1}")
    for cpu in range(CPUS):
        policy = f"{base}/cpufreq/policy{cpu // 4 * 4}"
        w.file(f"{base}/cpu{cpu}/online", 1)
        w.link(f"{base}/cpu{cpu}/cpufreq", policy)
        if cpu % 4 == 0:
            for name, value in {"scaling_min_freq": 729_600, "scaling_max_freq": CPU_TABLE_KHZ[-1],
                                "scaling_cur_freq": CPU_TABLE_KHZ[-1], "cpuinfo_min_freq": CPU_TABLE_KHZ[0],
                                "cpuinfo_max_freq": CPU_TABLE_KHZ[-1], "scaling_governor": "schedutil",
                                "scaling_available_frequencies": " ".join(map(str, CPU_TABLE_KHZ))}.items():
                w.file(f"{policy}/{name}", value)


def _write_thermal(w: _Writer) -> None:
    for number, zone in enumerate(ZONES):
        base = f"{THERMAL}/thermal_zone{number}"
        w.file(f"{base}/type", f"{zone}-thermal")
        w.raw(f"{base}/temp", b"" if zone in GATED else b"45000\n")
        # NVIDIA patch "arm64: tegra: Add thermal support for Tegra234": passive, critical, hot surface
        for trip, (temp, kind, hysteresis) in enumerate(((99_000, "passive", 0), (104_500, "critical", 0),
                                                          (70_000, "passive", 8_000))):
            w.file(f"{base}/trip_point_{trip}_temp", temp)
            w.file(f"{base}/trip_point_{trip}_type", kind)
            w.file(f"{base}/trip_point_{trip}_hyst", hysteresis)
        w.link(f"sys/class/thermal/thermal_zone{number}", base)
    cooling = {"pwm-fan": 3, "cpufreq-cpu0": 28, "cpufreq-cpu4": 28, "cpufreq-cpu8": 28, "devfreq-17000000.gpu": 10,
               **{f"{zone}-throttle-alert": 1 for zone in ZONES[:-1]}, "hot-surface-alert": 1}
    for number, (kind, top) in enumerate(cooling.items()):
        base = f"{THERMAL}/cooling_device{number}"
        for name, value in {"type": kind, "cur_state": 0, "max_state": top}.items():
            w.file(f"{base}/{name}", value)
        w.link(f"sys/class/thermal/cooling_device{number}", base)


def _write_rails(w: _Writer) -> None:
    for address, (number, channels) in INA3221.items():
        device = f"{I2C}/{address}"
        base = f"{device}/hwmon/hwmon{number}"
        w.file(f"{device}/name", "ina3221")
        w.file(f"{base}/name", "ina3221")
        for channel, label in channels.items():
            for name, value in {f"in{channel}_label": label, f"in{channel}_input": 0, f"curr{channel}_input": 0,
                                f"curr{channel}_max": 32_760, f"curr{channel}_crit": 32_760,
                                f"in{channel}_enable": 1}.items():
                w.file(f"{base}/{name}", value)
        w.file(f"{base}/in7_label", "sum of shunt voltages")
        w.file(f"{base}/in7_input", 0)
        w.link(f"sys/bus/i2c/devices/{address}", device)
        w.link(f"sys/class/hwmon/hwmon{number}", base)


def _write_rest(w: _Writer) -> None:
    for base, number, values in (
        ("sys/devices/platform/pwm-fan", 0, {"name": "pwmfan", "pwm1": 88, "pwm1_enable": 1}),
        ("sys/devices/platform/soctherm-oc-event", 3, {"name": "soctherm_oc", "oc1_event_cnt": 0, "oc2_event_cnt": 0,
                                                       "oc3_event_cnt": 0, "oc3_throt_en": 1}),
        ("sys/devices/platform/bus@0/39c0000.tachometer", 4, {"name": "pwm_tach", "rpm": 1000}),
    ):
        for name, value in values.items():
            w.file(f"{base}/hwmon/hwmon{number}/{name}", value)
        w.link(f"sys/class/hwmon/hwmon{number}", f"{base}/hwmon/hwmon{number}")
    w.file("sys/kernel/nvpmodel_clk_cap/emc", 0)
