"""The CPUs' highest clock (cpufreq scaling_max_freq of every cluster). Owned by actuators.Caps.

Invariants: nothing is written until a cap is asked for, so that a board whose CPUs never need one is left as it is; a
cluster whose cores are offline is passed over; where the mode is not known, the cap that was found holds, and that of
the last mode that was known.
"""

from __future__ import annotations

from functools import partial

from .cpu_clock import Permitted
from .envelope import Envelope
from .errors import SysfsError
from .heat import step_that_heat_allows
from .held import Held
from .steps import steps_under
from .sysfs import CPUFREQ, Sysfs


class CpuCaps:
    """All clusters get the same cap."""

    def __init__(self, sysfs: Sysfs, envelope: Envelope, held: Held) -> None:
        self._sysfs = sysfs
        self._envelope = envelope
        self._held = held
        self._table_khz = self._read_table()
        self._found_khz = self._kept_khz = self._read_cap()
        self._capped = False
        self._ours_khz: dict[str, int] = {}  # what we set last

    def permitted(self) -> Permitted:
        """What the mode allows. Nothing where the clocks cannot be read: then they are left alone."""
        mode_id, cap_khz = self._envelope.mode_id, self._read_cap()
        if mode_id is not None and self._envelope.known:
            most = self._envelope.cpu_caps_khz()[mode_id]
            self._kept_khz = min((khz for khz in (self._found_khz, most) if khz is not None), default=None)
        elif self._kept_khz is None:
            return Permitted(mode_id=mode_id)
        else:
            most = self._kept_khz
        if cap_khz is None or not self._table_khz:
            return Permitted(mode_id=mode_id)
        return Permitted(steps_under(self._table_khz, most), self._table_khz[-1], cap_khz, mode_id)

    def set_max(self, khz: int | None) -> None:
        """Cap all clusters; None: as they were found. Raises SysfsError, PowerError."""
        if khz is None and not self._capped:
            return
        by_mode = {mode: cap or self._table_khz[-1] for mode, cap in self._envelope.cpu_caps_khz().items()}
        for path in self._paths():
            hidden_khz = self._held.take(path, by_mode, partial(self._heat_khz, path))
            if hidden_khz is not None:
                self._envelope.say(f"heat holds the CPUs' cap, so what was set before in /{path} cannot be seen; "
                                   f"{hidden_khz / 1000:g} MHz will be put back")
            value = self._held.found(path) if khz is None else khz
            if self._sysfs.read_int(path) != value or self._ours_khz.get(path) != value:
                self._sysfs.write_int(path, value)
                self._ours_khz[path] = value
        self._capped = khz is not None

    def forget(self) -> None:
        """Everything was put back."""
        self._capped = False
        self._ours_khz.clear()

    def _heat_khz(self, path: str) -> int | None:
        cpu = path.split("/")[-2].replace("policy", "cpu")
        return step_that_heat_allows(self._sysfs, "cpufreq", cpu, self._table_khz) if self._table_khz else None

    def _paths(self) -> list[str]:
        """One for each cluster that has a core online."""
        names = self._sysfs.names(CPUFREQ)
        return [f"{CPUFREQ}/{name}/scaling_max_freq" for name in names if name.startswith("policy")]

    def _read_cap(self) -> int | None:
        """The lowest of all clusters; None where one cannot be read, or none is there."""
        try:
            return min((self._sysfs.read_clocks(path)[0] for path in self._paths()), default=None)
        except SysfsError:
            return None

    def _read_table(self) -> tuple[int, ...]:
        """The steps that all clusters have, ascending; none where cpufreq is not there."""
        tables = []
        for path in self._paths():
            try:
                tables.append(set(self._sysfs.read_clocks(f"{path.rpartition('/')[0]}/scaling_available_frequencies")))
            except SysfsError:
                return ()
        return tuple(sorted(set.intersection(*tables))) if tables else ()
