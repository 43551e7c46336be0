"""jtop's real, unmodified service over a simulated board, and a client of it: two processes in namespaces of their own.

Used by conftest.py. jetson-stats is AGPL-3.0: nothing of orind and no test imports it; it lies in a folder of its own
(.jtop, made once) and runs with the interpreter below the tests' virtual environment. Invariant: neither process
outlives the test run (PDEATHSIG; the service is PID 1 of its namespace and takes the client along).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VERSION = "7.2.2"
FOLDER = HERE.parents[1] / ".jtop" / f"{VERSION}-{sys.version_info[0]}.{sys.version_info[1]}"
# the interpreter below the virtual environment of the tests, and where it finds jetson-stats
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
PATH = f"{FOLDER}:{HERE / 'machine'}"
NAMESPACES = ("--mount", "--pid", "--net")
TOOLS = ("unshare", "setpriv", "nsenter", "mount", "chroot")
INTERVAL_S = 0.3
START_S = 60.0
SAMPLE_S = 60.0
CONNECT_S = 8.0
POLL_S = 0.02


class JtopError(Exception):
    """The service or its client ended or stayed silent; the text holds what was said."""


def why_not() -> str:
    """What keeps this host from showing a board to jtop, or ''."""
    if os.geteuid() != 0:
        return "only root may make the namespaces that show jtop a board"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"no {', '.join(missing)} here"
    script = ('mount -t tmpfs tmpfs "$1" && mkdir "$1/u" "$1/w" "$1/r" && '
              'mount -t overlay overlay -o "lowerdir=/,upperdir=$1/u,workdir=$1/w" "$1/r"')
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "sh", "-c", script, "sh", folder],
                               capture_output=True, text=True, check=False)
    return f"namespaces with an overlay are refused: {tried.stderr.strip()}" if tried.returncode else ""


def install() -> Path:
    """The folder with jetson-stats and what it needs, made where it is missing."""
    if not FOLDER.exists():
        FOLDER.parent.mkdir(exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=FOLDER.parent, prefix="new-"))
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile",
                   "--root-user-action", "ignore", "--target", str(fresh), f"jetson-stats=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(fresh)
            raise JtopError(f"pip could not install jetson-stats {VERSION}: {done.stderr[-2000:]}")
        with contextlib.suppress(OSError):  # another run was faster
            fresh.rename(FOLDER)
        shutil.rmtree(fresh, ignore_errors=True)
    return FOLDER


class Jtop:
    """`with Jtop(board) as jtop`: service and, unless told otherwise, client run on entry. `sample()` is what it shows
    from now on."""

    def __init__(self, board: Path, client: bool = True) -> None:
        self._board = board
        self._with_client = client
        self._pid = 0
        self._stack = contextlib.ExitStack()
        self._rest = b""

    def __enter__(self) -> Jtop:
        with contextlib.ExitStack() as stack:
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orind-jtop-")))
            self._log = stack.enter_context(tempfile.TemporaryFile())
            self._start(stack, state)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack, state: Path) -> None:
        install()
        needed = [sys.base_prefix, sys.prefix, str(HERE.parents[1])]
        arguments = ["unshare", *NAMESPACES, "--fork", "--kill-child=SIGKILL", "--propagation", "private", "bash",
                     str(HERE / "namespace.sh"), str(state), str(self._board), PYTHON, PATH, *needed]
        service = self._popen(stack, arguments, self._log)
        end = time.monotonic() + START_S
        while not self._pid or not Path(f"/proc/{self._pid}/root/run/jtop.sock").exists():
            if service.poll() is not None or time.monotonic() > end:
                raise JtopError(f"jtop's service did not start: {self._said()}")
            time.sleep(POLL_S)
            self._pid = self._pid or _service_below(service.pid)
        if self._with_client:
            self._connect(stack)

    def _connect(self, stack: contextlib.ExitStack) -> None:
        """A client that has its first sample. jtop has one queue for both directions: now and then one side takes its
        own message back, and the client waits for ever. Another one helps."""
        end = time.monotonic() + START_S
        while True:
            client = [*self.inside(), str(HERE / "client.py"), str(INTERVAL_S)]
            self._client = self._popen(stack, client, subprocess.PIPE)
            try:
                line = self._line(time.monotonic() + CONNECT_S)
            except JtopError:
                if time.monotonic() > end:
                    raise
                self._client.kill()
                self._rest = b""
            else:
                self._rest = line + b"\n" + self._rest
                return

    def inside(self) -> list[str]:
        """A Python that has jetson-stats, in the namespaces but that of processes, so that it is our child: the
        beginning of a command line."""
        variables = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"PYTHONPATH={PATH}", "PYTHONDONTWRITEBYTECODE=1"]
        return ["nsenter", "-t", str(self._pid), "-m", "-n", "-r", "env", "-i", "-C", "/", *variables, PYTHON]

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nothing in the namespaces runs meanwhile. For programs that write the board's files in place: a plain file is
        empty for a moment then, which /sys never shows, and jtop's service ends when it reads that."""
        stopped: set[int] = set()
        while fresh := self._processes() - stopped:
            _signal(fresh, signal.SIGSTOP)
            stopped |= fresh
        yield
        _signal(stopped, signal.SIGCONT)

    def _processes(self) -> set[int]:
        found, inside = set(), Path(f"/proc/{self._pid}/ns/pid").stat().st_ino
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                if (folder / "ns/pid").stat().st_ino == inside:
                    found.add(int(folder.name))
        return found

    def kill_service(self) -> None:
        """The server goes, without a word, and with it, PID 1, all that it has started."""
        os.kill(self._pid, signal.SIGKILL)

    def _popen(self, stack: contextlib.ExitStack, arguments: list[str], output: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *arguments], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=self._log)
        stack.callback(_end, process)
        return process

    def sample(self) -> dict[str, Any]:
        """The first sample that the service began to collect after this call (it reads the uptime first)."""
        asked_s = float(Path("/proc/uptime").read_text().split()[0])
        end = time.monotonic() + SAMPLE_S
        while True:
            shown: dict[str, Any] = json.loads(self._line(end))
            if shown["uptime"] > asked_s:
                return shown

    def _line(self, end: float) -> bytes:
        assert self._client.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._client.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(end - time.monotonic(), 0.0)):
                    raise JtopError(f"no sample in time: {self._said()}")
                data = os.read(self._client.stdout.fileno(), 1 << 16)
                if not data:
                    raise JtopError(f"jtop's client ended: {self._said()}")
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


def _service_below(pid: int) -> int:
    """The service, only child of `unshare`; 0 while the script that makes its root is still at work."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"jtop" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return int(child)
    return 0


def _signal(processes: set[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
