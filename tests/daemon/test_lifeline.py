"""What a child does first, looked at from outside: signals ignored, no core, dead with its parent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orind.daemon import lifeline

CHILD = """
import json, os, resource, signal, sys
from orind.daemon.lifeline import OOM_SCORE_ADJ, begin_child, go_before_main
begin_child()
before = int(OOM_SCORE_ADJ.read_text())
go_before_main()
go_before_main()
ignored = [n for n in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
           if signal.getsignal(n) is signal.SIG_IGN]
more = int(OOM_SCORE_ADJ.read_text()) - before
print(json.dumps([os.getpid(), len(ignored), resource.getrlimit(resource.RLIMIT_CORE)[0], more]), flush=True)
sys.stdin.read()
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
sys.stdin.read()
"""


def test_a_child_ignores_mains_signals_dumps_no_core_and_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None and parent.stdin is not None
    pid, ignored, core, more = json.loads(parent.stdout.readline())
    assert more == 2 * lifeline.OOM_MORE
    assert ignored == len(lifeline.IGNORED_BY_CHILDREN) and core <= 1
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGUSR2)
    assert not select.select([watched], [], [], 0)[0]
    parent.kill()
    assert select.select([watched], [], [], 30)[0], "the child outlived its parent"
    os.close(watched)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()


def test_an_orphan_ends_at_once() -> None:
    code = "from orind.daemon.lifeline import die_with_parent; die_with_parent(parent=1 << 22); print('alive')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


class RefusingLibrary:
    """A C library whose prctl is refused, as under a strict seccomp filter."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def prctl(self, *_: int) -> int:
        return -1


def test_a_kernel_that_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline.ctypes, "CDLL", RefusingLibrary)
    with pytest.raises(OSError, match="PR_SET_PDEATHSIG"):
        lifeline.die_with_parent()


def test_the_place_before_main_ends_at_the_kernels_highest_and_a_refusal_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "OOM_SCORE_ADJ", tmp_path / "adj")
    lifeline.go_before_main()
    assert not (tmp_path / "adj").exists()
    (tmp_path / "adj").write_text("950\n")
    lifeline.go_before_main()
    assert (tmp_path / "adj").read_text() == "1000"
