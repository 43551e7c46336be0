"""Faults from a file, so that a simulated board can be broken from outside: by tests of the whole service, by hand, by
hardware-in-the-loop scenarios, by `orind simulate --faults`.

Read by runner.py before each step, when the file has changed. Invariant: an absent file is a board without faults, and
one that cannot be understood changes nothing and is said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import PowerError
from .board import NVPMODEL_FAULTS, PlantBoard
from .faults import Faults
from .model import PlantModel

# key -> the type that JSON has for it
_KEYS: dict[str, type | tuple[type, ...]] = {
    "missing": list, "forced": dict, "stuck": list, "slow_s": dict, "refuse_writes": bool, "fan_works": bool,
    "ambient_c": (int, float), "extra_w": (int, float), "renumber_hwmons": bool, "reset_mode": list,
    "reboot": bool, "nvpmodel": str}
_WITHIN = {"ambient_c": (-60, 120), "extra_w": (-50, 200)}
_SLOW_S_MAX = 3600.0
_TIMES_MAX = 1000


@dataclass(frozen=True, slots=True)
class FaultState:
    """What is wrong with a board from some moment on; the fields are the keys of the file. Lists and mappings name
    zones and rails. `reset_mode` is (id, GPU cap in Hz or None) and, like `renumber_hwmons` and `reboot`, happens once;
    `nvpmodel` is a fault of that program (programs/nvpmodel.py)."""

    missing: tuple[str, ...] = ()
    forced: dict[str, int] = field(default_factory=dict)
    stuck: tuple[str, ...] = ()
    slow_s: dict[str, float] = field(default_factory=dict)
    refuse_writes: bool = False
    fan_works: bool = True
    ambient_c: float | None = None
    extra_w: float = 0.0
    renumber_hwmons: bool = False
    reset_mode: tuple[int, int | None] | None = None
    reboot: bool = False
    nvpmodel: str = ""

    @property
    def sensors(self) -> set[str]:
        """The zones and rails that it names."""
        return {*self.missing, *self.forced, *self.stuck, *self.slow_s}

    @property
    def of_files(self) -> list[str]:
        """The keys that mean something only to a board that has files and programs."""
        return [name for name in ("renumber_hwmons", "reboot", "nvpmodel") if getattr(self, name)]


class Breakable(Protocol):
    """A simulated board, with files or without."""

    model: PlantModel
    faults: Faults

    def reset_mode(self, mode_id: int, gpu_max_hz: int | None) -> None: ...


def set_faults(board: Breakable, state: FaultState) -> None:
    """From now on the board has these and no others. The ambient temperature, and what a board without files does not
    have (`of_files`), are the caller's."""
    faults = board.faults
    faults.missing = set(state.missing)
    faults.forced = dict(state.forced)
    faults.stuck = set(state.stuck)
    faults.slow_s = dict(state.slow_s)
    faults.refuse_writes = state.refuse_writes
    board.model.fan_works = state.fan_works
    board.model.extra_w = state.extra_w
    if state.reset_mode is not None:
        board.reset_mode(*state.reset_mode)


class FaultFile:
    """A FaultState as JSON, such as {"missing": ["tj"], "fan_works": false}. What happens once happens for each time
    that the file changes."""

    def __init__(self, path: Path, board: PlantBoard) -> None:
        self._path = path
        self._board = board
        self._ambient_c = board.model.ambient_c
        self._text = ""

    def apply(self) -> str | None:
        """Take what has changed; returns a line when the file cannot be understood."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            text = ""
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        if text == self._text:
            return None
        self._text = text
        try:
            state = fault_state(_parse(text) if text.strip() else {})
        except (PowerError, ValueError) as error:
            return f"{self._path}: {error}"
        board = self._board
        if state.renumber_hwmons:
            board.renumber_hwmons()
        board.break_nvpmodel(state.nvpmodel)
        set_faults(board, state)
        board.model.ambient_c = self._ambient_c if state.ambient_c is None else state.ambient_c
        if state.reboot:
            board.reboot()
        return None


def fault_schedule(text: str) -> tuple[tuple[float, FaultState], ...]:
    """(seconds since the start, state) in ascending order: of one object, which holds from the start, or of a list of
    objects with "t_s", each of which replaces the one before. Raises PowerError or ValueError."""
    got = _parse(text)
    if isinstance(got, dict):
        return ((0.0, fault_state(got)),)
    if not isinstance(got, list) or len(got) > _TIMES_MAX:
        raise PowerError(f'must hold a JSON object, or a list of at most {_TIMES_MAX} objects with "t_s"')
    found: list[tuple[float, FaultState]] = []
    for number, entry in enumerate(got, 1):
        at_s = entry.get("t_s") if isinstance(entry, dict) else None
        if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s < 1e7:
            raise PowerError(f'entry {number}: must be an object with "t_s", the seconds since the start')
        if found and at_s <= found[-1][0]:
            raise PowerError(f"entry {number}: t_s must ascend, {at_s:g} comes after {found[-1][0]:g}")
        try:
            found.append((float(at_s), fault_state({key: value for key, value in entry.items() if key != "t_s"})))
        except PowerError as error:
            raise PowerError(f"entry {number}: {error}") from None
    return tuple(found)


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except RecursionError:
        raise PowerError("is nested too deep") from None


def fault_state(got: object) -> FaultState:
    """From what JSON gave; raises PowerError."""
    if not isinstance(got, dict):
        raise PowerError("must hold a JSON object")
    for key, value in got.items():
        kind = _KEYS.get(key)
        if kind is None:
            raise PowerError(f"unknown fault {key!r}; there are {', '.join(_KEYS)}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise PowerError(f"{key}: {value!r} is not what it takes")
    for key, (low, high) in _WITHIN.items():
        if key in got and not low <= got[key] <= high:
            raise PowerError(f"{key}: must lie in {low:g} to {high:g}")
    if got.get("nvpmodel", "") not in NVPMODEL_FAULTS:
        raise PowerError(f"nvpmodel: must be one of {', '.join(NVPMODEL_FAULTS[1:])}")
    known: dict[str, Any] = dict(got)
    mode = known.pop("reset_mode", None)
    if mode is not None and (len(mode) != 2 or type(mode[0]) is not int
                             or not (mode[1] is None or (type(mode[1]) is int and 0 < mode[1] < 1e11))
                             or not 0 <= mode[0] <= 9999):
        raise PowerError("reset_mode: must be [id, GPU cap in Hz or null]")
    for key in ("missing", "stuck"):
        if not all(isinstance(name, str) for name in known.get(key, ())):
            raise PowerError(f"{key}: must be a list of names")
        known[key] = tuple(known.get(key, ()))
    if not all(type(v) is int and abs(v) < 2**63 for v in known.get("forced", {}).values()):
        raise PowerError("forced: values are whole numbers, as the file shows them")
    if not all(isinstance(v, int | float) and 0 <= v <= _SLOW_S_MAX for v in known.get("slow_s", {}).values()):
        raise PowerError(f"slow_s: values are seconds, at most {_SLOW_S_MAX:g}")
    return FaultState(**known, reset_mode=None if mode is None else (mode[0], mode[1]))
