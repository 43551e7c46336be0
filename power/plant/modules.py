"""The simulated modules as data: identity, clock tables, rails on I2C, and what JetPack calls things. Used by tree.py,
board.py, simulated.py and runner.py; the physics are in constants.py.

Sources: NVIDIA's module table (nvpower.sh), device-tree patches for Tegra234 (power sensors 2023-09-21, thermal
2023-01-24), nvpmodel confs, and what boards have shown (jetson-stats, forum). [I] inferred, [?] assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .constants import ORIN_NANO, ORIN_NANO_SUPER, ORIN_NX, PlantConstants

ZONES = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj")
GATED = ("cv0", "cv1", "cv2")


def _mhz(*values: float) -> tuple[int, ...]:
    return tuple(round(value * 1e6) for value in values)


def _cpu_table(top_khz: int) -> tuple[int, ...]:
    """115200 + k x 76800 up to 2188800, and 2201600 on AGX (29 entries there)."""
    steps = tuple(khz for khz in range(115_200, 2_188_801, 76_800) if khz <= top_khz)
    return steps if steps[-1] == top_khz else (*steps, top_khz)


@dataclass(frozen=True, slots=True)
class Module:
    """One module. `name` is that of configs/boards, `rails`: I2C address -> channel -> label."""

    name: str
    title: str
    model: str
    compatible: tuple[str, ...]
    constants: PlantConstants
    gpu_table_hz: tuple[int, ...]
    cpus: int
    cpu_table_khz: tuple[int, ...]
    rails: Mapping[str, Mapping[int, str]]
    default_mode: int  # PM_CONFIG of the module's nvpmodel conf
    memory_gib: int  # nominal: what firmware keeps of it is not known [?]
    fbp_pg_mask: int | None = None  # what every mode writes: 2 in the confs of the Super tables, else not known
    fan_profile: str = "cool"
    fan_rpm: int = 6000  # at full speed: tables of nvfancontrol_p3767_0000.conf, 2900 in nvfancontrol_p3701_0000.conf


_SMALL_RAILS = {"1-0040": {1: "VDD_IN", 2: "VDD_CPU_GPU_CV", 3: "VDD_SOC"}}
_SMALL_MODEL = "NVIDIA Jetson {} Engineering Reference Developer Kit (simulated)"

AGX_ORIN = Module(
    name="agx-orin", title="AGX Orin", model="NVIDIA Jetson AGX Orin Developer Kit (simulated)",
    compatible=("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"), constants=PlantConstants(),
    gpu_table_hz=_mhz(306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5), cpus=12,
    cpu_table_khz=_cpu_table(2_201_600),
    rails={"1-0040": {1: "VDD_GPU_SOC", 2: "VDD_CPU_CV", 3: "VIN_SYS_5V0"}, "1-0041": {2: "VDDQ_VDD2_1V8AO"}},
    default_mode=2, memory_gib=64, fan_rpm=2900)
# the steps between the published ends are those of AGX Orin [I]
ORIN_NX_SUPER = Module(
    name="orin-nx", title="Orin NX", model=_SMALL_MODEL.format("Orin NX"),
    compatible=("nvidia,p3768-0000+p3767-0000-super", "nvidia,p3767-0000", "nvidia,tegra234"), constants=ORIN_NX,
    gpu_table_hz=_mhz(306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1173), cpus=8, cpu_table_khz=_cpu_table(1_984_000),
    rails=_SMALL_RAILS, default_mode=4, memory_gib=16, fbp_pg_mask=2, fan_profile="quiet")
ORIN_NANO_8_SUPER = Module(
    name="orin-nano-super", title="Orin Nano Super", model=_SMALL_MODEL.format("Orin Nano"),
    compatible=("nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234"),
    constants=ORIN_NANO_SUPER,
    gpu_table_hz=_mhz(306, 408, 510, 612, 714, 816, 918, 1020), cpus=6, cpu_table_khz=_cpu_table(1_728_000),
    rails=_SMALL_RAILS, default_mode=1, memory_gib=8, fbp_pg_mask=2, fan_profile="quiet")
ORIN_NANO_8 = Module(
    name="orin-nano", title="Orin Nano", model=_SMALL_MODEL.format("Orin Nano"),
    compatible=("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"), constants=ORIN_NANO,
    gpu_table_hz=_mhz(306, 408, 510, 612, 624.75), cpus=6, cpu_table_khz=_cpu_table(1_510_400), rails=_SMALL_RAILS,
    default_mode=0, memory_gib=8, fan_profile="quiet")

MODULES = {module.name: module for module in (AGX_ORIN, ORIN_NX_SUPER, ORIN_NANO_8_SUPER, ORIN_NANO_8)}


@dataclass(frozen=True, slots=True)
class JetPack:
    """What one JetPack calls things. `hwmon`: the number of the first hwmon (numbers vary from boot to boot)."""

    name: str
    release: str
    gpu: str  # device directory of the GPU
    node: str  # of_node/name and the end of the devfreq name
    aliases: tuple[str, ...]
    bus: str  # directory of the other devices
    zone_type: str
    board_zones: tuple[str, ...]  # AGX developer kit only
    emc_cap: str
    enable_3d_scaling: bool
    hwmon: int

    @property
    def devfreq(self) -> str:
        """The GPU's devfreq directory, below the root."""
        return f"{self.gpu}/devfreq/{self.devfreq_name}"

    @property
    def devfreq_name(self) -> str:
        """Its name in /sys/class/devfreq."""
        return f"17000000.{self.node}"

    @property
    def i2c(self) -> str:
        """The directory of the bus that the INA3221 sit on."""
        return f"{self.bus}/c240000.i2c/i2c-1"

    def zone_types(self, module: Module) -> tuple[str, ...]:
        """Types of the thermal zones in the order of their numbers."""
        plain = [self.zone_type.format(zone if self.name != "5" else zone.upper()) for zone in ZONES[:-1]]
        return (*plain, "tj-thermal", *(self.board_zones if module is AGX_ORIN else ()))


_PLATFORM = "sys/devices/platform"
_RELEASE = ("# R{} (release), REVISION: {}, GCID: {}, BOARD: {}, EABI: aarch64, DATE: {}\n# KERNEL_VARIANT: oot\n"
            "TARGET_USERSPACE_LIB_DIR=nvidia\nTARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia")
# GCID and date of 39.2 are not known: 0 and 1970 stand for them
JETPACKS = {
    "5": JetPack("5", _RELEASE.format(35, "4.1", 33958178, "t186ref", "Tue Aug  1 19:57:35 UTC 2023"),
                 "sys/devices/17000000.ga10b", "ga10b", ("sys/devices/gpu.0",), "sys/devices/platform", "{}-therm",
                 ("Tboard_tegra", "Tdiode_tegra"), "sys/kernel/nvpmodel_emc_cap/emc_iso_cap", True, 2),
    "6": JetPack("6", _RELEASE.format(36, "4.3", 38968081, "generic", "Wed Jan  8 01:49:37 UTC 2025"),
                 f"{_PLATFORM}/bus@0/17000000.gpu", "gpu", (f"{_PLATFORM}/17000000.gpu", f"{_PLATFORM}/gpu.0"),
                 f"{_PLATFORM}/bus@0", "{}-thermal", (), "sys/kernel/nvpmodel_clk_cap/emc", True, 0),
    "7": JetPack("7", _RELEASE.format(39, "2.0", 0, "generic", "Thu Jan  1 00:00:00 UTC 1970"),
                 f"{_PLATFORM}/bus@0/17000000.gpu", "gpu", (f"{_PLATFORM}/17000000.gpu", f"{_PLATFORM}/gpu.0"),
                 f"{_PLATFORM}/bus@0", "{}-thermal", (), "sys/kernel/nvpmodel_clk_cap/emc", False, 1),
}

