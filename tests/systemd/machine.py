"""A machine for tests: this host's own systemd as PID 1 of new namespaces, over a throw-away overlay of /.

Used by conftest.py and scripts/bench_restarts.py. Needs root and util-linux, no image and no network. Invariant: it
lives no longer than the process that made it (PDEATHSIG, and PID 1 takes the rest along), and what a killed run left
behind (folders, cgroups) is swept by the next.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]
BOOT = HOUSE / "tests" / "systemd" / "boot.sh"
CGROUPS = Path("/sys/fs/cgroup")
SYSTEMD = Path("/lib/systemd/systemd")
V1 = ("memory", "pids")
NAMESPACES = ("--mount", "--cgroup", "--pid", "--uts", "--ipc", "--net")
PREFIX = "orind-machine-"
TOOLS = ("unshare", "setpriv", "nsenter", "mount", "pivot_root", "chroot", "ldconfig", "ip", "systemctl")
BOOT_TIMEOUT_S = 30.0
POLL_S = 0.02
PATHS = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
# what belongs to real hardware, to a console or to the host's kernel
MASKED = (
    "systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket "
    "getty.target console-getty.service systemd-logind.service systemd-timesyncd.service systemd-sysctl.service "
    "systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-remount-fs.service "
    "systemd-tmpfiles-clean.timer systemd-modules-load.service sys-kernel-debug.mount sys-kernel-tracing.mount "
    "sys-fs-fuse-connections.mount sys-kernel-config.mount dev-hugepages.mount dev-mqueue.mount "
    "modprobe@configfs.service modprobe@dm_mod.service modprobe@fuse.service modprobe@loop.service "
    "modprobe@drm.service modprobe@efi_pstore.service systemd-ask-password-console.path "
    "systemd-ask-password-wall.path systemd-journald-audit.socket systemd-initctl.socket"
)


class MachineError(Exception):
    """It did not boot, or a command in it failed; the text holds what was said."""


def why_not() -> str:
    """What keeps this host from booting a machine, or ''."""
    if os.geteuid() != 0:
        return "only root may make the namespaces that a systemd of its own needs"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"no {', '.join(missing)} here"
    if not SYSTEMD.exists():
        return "no systemd is installed here"
    if absent := [name for name in ("systemd", "unified", *V1) if not (CGROUPS / name).is_dir()]:
        return f"the host's cgroups have no {', '.join(absent)} (the boot script knows the hybrid hierarchy only)"
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    return f"namespaces are refused: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """`with Machine() as machine`: booted on entry, gone on exit. `pid` is its PID 1 as the host counts."""

    def __init__(self) -> None:
        self.pid = 0
        self._state = Path()
        self._cgroups: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Machine:
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _boot(self) -> None:
        sweep()
        self._state = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._cgroups = [folder / self._state.name for folder in _own_cgroups()]
        for folder in self._cgroups:
            folder.mkdir(parents=True)
        join = "".join(f"echo $$ >{folder}/cgroup.procs; " for folder in self._cgroups)
        arguments = [str(self._state), str(HOUSE), sysconfig.get_paths()["purelib"], sys.base_prefix]
        script = (
            f"{join} exec setpriv --pdeathsig KILL unshare {' '.join(NAMESPACES)} --fork "
            f'--kill-child=SIGKILL --propagation private bash {shlex.quote(str(BOOT))} "$@"'
        )
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "V1": " ".join(V1), "MASKED": MASKED}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-euc", script, "boot", *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )
        end = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise MachineError(f"it did not boot: {self._log.read_text(errors='replace')}")
            self.pid = self._first_process()
            if self.pid and self.path("/run/systemd/private").exists():
                said = self.run("systemctl", "is-system-running", "--wait", check=False).strip()
                if said in ("running", "degraded"):
                    return
            time.sleep(POLL_S)
        raise MachineError(f"it did not come up within {BOOT_TIMEOUT_S:g} s")

    @property
    def _log(self) -> Path:
        return self._state.with_name(self._state.name + ".log")

    def _first_process(self) -> int:
        """systemd, the only child of `unshare`; 0 while the boot script is still at work."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                    return int(pid)
        return 0

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs `arguments` as root inside."""
        return [
            "nsenter", "-t", str(self.pid), "-m", "-p", "-u", "-i", "-C", "-n", "-r",
            "env", "-i", "-C", "/", PATHS, "SYSTEMD_PAGER=cat", "SYSTEMD_COLORS=0", *arguments,
        ]

    def run(self, *arguments: str, check: bool = True, timeout_s: float = 60.0) -> str:
        """What the command printed, both streams. Raises MachineError when it ends with another code than 0."""
        done = subprocess.run(
            self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=timeout_s, check=False,
        )
        if check and done.returncode:
            raise MachineError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def path(self, inside: str | Path) -> Path:
        """A path inside, as the host reaches it: files and sockets."""
        return Path(f"/proc/{self.pid}/root") / str(inside).lstrip("/")

    def stop(self) -> None:
        """End its PID 1, and with it everything inside."""
        if self._process is not None:
            pid = self._first_process() if self._process.poll() is None else 0
            if pid:
                os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._process = None
        for folder in self._cgroups:
            _remove_cgroup(folder)
        if self._state != Path():
            shutil.rmtree(self._state, ignore_errors=True)
            self._log.unlink(missing_ok=True)


def sweep() -> None:
    """Remove the folders and cgroups of runs that were killed; their processes died with them."""
    folders = [p for p in CGROUPS.rglob(f"{PREFIX}*") if p.is_dir()]
    for left in [*folders, *Path(tempfile.gettempdir()).glob(f"{PREFIX}*")]:
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and Path(f"/proc/{owner}").exists():
            continue
        if CGROUPS in left.parents:
            _remove_cgroup(left)
        elif left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _own_cgroups() -> list[Path]:
    """This process's cgroup in each hierarchy that the machine gets."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controller, path = line.split(":", 2)
        name = {"": "unified", "name=systemd": "systemd"}.get(controller, controller)
        if name in ("unified", "systemd", *V1):
            found.append(CGROUPS / name / path.lstrip("/"))
    return found


def _remove_cgroup(folder: Path) -> None:
    """Children first; the kernel needs a moment to let go of what has just died."""
    for _ in range(100):
        try:
            for child in sorted((p for p in folder.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                child.rmdir()
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(POLL_S)
        else:
            return
