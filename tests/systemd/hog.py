"""Run inside a machine, in the unit's memory cgroup: takes memory until the process PID is dead.

    hog.py PID MIB_MAX

The kernel then kills by its own choice: PID, which was given the highest oom_score_adj. Ends with 0
when PID is gone, with 1 when MIB_MAX were taken and it lives on.
"""

from __future__ import annotations

import sys
from pathlib import Path

STEP = 1 << 20


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> int:
    pid, held = int(sys.argv[1]), list[bytearray]()
    for _ in range(int(sys.argv[2])):
        if not alive(pid):
            return 0
        held.append(bytearray(b"\1") * STEP)  # written, so that it is there
    return 1


if __name__ == "__main__":
    sys.exit(main())
