"""What kernel, firmware and services of a simulated board make of files that nvpmodel and others wrote: cores online,
TPCs with power, the memory's clock, the fan's profile, a boot.

Used by board.py, at each step. Invariant: a file that cannot be read, or holds what it cannot hold, changes nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from ..errors import SysfsError
from ..sysfs import Sysfs
from .model import PlantModel
from .tree import CPU, EMC, EMC_ACTIVITY, PROGRAMS, Layout

_FAN_STATUS = "var/lib/nvfancontrol/status"
_SERVICE_S = 30.0


class Services:
    """`put(path, value)` makes a value appear whole."""

    def __init__(self, root: Path, layout: Layout, model: PlantModel, put: Callable[[str, int | str], None]) -> None:
        self._sysfs = Sysfs(root)
        self._root = root
        self._layout = layout
        self._model = model
        self._put = put
        self.online: list[int] = list(range(layout.module.cpus))
        self._profile = self._read_profile()  # what the model began with may be another one: --fan

    def look(self) -> None:
        """Take what was written since the last step, and show what follows from it."""
        self.online = self._online()
        self._put(f"{CPU}/online", as_ranges(self.online))
        masks = self._read(f"{self._layout.gpu}/tpc_pg_mask")
        if masks is not None:
            tpcs = self._model.constants.tpcs
            self._model.powered_tpcs = tpcs - (masks & ((1 << tpcs) - 1)).bit_count()
        cap = self._read(self._layout.jetpack.emc_cap)
        top = self._layout.emc_top_hz
        rate = min(cap, top) if cap else top
        self._model.emc_mhz = rate / 1e6
        self._put(f"{EMC}/rate", rate)
        # the counter in kHz x percent: what jetson-stats divides by the clock in kHz
        self._put(EMC_ACTIVITY, round(self._model.emc_busy * 100) * (rate // 1000))
        profile = self._read_profile()
        if profile != self._profile and profile in self._model.constants.fan:
            self._profile = profile
            self._model.fan.follow(self._model.constants.fan[profile])

    def reboot(self) -> None:
        """A boot: every core online, no cap, no golden context yet; nvpmodel.service then enters the mode that its
        status file says, and the first GPU context makes the golden image."""
        layout = self._layout
        for cpu in range(layout.module.cpus):
            self._put(f"{CPU}/cpu{cpu}/online", 1)
        for policy in layout.cpu_policies():
            self._put(f"{policy}/scaling_max_freq", layout.module.cpu_table_khz[-1])
        self._put(layout.max_freq, layout.module.gpu_table_hz[-1])
        self._put(layout.jetpack.emc_cap, 0)
        self._put(f"{layout.gpu}/golden_img_status", 0)
        subprocess.run([str(self._root / PROGRAMS["systemctl"]), "start", "nvpmodel.service"],
                       stdin=subprocess.DEVNULL, capture_output=True, timeout=_SERVICE_S, check=False)
        self._put(f"{layout.gpu}/golden_img_status", 1)

    def _online(self) -> list[int]:
        """cpu0 cannot go."""
        cpus = range(self._layout.module.cpus)
        return [cpu for cpu in cpus if cpu == 0 or self._read(f"{CPU}/cpu{cpu}/online") != 0]

    def _read(self, path: str) -> int | None:
        try:
            return self._sysfs.read_int(path)
        except SysfsError:
            return None

    def _read_profile(self) -> str:
        try:
            found = re.search(r"FAN_PROFILE:(\S+)", self._sysfs.read_text(_FAN_STATUS))
        except SysfsError:
            return ""
        return found[1] if found else ""


def as_ranges(cpus: list[int]) -> str:
    """As the kernel writes a list of CPUs: 0-3,6."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
