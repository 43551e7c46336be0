"""What jtop said of the board, as the readings that the governor takes: the same names, units and faults as from sysfs.

Used by daemon/jtop_source.py with the lines of readers/jtop_reader.py. Pure. Invariants: a line that is not exactly in
the form is an error and no reading; power is volts times amps of our own rails, so that jtop's total, which counts one
rail of AGX Orin twice, plays no part; a sample that is too old is no sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .board import BoardFacts
from .errors import PowerError
from .sensors import Readings, take_rail, take_zone

# A quarter of a second between samples and the time to collect one. Beyond that the sensors are lost, which trust.py
# bridges for 0.4 s: hot within a second.
INTERVAL_S = 0.25
LATE_NS = 550_000_000
# what a reading may be older than one of the INA3221 itself, for the observer's window
_OLDER_NS = 500_000_000
NAMES_MAX = 64
_NUMBERS = ("gpu_hz", "gpu_permille", "cpu_khz", "fan_permille")
_SANE = range(-(2**62), 2**62)


@dataclass(frozen=True, slots=True)
class JtopSample:
    """As readers/jtop_reader.py says it."""

    began_ns: int
    interval_s: float
    rails: Mapping[str, tuple[int, int]]
    zones: Mapping[str, int | None]
    gpu_hz: int | None
    gpu_permille: int | None
    cpu_khz: int | None
    fan_permille: int | None


def parse(line: bytes) -> JtopSample:
    """Raises PowerError for anything else than a sample; for the reader's last words with these."""
    try:
        got: Any = json.loads(line)
    except (ValueError, RecursionError):
        got = None
    if isinstance(got, dict) and isinstance(got.get("error"), str):
        raise PowerError(got["error"])
    try:
        rails = {str(label): (_whole(mv), _whole(ma)) for label, (mv, ma) in got["rails"].items()}
        zones = {str(name): None if mc is None else _whole(mc) for name, mc in got["zones"].items()}
        numbers = {name: None if got[name] is None else _whole(got[name]) for name in _NUMBERS}
        interval_s = float(got["interval_s"])
        if max(len(rails), len(zones)) > NAMES_MAX or not 0 < interval_s < 3600:
            raise ValueError
        if min((value for value in numbers.values() if value is not None), default=0) < 0:
            raise ValueError
        return JtopSample(_whole(got["began_ns"]), interval_s, rails, zones, **numbers)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise PowerError(f"no sample of jtop: {line[:80]!r}") from None


def readings_of(sample: JtopSample | None, facts: BoardFacts, now_ns: int) -> Readings:
    """Every sensor is lost without a sample, or with one that is late."""
    if sample is None:
        return Readings(None, faults=("jtop: no sample",))
    if sample.began_ns > now_ns:
        return Readings(None, faults=("jtop: the last sample is from the future",))
    if now_ns - sample.began_ns > LATE_NS:
        slow = f"; its service sends one every {sample.interval_s:g} s, since another client asked first" \
            if sample.interval_s > 1.5 * INTERVAL_S else ""
        return Readings(None, faults=(f"jtop: the last sample is older than {LATE_NS / 1e6:.0f} ms{slow}",))
    faults: list[str] = []
    rails: dict[str, int] = {}
    zones: dict[str, int] = {}
    for label in facts.rails:
        if label in sample.rails:
            mv, ma = sample.rails[label]
            take_rail(label, mv * ma // 1000, facts, rails, faults)
        else:
            faults.append(f"rail {label}: jtop shows none of this name")
    for zone in facts.zones:
        names = [kind.partition("-")[0] for kind in zone.types]  # jtop cuts cpu-thermal and CPU-therm
        value = next((sample.zones[name] for name in names if sample.zones.get(name) is not None), None)
        if value is not None and (seen := take_zone(zone, value, faults)) is not None:
            zones[zone.name] = seen
        elif value is None and zone.sleeps == "never":
            faults.append(f"zone {zone.name}: jtop cannot read it")
    if sample.gpu_hz is None:
        faults.append("GPU clock: jtop shows no GPU")
    return Readings(
        board_mw=facts.board_mw(rails),
        rails_mw=rails,
        tj_mc=zones.get("tj"),
        zones_mc=zones,
        gpu_hz=sample.gpu_hz,
        gpu_busy_permille=sample.gpu_permille,
        cpu_khz=sample.cpu_khz,
        fan_pwm=None if sample.fan_permille is None else round(sample.fan_permille * 255 / 1000),
        faults=tuple(faults),
    )


def seen_through_jtop(facts: BoardFacts) -> BoardFacts:
    """The facts for a governor whose readings come from jtop: they lag behind by more than the sensor's own window. A
    window that is longer by as much has about the same mean age."""
    return replace(facts, sensor_window_ns=facts.sensor_window_ns + _OLDER_NS)


def _whole(value: object) -> int:
    if type(value) is not int or value not in _SANE:
        raise ValueError
    return value
