"""Enters a mode of nvpmodel: runs the program with nothing on its standard input, then looks whether it is there. Or
stages one that needs a reboot: it is then entered by nvpmodel.service at the next boot.

Used by privileged.py. Invariants: a switch that needs a reboot, or might, is refused before the program is run; its
question about the reboot cannot block (end of file, and a time-out); success is what the files of the board say, never
the exit code, for in a container nvpmodel ends with 0 and writes its status file only. Nothing here reboots.
"""

from __future__ import annotations

import re
import time

from .errors import PowerError, SysfsError
from .nvpmodel import STATUS, Conf, ConfMode, read_mode_id, switch_to
from .programs import run
from .steps import step_under
from .sysfs import Sysfs

TIMEOUT_S = 30.0
GOVERNED_S, LOOK_S = 1.5, 0.05  # three of the longest ticks that a policy may have


def enter(sysfs: Sysfs, conf: Conf, mode: ConfMode, governed: bool, timeout_s: float = TIMEOUT_S) -> None:
    """Go to `mode` now. `governed`: a daemon holds the caps of GPU and CPUs, which may then lie below the mode's.

    Raises PowerError where a reboot is needed, the program cannot be run, or the mode is not there afterwards."""
    switch = switch_to(mode, read_mode_id(sysfs), conf.read_masks(sysfs))
    if switch.kind in ("reboot", "unknown"):
        needs = "needs" if switch.kind == "reboot" else "may need"
        raise PowerError(f"{mode.name} {needs} a reboot ({switch.reason}); nothing was changed")
    try:
        ran = run(sysfs, "nvpmodel", ["-m", str(mode.id)], timeout_s)
    except PowerError as error:
        raise PowerError(f"{error}; nothing was changed") from error
    wrong = _settled(sysfs, conf, mode, governed)
    if wrong or ran.code is None:
        raise PowerError(f"{mode.name} was not entered: {'; '.join(wrong) or 'although all files say so'}; "
                         f"nvpmodel {ran.end(timeout_s)}")


def _settled(sysfs: Sysfs, conf: Conf, mode: ConfMode, governed: bool) -> list[str]:
    """What differs, a while later where a daemon governs: one that ticked between nvpmodel's clocks and its status file
    put its own caps of the old mode back over them, and takes the new mode's at its next tick."""
    end_s = time.monotonic() + GOVERNED_S
    while (wrong := differences(sysfs, conf, mode, governed)) and governed and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return wrong


def stage(sysfs: Sysfs, conf: Conf, mode: ConfMode) -> None:
    """Have the next boot enter `mode`, which cannot be entered now. Raises PowerError where that makes no sense.

    A declined question leaves nothing behind, and an answered one reboots, so that the program cannot be asked for
    this. What it reads at boot is its status file: where its reboot was ignored, in a container, it had written that
    file and nothing else."""
    switch = switch_to(mode, read_mode_id(sysfs), conf.read_masks(sysfs))
    if switch.kind == "unknown":
        raise PowerError(f"whether {mode.name} needs a reboot is not known ({switch.reason}); nothing was changed")
    if switch.kind != "reboot":
        raise PowerError(f"{mode.name} needs no reboot; enter it now: orind power mode {mode.name}")
    try:
        before = sysfs.read_text(STATUS)
    except SysfsError:
        before = ""  # nvpmodel has not run yet
    fan = re.search(r"fmode:\S+", before)
    sysfs.replace_text(STATUS, f"pmode:{mode.id:04d}{f' {fan[0]}' if fan else ''}\n")
    if read_mode_id(sysfs) != mode.id:
        raise PowerError(f"{mode.name} is not staged: /{STATUS} does not hold what was written to it")


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
        elif found[0] != wanted and not (governed and arg == "MAX_FREQ" and param != "EMC" and found[0] < wanted):
            wrong.append(f"{param} {arg} is {found[0]}, not {wanted}")
    return wrong


def _cap(conf: Conf, sysfs: Sysfs, param: str, value: str) -> int | None:
    """What max_freq must hold: the highest step of the board's table that is not above the cap. None: no cap is set,
    and no table says what that reads as."""
    table = conf.read(sysfs, (param, "FREQ_TABLE"))
    free = value == "-1" or (value == "0" and param == "EMC")
    if not table:
        return None if free else int(value)
    return max(table) if free else step_under(sorted(table), int(value))
