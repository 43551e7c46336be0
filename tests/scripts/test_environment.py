"""scripts/environment.sh: what ends a script ends all that it started, whoever it is that a signal is sent to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BESIDE = "sleep 100 & echo $$ $! > beside.part; mv beside.part beside; wait"
WAIT_S = 60.0


class Script:
    """`foreground` and BESIDE under environment.sh, in a process group of their own, as a terminal's job is."""

    def __init__(self, folder: Path, foreground: str, more: str = "") -> None:
        self.folder = folder
        (folder / "script").write_text(
            f"set -euo pipefail\n. {HERE.parents[1]}/scripts/environment.sh\nleave_nothing\n{more}\n"
            f"status=0\nbeside sh -c '{BESIDE}'\n{foreground} || status=$?\necho went on\njoin_beside\n"
        )
        self.process = subprocess.Popen(["bash", "script"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, start_new_session=True, env={**os.environ, "WAITING": "foreground"})

    def started(self) -> list[int]:
        """Process ids of all that was started, once it runs."""
        files = [self.folder / name for name in ("foreground", "beside")]
        end = time.monotonic() + WAIT_S
        while not all(file.exists() for file in files):
            assert self.process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        return [int(pid) for file in files for pid in file.read_text().split()]

    def end(self) -> tuple[int, str, str]:
        out, error = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, error


def living(pids: Sequence[int]) -> list[int]:
    """Those of these that are no zombies, which a container's process 1 may leave."""
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def left(pids: Sequence[int]) -> list[int]:
    """Those that are not over soon: who is killed is, a moment later."""
    end = time.monotonic() + 10
    while (found := living(pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGINT, 130)])
def test_a_signal_ends_all_that_runs(tmp_path: Path, number: signal.Signals, code: int) -> None:
    case = f"{sys.executable} -m pytest {HERE / 'waiting_case.py'} -q -p no:cacheprovider"
    script = Script(tmp_path, case)
    pids = script.started()
    assert len(pids) == len(living(pids)) == 4
    if number == signal.SIGINT:
        os.killpg(script.process.pid, number)  # as a terminal does
    else:
        script.process.send_signal(number)  # to the script alone
    ended, out, error = script.end()
    assert left(pids) == [] and ended == code, (out, error)
    assert "KeyboardInterrupt" in out and "went on" not in out, "the tests' fixtures have ended what they started"


def test_what_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "deaf").write_text("trap '' TERM\nsleep 100 & echo $$ $! > part; mv part foreground\nwait\n")
    script = Script(tmp_path, "bash deaf", more="end_s=2")
    pids = script.started()
    script.process.terminate()
    code, out, error = script.end()
    assert code == -signal.SIGTERM and "went on" not in out
    [said] = [line for line in error.splitlines() if line.startswith("error: not over 2 s after SIGTERM: ")]
    assert str(pids[0]) in said.split() and left(pids) == []


def test_the_command_beside_is_waited_for_and_its_status_kept(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(
        f"set -euo pipefail\n. {HERE.parents[1]}/scripts/environment.sh\nleave_nothing\n"
        "both() { echo first && sh -c 'exit 7'; }\nbeside both\necho meanwhile\njoin_beside || echo status $?\n"
    )
    done = subprocess.run(["bash", "script"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "meanwhile\nfirst\nstatus 7\n" and done.stderr == ""
