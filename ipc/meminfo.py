"""The board's memory as the kernel counts it; CPU and GPU share it.

Read by main before it allocates, by the HTTP process for health and by `orind doctor`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .errors import IpcError

PATH = Path("/proc/meminfo")


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
