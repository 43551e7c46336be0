"""The fan's profile: which there are in nvfancontrol.conf, and how another one becomes the active one.

Used by privileged.py. The way is that of NVIDIA's guide: stop the service, name the profile as FAN_DEFAULT_PROFILE,
remove the status file, start it. Invariants: the service is started again whatever happened in between, for without it
the fan stands at its last speed; success is what `nvfancontrol -q` says.
"""

from __future__ import annotations

import re

from .errors import PowerError, SysfsError
from .programs import run
from .sysfs import Sysfs

CONF = "etc/nvfancontrol.conf"
STATUS = "var/lib/nvfancontrol/status"
SERVICE = "nvfancontrol.service"
BYTES_MAX = 65_535  # one less than Sysfs reads
TIMEOUT_S = 15.0
_DEFAULT = re.compile(r"^([ \t]*FAN_DEFAULT_PROFILE[ \t]+)(\S+)", re.MULTILINE)


def profiles(sysfs: Sysfs) -> list[str]:
    """Names in the order of the file. Raises SysfsError where it cannot be read."""
    return re.findall(r"^[ \t]*FAN_PROFILE[ \t]+([A-Za-z0-9_.+-]{1,64})[ \t]*\{", _read(sysfs), re.MULTILINE)


def active(sysfs: Sysfs) -> str | None:
    """What nvfancontrol says; None where it says nothing."""
    ran = run(sysfs, "nvfancontrol", ["-q"], TIMEOUT_S)
    found = re.search(r"FAN_PROFILE:(\S+)", ran.words) if ran.code == 0 else None
    return found[1] if found else None


def choose(sysfs: Sysfs, profile: str) -> None:
    """Make one of `profiles` the active one. Raises PowerError; the file is then as it was, and the service started."""
    before = _read(sysfs)
    if not _DEFAULT.search(before):
        raise PowerError(f"/{CONF} has no FAN_DEFAULT_PROFILE, by which a profile is chosen; nothing was changed")
    _service(sysfs, "stop")
    try:
        try:
            sysfs.replace_text(CONF, _DEFAULT.sub(rf"\g<1>{profile}", before))
            sysfs.remove(STATUS)
        finally:
            _service(sysfs, "start")
        now = active(sysfs)
        if now != profile:
            raise PowerError(f"nvfancontrol runs with profile {now}, not {profile}, although /{CONF} said so; the "
                             "file is as it was")
    except PowerError:
        if _read(sysfs) != before:
            sysfs.replace_text(CONF, before)
        raise


def _read(sysfs: Sysfs) -> str:
    """As it is, to the last byte: it is written back with one word changed."""
    data = sysfs.read_bytes(CONF)
    if len(data) > BYTES_MAX:
        raise SysfsError(CONF, f"has more than {BYTES_MAX} bytes, which no nvfancontrol.conf has")
    return data.decode("utf-8", "surrogateescape")


def _service(sysfs: Sysfs, verb: str) -> None:
    ran = run(sysfs, "systemctl", [verb, SERVICE], TIMEOUT_S)
    if ran.code != 0:
        raise PowerError(f"systemctl {verb} {SERVICE} failed ({ran.end(TIMEOUT_S)})")


