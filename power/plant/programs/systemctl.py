"""systemctl of a simulated board, at ROOT/usr/bin/systemctl: stops, starts and tells of nvfancontrol and nvpmodel.

A start of nvpmodel.service is what enters the mode of the status file again, at boot and behind somebody's back.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
STOPPED = ROOT / ".nvfancontrol-stopped"
VERBS = ("start", "stop", "restart", "status")
COMMANDS = {"nvfancontrol.service": ["nvfancontrol"], "nvpmodel.service": ["nvpmodel", "-f", "/etc/nvpmodel.conf"]}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in VERBS or arguments[1] not in COMMANDS:
        print(f"systemctl of a simulated board: {arguments} is not known", file=sys.stderr)
        return 5
    if arguments[0] == "status":
        # nvpmodel.service is a oneshot without RemainAfterExit=; nvfancontrol runs until somebody stops it
        active = arguments[1] == "nvfancontrol.service" and not STOPPED.exists()
        print(f"{arguments[1]}, simulated\n     Active: {'active (running)' if active else 'inactive (dead)'}")
        return 0 if active else 3
    if arguments[1] == "nvfancontrol.service":
        STOPPED.touch() if arguments[0] == "stop" else STOPPED.unlink(missing_ok=True)
    if arguments[0] == "stop":
        return 0
    program, *more = COMMANDS[arguments[1]]
    done = subprocess.run([str(ROOT / "usr/sbin" / program), *more], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        print(f"Job for {arguments[1]} failed because the control process exited with error code.", file=sys.stderr)
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
