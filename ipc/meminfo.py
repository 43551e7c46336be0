"""The board's memory as the kernel counts it, which CPU and GPU share, and what of it our control group may have.

Read by main and the checker before they allocate, by the HTTP process for health and by `orind doctor`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .errors import IpcError

PATH = Path("/proc/meminfo")
OWN_GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """Bytes. available: what can be allocated without pushing somebody out."""

    total: int
    available: int

    @property
    def used_percent(self) -> float:
        return 100.0 * (1 - self.available / self.total)


def read(path: Path = PATH) -> Memory:
    """Raises IpcError where the kernel does not say it, OSError where /proc is not there."""
    kib = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            kib[name] = int(rest.split()[0])
    if len(kib) < 2:
        raise IpcError(f"{path} does not say MemTotal and MemAvailable: orind needs Linux 3.14 or later")
    return Memory(kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024)


def room() -> int:
    """Bytes that can be allocated: what the board has, or what is left of a MemoryMax= of the unit. As `read`."""
    return min([read().available, *_left_of_limits(OWN_GROUP, GROUPS)])


def _left_of_limits(own: Path, groups: Path) -> list[int]:
    """Of our control group and those above it, where they have a limit (cgroup v2, memory.max). What the kernel can
    take back, files that are not in use, counts as left. Without cgroup v2: nothing is known."""
    path = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
    found, group = [], groups / path.strip("/")
    while group != groups and groups in group.parents:
        try:
            limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
            stat = (group / "memory.stat").read_text().split()
        except OSError:
            break  # no memory controller here, so none above that counts for us
        if limit != "max":
            cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
            found.append(max(0, int(limit) - int(used) + cached))
        group = group.parent
    return found
