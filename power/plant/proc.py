"""What a simulated board's kernel shows in /proc: its CPUs, its memory, and how busy its CPUs have been.

Used by tree.py (once) and board.py (`stat`, at each step). For programs that look there, as jetson-stats does; orind
does not. Lines in the form of an aarch64 kernel 5.15; figures that the model does not have are round.
"""

from __future__ import annotations

from collections.abc import Collection

from .modules import Module

STAT = "proc/stat"
_HZ = 100  # USER_HZ
# Cortex-A78AE r0p1: implementer, part and revision as /proc/cpuinfo of Orin boards has them
_CPU = """BogoMIPS\t: 62.50
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd42
CPU revision\t: 1
"""


def proc_texts(module: Module) -> dict[str, str]:
    """Name in /proc -> text."""
    total_kib = module.memory_gib << 20
    free_kib = total_kib * 9 // 10
    meminfo = {"MemTotal": total_kib, "MemFree": free_kib, "MemAvailable": free_kib, "Buffers": 0, "Cached": 0,
               "SwapCached": 0, "SwapTotal": 0, "SwapFree": 0, "SReclaimable": 0, "NvMapMemUsed": 0}
    largest = free_kib >> 12  # in blocks of 4 MiB
    return {
        "cpuinfo": "\n".join(f"processor\t: {cpu}\n{_CPU}" for cpu in range(module.cpus)),
        "meminfo": "\n".join(f"{name + ':':<16}{kib:>8} kB" for name, kib in meminfo.items()),
        "buddyinfo": f"Node 0, zone   Normal {'      0' * 10} {largest:6}",
        "swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority",
        "stat": CpuTimes(module.cpus).text(range(module.cpus)),
    }


class CpuTimes:
    """Time that each CPU has spent, busy and idle, since the boot."""

    def __init__(self, cpus: int) -> None:
        self._spent_s = [[0.0, 0.0] for _ in range(cpus)]

    def add(self, dt_s: float, busy_cores: float, online: Collection[int]) -> None:
        """dt_s with so many cores' worth of work, spread evenly over those that are online."""
        busy = min(busy_cores / len(online), 1.0)
        for cpu in online:
            self._spent_s[cpu][0] += dt_s * busy
            self._spent_s[cpu][1] += dt_s * (1.0 - busy)

    def text(self, online: Collection[int]) -> str:
        """/proc/stat, which leaves out the CPUs that are offline."""
        ticks = [[int(spent * _HZ) for spent in both] for both in self._spent_s]
        lines = [("cpu ", [sum(column) for column in zip(*ticks, strict=True)])]
        lines += [(f"cpu{cpu}", ticks[cpu]) for cpu in online]
        return "\n".join([*(f"{name} {busy} 0 0 {idle} 0 0 0 0 0 0" for name, (busy, idle) in lines), "ctxt 0"])
