"""The fan's profile: which there are in nvfancontrol.conf, and how another one becomes the active one.

Used by privileged.py; the names also by `orind check`, the active one by the steward. The way is that of NVIDIA's
guide: stop the service, name the profile as FAN_DEFAULT_PROFILE, remove the status file, start it. Invariants: once it
was told to stop, the service is told to start again whatever happened in between, also where the stop failed, for
without it the fan stands at its last speed; success is what `nvfancontrol -q` says; a profile that is active already
costs no restart.
"""

from __future__ import annotations

import re
import time

from .errors import PowerError, SysfsError
from .programs import run
from .sysfs import Sysfs

CONF = "etc/nvfancontrol.conf"
STATUS = "var/lib/nvfancontrol/status"
SERVICE = "nvfancontrol.service"
BYTES_MAX = 65_535  # one less than Sysfs reads
TIMEOUT_S, QUERY_S = 10.0, 5.0  # of a stop or a start; of a question. All of them in a row: 90 s, as a client waits
SETTLED_S, LOOK_S = 5.0, 0.1  # a plain service counts as started before it has written its status file
_DEFAULT = re.compile(r"^([ \t]*FAN_DEFAULT_PROFILE[ \t]+)(\S+)", re.MULTILINE)


def profiles(sysfs: Sysfs) -> list[str]:
    """Names in the order of the file. Raises SysfsError where it cannot be read."""
    return re.findall(r"^[ \t]*FAN_PROFILE[ \t]+([A-Za-z0-9_.+-]{1,64})[ \t]*\{", _read(sysfs), re.MULTILINE)


def active(sysfs: Sysfs) -> str | None:
    """What nvfancontrol says; None where it says nothing."""
    ran = run(sysfs, "nvfancontrol", ["-q"], QUERY_S)
    found = re.search(r"FAN_PROFILE:(\S+)", ran.words) if ran.code == 0 else None
    return found[1] if found else None


def shown(sysfs: Sysfs) -> str | None:
    """The active one by the service's status file, for whoever must not wait for a program or may not ask it; None
    where that does not tell. [?] That it holds what `-q` prints: nobody has published one."""
    try:
        found = re.search(r"FAN_PROFILE:(\S+)", sysfs.read_text(STATUS))
    except SysfsError:
        return None
    return found[1] if found else None


def choose(sysfs: Sysfs, profile: str) -> None:
    """Make one of `profiles` the active one. Raises PowerError; the file is then as it was, and the service was told to
    start with it. What it says in addition where that failed is for people: the fan may stand."""
    before = _read(sysfs)
    if not _DEFAULT.search(before):
        raise PowerError(f"/{CONF} has no FAN_DEFAULT_PROFILE, by which a profile is chosen; nothing was changed")
    if active(sysfs) == profile and run(sysfs, "systemctl", ["is-active", SERVICE], QUERY_S).code == 0:
        return
    try:
        _restart_with(sysfs, _DEFAULT.sub(rf"\g<1>{profile}", before))
        now = _settled(sysfs, profile)
        if now != profile:
            raise PowerError(f"nvfancontrol runs with profile {now}, not {profile}, although /{CONF} said so; the "
                             "file is as it was")
    except PowerError as error:
        if _read(sysfs) != before:
            # what did start with the new file, or is about to, must not go on with it
            _undo(sysfs, before, error)
        raise


def _restart_with(sysfs: Sysfs, text: str) -> None:
    """Stop the service, give it the file `text` and no status, and start it."""
    try:
        _service(sysfs, "stop")
        sysfs.replace_text(CONF, text)
        sysfs.remove(STATUS)
    except BaseException as error:  # a stop that took too long goes on without us
        try:
            _start(sysfs)
        except PowerError as second:
            raise PowerError(f"{error}; then {second}: the fan may stand at its last speed") from error
        raise
    _start(sysfs)


def _undo(sysfs: Sysfs, before: str, error: PowerError) -> None:
    """The file as it was, and the service with it. Raises PowerError with what led here where that fails too."""
    try:
        _restart_with(sysfs, before)
    except PowerError as second:
        if _read(sysfs) != before:
            sysfs.replace_text(CONF, before)
        raise PowerError(f"{error}; going back: {second}") from error


def _settled(sysfs: Sysfs, profile: str) -> str | None:
    """The active profile, a while later where it is not yet the one that was asked for."""
    end_s = time.monotonic() + SETTLED_S
    while (now := active(sysfs)) != profile and time.monotonic() < end_s:
        time.sleep(LOOK_S)
    return now


def _read(sysfs: Sysfs) -> str:
    """As it is, to the last byte: it is written back with one word changed."""
    data = sysfs.read_bytes(CONF)
    if len(data) > BYTES_MAX:
        raise SysfsError(CONF, f"has more than {BYTES_MAX} bytes, which no nvfancontrol.conf has")
    return data.decode("utf-8", "surrogateescape")


def _start(sysfs: Sysfs) -> None:
    """Start the service; once more where that was refused: systemd refuses the sixth start within 10 s, whoever made
    the others, until the count is reset. Raises PowerError."""
    try:
        _service(sysfs, "start")
    except PowerError:
        run(sysfs, "systemctl", ["reset-failed", SERVICE], QUERY_S)
        _service(sysfs, "start")


def _service(sysfs: Sysfs, verb: str) -> None:
    ran = run(sysfs, "systemctl", [verb, SERVICE], TIMEOUT_S)
    if ran.code != 0:
        raise PowerError(f"systemctl {verb} {SERVICE} failed ({ran.end(TIMEOUT_S)})")
