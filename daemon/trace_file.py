"""Time series that a person wrote for a simulation: frames a second, by camera, and the ambient temperature.

Read by `simulate_command.py`. CSV with a head line; `t_s` ascends, and a last line `T,repeat` begins anew at T seconds
(without it the last line holds). Invariant: a file is taken whole or refused with its mistakes, each `FILE:LINE: what`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..power.polyline import interpolated
from .regular_file import NotRegular, check_regular

BYTES_MAX = 8 << 20
ROWS_MAX = 100_000
PROBLEMS_MAX = 20
RATE_MAX = 10_000.0
CAMERAS_MAX = 64
REPEAT = "repeat"
ANY_CAMERA = ""
"""The name of the only camera where a trace names none."""


class TraceError(Exception):
    """`problems`: one line a mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Series:
    """Values from `at_s` on; `repeat_s`: where it begins anew, 0 where the last value holds."""

    at_s: tuple[float, ...]
    values: tuple[float, ...]
    repeat_s: float = 0.0

    def interpolated(self, t_s: float) -> float:
        """Straight lines between the points; before the first and after the last one, theirs."""
        if self.repeat_s:
            t_s %= self.repeat_s
        return interpolated(self.at_s, self.values, t_s)

    def steps(self) -> Iterator[tuple[float, float]]:
        """(from when, value) as they come, without end where it repeats. Before the first: 0."""
        yield 0.0, 0.0
        begin = 0.0
        while True:
            yield from ((begin + at_s, value) for at_s, value in zip(self.at_s, self.values, strict=True))
            if not self.repeat_s:
                return
            begin += self.repeat_s
            if self.at_s[0]:
                yield begin, 0.0


@dataclass(slots=True)
class _Reading:
    """A file being read: what was found in it, and its mistakes."""

    path: Path
    value_name: str
    low: float
    high: float
    rows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    repeat_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    last_s: dict[str, float] = field(default_factory=dict)

    def complain(self, line: int, text: str) -> None:
        self.problems.append(f"{self.path}:{line}: {text}")

    def number(self, line: int, name: str, text: str, low: float, high: float) -> float | None:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and low <= value <= high:
            return value
        self.complain(line, f"{name} must be a number in {low:g} to {high:g}, not {text.strip()!r}")
        return None

    def take(self, line: int, row: list[str]) -> None:
        """One line below the head."""
        if self.repeat_s:
            self.complain(line, f"nothing comes after the line with {REPEAT!r}")
            return
        at_s = self.number(line, "t_s", row[0], 0.0, 1e7)
        if row[1].strip() == REPEAT:
            self._take_repeat(line, at_s)
            return
        value = self.number(line, self.value_name, row[1], self.low, self.high)
        camera = row[2].strip() if len(row) > 2 else ANY_CAMERA
        if len(row) > 2 and not 0 < len(camera.encode()) <= 64:
            self.complain(line, "camera must be a name of 1 to 64 bytes")
            return
        if at_s is None or value is None:
            return
        if at_s <= self.last_s.get(camera, -1.0):
            of = f" of camera {camera!r}" if camera else ""
            self.complain(line, f"t_s must ascend: {at_s:g} comes after {self.last_s[camera]:g}{of}; sort the lines")
            return
        self.last_s[camera] = at_s
        self.rows.setdefault(camera, []).append((at_s, value))

    def _take_repeat(self, line: int, at_s: float | None) -> None:
        if at_s is None:
            return
        if at_s <= max(self.last_s.values(), default=0.0):
            self.complain(line, f"the series must begin anew after its last time, not at {at_s:g} s")
        else:
            self.repeat_s = at_s


def read_load(path: Path) -> Mapping[str, Series]:
    """Frames a second by camera. Raises TraceError; OSError where it cannot be read."""
    found = _read(path, ("t_s", "frames_per_s"), "camera", 0.0, RATE_MAX)
    if len(found) > CAMERAS_MAX:
        raise TraceError([f"{path}: it names {len(found)} cameras, at most {CAMERAS_MAX} are simulated"])
    return found


def read_ambient(path: Path) -> Series:
    """Ambient temperature in C. Raises as `read_load`."""
    return _read(path, ("t_s", "ambient_c"), None, -40.0, 80.0)[ANY_CAMERA]


def _read(path: Path, head: tuple[str, str], optional: str | None, low: float, high: float) -> dict[str, Series]:
    try:
        check_regular(str(path), BYTES_MAX)
        text = path.read_bytes().decode()
    except NotRegular as error:
        raise TraceError([f"{path}: {error}"]) from None
    except UnicodeDecodeError as error:
        raise TraceError([f"{path}: not UTF-8 text (byte {error.start})"]) from None
    wanted = ",".join(head)
    reading = _Reading(path, head[1], low, high)
    columns = 0
    lines = text.splitlines()
    if len(lines) > ROWS_MAX:
        raise TraceError([f"{path}: {len(lines)} lines, at most {ROWS_MAX} are read"])
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row = line.split(",")
        if not columns:
            names = [name.strip() for name in row]
            if names != list(head) and (optional is None or names != [*head, optional]):
                more = f" or {wanted},{optional}" if optional else ""
                raise TraceError([f"{path}:{number}: the first line must be {wanted}{more}, not {line.strip()!r}"])
            columns = len(row)
        elif len(row) == columns or (len(row) == 2 and row[1].strip() == REPEAT):
            reading.take(number, row)
        else:
            reading.complain(number, f"must have {columns} values, not {len(row)}")
    if not columns:
        reading.complain(1, f"empty; the first line must be {wanted}")
    elif not reading.rows and not reading.problems:
        reading.complain(len(lines), "there is no line with values")
    if reading.problems:
        left = len(reading.problems) - PROBLEMS_MAX
        raise TraceError([*reading.problems[:PROBLEMS_MAX], *([f"{path}: and {left} more"] if left > 0 else [])])
    return {camera: Series(tuple(at_s for at_s, _ in rows), tuple(value for _, value in rows), reading.repeat_s)
            for camera, rows in reading.rows.items()}
