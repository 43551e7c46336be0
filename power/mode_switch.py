"""Enters a mode of nvpmodel: runs the program with nothing on its standard input, then looks whether it is there.

Used by `orind power mode`. Invariants: a switch that needs a reboot, or might, is refused before the program is run;
its question about the reboot cannot block (end of file, and a time-out); success is what the files of the board say,
never the exit code, for in a container nvpmodel ends with 0 and writes its status file only.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .actuators import read_mode_id
from .errors import PowerError
from .nvpmodel import Conf, ConfMode, switch_to
from .sysfs import Sysfs

PROGRAM = "usr/sbin/nvpmodel"
TIMEOUT_S = 30.0
_WORDS_MAX = 600  # of what the program said last


@dataclass(frozen=True, slots=True)
class Ran:
    """How the program ended: its exit code (None: out of time, killed) and its last words."""

    code: int | None
    words: str


def enter(sysfs: Sysfs, conf: Conf, mode: ConfMode, governed: bool, timeout_s: float = TIMEOUT_S) -> None:
    """Go to `mode` now. `governed`: a daemon holds the GPU's cap, which may then lie below the mode's.

    Raises PowerError where a reboot is needed, the program cannot be run, or the mode is not there afterwards."""
    switch = switch_to(mode, read_mode_id(sysfs), conf.read_masks(sysfs))
    if switch.kind in ("reboot", "unknown"):
        needs = "needs" if switch.kind == "reboot" else "may need"
        raise PowerError(f"{mode.name} {needs} a reboot ({switch.reason}); nothing was changed")
    ran = run_nvpmodel(sysfs.root / PROGRAM, mode.id, timeout_s)
    wrong = differences(sysfs, conf, mode, governed)
    if wrong or ran.code is None:
        end = f"was killed after {timeout_s:g} s" if ran.code is None else f"ended with {ran.code}"
        raise PowerError(f"{mode.name} was not entered: {'; '.join(wrong) or 'although all files say so'}; "
                         f"nvpmodel {end}{f' and said: {ran.words}' if ran.words else ''}")


def run_nvpmodel(program: Path, mode_id: int, timeout_s: float) -> Ran:
    """Its output goes to a file, so that nothing it leaves behind can hold us. Raises PowerError: cannot be run."""
    with tempfile.TemporaryFile() as output:
        code: int | None
        try:
            code = subprocess.run([str(program), "-m", str(mode_id)], stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=subprocess.STDOUT, timeout=timeout_s, check=False).returncode
        except subprocess.TimeoutExpired:
            code = None
        except OSError as error:
            raise PowerError(f"{program} cannot be run: {error.strerror}; nothing was changed") from error
        output.seek(max(0, output.seek(0, 2) - _WORDS_MAX))
        text = output.read(_WORDS_MAX).decode("utf-8", "replace")
    return Ran(code, " | ".join("".join(c for c in line if c.isprintable()) for line in text.splitlines() if line))


def differences(sysfs: Sysfs, conf: Conf, mode: ConfMode, governed: bool) -> list[str]:
    """What the board's files say that `mode` does not: status file, cores, caps and masks."""
    wrong = []
    active = read_mode_id(sysfs)
    if active != mode.id:
        wrong.append(f"the status file says mode {active}, not {mode.id}")
    settings = conf.settings[mode.id]
    parked = any(param == "CPU_ONLINE" and value == "0" for (param, _), value in settings.items())
    for (param, arg), value in settings.items():
        if arg == "MAX_FREQ" and (param in ("GPU", "EMC") or param.startswith("CPU_")):
            wanted = _cap(conf, sysfs, param, value)
        else:
            wanted = int(value) if param in ("CPU_ONLINE", "TPC_POWER_GATING", "FBP_POWER_GATING") else None
        if wanted is None:
            continue
        found = conf.read(sysfs, (param, arg))
        if not found:
            # the clock files of a cluster go with its last core
            if not (parked and param.startswith("CPU_") and arg == "MAX_FREQ"):
                wrong.append(f"{param} {arg} cannot be read")
        elif found[0] != wanted and not (governed and param == "GPU" and found[0] < wanted):
            wrong.append(f"{param} {arg} is {found[0]}, not {wanted}")
    return wrong


def _cap(conf: Conf, sysfs: Sysfs, param: str, value: str) -> int | None:
    """What max_freq must hold: the highest step of the board's table that is not above the cap. None: no cap is set,
    and no table says what that reads as."""
    table = conf.read(sysfs, (param, "FREQ_TABLE"))
    free = value == "-1" or (value == "0" and param == "EMC")
    if not table:
        return None if free else int(value)
    return max(table) if free else max((step for step in table if step <= int(value)), default=min(table))
