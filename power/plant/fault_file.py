"""Faults from a file, so that a running plant can be broken from outside: by tests of the whole service, by hand, by
hardware-in-the-loop scenarios.

Read by runner.py before each step, when the file has changed. Invariant: an absent file is a board without faults, and
one that cannot be understood changes nothing and is said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import PowerError
from .board import NVPMODEL_FAULTS, PlantBoard

# key -> the type that JSON has for it
_KEYS: dict[str, type | tuple[type, ...]] = {
    "missing": list, "forced": dict, "stuck": list, "slow_s": dict, "refuse_writes": bool, "fan_works": bool,
    "ambient_c": (int, float), "extra_w": (int, float), "renumber_hwmons": bool, "reset_mode": list,
    "reboot": bool, "nvpmodel": str}


class FaultFile:
    """JSON such as {"missing": ["tj"], "fan_works": false}. Lists and mappings name zones and rails; "reset_mode" is
    [id, GPU cap in Hz or null] and, like "renumber_hwmons" and "reboot", happens once for each time that the file
    changes; "nvpmodel" is a fault of that program (programs/nvpmodel.py)."""

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
            self._set(_parse(text))
        except (PowerError, ValueError) as error:
            return f"{self._path}: {error}"
        return None

    def _set(self, wanted: dict[str, Any]) -> None:
        board, faults = self._board, self._board.faults
        faults.missing = set(wanted.get("missing", ()))
        faults.forced = dict(wanted.get("forced", {}))
        faults.stuck = set(wanted.get("stuck", ()))
        faults.slow_s = dict(wanted.get("slow_s", {}))
        faults.refuse_writes = wanted.get("refuse_writes", False)
        board.model.fan_works = wanted.get("fan_works", True)
        board.model.ambient_c = wanted.get("ambient_c", self._ambient_c)
        board.model.extra_w = wanted.get("extra_w", 0.0)
        if wanted.get("renumber_hwmons"):
            board.renumber_hwmons()
        board.break_nvpmodel(wanted.get("nvpmodel", ""))
        if "reset_mode" in wanted:
            board.reset_mode(*wanted["reset_mode"])
        if wanted.get("reboot"):
            board.reboot()


def _parse(text: str) -> dict[str, Any]:
    """The mapping in `text`; raises PowerError or ValueError."""
    got = json.loads(text) if text.strip() else {}
    if not isinstance(got, dict):
        raise PowerError("must hold a JSON object")
    for key, value in got.items():
        kind = _KEYS.get(key)
        if kind is None:
            raise PowerError(f"unknown fault {key!r}; there are {', '.join(_KEYS)}")
        if not isinstance(value, kind):
            raise PowerError(f"{key}: {value!r} is not what it takes")
    if got.get("nvpmodel", "") not in NVPMODEL_FAULTS:
        raise PowerError(f"nvpmodel: must be one of {', '.join(NVPMODEL_FAULTS[1:])}")
    mode = got.get("reset_mode", [0, None])
    if len(mode) != 2 or type(mode[0]) is not int or not (mode[1] is None or type(mode[1]) is int):
        raise PowerError("reset_mode: must be [id, GPU cap in Hz or null]")
    if not all(type(v) is int for v in got.get("forced", {}).values()):
        raise PowerError("forced: values are whole numbers, as the file shows them")
    if not all(isinstance(v, int | float) for v in got.get("slow_s", {}).values()):
        raise PowerError("slow_s: values are seconds")
    return got
