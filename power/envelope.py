"""Which mode of nvpmodel holds now, so how high the GPU may be clocked; notices when somebody else changes that.

Owned by actuators.Caps, looked at in every tick. The status file says which mode is active, except where that mode's
masks are not the live ones: then it waits for a boot, and the mode before it holds. A mode is what the board's own
nvpmodel.conf says it is; our facts count where there is no such file. Invariant: where the mode that holds is not
known (no status file, an id in no file, one that waits while the one before is not known), the caps that were found at
the start do, and those of the last mode that was known: never higher ones.
"""

from __future__ import annotations

from .board import BoardFacts
from .known_modes import own_conf
from .nvpmodel import Conf, read_mode_id, switch_to
from .sysfs import Sysfs


class Envelope:
    """`found_hz`: the cap that was there before ours; it holds where the mode is not known."""

    def __init__(self, sysfs: Sysfs, facts: BoardFacts, found_hz: int) -> None:
        self._sysfs = sysfs
        self._facts = facts
        self._found_hz = self._kept_hz = found_hz
        self._conf: Conf | None = None
        self._said: int | None = None
        self._looked = False
        self._notes: list[str] = []
        self.mode_id: int | None = None
        """Of the mode that holds; None: nvpmodel has not run, or one waits and the one before it is not known."""
        self.waiting_id: int | None = None

    def look(self) -> int | None:
        """The highest clock that the mode allows; None: it caps none."""
        said = read_mode_id(self._sysfs)
        if not self._looked or said != self._said:
            self._conf = own_conf(self._sysfs)  # a mode may have been added to it
        waits = _waits(self._sysfs, self._conf, said)
        holds = self.mode_id if waits else said
        self._notice(holds, said if waits else None)
        self._said, self._looked = said, True
        if holds is None or not self.known:
            return self._kept_hz
        cap_hz = self.caps_hz()[holds]
        self._kept_hz = self._found_hz if cap_hz is None else min(self._found_hz, cap_hz)
        return cap_hz

    @property
    def known(self) -> bool:
        """Whether anything says what the mode that holds caps."""
        return self.mode_id is not None and self._known.mode(self.mode_id) is not None

    def name(self, mode_id: int | None) -> str | None:
        """As people know it."""
        if mode_id is None:
            return None
        mode = self._known.mode(mode_id)
        return f"mode {mode_id}" if mode is None else mode.name

    def notes(self) -> tuple[str, ...]:
        """What was noticed since the last call, a line each."""
        notes, self._notes = tuple(self._notes), []
        return notes

    def say(self, note: str) -> None:
        """A note of the owner's."""
        self._notes.append(note)

    def caps_hz(self) -> dict[int, int | None]:
        """Of every mode that is known."""
        return {mode.id: mode.gpu_max_hz for mode in self._known.modes}

    def cpu_caps_khz(self) -> dict[int, int | None]:
        """The same for the CPUs."""
        return {mode.id: mode.cpu_max_khz for mode in self._known.modes}

    @property
    def _known(self) -> BoardFacts | Conf:
        """Whose modes count."""
        return self._facts if self._conf is None else self._conf

    def _notice(self, holds: int | None, waiting: int | None) -> None:
        if self._looked and holds != self.mode_id:
            known = holds is not None and self._known.mode(holds) is not None
            then = "its caps hold from now on" if known else "what that caps is not known, so no cap goes up"
            self.say(f"the power mode was changed from {self.name(self.mode_id) or 'none'} to "
                     f"{self.name(holds) or 'none'}; {then}")
        if waiting != self.waiting_id:
            if waiting is None:
                self.say(f"power mode {self.name(self.waiting_id)} does not wait for a boot any more")
            else:
                self.say(f"power mode {self.name(waiting)} waits for a boot; until then "
                         f"{self.name(holds) or 'the cap that was found'} holds")
        self.mode_id, self.waiting_id = holds, waiting


def holding_mode(sysfs: Sysfs) -> int | None:
    """The mode of the status file, or None where there is none, or it waits for a boot."""
    said = read_mode_id(sysfs)
    return None if _waits(sysfs, own_conf(sysfs), said) else said


def _waits(sysfs: Sysfs, conf: Conf | None, said: int | None) -> bool:
    mode = None if conf is None or said is None else conf.mode(said)
    return conf is not None and mode is not None and switch_to(mode, said, conf.read_masks(sysfs)).kind == "reboot"
