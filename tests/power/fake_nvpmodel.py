"""nvpmodel as far as `-m ID` goes, for a simulated board: put at ROOT/usr/sbin/nvpmodel, it works on ROOT.

Says and does what was seen of the real one: the question where a mask differs, "bad input" at the end of file, 255
after a failed write, and in a container a status file, exit code 0 and nothing else. FAKE_NVPMODEL: container, reverts
(exit code 0, and all is as before), refused (a write fails), hangs. The exit code after the question is assumed.
"""

import os
import re
import sys
import time
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
STATUS = ROOT / "var/lib/nvpmodel/status"


def main() -> int:
    wanted, how = int(sys.argv[sys.argv.index("-m") + 1]), os.environ.get("FAKE_NVPMODEL", "")
    paths: dict[tuple[str, str], Path] = {}
    todo: list[tuple[str, str, str]] = []
    param, mode = "", -1
    for line in (ROOT / "etc/nvpmodel.conf").read_text().splitlines():
        if header := re.match(r"<\s*(PARAM|POWER_MODEL|PM_CONFIG)\b.*?(?:NAME=(\S+))?\s*>", line):
            param = header[2] if header[1] == "PARAM" else ""
            mode = int(re.search(r"ID=(\d+)", line)[1]) if header[1] == "POWER_MODEL" else -1  # type: ignore[index]
        elif param and line:
            paths[param, line.split()[0]] = ROOT / line.split()[1].lstrip("/")
        elif mode == wanted and line and not line.startswith("#"):
            todo.append((line.split()[0], line.split()[1], line.split()[2]))
    if how == "hangs":
        time.sleep(60)
    if how == "container":
        print("Running in chroot, ignoring request")
        STATUS.write_text(f"pmode:{wanted:04d}\n")
        return 0
    masks = [(paths[p, a], v) for p, a, v in todo if a.endswith("_PG_MASK")]
    if any(path.read_text().strip() != value for path, value in masks):
        print("NVPM WARN: Golden image context is already created")
        print(f"NVPM WARN: Reboot required for changing to this power mode: {wanted}")
        print("DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm: ", flush=True)
        if sys.stdin.readline().strip() not in ("YES", "yes"):
            print("NVPM ERROR: bad input!\nNVPM ERROR: optMask is 1, no request for power mode")
            return 255
        raise SystemExit("the board would reboot now")
    if how == "reverts":
        return 0
    for p, a, value in todo:
        if how == "refused" and p == "GPU":
            print(f"Error writing {value} to {paths[p, a]}: 16")
            return 255
        if value == "-1":
            value = max(paths[p, "FREQ_TABLE"].read_text().split(), key=int)
        paths[p, a].write_text(f"{value}\n")
    STATUS.write_text(f"pmode:{wanted:04d} fmode:quiet\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
