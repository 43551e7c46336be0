"""A clock's cap as the kernel keeps it: what was asked for last, and what the file shows while heat allows less.

Used by board.py for max_freq of devfreq and scaling_max_freq of cpufreq. Both show the lowest of all requests (PM QoS,
Linux 5.8 and later), of which the cooling device's is one and what was written to the file another. Invariants:
whatever anybody writes is taken, also the very value that is shown; a writer between truncating and writing changes
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import SysfsError
from ..steps import step_under
from ..sysfs import Sysfs

_OURS_NS = 1  # when a file that holds what the kernel shows was changed last; whoever writes to it makes that now


class CapFile:
    """`rounds`: it shows steps of the table only, whatever was written."""

    def __init__(self, sysfs: Sysfs, path: str, table: Sequence[int], rounds: bool) -> None:
        self._sysfs = sysfs
        self._path = path
        self._table = table
        self._rounds = rounds
        self.asked = table[-1]

    def settle(self, most: int, refused: bool = False) -> int:
        """Take what was written since the last time, unless it is `refused`, and show what holds: that, or `most`,
        which heat allows. Returns what was asked for, as a step of the table."""
        try:
            ours = (self._sysfs.root / self._path).stat().st_mtime_ns == _OURS_NS
            held = self._sysfs.read_int(self._path)
        except (OSError, SysfsError):
            return self.asked
        if not ours and not refused:
            self.asked = step_under(self._table, held)
        shows = min(self.asked, most)
        if shows != step_under(self._table, held) or (self._rounds and shows != held):
            self._sysfs.write_int(self._path, shows)
            os.utime(self._sysfs.root / self._path, ns=(_OURS_NS, _OURS_NS))
        return self.asked
