"""The time-outs of the systemd unit that serves a configuration, read from its files: what is set, and where.

Used by the checker, through unit_limits.py. systemd tells a service its watchdog only, and its D-Bus is not everywhere,
so the files are read, as systemd.unit(5) has it: the unit, then its drop-ins by name; a later setting wins, an empty
one goes back to the default. Never raises: what systemd would ignore is ignored.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# of those that systemd looks into, the ones that people and packages write to; an earlier one hides a later one's file
FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
        "/lib/systemd/system",
    )
)
CGROUP = Path("/proc/self/cgroup")
BYTES_MAX = 1 << 20
DEFAULT_S = 90.0  # DefaultTimeoutStartSec=, DefaultTimeoutStopSec= where system.conf says nothing
UNIT = "orind.service"
SPAN_UNITS_S = {
    "": 1.0, "us": 1e-6, "usec": 1e-6, "µs": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0,
    "seconds": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0,
    "hours": 3600.0, "d": 86_400.0, "day": 86_400.0, "days": 86_400.0, "w": 604_800.0, "week": 604_800.0,
    "weeks": 604_800.0,
}


@dataclass(frozen=True, slots=True)
class TimeOut:
    """seconds: infinity where systemd waits for ever. said: the setting as it stands, and in which file."""

    seconds: float
    said: str


@dataclass(frozen=True, slots=True)
class UnitTimeOuts:
    start: TimeOut
    stop: TimeOut


def of_configuration(path: Path) -> UnitTimeOuts | None:
    """Of the unit that this process runs in, or else of orind.service, if its ExecStart serves the file `path`."""
    return find(path, FOLDERS, _read(CGROUP))


def find(path: Path, folders: Sequence[Path], cgroup: str) -> UnitTimeOuts | None:
    """The same for other folders of units, and for another cgroup (as in /proc/self/cgroup)."""
    own = re.search(r"^(?:0:|\d+:name=systemd):/.*?([^/]+\.service)$", cgroup, re.MULTILINE)
    for name in dict.fromkeys([*([own[1]] if own else []), UNIT]):
        settings = list(_settings(name, folders))
        if path.resolve() in {Path(word).resolve() for word in _words(settings) if word.startswith("/")}:
            return UnitTimeOuts(_time_out("TimeoutStartSec", settings), _time_out("TimeoutStopSec", settings))
    return None


Setting = tuple[str, str, Path]  # key, value, file


def _settings(name: str, folders: Sequence[Path]) -> Iterator[Setting]:
    """Of [Service], in the order in which they count."""
    files = [folder / name for folder in folders if (folder / name).exists()][:1]
    drop_ins: dict[str, Path] = {}
    for folder in reversed(folders):
        for place in ("service.d", f"{name}.d"):
            drop_ins.update({file.name: file for file in (folder / place).glob("*.conf")})
    for file in files + [drop_ins[key] for key in sorted(drop_ins)]:
        section = ""
        for line in _read(file).replace("\\\n", " ").splitlines():
            text = line.strip()
            if text.startswith("["):
                section = text
            elif section == "[Service]" and "=" in text and not text.startswith(("#", ";")):
                key, _, value = text.partition("=")
                yield key.strip(), value.strip(), file


def _words(settings: Sequence[Setting]) -> list[str]:
    """Of the command that holds."""
    command = ""
    for key, value, _ in settings:
        if key == "ExecStart":
            command = value
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _time_out(name: str, settings: Sequence[Setting]) -> TimeOut:
    found = default = TimeOut(DEFAULT_S, f"{name}={DEFAULT_S:g} (systemd's default)")
    for key, value, file in settings:
        if key in (name, "TimeoutSec"):
            seconds = span_s(value)
            if not value:
                found = default
            elif seconds is not None:
                found = TimeOut(seconds or math.inf, f"{key}={value} of {file}")
    return found


def span_s(text: str, units: Mapping[str, float] = SPAN_UNITS_S) -> float | None:
    """A time span of systemd.time(7) in seconds; None for what is none."""
    if text == "infinity":
        return math.inf
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?) *([a-zµ]*)", text)
    if re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)? *[a-zµ]* *)+", text) is None or any(
        unit not in units for _, unit in parts
    ):
        return None
    return sum(float(number) * units[unit] for number, unit in parts)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
