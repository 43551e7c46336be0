"""nvpmodel of a simulated board, at ROOT/usr/sbin/nvpmodel: `-q`, `-p --verbose`, `-m ID`, and `-f FILE` as at boot.

Says and does what was seen of NVIDIA's (a closed program): the question where a mask differs while the GPU's golden
context exists, "bad input!" at the end of file with nothing changed, 255 after a failed write, and where a reboot is
asked for in a container a status file, exit code 0 and nothing else. The exit code after a question without an answer:
234, as nvpmodel.service ended on an Orin Nano that asked at each boot. Without `-m` it enters what the status file
says, else DEFAULT. ROOT/.nvpmodel-fault holds one of: container, reverts (exit code 0, all is as before), refused (a
write fails), hangs.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

ROOT = Path(sys.argv[0]).resolve().parents[2]
STATUS = ROOT / "var/lib/nvpmodel/status"
FAULT = ROOT / ".nvpmodel-fault"
NO_ANSWER, WRITE_FAILED = 234, 255


class Conf:
    """One pass over the file: (PARAM, ARG) -> path, id -> (name, settings), the default id."""

    def __init__(self, text: str) -> None:
        self.paths: dict[tuple[str, str], Path] = {}
        self.modes: dict[int, tuple[str, list[tuple[str, str, str]]]] = {}
        self.default = -1
        param = ""
        settings: list[tuple[str, str, str]] | None = None
        for line in text.splitlines():
            keys = dict(re.findall(r"(\w+)=(\S+)", line))
            words = line.split()
            if re.match(r"<\s*PARAM\b", line):
                param, settings = keys["NAME"], None
            elif re.match(r"<\s*POWER_MODEL\b", line):
                settings = []
                self.modes[int(keys["ID"])] = (keys["NAME"], settings)
            elif re.match(r"<\s*PM_CONFIG\b", line):
                self.default = int(keys["DEFAULT"])
            elif settings is not None and len(words) == 3 and words[0] != "#":
                settings.append((words[0], words[1], words[2]))
            elif settings is None and param and len(words) == 2:
                self.paths[param, words[0]] = ROOT / words[1].lstrip("/")


def active() -> int | None:
    """What the status file says."""
    found = re.search(r"pmode:(\d+)", STATUS.read_text()) if STATUS.exists() else None
    return int(found[1]) if found else None


def query(conf: Conf) -> int:
    now = active()
    if now is None or now not in conf.modes:
        print("NVPM ERROR: failed to query the power mode")
        return WRITE_FAILED
    if "fmode:" in STATUS.read_text() and "fmode:cool" not in STATUS.read_text():
        print("NVPM WARN: fan mode is not set to cool")
    print(f"NV Power Mode: {conf.modes[now][0]}\n{now}")
    return 0


def show(conf: Conf) -> int:
    print("NVPM VERB: parsing done for /etc/nvpmodel.conf")
    print(f"NVPM VERB: PM_CONFIG: DEFAULT={conf.modes[conf.default][0]}({conf.default})")
    for number, (name, settings) in conf.modes.items():
        print(f"NVPM VERB: POWER_MODEL: ID={number} NAME={name}")
        for setting in settings:
            print("NVPM VERB:", *setting)
    return 0


def needs_reboot(conf: Conf, wanted: int) -> bool:
    """A mask other than the live one, and the golden context, which was made with that one, is there."""
    masks = [(conf.paths[p, a], value) for p, a, value in conf.modes[wanted][1] if a.endswith("_PG_MASK")]
    golden = any((path.parent / "golden_img_status").read_text().strip() == "1" for path, _ in masks)
    return golden and any(path.read_text().strip() != value for path, value in masks)


def enter(conf: Conf, wanted: int, how: str) -> int:
    if wanted not in conf.modes:
        print(f"NVPM ERROR: no power mode {wanted}")
        return WRITE_FAILED
    if how == "hangs":
        time.sleep(60)
    if how == "container":
        print("Running in chroot, ignoring request")
        STATUS.write_text(f"pmode:{wanted:04d}\n")
        return 0
    if needs_reboot(conf, wanted):
        print("NVPM WARN: Golden image context is already created")
        print(f"NVPM WARN: Reboot required for changing to this power mode: {wanted}")
        print("NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm:", flush=True)
        if sys.stdin.readline().strip() not in ("YES", "yes"):
            print("NVPM ERROR: bad input!\nNVPM ERROR: optMask is 1, no request for power mode")
            return NO_ANSWER
        raise SystemExit("the board would reboot now")
    if how == "reverts":
        return 0
    for param, arg, value in conf.modes[wanted][1]:
        path = conf.paths[param, arg]
        if how == "refused" and param == "GPU":
            print(f"Error writing {value} to {path}: 16")
            return WRITE_FAILED
        table = conf.paths.get((param, "FREQ_TABLE"))
        if value == "-1":
            value = max(table.read_text().split(), key=int) if table is not None else "0"
        try:
            path.write_text(f"{value}\n")
        except OSError as error:
            print(f"Error writing {value} to {path}: {error.errno}")
            return WRITE_FAILED
    fan = re.search(r"fmode:\S+", STATUS.read_text()) if STATUS.exists() else None
    STATUS.parent.mkdir(parents=True, exist_ok=True)
    STATUS.write_text(f"pmode:{wanted:04d}{f' {fan[0]}' if fan else ''}\n")
    return 0


def main(arguments: list[str]) -> int:
    conf = Conf((ROOT / "etc/nvpmodel.conf").read_text())
    how = FAULT.read_text().strip() if FAULT.exists() else ""
    if arguments == ["-q"]:
        return query(conf)
    if arguments[:1] == ["-p"]:
        return show(conf)
    if len(arguments) == 2 and arguments[0] == "-m" and arguments[1].isdecimal():
        return enter(conf, int(arguments[1]), how)
    if len(arguments) == 2 and arguments[0] == "-f":
        now = active()
        return enter(conf, conf.default if now is None else now, how)
    print("NVPM ERROR: usage: nvpmodel [-q] [-p --verbose] [-m ID] [-f FILE]", file=sys.stderr)
    return WRITE_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
