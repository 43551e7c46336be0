"""Times of the day and week at which another budget holds, in the local time of a named zone. Pure.

Read by policy.py, asked by budget.py with the wall time that the steward was given. A window that ends before it begins
ends on the next day. Invariant: no two windows overlap, so that at most one holds; the time zone's own rules say what
an hour is that summer time leaves out (its windows are passed over) or repeats (they hold twice).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime as LocalTime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .fields import Fields, shown

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY, _WEEK = 24 * 60, 7 * 24 * 60


@dataclass(frozen=True, slots=True)
class Window:
    """On `days` (0: Monday), from `begin` to `end` in minutes of the day. `budget_mw` is None where `quiet`."""

    name: str
    days: tuple[int, ...]
    begin: int
    end: int
    budget_mw: int | None
    quiet: bool = False

    def spans(self) -> tuple[tuple[int, int], ...]:
        """(begin, end) in minutes of the week, one for each day; the last may end in the next week."""
        length = (self.end - self.begin) % _DAY or _DAY
        return tuple((day * _DAY + self.begin, day * _DAY + self.begin + length) for day in self.days)

    def holds(self, minute: int) -> bool:
        """Whether a minute of the week lies in it."""
        return any(begin <= minute < end or begin <= minute + _WEEK < end for begin, end in self.spans())


@dataclass(frozen=True, slots=True)
class Schedule:
    """The windows of a policy and the zone (IANA name) whose time they are given in."""

    time_zone: str
    windows: tuple[Window, ...]

    @classmethod
    def from_fields(cls, f: Fields) -> Schedule:
        """Read the `schedule` mapping of a policy; problems go to `f`."""
        zone = f.text("time_zone")
        inner = f.children("windows")
        windows = tuple(_read_window(w, i) for i, w in enumerate(inner))
        for i, later in enumerate(windows):
            clash = next((w for w in windows[:i] if _overlap(w, later)), None)
            if clash is not None:
                inner[i].complain(None, f"overlaps window {clash.name!r}: which of the two budgets holds?")
        f.finish()
        return cls(zone, windows)

    def window_at(self, wall_s: float) -> Window | None:
        """The window that holds at a wall time (s since 1970 UTC), if one."""
        local = LocalTime.fromtimestamp(wall_s, ZoneInfo(self.time_zone))
        minute = local.weekday() * _DAY + local.hour * 60 + local.minute
        return next((window for window in self.windows if window.holds(minute)), None)


def local_s(text: str, zone: str) -> float:
    """s since 1970 UTC of a local time such as 2026-03-02T06:00, the first of two. Raises ValueError, also for an hour
    that summer time leaves out."""
    given = LocalTime.strptime(text, "%Y-%m-%dT%H:%M")
    if not 2000 <= given.year < 2200:
        raise ValueError(f"{given.year} is no year of a board")
    wall_s = given.replace(tzinfo=ZoneInfo(zone)).timestamp()
    if LocalTime.fromtimestamp(wall_s, ZoneInfo(zone)).replace(tzinfo=None) != given:
        raise ValueError("summer time leaves this hour out")
    return wall_s


def known_zone(name: str) -> bool:
    """Whether this machine knows the zone. It reads a file: for the checker and the steward, not for main."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a directory
        return False
    return True


def _overlap(one: Window, other: Window) -> bool:
    return any(
        begin < end2 + shift and begin2 + shift < end
        for begin, end in one.spans() for begin2, end2 in other.spans() for shift in (-_WEEK, 0, _WEEK)
    )


def _read_window(f: Fields, number: int) -> Window:
    name = f.text("name", f"number {number + 1}")
    days = f.texts("days", DAYS)
    unknown = [day for day in days if day not in DAYS]
    if unknown:
        f.complain("days", f"no day {unknown[0]!r} (days: {', '.join(DAYS)})")
    begin, end = _minute(f, "from"), _minute(f, "to")
    quiet = f.flag("quiet", False)
    budget_w = f.number("budget_w", 1, 200) if f.has("budget_w") else None
    if quiet == (budget_w is not None):
        f.complain(None, "needs budget_w, or `quiet: true`, and not both")
    f.finish()
    return Window(name, tuple(sorted(DAYS.index(day) for day in days if day in DAYS)), begin, end,
                  None if budget_w is None else round(budget_w * 1000), quiet)


def _minute(f: Fields, key: str) -> int:
    """HH:MM as a minute of the day. Without quotes YAML reads 22:00 as the number 1320 and 06:00 as text."""
    value = f.raw(key)
    if not f.has(key):
        return 0
    if isinstance(value, str):
        hours, colon, minutes = value.partition(":")
        digits = hours + minutes
        if colon and len(hours) == len(minutes) == 2 and digits.isascii() and digits.isdigit() \
                and int(hours) < 24 and int(minutes) < 60:
            return int(hours) * 60 + int(minutes)
    f.complain(key, f'must be a time of the day in quotes, such as "22:00", not {shown(value)}')
    return 0
