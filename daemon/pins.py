"""Keeps processes on the CPUs that the configuration gives them while a power mode takes cores offline and back online.

Used by the nursery, which is the parent of all but main and of main's user, so that main itself never reads or waits.
The kernel breaks a pinned process's affinity silently when its last CPU goes offline, and does not restore it.
Invariants: a process runs on those of its CPUs that are online, or on any if none is, which is said as long as it
lasts; nobody is touched whose CPUs are right.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..power.errors import SysfsError
from ..power.sysfs import Sysfs


class Pin(NamedTuple):
    """The CPUs of a process: what it is called, the configuration's key, and what that says (empty: all)."""

    role: str
    key: str
    cpus: Sequence[int]


def place(pin: Pin, online: Collection[int]) -> tuple[set[int], str]:
    """Where it is to run now, and why not where it was to run ('': it does)."""
    left = {cpu for cpu in pin.cpus if cpu in online}
    gone = sorted(set(pin.cpus) - left)
    if not gone:
        return left, ""
    names = f"CPU{'s' * (len(gone) > 1)} {', '.join(map(str, gone))}"
    where = f"on CPU {', '.join(map(str, sorted(left)))}" if left else "on any CPU"
    return left or set(online), f"{pin.key}: {names} offline (a power mode?); the {pin.role} process runs {where}"


def tend(pins: Mapping[int, Pin], root: str) -> list[str]:
    """Put each process (by id) where it is to run now. `root`: of the board that says what is online. Returns a line
    for each that cannot run where it should."""
    pinned = {pid: pin for pid, pin in pins.items() if pin.cpus}
    if not pinned:
        return []
    try:
        online = Sysfs(root).read_online()
    except SysfsError as error:
        return [f"which CPUs are online is not known ({error}): nobody is moved when a power mode takes some offline"]
    said: dict[str, None] = {}
    for pid, pin in pinned.items():
        cpus, reason = place(pin, online)
        try:
            if os.sched_getaffinity(pid) != cpus:
                move(pid, cpus)
        except ProcessLookupError:
            continue  # it has just ended
        except OSError as error:
            reason = f"{pin.key}: the {pin.role} process cannot be put on CPU {sorted(cpus)}: {error.strerror}"
        if reason:
            said[reason] = None  # two engines have the same to say
    return list(said)


def move(pid: int, cpus: Collection[int]) -> None:
    """All threads of a process. Raises ProcessLookupError, OSError."""
    try:
        threads = [entry.name for entry in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)
