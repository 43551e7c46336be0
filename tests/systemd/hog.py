"""Run inside a machine, in the unit's memory cgroup: takes memory until the kernel has killed a process there.

    hog.py GROUP MIB_MAX

Whom the kernel kills is its own choice, by oom_score_adj. Ends with 0 once GROUP's memory.oom_control
counts a kill, with 1 when MIB_MAX were taken and none was needed. It asks for the count, not whether the
victim is gone: a victim's memory is free before its process is, and to take that too costs a second life. The page
that it asked for when the kernel killed may cost it its own: the kernel may refuse it before it is free.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

STEP = 1 << 20


def kills(group: Path) -> int:
    found = re.search(r"^oom_kill (\d+)$", (group / "memory.oom_control").read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"hog: {group}/memory.oom_control counts no kills (a kernel before 4.13)")
    return int(found.group(1))


def main() -> int:
    group, held = Path(sys.argv[1]), list[bytearray]()
    before = kills(group)
    for _ in range(int(sys.argv[2])):
        if kills(group) > before:
            return 0
        held.append(bytearray(b"\1") * STEP)  # written, so that it is there
    return 1


if __name__ == "__main__":
    sys.exit(main())
