"""systemctl of a simulated board, at ROOT/usr/bin/systemctl: stops and starts nvfancontrol and nvpmodel, nothing else.

A start of nvpmodel.service is what enters the mode of the status file again, at boot and behind somebody's back.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
COMMANDS = {"nvfancontrol.service": ["nvfancontrol"], "nvpmodel.service": ["nvpmodel", "-f", "/etc/nvpmodel.conf"]}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("start", "stop", "restart") or arguments[1] not in COMMANDS:
        print(f"systemctl of a simulated board: {arguments} is not known", file=sys.stderr)
        return 5
    if arguments[0] == "stop":
        return 0
    program, *more = COMMANDS[arguments[1]]
    done = subprocess.run([str(ROOT / "usr/sbin" / program), *more], stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        print(f"Job for {arguments[1]} failed because the control process exited with error code.", file=sys.stderr)
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
