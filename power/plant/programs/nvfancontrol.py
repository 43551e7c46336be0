"""nvfancontrol of a simulated board, at ROOT/usr/sbin/nvfancontrol: `-q` tells the profile, without it it starts.

At a start without a status file it takes FAN_DEFAULT_PROFILE of /etc/nvfancontrol.conf, as NVIDIA's guide says, and
ends: the plant (fan.py) turns the fan. The form of the status file is ours.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
STATUS = ROOT / "var/lib/nvfancontrol/status"


def main(arguments: list[str]) -> int:
    if arguments == ["-q"]:
        if not STATUS.exists():
            print("nvfancontrol is not running", file=sys.stderr)
            return 1
        print(STATUS.read_text(), end="")
        return 0
    if arguments:
        print("usage: nvfancontrol [-q]", file=sys.stderr)
        return 2
    text = (ROOT / "etc/nvfancontrol.conf").read_text(errors="surrogateescape")
    default = re.search(r"^\s*FAN_DEFAULT_PROFILE\s+(\S+)", text, re.MULTILINE)
    if default is None or not re.search(rf"^\s*FAN_PROFILE\s+{re.escape(default[1])}\s*{{", text, re.MULTILINE):
        print("nvfancontrol.conf: FAN_DEFAULT_PROFILE is no profile", file=sys.stderr)
        return 1
    if not STATUS.exists():
        STATUS.parent.mkdir(parents=True, exist_ok=True)
        STATUS.write_text(f"FAN1:FAN_PROFILE:{default[1]}\nFAN1:FAN_GOVERNOR:cont\nFAN1:FAN_CONTROL:close_loop\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
