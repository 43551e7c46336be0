"""The nvpmodel.conf of a simulated module: written from configs/boards, the only table of modes.

Used by tree.py. What that table does not hold (DEFAULT, FBP mask) is the module's (modules.py). Minimum clocks are
those of NVIDIA's files: 729.6 MHz for the CPUs, 0 for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from ..board import BoardFacts, Mode
from .modules import JetPack, Module

_BOARDS = Path(__file__).resolve().parents[2] / "configs" / "boards"
_CPU = "/sys/devices/system/cpu"
_CPU_MIN_KHZ = 729_600


@cache
def modes_of(name: str) -> tuple[Mode, ...]:
    """The modes of a board of configs/boards."""
    return BoardFacts.from_dict(yaml.safe_load((_BOARDS / f"{name}.yaml").read_text())).modes


def widest_of(name: str) -> Mode:
    """The mode that caps no clock: what a simulated board starts in, so that a budget is held within it."""
    return next(m for m in modes_of(name) if m.cpu_max_khz is None and m.gpu_max_hz is None and m.emc_max_hz is None)


def conf_text(module: Module, jetpack: JetPack) -> str:
    """The whole file, in the form of NVIDIA's, its odd `<PARAM` of the EMC line included."""
    lines = [f"# nvpmodel.conf of a simulated {module.title}", *_params(module, jetpack)]
    for mode in modes_of(module.name):
        lines += ["", f"< POWER_MODEL ID={mode.id} NAME={mode.name} >", *_settings(module, mode)]
    lines += ["", "# mandatory section to configure the default power mode",
              f"< PM_CONFIG DEFAULT={module.default_mode} >"]
    return "\n".join(lines)


def _clusters(module: Module) -> range:
    return range(0, module.cpus, 4)


def _params(module: Module, jetpack: JetPack) -> Iterator[str]:
    alias = jetpack.aliases[-1]
    yield "< PARAM TYPE=FILE NAME=CPU_ONLINE >"
    for cpu in range(module.cpus):
        yield f"CORE_{cpu} {_CPU}/cpu{cpu}/online"
    if module.fbp_pg_mask is not None:
        yield from ("", "< PARAM TYPE=FILE NAME=FBP_POWER_GATING >", f"FBP_PG_MASK /{alias}/fbp_pg_mask")
    yield from ("", "< PARAM TYPE=FILE NAME=TPC_POWER_GATING >", f"TPC_PG_MASK /{alias}/tpc_pg_mask")
    yield from ("", "< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_ENABLE >", f"GPU_PWR_CNTL_EN /{alias}/power/control")
    yield from ("", "< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_DISABLE >", f"GPU_PWR_CNTL_DIS /{alias}/power/control")
    for number, cpu in enumerate(_clusters(module)):
        yield from ("", f"< PARAM TYPE=CLOCK NAME=CPU_A78_{number} >")
        yield from _clock(f"{_CPU}/cpu{cpu}/cpufreq", "scaling_available_frequencies", "scaling_max_freq",
                          "scaling_min_freq")
    yield from ("", "< PARAM TYPE=CLOCK NAME=GPU >")
    yield from _clock(f"/{jetpack.gpu}/devfreq_dev", "available_frequencies", "max_freq", "min_freq")
    emc = jetpack.emc_cap
    yield from ("", "<PARAM TYPE=CLOCK NAME=EMC >", f"MAX_FREQ /{emc}", f"MAX_FREQ_KNEXT /{emc}")


def _clock(folder: str, table: str, top: str, low: str) -> Iterator[str]:
    for suffix in ("", "_KNEXT"):
        for arg, name in (("FREQ_TABLE", table), ("MAX_FREQ", top), ("MIN_FREQ", low)):
            yield f"{arg}{suffix} {folder}/{name}"


def _settings(module: Module, mode: Mode) -> Iterator[str]:
    for cpu in range(module.cpus):
        yield f"CPU_ONLINE CORE_{cpu} {int(cpu < mode.cpus)}"
    if module.fbp_pg_mask is not None:
        yield f"FBP_POWER_GATING FBP_PG_MASK {module.fbp_pg_mask}"
    yield f"TPC_POWER_GATING TPC_PG_MASK {mode.tpc_pg_mask}"
    yield "GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on"
    for number, _ in enumerate(_clusters(module)):
        yield f"CPU_A78_{number} MIN_FREQ {_CPU_MIN_KHZ}"
        yield f"CPU_A78_{number} MAX_FREQ {mode.cpu_max_khz or -1}"
    yield from ("GPU MIN_FREQ 0", f"GPU MAX_FREQ {mode.gpu_max_hz or -1}",
                "GPU_POWER_CONTROL_DISABLE GPU_PWR_CNTL_DIS auto", f"EMC MAX_FREQ {mode.emc_max_hz or 0}")
