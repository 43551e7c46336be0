"""Constants of the simulated modules' physics, as data: power by part, heat by zone, the sensors' lag and grain.

Used by model.py and modules.py. Every constant has its source; [I] marks our own inference, [?] an assumption. Nothing
here was measured by this project on an Orin. One silicon: what a TPC and a CPU core draw is the same on all modules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

# GPU (VDD_GPU_SOC of AGX Orin): 3.4 + 37.0 x (f/1300.5)^1.94 x powered TPCs / 8. Reproduces the four published stress
# rows, 40.4 (MAXN) 18.4 (50W, 816) 7.6 (30W, 612, 4 TPCs) 5.2 (15W, 408, 3 TPCs), within 7 % (forum 323456) [I]
GPU_TPC_W = 37.0 / 8
GPU_TPC_MHZ = 1300.5
GPU_EXPONENT = 1.94
# CPU (VDD_CPU_CV): 0.8 + 1.2 x busy cores x (f/2201.6)^2.64. Rows 15.2 / 6.0 / 5.6 / 1.6 W (12 cores at 2201.6, 12 at
# 1497.6, 8 at 1728, 4 at 1113.6) within 5 % (same source) [I]
CPU_CORE_W = 1.2
CPU_CORE_MHZ = 2201.6
CPU_EXPONENT = 2.64


def gpu_full_w(tpcs: int, top_mhz: float) -> float:
    """W of `tpcs` TPCs of this silicon under the published stress load, above idle."""
    return GPU_TPC_W * tpcs * math.pow(top_mhz / GPU_TPC_MHZ, GPU_EXPONENT)


def cpu_core_w(top_mhz: float) -> float:
    """W of one busy core of this silicon."""
    return CPU_CORE_W * math.pow(top_mhz / CPU_CORE_MHZ, CPU_EXPONENT)


@dataclass(frozen=True, slots=True)
class ZoneConstants:
    """Zone = heat sink + own nodes, driven by board power: R in C/W, tau in s."""

    fast_r: float
    fast_tau: float
    slow_r: float
    slow_tau: float


@dataclass(frozen=True, slots=True)
class RailConstants:
    """One channel of an INA3221: which parts it feeds (a part may be seen by two rails), mV, mA a step."""

    parts: tuple[str, ...]
    millivolts: int
    step_ma: int


# nvfancontrol.conf: margin below 105 C -> PWM, by profile. P3701 cool: 0,18 / 30 / 45 / 60 / 105; its quiet one tops
# at 202 and goes on with 62 at 60 (nvfancontrol_p3701_0000.conf; the points between [?])
FanCurve = tuple[tuple[float, float], ...]
AGX_FAN: dict[str, FanCurve] = {
    "cool": ((0.0, 255.0), (18.0, 255.0), (30.0, 202.0), (45.0, 149.0), (60.0, 88.0), (105.0, 0.0)),
    "quiet": ((0.0, 202.0), (18.0, 202.0), (30.0, 162.0), (45.0, 109.0), (60.0, 62.0), (105.0, 0.0)),
}
# P3767 quiet: 0/10 -> 255, 11/31 -> 187, 70 -> 0 (nvfancontrol_p3767_0000.conf); cool [?]: 10 C more of margin
SMALL_FAN: dict[str, FanCurve] = {
    "quiet": ((0.0, 255.0), (10.0, 255.0), (11.0, 187.0), (31.0, 187.0), (70.0, 0.0)),
    "cool": ((0.0, 255.0), (20.0, 255.0), (21.0, 187.0), (41.0, 187.0), (80.0, 0.0)),
}


@dataclass(frozen=True, slots=True)
class PlantConstants:
    """AGX Orin 64 by default. Powers in W, clocks in MHz."""

    gpu_idle_w: float = 3.4
    gpu_full_w: float = gpu_full_w(8, 1300.5)
    gpu_exponent: float = GPU_EXPONENT
    gpu_top_mhz: float = 1300.5
    tpcs: int = 8
    powered_tpcs: int = 8
    cpu_idle_w: float = 0.8
    cpu_core_w: float = CPU_CORE_W
    cpu_exponent: float = CPU_EXPONENT
    cpu_top_mhz: float = 2201.6
    # A rail of its own on NX and Nano (VDD_SOC: memory controller, video); within VDD_GPU_SOC on AGX
    soc_idle_w: float = 0.0
    soc_full_w: float = 0.0
    # 5 V system rail (memory, IO): idle total of the three rails about 11 W in MAXN (published) less the above [I];
    # + 2.5 W at full memory traffic [?]
    system_idle_w: float = 5.6
    system_full_w: float = 2.5
    # of it at the top memory clock, falling with that clock [?]
    memory_idle_w: float = 2.0
    emc_top_mhz: float = 3199.0
    # VDDQ hangs off VIN_SYS_5V0 and is part of it: 1091 mW in an idle tegrastats trace; + 0.8 W with traffic [?]
    vddq_idle_w: float = 1.09
    vddq_full_w: float = 0.8
    # What serving does at full load: share of the stress load's GPU power; memory traffic as a share of the most, and
    # the part of it that does not fall with the GPU's clock; cores kept busy by the system alone and by serving [?]
    gpu_activity: float = 1.0
    traffic: float = 1.0
    traffic_fixed: float = 0.0
    cores_idle: float = 0.9
    cores_full: float = 2.7
    # 1 to 2 % per C is said of leakage; taken on the GPU's dynamic power, which is the harder case [?]
    leak_per_c: float = 0.012
    leak_reference_c: float = 60.0
    # Heat sink: sum 0.25 + 0.4 + 0.3 = 0.95 C/W at full fan, so that with the fan as fast as its table has it there 49
    # and 53 W settle at 0.97 to 0.99 C/W: AGX devkit 49-53 W at 69-80 C gives 0.9 to 1.0 C/W; 3 C/W without fan
    # (suggested plant, 200 s) [I]
    sink_full_fan_r: float = 0.30
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
    fan: dict[str, FanCurve] = field(default_factory=lambda: AGX_FAN)
    # INA3221 with 512 samples: about 430 ms mean; 2 mOhm shunt and 40 uV: 20 mA steps. GPU and CPU rails: 12 to 20 V
    # supply, 19.5 V in traces. VDDQ is seen twice: by itself and within the 5 V rail.
    rails: dict[str, RailConstants] = field(default_factory=lambda: {
        "VDD_GPU_SOC": RailConstants(("gpu", "soc"), 19_000, 20),
        "VDD_CPU_CV": RailConstants(("cpu",), 19_000, 20),
        "VIN_SYS_5V0": RailConstants(("system",), 5_000, 20),
        "VDDQ_VDD2_1V8AO": RailConstants(("vddq",), 5_000, 20),
    })
    window_ms: int = 430
    # the averaged registers are renewed once per window (datasheet: after the last of the averaged conversions), so a
    # reading is up to one window old [I]; False: a sliding window, the kinder assumption
    register_held: bool = True
    # temperatures come in 1/32 C with 0.12 C idle noise on cpu and gpu, 0.07 C on soc (tegrastats trace) [I]
    temperature_noise_c: float = 0.1
    # noise per 10 ms, as shares of gpu, cpu, soc, system [?]
    rail_noise: tuple[float, float, float, float] = (0.02, 0.03, 0.01, 0.01)
    # Over-current events (soctherm_oc): OC3 begins at this power and reaches this many a second at the limit. Each is
    # 1.07 ms at half clock and shows in no clock file. AGX: nvpower.sh sets 150 W, beyond reach
    oc_from_w: float = 120.0
    oc_limit_w: float = 150.0
    oc_at_limit_hz: float = 30.0


def faster(constants: PlantConstants, factor: float) -> PlantConstants:
    """The same board, heating and cooling `factor` times as fast: every thermal time constant divided by it. Power,
    temperatures in the end, and the sensors' lag are as they were."""
    zones = {name: replace(zone, fast_tau=zone.fast_tau / factor, slow_tau=zone.slow_tau / factor)
             for name, zone in constants.zones.items()}
    return replace(constants, sink_tau=constants.sink_tau / factor, zones=zones)


# INA3221 of NX and Nano: 5 mOhm shunts and 40 uV: 8 mA x 5 V = 40 mW. VDD_IN is the whole module.
SMALL_RAILS = {
    "VDD_IN": RailConstants(("gpu", "cpu", "soc", "system"), 5_000, 8),
    "VDD_CPU_GPU_CV": RailConstants(("gpu", "cpu"), 5_000, 8),
    "VDD_SOC": RailConstants(("soc",), 5_000, 8),
}
# Zones of the small modules, with a sink of 0.42 C/W and 200 s under them at full fan: the published fit of the Nano
# step (6.2 -> 21.1 W; 0.25 + 0.90 at 33 s on gpu, 0.07 + 0.67 at 20 s on cpu, soc 1.04 at 43, 1.11 at 50, 0.90 at
# 32) within 1 C rms, and 1.25 to 1.5 C/W in the end [I]
SMALL_ZONES = {
    "cpu": ZoneConstants(0.07, 0.1, 0.52, 16.0),
    "gpu": ZoneConstants(0.25, 0.1, 0.68, 25.0),
    "soc0": ZoneConstants(0.04, 0.4, 0.80, 35.0),
    "soc1": ZoneConstants(0.01, 0.6, 0.83, 40.0),
    "soc2": ZoneConstants(0.11, 0.2, 0.68, 25.0),
}

# Orin NX 16: idle 4.6 W (ARK documentation), split as in the Nano trace [I]. Memory: from the rows 25W and 40W of
# ARK, where only the GPU's clock differs, 8 W do not depend on it: a load that saturates the memory [I]. Serving INT8
# convolutions needs a third of that traffic [?]
ORIN_NX = PlantConstants(
    gpu_idle_w=0.7, gpu_full_w=gpu_full_w(4, 1173.0), gpu_top_mhz=1173.0, tpcs=4, powered_tpcs=4,
    cpu_idle_w=0.5, cpu_core_w=cpu_core_w(1984.0), cpu_top_mhz=1984.0,
    soc_idle_w=1.3, soc_full_w=5.0, system_idle_w=1.6, system_full_w=5.0, memory_idle_w=0.8,
    vddq_idle_w=0.0, vddq_full_w=0.0, traffic=0.35, traffic_fixed=0.3, cores_idle=0.5, cores_full=2.5,
    sink_full_fan_r=0.50, sink_no_fan_r=3.0, zones=SMALL_ZONES, fan=SMALL_FAN, rails=SMALL_RAILS,
    # nvpower.sh: curr1_crit 45 W
    oc_from_w=40.0, oc_limit_w=45.0)

# Orin Nano 8 with the Super table: idle 4.5 (J3011) to 6.2 W (clocks pinned), 21.1 W under a vision-language model: GPU
# and CPU 9.4, SOC 5.8, the rest 5.9 (forum 348662 and a tegrastats trace); memory as that load shows it [I]. OC3: 1 to
# 2 a second at idle, mean 7.6, up to 30, with 25 W as the critical current (forum 321989)
ORIN_NANO_SUPER = PlantConstants(
    gpu_idle_w=0.7, gpu_full_w=gpu_full_w(4, 1020.0), gpu_top_mhz=1020.0, tpcs=4, powered_tpcs=4,
    cpu_idle_w=0.5, cpu_core_w=cpu_core_w(1728.0), cpu_top_mhz=1728.0,
    soc_idle_w=1.5, soc_full_w=4.3, system_idle_w=1.6, system_full_w=4.3, memory_idle_w=0.8,
    vddq_idle_w=0.0, vddq_full_w=0.0, traffic=0.35, traffic_fixed=0.3, cores_idle=0.5, cores_full=2.0,
    sink_full_fan_r=0.42, sink_no_fan_r=3.0, zones=SMALL_ZONES, fan=SMALL_FAN, rails=SMALL_RAILS,
    oc_from_w=4.0, oc_limit_w=25.0)

# Orin Nano 8 without Super: the same at its own top clocks; EMC 2133 MHz carries two thirds of the traffic. nvpower.sh:
# curr1_crit 20 W
ORIN_NANO = PlantConstants(
    gpu_idle_w=0.6, gpu_full_w=gpu_full_w(4, 624.75), gpu_top_mhz=624.75, tpcs=4, powered_tpcs=4,
    cpu_idle_w=0.5, cpu_core_w=cpu_core_w(1510.4), cpu_top_mhz=1510.4,
    soc_idle_w=1.3, soc_full_w=2.9, system_idle_w=1.5, system_full_w=2.9, memory_idle_w=0.6, emc_top_mhz=2133.0,
    vddq_idle_w=0.0, vddq_full_w=0.0, traffic=0.35, traffic_fixed=0.3, cores_idle=0.5, cores_full=2.0,
    sink_full_fan_r=0.42, sink_no_fan_r=3.0, zones=SMALL_ZONES, fan=SMALL_FAN, rails=SMALL_RAILS,
    oc_from_w=15.0, oc_limit_w=20.0)
