"""Every setting of a board that a run may touch: recorded on disk before the first change, put back afterwards.

Used by `hil.py` on a real board. What is recorded: the mode of nvpmodel and every file that its conf lets a mode write
(cores, clock caps, memory cap, the GPU's power control), the governors of GPU and CPUs, the fan. Invariants: nothing is
changed before the record is on disk; a restore that could not be completed keeps the record and says what differs; a
daemon that outlived the run is ended first, so that it cannot undo what was put back.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from orind.power import mode_switch, programs
from orind.power.errors import ConfError, PowerError, SysfsError
from orind.power.nvpmodel import Conf, read_conf, read_mode_id
from orind.power.sysfs import CPUFREQ, Sysfs

VERSION = 1
END_TIMEOUT_S = 40.0
_NOT_SETTINGS = ("FREQ_TABLE", "PG_MASK")  # a table is no setting; masks take a reboot, and no run enters such a mode


class RecordError(Exception):
    """The board's settings cannot be recorded or put back; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process that may be left over: its start time tells it from a later one with its number."""

    pid: int
    start: str


@dataclass(frozen=True, slots=True)
class Record:
    """root: of the board's tree. values: path below the root -> what the file held."""

    root: str
    mode: int | None
    values: dict[str, str]
    daemon: Daemon | None = None


def record(root: Path, gpu_nodes: tuple[str, ...]) -> Record:
    """What the board has now. Raises RecordError."""
    sysfs = Sysfs(root)
    values: dict[str, str] = {}
    for path in _paths(sysfs, gpu_nodes):
        with contextlib.suppress(SysfsError):  # a core that is offline has no clock files; what cannot be read is none
            values[path] = sysfs.read_text(path)
    if not any(path.endswith("max_freq") for path in values):
        raise RecordError(f"no clock of the GPU under {root}: is this an Orin, and is its GPU driver loaded?")
    return Record(str(root.resolve()), read_mode_id(sysfs), values)


def _paths(sysfs: Sysfs, gpu_nodes: tuple[str, ...]) -> list[str]:
    """Each file once, in the order in which it is put back: cores first, since their clock files come with them."""
    found = []
    try:
        conf: Conf | None = read_conf(sysfs)
    except (SysfsError, ConfError):
        conf = None  # no modes, so none is changed
    if conf is not None:
        found = [path.lstrip("/") for (_, arg), path in conf.paths.items()
                 if not any(word in arg for word in _NOT_SETTINGS)]
    devfreq = sysfs.find_devfreq(gpu_nodes)
    if devfreq is not None:
        found += [f"{devfreq}/{name}" for name in ("governor", "min_freq", "max_freq")]
    for policy in sysfs.names(CPUFREQ):
        found += [f"{CPUFREQ}/{policy}/{name}" for name in ("scaling_governor", "scaling_min_freq", "scaling_max_freq")]
    fan = sysfs.find_hwmon("pwmfan")
    if fan is not None:
        found += [f"{fan}/pwm1_enable", f"{fan}/pwm1"]
    seen, paths = set[Path](), []
    for path in sorted(found, key=lambda p: not p.endswith("/online")):
        target = (sysfs.root / path).resolve()
        if target not in seen:
            seen.add(target)
            paths.append(path)
    return paths


def left_behind(before: Record, after: Record, moved: bool) -> list[str]:
    """What a daemon that ended did not put back, a line each. `moved`: modes were entered while it ran; then the caps
    must be those of the mode that holds by now, and what no mode writes what it was. The fan is nvfancontrol's."""
    sysfs, modes, wrong = Sysfs(Path(after.root)), set[Path](), list[str]()
    if moved:
        try:
            conf = read_conf(sysfs)
        except (SysfsError, ConfError) as error:
            return [f"the caps of the mode that holds are not known: {error}"]
        mode = None if after.mode is None else conf.mode(after.mode)
        if mode is None:
            return [f"the caps of the mode that holds are not known: the status file says {after.mode}"]
        wrong = [f"after the daemon, in {mode.name}: {what}"
                 for what in mode_switch.differences(sysfs, conf, mode, governed=False)]
        modes = {(sysfs.root / path.lstrip("/")).resolve() for path in conf.paths.values()}
    for path, value in before.values.items():
        now = after.values.get(path)
        gone = moved and now is None and path.startswith(CPUFREQ)  # with the last core of its cluster
        if now != value and not gone and "pwm1" not in path and (sysfs.root / path).resolve() not in modes:
            wrong.append(f"/{path} was {value} before the daemon and is {now} after it")
    return wrong


def not_writable(recorded: Record) -> list[str]:
    """The files that we may not write, so could not put back."""
    return [path for path in recorded.values if not os.access(Path(recorded.root) / path, os.W_OK)]


def save(recorded: Record, file: Path) -> None:
    """On disk before anything is changed. Raises RecordError."""
    draft = file.with_name(file.name + ".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w") as out:
            json.dump({"version": VERSION, **asdict(recorded)}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
    except OSError as error:
        raise RecordError(f"{file}: the board's settings cannot be saved ({error.strerror}); nothing was changed; "
                            "name another place with --restore-file") from error


def load(file: Path) -> Record:
    """Raises RecordError; FileNotFoundError where there is none."""
    try:
        found = json.loads(file.read_text())
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        daemon = found.pop("daemon")
        read = Record(**found, daemon=None if daemon is None else Daemon(**daemon))
        _check(read)
        return read
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{file}: not a record of settings ({error}); set the mode again with nvpmodel and remove "
                            "the file") from error


def _check(found: Record) -> None:
    """Raises ValueError for what no run recorded."""
    if not isinstance(found.root, str) or not found.root.startswith("/"):
        raise ValueError("its root is no absolute path")
    if found.mode is not None and type(found.mode) is not int:
        raise ValueError("its mode is no number")
    for path, value in found.values.items():
        if not isinstance(value, str) or path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r:.80} is no setting")


def restore(file: Path) -> list[str]:
    """Put everything back and remove the record; -> a line for each thing that had to be changed.

    Raises RecordError with what still differs (the record is then kept), FileNotFoundError without a record."""
    recorded = load(file)
    if recorded.daemon is not None:
        _end(recorded.daemon)
    root = Path(recorded.root)
    sysfs, done, wrong = Sysfs(root), list[str](), list[str]()
    if not root.is_dir():
        file.unlink()
        return [f"{root} is gone, and its settings with it"]
    if recorded.mode is not None and read_mode_id(sysfs) != recorded.mode:
        try:
            ran = programs.run(sysfs, "nvpmodel", ["-m", str(recorded.mode)], mode_switch.TIMEOUT_S)
            done.append(f"mode {recorded.mode} (nvpmodel {ran.end(mode_switch.TIMEOUT_S)})")
        except PowerError as error:
            wrong.append(f"mode {recorded.mode}: {error}")
    for last in (False, True):  # a lowest clock above the highest one is refused until that one was put back
        for path, value in recorded.values.items():
            if _read(sysfs, path) != value:
                try:
                    _write(root / path, value)
                    done.append(f"/{path}: {value}")
                except OSError as error:
                    wrong += [f"/{path}: {error.strerror}"] if last else []
    if recorded.mode is not None and read_mode_id(sysfs) != recorded.mode:
        wrong.append(f"mode: {read_mode_id(sysfs)}, not {recorded.mode}")
    for path, value in recorded.values.items():
        now = _read(sysfs, path)
        if now != value and not path.endswith("/pwm1"):  # whoever drives the fan goes on doing so
            wrong.append(f"/{path}: {now or 'cannot be read'}, not {value}")
    if wrong:
        raise RecordError(f"not put back ({file} kept, try again with --restore): " + "; ".join(wrong))
    file.unlink()
    return done


def _read(sysfs: Sysfs, path: str) -> str | None:
    try:
        return sysfs.read_text(path)
    except SysfsError:
        return None


def _write(path: Path, value: str) -> None:
    """To a file that exists, as the kernel wants it: in one write."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, f"{value}\n".encode())
    finally:
        os.close(fd)


def daemon_of(pid: int) -> Daemon:
    """A running process of ours. Raises RecordError when it has ended."""
    start = _start_of(pid)
    if start is None:
        raise RecordError(f"process {pid} has ended")
    return Daemon(pid, start)


def _start_of(pid: int) -> str | None:
    """Field 22 of its stat: when it started, in ticks since boot; None where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _end(daemon: Daemon) -> None:
    """SIGTERM, then SIGKILL; nothing where it is gone already."""
    for number, wait_s in ((signal.SIGTERM, END_TIMEOUT_S), (signal.SIGKILL, 5.0)):
        if _start_of(daemon.pid) != daemon.start:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, number)
        end_s = time.monotonic() + wait_s
        while _start_of(daemon.pid) == daemon.start and time.monotonic() < end_s:
            time.sleep(0.05)
    if _start_of(daemon.pid) == daemon.start:
        raise RecordError(f"process {daemon.pid}, an orind of that run, does not end; kill it and try again")
