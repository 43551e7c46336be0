"""The one door to the board's files: /sys, the device tree, what nvpmodel and nvfancontrol keep, under a root.

Called by sensors.py, actuators.py and those who switch modes; nothing else in orind opens these paths. The root is "/"
on a board and a directory on the plant; no caller can tell which. Things are found by name (zone `type`, hwmon `name`,
devfreq `of_node/name`), never by number. Invariant: a read gives text or raises SysfsError; it never invents a value,
and a write to /sys goes only to a file that exists.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from .errors import SysfsError

THERMAL = "sys/class/thermal"
CPUFREQ = "sys/devices/system/cpu/cpufreq"
HWMON = "sys/class/hwmon"
DEVFREQ = "sys/class/devfreq"
ONLINE = "sys/devices/system/cpu/online"
# debugfs, for root only: the memory's clock in Hz, and its activity in kHz x percent (on JetPack 6 and 7; on 5)
EMC_RATE = "sys/kernel/debug/bpmp/debug/clk/emc/rate"
EMC_ACTIVITY = ("sys/kernel/debug/cactmon/mc_all", "sys/kernel/actmon_avg_activity/mc_all")
_CPUS_MAX = 1024
_MAX_BYTES = 65536
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")  # what the kernel prints has 64 bits at most
_CLOCK_END = 100_000_000_000


def _name_of(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown error") + f" ({os.strerror(error.errno or 0)})"


class Sysfs:
    """Reads and writes board files below `root`; paths are relative to it and without a leading slash."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a file (at most 64 KiB). Opened anew each time: hwmon and devfreq nodes come and go."""
        try:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return os.read(fd, _MAX_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            raise SysfsError(path, f"cannot be read: {_name_of(error)}") from error

    def read_text(self, path: str) -> str:
        """The stripped text of a file. An empty file is an error: no file of sysfs that we read is ever empty."""
        data = self.read_bytes(path)
        try:
            text = data.decode("ascii").strip().strip("\0")
        except UnicodeDecodeError as error:
            raise SysfsError(path, "holds bytes that are not ASCII") from error
        if not text:
            raise SysfsError(path, "is empty")
        return text

    def read_int(self, path: str) -> int:
        """A whole number, as sysfs writes them."""
        text = self.read_text(path)
        if not _WHOLE.fullmatch(text):
            raise SysfsError(path, f"holds {text[:40]!r}, not a whole number")
        return int(text)

    def read_ints(self, path: str) -> tuple[int, ...]:
        """Whole numbers separated by blanks (frequency tables)."""
        text = self.read_text(path)
        parts = text.split()
        if not parts or not all(map(_WHOLE.fullmatch, parts)):
            raise SysfsError(path, f"holds {text[:40]!r}, not whole numbers")
        return tuple(map(int, parts))

    def read_clocks(self, path: str) -> tuple[int, ...]:
        """Clocks in Hz or kHz, at least one, all above 0."""
        clocks = self.read_ints(path)
        if not all(0 < clock < _CLOCK_END for clock in clocks):
            raise SysfsError(path, f"holds {' '.join(map(str, clocks))[:40]!r}, which no clock can have")
        return clocks

    def write_int(self, path: str, value: int) -> None:
        """Write a number to an existing file (never creates one: a typo must not become a file on a plant)."""
        try:
            fd = os.open(self.root / path, os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC | os.O_NONBLOCK)
            try:
                os.write(fd, b"%d\n" % value)
            finally:
                os.close(fd)
        except OSError as error:
            raise SysfsError(path, f"cannot be written: {_name_of(error)}") from error

    def replace_text(self, path: str, text: str) -> None:
        """Have a file of the board's disk (none of /sys) hold `text`: as a whole or, after a power cut, not at all. A
        link stays one; it is made where it is missing."""
        target = Path(os.path.realpath(self.root / path))
        fresh = target.with_name(f".{target.name}.orind")
        try:
            with open(fresh, "w", encoding="utf-8", errors="surrogateescape") as file:
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777 if target.exists() else 0o644)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink()
            raise SysfsError(path, f"cannot be written: {_name_of(error)}") from error

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there already is."""
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as error:
            raise SysfsError(path, f"cannot be removed: {_name_of(error)}") from error

    def read_online(self) -> tuple[int, ...]:
        """Numbers of the CPUs that are online ("0-3,6")."""
        text = self.read_text(ONLINE)
        cpus: list[int] = []
        for part in text.split(","):
            first, mark, last = part.partition("-")
            if not first.isdecimal() or (mark and not last.isdecimal()) or int(last or first) >= _CPUS_MAX:
                raise SysfsError(ONLINE, f"holds {text[:40]!r}, not a list of CPUs")
            cpus.extend(range(int(first), int(last or first) + 1))
        return tuple(cpus)

    def read_emc(self) -> tuple[int, int | None]:
        """The memory's clock in Hz, and how busy it is in percent (None where the board does not tell). For root."""
        rate = self.read_int(EMC_RATE)
        for path in EMC_ACTIVITY:
            for text in self._try_text(path):
                if text.isdecimal() and rate >= 1000:
                    return rate, int(text) // (rate // 1000)
        return rate, None

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; an absent directory has none."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SysfsError(path, f"cannot be listed: {_name_of(error)}") from error

    def exists(self, path: str) -> bool:
        """Whether the path is there (says nothing about being readable)."""
        return (self.root / path).exists()

    def find_zones(self) -> dict[str, str]:
        """Thermal zones: type -> path of the zone's directory. The first of two zones of one type wins."""
        found: dict[str, str] = {}
        for name in self.names(THERMAL):
            if name.startswith("thermal_zone"):
                for kind in self._try_text(f"{THERMAL}/{name}/type"):
                    found.setdefault(kind, f"{THERMAL}/{name}")
        return found

    def read_cooling(self) -> list[tuple[str, int]]:
        """(type, cur_state) of the cooling devices; one that cannot be read is left out."""
        found = []
        for name in self.names(THERMAL):
            if name.startswith("cooling_device"):
                for kind in self._try_text(f"{THERMAL}/{name}/type"):
                    with suppress(SysfsError):
                        found.append((kind, self.read_int(f"{THERMAL}/{name}/cur_state")))
        return found

    def find_rails(self, driver: str = "ina3221") -> dict[str, tuple[str, str]]:
        """Power channels of all hwmons of `driver`: label -> (voltage path in mV, current path in mA)."""
        found: dict[str, tuple[str, str]] = {}
        for node in self.names(HWMON):
            base = f"{HWMON}/{node}"
            if driver not in self._try_text(f"{base}/name"):
                continue
            for name in self.names(base):
                if name.startswith("in") and name.endswith("_label"):
                    channel = name[2:-6]
                    # in7 is the sum of shunt voltages and has no current of its own: not a rail (facts: ina3221)
                    if self.exists(f"{base}/curr{channel}_input"):
                        for label in self._try_text(f"{base}/{name}"):
                            found.setdefault(label, (f"{base}/in{channel}_input", f"{base}/curr{channel}_input"))
        return found

    def find_hwmon(self, driver: str) -> str | None:
        """The hwmon directory of `driver` (pwmfan, soctherm_oc), or None where the board has none."""
        for node in self.names(HWMON):
            if driver in self._try_text(f"{HWMON}/{node}/name"):
                return f"{HWMON}/{node}"
        return None

    def find_devfreq(self, node_names: Iterable[str]) -> str | None:
        """The devfreq directory of the device whose device-tree node has one of these names (GPU: gpu, ga10b)."""
        wanted = set(node_names)
        for name in self.names(DEVFREQ):
            for found in self._try_text(f"{DEVFREQ}/{name}/device/of_node/name"):
                if found in wanted:
                    return f"{DEVFREQ}/{name}"
        return None

    def read_compatible(self) -> tuple[str, ...]:
        """The board's device-tree `compatible` list, most specific first; empty where there is no device tree."""
        try:
            data = self.read_bytes("sys/firmware/devicetree/base/compatible")
        except SysfsError:
            return ()
        return tuple(part.decode("ascii", "replace") for part in data.split(b"\0") if part)

    def read_model(self) -> str | None:
        """What the board calls itself (device tree `model`), for people only; None where there is no device tree."""
        try:
            return self.read_bytes("sys/firmware/devicetree/base/model").rstrip(b"\0").decode("ascii", "replace")
        except SysfsError:
            return None

    def read_release(self) -> str | None:
        """The L4T release as "36.4.3", or None where the file is absent or in another form."""
        try:
            words = self.read_text("etc/nv_tegra_release").splitlines()[0].replace(",", " ").split()
        except SysfsError:
            return None
        if "REVISION:" not in words[:-1] or len(words) < 2 or not words[1].startswith("R"):
            return None
        return f"{words[1][1:]}.{words[words.index('REVISION:') + 1]}"

    def _try_text(self, path: str) -> Iterator[str]:
        """The text as an iterator of one, or of none when unreadable: a node may vanish between list and read."""
        try:
            yield self.read_text(path)
        except SysfsError:
            return
