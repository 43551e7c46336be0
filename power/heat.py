"""The step of a clock's table that heat allows now: the passive cooling that the kernel does by itself.

Used by actuators.py and cpu_caps.py before a cap is taken for what was found there. max_freq of devfreq and
scaling_max_freq of cpufreq show the lowest of all requests, and the cooling device's is one of them (devfreq.c,
devfreq_cooling.c, cpufreq_cooling.c; Linux 5.8 and later). A state of a cooling device is a step of the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import SysfsError
from .sysfs import Sysfs


def step_that_heat_allows(sysfs: Sysfs, kind: str, device: str, table: Sequence[int]) -> int | None:
    """`kind` and `device`: devfreq and 17000000.gpu, or cpufreq and cpu4. None: all of the table, or nobody says."""
    try:
        cooling = sysfs.read_cooling()
    except SysfsError:
        return None  # a board that does not list them: a cap must still go down
    # before Linux 5.13 they were numbered and did not name their device: then the worst of the kind counts
    states = [state for name, state in cooling if name == f"{kind}-{device}" or name.startswith(f"thermal-{kind}-")]
    worst = max(states, default=0)
    return table[max(len(table) - 1 - worst, 0)] if worst > 0 else None
