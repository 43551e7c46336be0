"""Reads the board: rails, temperatures, clocks, GPU load, fan, over-current counters. Everything is found by name, at
the start and again after a failure (hwmon numbers move when a driver is loaded anew).

Called by steward.py once a tick. Invariant: what could not be read, or cannot be true, is None with a fault text; it
never keeps its last value and never becomes 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from .board import BoardFacts, Zone
from .errors import SysfsError
from .sysfs import CPUFREQ, DEVFREQ, Sysfs

# Outside of this range an Orin is not running: forum reports of -62, -110 and -256 C are failed reads, and the module
# switches itself off at 105 C (118 C Industrial).
_PLAUSIBLE_MC = range(-40_000, 130_001)
# After a failure names are looked up again at once, then at every tenth failing read: a walk over /sys takes 10 ms.
_LOOK_AGAIN_EVERY = 10


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at the board. mW, milli-degrees C, Hz, permille, PWM of 0 to 255. None: not known. `faults` says what is
    missing and why; a zone that may be asleep is simply absent from `zones_mc`. `oc_count`: over-current events since
    boot; `cpu_khz`: the fastest cluster."""

    board_mw: int | None
    rails_mw: Mapping[str, int] = field(default_factory=dict)
    tj_mc: int | None = None
    zones_mc: Mapping[str, int] = field(default_factory=dict)
    gpu_hz: int | None = None
    gpu_busy_permille: int | None = None
    cpu_khz: int | None = None
    fan_pwm: int | None = None
    oc_count: int | None = None
    faults: tuple[str, ...] = ()


def take_rail(label: str, mw: int, facts: BoardFacts, rails: dict[str, int], faults: list[str]) -> None:
    """Into `rails` what the rail can carry, else a fault."""
    if 0 <= mw <= facts.rail_max_mw:
        rails[label] = mw
    else:
        faults.append(f"rail {label}: {mw} mW cannot be true")


def take_zone(zone: Zone, mc: int, faults: list[str]) -> int | None:
    """A temperature that an Orin can have, else None, and a fault unless the zone may be asleep."""
    if mc in _PLAUSIBLE_MC:
        return mc
    if zone.sleeps == "never":
        faults.append(f"zone {zone.name}: {mc / 1000:g} C cannot be true")
    return None


class Sensors:
    """The sensors of the board below `root`."""

    def __init__(self, root: Path | str, facts: BoardFacts) -> None:
        self._sysfs = Sysfs(root)
        self._facts = facts
        self._failing_reads = 0
        self._look_up()

    def _look_up(self) -> None:
        self._zone_paths = self._sysfs.find_zones()
        self._rail_paths = self._sysfs.find_rails()
        self._devfreq = self._sysfs.find_devfreq(self._facts.gpu_nodes)
        fan, events = self._sysfs.find_hwmon("pwmfan"), self._sysfs.find_hwmon("soctherm_oc")
        self._fan = [f"{fan}/pwm1"] if fan else []
        self._events = [] if events is None else [f"{events}/{name}" for name in self._sysfs.names(events)
                                                  if name.startswith("oc") and name.endswith("_event_cnt")]
        self._cpus = [f"{CPUFREQ}/{name}/scaling_cur_freq" for name in self._sysfs.names(CPUFREQ)]

    def read(self) -> Readings:
        """Read everything once (about 25 small files; 0.55 ms for each rail register on a board). Never raises for a
        sensor: the fault texts tell."""
        readings = self._read_once()
        if not readings.faults:
            self._failing_reads = 0
            return readings
        self._failing_reads += 1
        if self._failing_reads % _LOOK_AGAIN_EVERY == 1:
            try:
                self._look_up()
            except SysfsError as error:
                return replace(readings, faults=(*readings.faults, str(error)))
            readings = self._read_once()
        return readings

    def _read_once(self) -> Readings:
        faults: list[str] = []
        rails = self._read_rails(faults)
        zones: dict[str, int] = {}
        for zone in self._facts.zones:
            value = self._read_zone(zone, faults)
            if value is not None:
                zones[zone.name] = value
        return Readings(
            board_mw=self._facts.board_mw(rails),
            rails_mw=rails,
            tj_mc=zones.get("tj"),
            zones_mc=zones,
            gpu_hz=self._read_gpu("cur_freq", faults),
            gpu_busy_permille=self._read_gpu("device/load", None),
            cpu_khz=max(self._read_all(self._cpus), default=None),
            fan_pwm=max(self._read_all(self._fan), default=None),
            oc_count=sum(counts) if (counts := self._read_all(self._events)) else None,
            faults=tuple(faults),
        )

    def _read_all(self, paths: list[str]) -> list[int]:
        """What can be read of these: for people and for rates, no decision needs them, so that none is a fault. None at
        all where one fails: a maximum or sum of the rest would be another figure."""
        try:
            return [self._sysfs.read_int(path) for path in paths]
        except SysfsError:
            return []

    def _read_rails(self, faults: list[str]) -> dict[str, int]:
        rails: dict[str, int] = {}
        for label in self._facts.rails:
            paths = self._rail_paths.get(label)
            if paths is None:
                faults.append(f"rail {label}: no ina3221 channel has this label")
                continue
            try:
                power = self._sysfs.read_int(paths[0]) * self._sysfs.read_int(paths[1]) // 1000
            except SysfsError as error:
                faults.append(f"rail {label}: {error}")
                continue
            take_rail(label, power, self._facts, rails, faults)
        return rails

    def _read_zone(self, zone: Zone, faults: list[str]) -> int | None:
        path = next((self._zone_paths[kind] for kind in zone.types if kind in self._zone_paths), None)
        if path is None:
            if zone.sleeps != "any":
                faults.append(f"zone {zone.name}: no thermal zone has type {' or '.join(zone.types)}")
            return None
        try:
            value = self._sysfs.read_int(f"{path}/temp")
        except SysfsError as error:
            if zone.sleeps == "never":
                faults.append(f"zone {zone.name}: {error}")
            return None
        return take_zone(zone, value, faults)

    def _read_gpu(self, name: str, faults: list[str] | None) -> int | None:
        # the load is a nicety (it stays at 0 on some JetPack 7 boards), so its absence is no fault: pass None
        try:
            if self._devfreq is None:
                raise SysfsError(DEVFREQ, f"has no GPU ({' or '.join(self._facts.gpu_nodes)})")
            value = self._sysfs.read_int(f"{self._devfreq}/{name}")
            if value < 0:
                raise SysfsError(f"{self._devfreq}/{name}", f"{value} cannot be true")
            return value
        except SysfsError as error:
            if faults is not None:
                faults.append(f"GPU clock: {error}")
            return None
