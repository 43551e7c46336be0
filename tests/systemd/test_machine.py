"""The machine itself: gone with whoever made it, swept by the next, honest about hosts that cannot have one."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import machine
import pytest
from machine import CGROUPS, PREFIX, Machine, MachineError, sweep, why_not

HOLDER = """
import sys, time
sys.path.insert(0, {here!r})
from machine import Machine
with Machine() as machine:
    print(machine.pid, flush=True)
    time.sleep(600)
"""


def left_behind(pid: int) -> list[Path]:
    """Folders and cgroups of the machines that process `pid` made."""
    name = f"{PREFIX}{pid}-*"
    return [*Path(tempfile.gettempdir()).glob(name), *(p for p in CGROUPS.rglob(name) if p.is_dir())]


def test_kill_9_of_its_maker_leaves_nothing_running_and_the_next_run_sweeps() -> None:
    code = HOLDER.format(here=str(Path(machine.__file__).parent))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        first = os.pidfd_open(int(maker.stdout.readline()))
        sweep()
        assert left_behind(maker.pid), "a living one is left alone"
        maker.kill()
        maker.wait()
    try:
        assert select.select([first], [], [], 30)[0], "its PID 1 lives on"
    finally:
        os.close(first)
    sweep()
    assert left_behind(maker.pid) == []


def test_what_fails_in_it_is_said_and_it_ends_with_its_block() -> None:
    with Machine() as own:
        assert own.run("hostname") == "orind-test\n"
        with pytest.raises(MachineError, match=r"ls /none ended with 2: .*No such file"):
            own.run("ls", "/none")
        with pytest.raises(MachineError, match="Read-only"):
            own.run("bash", "-c", "echo 1 >/proc/sys/vm/drop_caches")
        assert own.run("ip", "-br", "link").split()[0] == "lo", "no network but its own"
        first = os.pidfd_open(own.pid)
    assert select.select([first], [], [], 30)[0]
    os.close(first)
    assert not own.path("/").exists()


@pytest.mark.parametrize(("break_it", "reason"), [
    (lambda patch: patch.setattr(os, "geteuid", lambda: 1000), "only root"),
    (lambda patch: patch.setattr(shutil, "which", lambda _: None), "no unshare, setpriv"),
    (lambda patch: patch.setattr(machine, "CGROUPS", Path("/none")), "cgroups have no systemd, unified, memory, pids"),
    (lambda patch: patch.setattr(machine, "SYSTEMD", Path("/none")), "no systemd is installed"),
    (lambda patch: patch.setattr(machine, "NAMESPACES", ("--none",)), "namespaces are refused: .*--none"),
])
def test_a_host_that_cannot_have_one_is_told_why(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], reason: str
) -> None:
    break_it(monkeypatch)
    assert re.search(reason, why_not())


def test_a_boot_that_fails_says_what_the_script_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "V1", ("none",))
    with pytest.raises(MachineError, match=r"did not boot: .*none"), Machine():
        pass
