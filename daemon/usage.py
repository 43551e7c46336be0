"""What a process of ours holds at the moment: private memory, descriptors, threads; read from /proc.

Called by the nursery, once for each ping of main, for one process after the other: main itself reads nothing.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
PAGE_BYTES = resource.getpagesize()


class Usage(NamedTuple):
    """private: resident bytes that are no page of a file or of shared memory. None where the kernel does not tell."""

    private: int
    descriptors: int | None
    threads: int


def read(pid: int, proc: Path = PROC) -> Usage | None:
    """None where the process has ended."""
    folder = proc / str(pid)
    try:
        _, resident, shared, *_ = (folder / "statm").read_text().split()
        threads = int((folder / "stat").read_text().rpartition(")")[2].split()[17])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Usage((int(resident) - int(shared)) * PAGE_BYTES, _descriptors(folder / "fd"), threads)


def _descriptors(folder: Path) -> int | None:
    """Linux 6.2 and later say it without listing them."""
    try:
        return folder.stat().st_size or sum(1 for _ in folder.iterdir())
    except OSError:  # ended in the meantime, or a process that the kernel shields from us
        return None
