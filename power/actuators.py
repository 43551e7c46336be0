"""Sets the board's clock caps and puts them back, also after a crash.

Called by steward.py (set, restore) and by `orind power restore` (restore_saved). Invariants: the values found at the
start are on disk before the first write; a cap is always a step of the board's own table and never above what the
active nvpmodel mode allows; a restore that could not be completed keeps the file and says so.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from .board import BoardFacts
from .errors import PowerError, SysfsError
from .sysfs import DEVFREQ, Sysfs

log = logging.getLogger(__name__)

_MODE_FILE = "var/lib/nvpmodel/status"


def read_mode_id(sysfs: Sysfs) -> int | None:
    """The id of the active nvpmodel mode from its status file ("pmode:0002 fmode:quiet"), None where there is none."""
    try:
        words = sysfs.read_text(_MODE_FILE).split()
    except SysfsError:
        return None
    digits = next((word[6:] for word in words if word.startswith("pmode:")), "")
    return int(digits) if digits.isdigit() else None


class Caps:
    """The GPU's maximum clock (devfreq max_freq). Owns `state_path` from the first write to the restore."""

    def __init__(self, root: Path | str, facts: BoardFacts, state_path: Path) -> None:
        self._sysfs = Sysfs(root)
        self._facts = facts
        self._state_path = state_path
        found = self._sysfs.find_devfreq(facts.gpu_nodes)
        if found is None:
            raise PowerError(f"no GPU clock under {self._sysfs.root}: no device of /{DEVFREQ} has the node "
                             f"name {' or '.join(facts.gpu_nodes)}; is the GPU driver loaded?")
        self._max_path = f"{found}/max_freq"
        self.gpu_table_hz = tuple(sorted(set(self._sysfs.read_ints(f"{found}/available_frequencies"))))
        # A state file left by a crash holds the board's own values; what is in max_freq then is ours.
        restore_saved(state_path)
        self._saved = False

    def gpu_clocks_hz(self) -> tuple[int, ...]:
        """The steps that the active mode allows, ascending; at least the lowest."""
        ceiling = self._mode_ceiling_hz()
        if ceiling is None:
            return self.gpu_table_hz
        return tuple(hz for hz in self.gpu_table_hz if hz <= ceiling) or self.gpu_table_hz[:1]

    def gpu_cap_hz(self) -> int:
        """The cap that holds now, as the board says it (thermal throttling may hold it below ours)."""
        return self._sysfs.read_int(self._max_path)

    def set_gpu_max(self, hz: int, reason: str) -> int:
        """Cap the GPU at the highest allowed step not above `hz`; returns what the board then says.

        Raises SysfsError where the board refuses (permissions: udev rule 70-orind.rules)."""
        allowed = self.gpu_clocks_hz()
        step = max((f for f in allowed if f <= hz), default=allowed[0])
        if not self._saved:
            self._save()
        if self.gpu_cap_hz() != step:
            log.debug("GPU cap %d Hz: %s", step, reason)
            self._sysfs.write_int(self._max_path, step)
        return self.gpu_cap_hz()

    def restore(self) -> tuple[str, ...]:
        """Put back what was found; see restore_saved. Harmless when nothing was changed."""
        lines = restore_saved(self._state_path)
        self._saved = False
        return lines

    def _mode_ceiling_hz(self) -> int | None:
        mode_id = read_mode_id(self._sysfs)
        mode = None if mode_id is None else self._facts.mode(mode_id)
        return None if mode is None else mode.gpu_max_hz

    def _save(self) -> None:
        mode_id = read_mode_id(self._sysfs)
        mode_caps = {mode.id: mode.gpu_max_hz or self.gpu_table_hz[-1] for mode in self._facts.modes}
        state = {
            "version": 1,
            "root": str(self._sysfs.root.resolve()),
            "mode": mode_id,
            "values": {self._max_path: self._sysfs.read_int(self._max_path)},
            # what nvpmodel would have written, should the mode be another one when we restore
            "mode_values": {str(key): {self._max_path: cap} for key, cap in mode_caps.items()},
        }
        temporary = self._state_path.with_name(self._state_path.name + ".tmp")
        try:
            temporary.write_text(json.dumps(state))
            temporary.replace(self._state_path)
        except OSError as error:
            raise PowerError(f"cannot save the board's clock caps to {self._state_path} ({error.strerror}); no cap is "
                             "changed before they are safe") from error
        self._saved = True


def restore_saved(state_path: Path) -> tuple[str, ...]:
    """Write back the values that `state_path` holds and remove it; returns a line for each, none without the file.

    Raises PowerError where the file is damaged or a value could not be written (the file is then kept)."""
    try:
        state = json.loads(state_path.read_text())
        if state["version"] != 1:
            raise PowerError(f"{state_path}: made by another orind (version {state['version']!r}); restore with that")
        sysfs = Sysfs(state["root"])
        values: dict[str, int] = {str(path): int(value) for path, value in state["values"].items()}
        if not sysfs.root.is_dir():  # a plant that is gone took its clocks with it; "/" is never gone
            state_path.unlink()
            return ()
        mode_now = read_mode_id(sysfs)
        if mode_now is not None and mode_now != state["mode"]:
            values.update(state["mode_values"].get(str(mode_now), {}))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PowerError(f"{state_path}: the saved clock caps cannot be read ({error}); set the mode again with "
                         "nvpmodel and remove the file") from error
    lines: list[str] = []
    failed: list[str] = []
    for path, value in values.items():
        try:
            sysfs.write_int(path, value)
            lines.append(f"/{path}: {value}")
        except SysfsError as error:
            failed.append(str(error))
    if failed:
        raise PowerError(f"clock caps not restored, {state_path} kept: " + "; ".join(failed))
    state_path.unlink()
    return tuple(lines)
