"""systemctl of a simulated board, at ROOT/usr/bin/systemctl: stops, starts and tells of nvfancontrol and nvpmodel.

A start of nvpmodel.service, a oneshot, is what enters the mode of the status file again, at boot and behind somebody's
back. nvfancontrol.service is a plain service: a start does not wait for what it does, and a sixth one within 10 s is
refused until `reset-failed`. ROOT/.nvfancontrol-slow holds the seconds that nvfancontrol takes before it writes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
STOPPED = ROOT / ".nvfancontrol-stopped"
STARTS = ROOT / ".nvfancontrol-starts"  # when, on CLOCK_MONOTONIC in s
SLOW = ROOT / ".nvfancontrol-slow"
FAN = "nvfancontrol.service"
START_LIMIT, START_LIMIT_S = 5, 10.0  # DefaultStartLimitBurst=, DefaultStartLimitIntervalSec=
VERBS = ("start", "stop", "restart", "status", "is-active", "reset-failed")
COMMANDS = {FAN: ["nvfancontrol"], "nvpmodel.service": ["nvpmodel", "-f", "/etc/nvpmodel.conf"]}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in VERBS or arguments[1] not in COMMANDS:
        print(f"systemctl of a simulated board: {arguments} is not known", file=sys.stderr)
        return 5
    verb, unit = arguments
    # nvpmodel.service is a oneshot without RemainAfterExit=; nvfancontrol runs until somebody stops it
    active = unit == FAN and not STOPPED.exists()
    if verb == "status":
        print(f"{unit}, simulated\n     Active: {'active (running)' if active else 'inactive (dead)'}")
        return 0 if active else 3
    if verb == "is-active":
        print("active" if active else "inactive")
        return 0 if active else 3
    if verb == "reset-failed":
        STARTS.unlink(missing_ok=True)
        return 0
    if unit == FAN:
        return fan(verb)
    return 0 if verb == "stop" else start(unit)


def fan(verb: str) -> int:
    """nvfancontrol.service: it starts only if it is stopped."""
    if verb != "start":
        STOPPED.touch()
    if verb == "stop" or not STOPPED.exists():
        return 0
    now_s = time.monotonic()
    starts = [float(word) for word in (STARTS.read_text().split() if STARTS.exists() else [])]
    starts = [then_s for then_s in starts if now_s - then_s < START_LIMIT_S]
    if len(starts) >= START_LIMIT:
        print(f"Job for {FAN} failed.\nStart request repeated too quickly.", file=sys.stderr)
        return 1
    STARTS.write_text(" ".join(map(str, [*starts, now_s])))
    STOPPED.unlink()
    if SLOW.exists():
        subprocess.Popen(["/bin/sh", "-c", 'sleep "$0" && exec "$1"', SLOW.read_text().strip(),
                          str(ROOT / "usr/sbin/nvfancontrol")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, start_new_session=True)
        return 0
    return start(FAN)


def start(unit: str) -> int:
    """Run the unit's program to its end."""
    program, *more = COMMANDS[unit]
    done = subprocess.run([str(ROOT / "usr/sbin" / program), *more], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        print(f"Job for {unit} failed because the control process exited with error code.", file=sys.stderr)
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
