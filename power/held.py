"""What a clock file held before it was ours, in memory and on disk, so that it can be put back also after a crash.

Owned by actuators.Caps, shared with cpu_caps.CpuCaps; `actuators.restore_saved` reads the file. Invariant: a value is
on disk before its file is written for the first time, and again if somebody removed it from there since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from .errors import PowerError
from .sysfs import Sysfs

STATE_NAME = "power-state.json"
"""Of the file in a daemon's run_dir: it is there while the daemon holds a cap, and after a crash until the restore."""


class Held:
    """`mode_now`: the id of nvpmodel's mode that holds; `restored`: what was put back a moment ago, by path, which heat
    may hide. Owns `path` until the restore."""

    def __init__(self, sysfs: Sysfs, path: Path, mode_now: Callable[[], int | None],
                 restored: Mapping[str, int]) -> None:
        self._sysfs = sysfs
        self._path = path
        self._mode_now = mode_now
        self._restored = restored
        self._mode: int | None = None  # when the first value was taken
        self._saved_mode: int | None = None  # the one that held when it was saved last
        self._values: dict[str, int] = {}
        self._by_mode: dict[str, Mapping[int, int]] = {}

    def take(self, path: str, by_mode: Mapping[int, int], heat: Callable[[], int | None] = lambda: None) -> int | None:
        """Save what a file holds, if that was not done yet. `by_mode`: what nvpmodel would have written there, should
        the mode be another one when it is put back. `heat`: the highest value that the kernel allows for heat, None if
        any. A value that lies there is heat's: what was set before cannot be seen, and is taken for what was put back
        there, else for what the mode writes; it is returned then. Raises SysfsError, PowerError."""
        if path in self._values:
            self.keep()
            return None
        mode = self._mode_now()
        if not self._values:
            self._mode = mode
        # before and after, lest heat begins or ends in between
        before, shown, after = heat(), self._sysfs.read_clocks(path)[0], heat()
        hidden = any(allowed is not None and shown >= allowed for allowed in (before, after))
        found = shown
        if hidden and path in self._restored:
            found = self._restored[path]
        elif hidden and mode is not None:  # of a mode that is not known: what can be seen, which is never too high
            found = max(shown, by_mode.get(mode, shown))
        values = {**self._values, path: found}
        modes = {**self._by_mode, path: by_mode}
        self._save(values, modes)
        self._values, self._by_mode = values, modes
        return found if hidden else None

    def keep(self) -> None:
        """Save again what somebody removed: what was found is known to us alone; and which mode holds by now, which
        nobody else can tell while another one waits for a boot. Raises PowerError."""
        if self._values and (self._mode_now() != self._saved_mode or not self._path.exists()):
            self._save(self._values, self._by_mode)

    def _save(self, values: Mapping[str, int], modes: Mapping[str, Mapping[int, int]]) -> None:
        holds = self._mode_now()
        state = {"version": 1, "root": str(self._sysfs.root.resolve()), "mode": self._mode, "holds": holds,
                 "values": values, "mode_values": _by_mode_first(modes)}
        temporary = self._path.with_name(self._path.name + ".tmp")
        try:
            temporary.write_text(json.dumps(state))
            temporary.replace(self._path)
        except OSError as error:
            raise PowerError(f"cannot save the board's clock caps to {self._path} ({error.strerror}); no cap is "
                             "changed before they are safe") from error
        self._saved_mode = holds

    def found(self, path: str) -> int:
        """What a file that was taken is to hold again: what it did, or what the mode that holds by now writes there."""
        mode = self._mode_now()
        own = self._values[path]
        return own if mode is None or mode == self._mode else self._by_mode[path].get(mode, own)

    def clear(self) -> None:
        """Everything was put back."""
        self._values, self._by_mode = {}, {}


def _by_mode_first(by_path: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    modes = {mode for by_mode in by_path.values() for mode in by_mode}
    return {str(mode): {path: by_mode[mode] for path, by_mode in by_path.items() if mode in by_mode}
            for mode in sorted(modes)}
