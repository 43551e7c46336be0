"""What every child process does first: die with its parent, ignore what is meant for main, dump no core.

Called at the top of each child's `main()`. Those that are replaced when they die also go before main.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
OOM_SCORE_ADJ, OOM_MORE = Path("/proc/self/oom_score_adj"), 100  # in thousandths of the machine's memory
# `systemctl kill -s USR2` and a terminal's Ctrl-C reach every process of the unit; only main acts on them.
IGNORED_BY_CHILDREN = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends; ends at once if that has happened already.

    `parent` is the process id that the parent wrote down before it started us; None takes the present one.
    """
    expected = os.getppid() if parent is None else parent
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != expected:
        os._exit(1)


def name_process(role: str) -> None:
    """What `ps -o comm` and top show: the command line is the nursery's in all of its children."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, f"orind-{role}".encode(), 0, 0, 0)


def go_before_main() -> None:
    """Where memory runs out the kernel is to end this process and not main, whose end is everybody's. It may be refused
    where /proc cannot be written; then the kernel's own choice holds.
    """
    with contextlib.suppress(OSError):
        now = int(OOM_SCORE_ADJ.read_text())
        OOM_SCORE_ADJ.write_text(str(min(now + OOM_MORE, 1000)))


def begin_child() -> None:
    """The whole ritual. RLIMIT_CORE 1 (not 0) also stops piped core handlers: a dump delays end of file by 0.3 s."""
    for number in IGNORED_BY_CHILDREN:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else hard
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
