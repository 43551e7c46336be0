"""Sets the board's clock caps and puts them back, also after a crash.

Called by steward.py (set, restore) and by `orind power restore` (restore_saved). Invariants: the values found at the
start are on disk before the first write; a cap is always a step of the board's own table and never above what the
active nvpmodel mode allows; a restore that could not be completed keeps the file and says so; root writes below
another root than "/" only if it saved that itself, for the folder may be the one's whom it must not obey.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from .board import BoardFacts, Mode
from .cpu_caps import CpuCaps
from .cpu_clock import Permitted
from .envelope import Envelope, holding_mode
from .errors import PowerError, SysfsError
from .heat import step_that_heat_allows
from .held import Held
from .known_modes import known_modes
from .nvpmodel import ConfMode
from .steps import step_under, steps_under
from .sysfs import CPUFREQ, DEVFREQ, Sysfs

log = logging.getLogger(__name__)
_OURS = re.compile(rf"{DEVFREQ}/[\w.@:-]+/(?:max|min)_freq|{CPUFREQ}/policy\d+/scaling_max_freq", re.ASCII)
_STATE_BYTES_MAX = 1 << 20
_FIGHT_NS = 60_000_000_000  # somebody who sets the cap again and again is mentioned once in so long


class Caps:
    """The GPU's highest and, where it is pinned, lowest clock (devfreq max_freq, min_freq); the CPUs' through cpu_caps.
    Owns `state_path` from the first write to the restore."""

    def __init__(self, root: Path | str, facts: BoardFacts, state_path: Path) -> None:
        self._sysfs = Sysfs(root)
        self._facts = facts
        self._state_path = state_path
        found = self._sysfs.find_devfreq(facts.gpu_nodes)
        if found is None:
            raise PowerError(f"no GPU clock under {self._sysfs.root}: no device of /{DEVFREQ} has the node "
                             f"name {' or '.join(facts.gpu_nodes)}; is the GPU driver loaded?")
        self._max_path, self._min_path = f"{found}/max_freq", f"{found}/min_freq"
        self._table_path = f"{found}/available_frequencies"
        self.gpu_table_hz = self._read_table()
        # A state file left by a crash holds the board's own values; what is in max_freq then is ours.
        restored, _ = _put_back(state_path)
        self.envelope = Envelope(self._sysfs, facts, self.gpu_cap_hz())
        self._held = Held(self._sysfs, state_path, lambda: self.envelope.mode_id, restored)
        self._cpus = CpuCaps(self._sysfs, self.envelope, self._held)
        self._modes: Sequence[Mode | ConfMode] = ()
        self._modes_at: tuple[int | None, int | None] | None = None  # the modes that held and waited then
        self._pinned = False
        self._ours_hz: int | None = None  # what we set last, or what max_freq said then if it was more; in which mode
        self._ours_mode: int | None = None
        self._fought_ns: int | None = None

    def gpu_clocks_hz(self) -> tuple[int, ...]:
        """The steps that the active mode allows, ascending; at least the lowest."""
        table, ceiling = self._read_table(), self.envelope.look()
        if table != self.gpu_table_hz:
            self.envelope.say(f"the board's table of GPU clocks has changed: it ends at {table[-1] / 1e6:g} MHz, no "
                              f"longer at {self.gpu_table_hz[-1] / 1e6:g}")
            self.gpu_table_hz = table
        return steps_under(self.gpu_table_hz, ceiling)

    def gpu_cap_hz(self) -> int:
        """The cap that holds now, as the board says it (thermal throttling may hold it below ours)."""
        return self._sysfs.read_clocks(self._max_path)[0]

    def set_gpu_max(self, hz: int, reason: str) -> int:
        """Cap the GPU at the highest allowed step not above `hz`; returns what the board then says.

        Raises SysfsError where the board refuses (permissions: udev rule 70-orind.rules)."""
        step = step_under(self.gpu_clocks_hz(), hz)
        by_mode = {mode: cap or self.gpu_table_hz[-1] for mode, cap in self.envelope.caps_hz().items()}
        hidden_hz = self._held.take(self._max_path, by_mode, self._heat_hz)
        found = self.gpu_cap_hz()
        if hidden_hz is not None:
            self.envelope.say(f"heat holds the GPU's cap at {found / 1e6:g} MHz, so what was set before cannot be "
                              f"seen; {hidden_hz / 1e6:g} MHz will be put back")
        if self._ours_hz is not None and found > self._ours_hz and self.envelope.mode_id == self._ours_mode:
            self._mind(found)
        if found != step or self._ours_hz != step:  # heat may show the step while more is set
            log.debug("GPU cap %d Hz: %s", step, reason)
            if self._pinned and self._sysfs.read_int(self._min_path) > step:
                self._sysfs.write_int(self._min_path, step)
            self._sysfs.write_int(self._max_path, step)
        shown = self.gpu_cap_hz()
        self._ours_hz, self._ours_mode = max(step, shown), self.envelope.mode_id
        return shown

    def set_gpu_min(self, hz: int | None) -> None:
        """Pin the GPU's clock from below at `hz`; None: as it was found. Raises as set_gpu_max."""
        if hz is not None:
            self._held.take(self._min_path, {})
        elif not self._pinned:
            return
        value = self._held.found(self._min_path) if hz is None else hz
        if self._sysfs.read_int(self._min_path) != value:
            self._sysfs.write_int(self._min_path, value)
        self._pinned = hz is not None

    def permitted(self) -> Permitted:
        """What the board allows beside the GPU's clocks."""
        now = (self.envelope.mode_id, self.envelope.waiting_id)
        if now != self._modes_at:  # a mode may have been added to the file
            self._modes, self._modes_at = known_modes(self._sysfs, self._facts).modes, now
        return dataclasses.replace(self._cpus.permitted(), modes=self._modes)

    def set_cpu_max(self, khz: int | None) -> None:
        """Cap the CPUs; None: as they were found. Raises as set_gpu_max."""
        self._cpus.set_max(khz)

    def restore(self) -> tuple[str, ...]:
        """Put back what was found; see restore_saved. Harmless when nothing was changed."""
        self._held.keep()
        lines = restore_saved(self._state_path)
        self._held.clear()
        self._cpus.forget()
        self._pinned = False
        return lines

    def mode(self) -> tuple[str | None, str | None]:
        """Names: nvpmodel's mode that holds, and the one that waits for a boot."""
        return self.envelope.name(self.envelope.mode_id), self.envelope.name(self.envelope.waiting_id)

    def notes(self) -> tuple[str, ...]:
        """What others changed since the last call."""
        return self.envelope.notes()

    def _heat_hz(self) -> int | None:
        device = self._max_path.split("/")[-2]
        return step_that_heat_allows(self._sysfs, "devfreq", device, self.gpu_table_hz)

    def _read_table(self) -> tuple[int, ...]:
        return tuple(sorted(set(self._sysfs.read_clocks(self._table_path))))

    def _mind(self, found_hz: int) -> None:
        """Somebody raised the cap. Lowering it is what the kernel does against heat."""
        now_ns = time.monotonic_ns()
        if self._fought_ns is None or now_ns - self._fought_ns >= _FIGHT_NS:
            self.envelope.say(f"somebody else raised the GPU's cap to {found_hz / 1e6:g} MHz; it is set again")
        self._fought_ns = now_ns


def restore_saved(state_path: Path) -> tuple[str, ...]:
    """Write back the values that `state_path` holds and remove it; returns a line for each, none without the file.

    Raises PowerError where the file is damaged or a value could not be written (the file is then kept)."""
    _, lines = _put_back(state_path)
    return lines


def _put_back(state_path: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """The values by path, and what restore_saved returns."""
    try:
        text, owner = _read_state(state_path)
        state = json.loads(text)
        if state["version"] != 1:
            raise PowerError(f"{state_path}: made by another orind (version {state['version']!r}); restore with that")
        sysfs = Sysfs(_absolute(state["root"]))
        if os.geteuid() == 0 and owner != 0 and state["root"] != "/":
            # whose folder it is can turn a file of it into a link between our look and our write
            raise PowerError(f"{state_path}: belongs to user id {owner} and names {state['root']:.200}, where root "
                             f"writes nothing for others; restore as that user (sudo -u '#{owner}' orind power restore "
                             f"--run-dir {state_path.parent})")
        values = _clocks(state["values"])
        if not sysfs.root.is_dir():  # a plant that is gone took its clocks with it; "/" is never gone
            state_path.unlink()
            return {}, ()
        mode_now = holding_mode(sysfs)
        if mode_now is None:  # one waits for a boot
            mode_now = state.get("holds")
        if mode_now is not None and mode_now != state["mode"]:
            values.update(_clocks(state["mode_values"].get(str(mode_now), {})))
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PowerError(f"{state_path}: the saved clock caps cannot be read ({error}); set the mode again with "
                         "nvpmodel and remove the file") from error
    lines: list[str] = []
    failed: list[str] = []
    for path, value in values.items():
        if path.startswith(CPUFREQ) and not sysfs.exists(path):
            lines.append(f"{sysfs.root / path}: not there, its cores are offline")
            continue
        try:
            if Path(os.path.realpath(sysfs.root / path)).name != Path(path).name:
                raise SysfsError(path, "leads to another file")
            sysfs.write_int(path, value)
            lines.append(f"{sysfs.root / path}: {value}")
        except SysfsError as error:
            failed.append(str(error))
    if failed:
        raise PowerError(f"clock caps not restored, {state_path} kept: " + "; ".join(failed))
    state_path.unlink()
    return values, tuple(lines)


def _read_state(path: Path) -> tuple[str, int]:
    """Text and owner of one and the same file. Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no file")
        data = os.read(fd, _STATE_BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(data) > _STATE_BYTES_MAX:
        raise ValueError(f"it has more than {_STATE_BYTES_MAX} bytes")
    return data.decode(), found.st_uid


def _absolute(root: object) -> str:
    """Raises ValueError."""
    if not isinstance(root, str) or not root.startswith("/") or "\0" in root:
        raise ValueError(f"its root is {root!r:.40}")
    return root


def _clocks(values: dict[object, object]) -> dict[str, int]:
    """Raises ValueError for what no steward saved: the file is the daemon's, and whoever restores may be root."""
    found = {}
    for path, value in values.items():
        if not isinstance(path, str) or not _OURS.fullmatch(path):
            raise ValueError(f"{path!r:.80} is no clock's cap")
        if type(value) is not int or not 0 < value < 1e11:
            raise ValueError(f"{value!r:.40} is no clock")
        found[path] = value
    return found
