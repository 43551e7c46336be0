"""What goes wrong on a board, under the shipped unit and a real systemd: hung, killed, out of memory, refused."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from installed import CONFIG, PYTHON, UNIT, Installed
from machine import MachineError

HOG = "/opt/test/source/tests/systemd/hog.py"
BOARD = "/var/lib/orind/board"
HOUSE = Path(__file__).resolve().parents[2]


def test_a_main_that_hangs_is_killed_by_the_watchdog_and_serves_again(orind: Installed, picture: Any) -> None:
    """With the shipped WatchdogSec. The frame that it never read is answered by its successor."""
    orind.systemctl("start", UNIT)
    first = orind.main_pid
    with orind.client(resend_after_s=0.5) as camera:
        camera.send(picture, "rgb8")
        assert [answer.outcome for answer in camera.wait_all(20)] == ["ok"]
        begin = time.monotonic()
        orind.kill_main("STOP")
        camera.send(picture, "rgb8")
        orind.await_unit("NRestarts", "1")
        answers = camera.wait_all(60)
        print(f"stopped to answered: {time.monotonic() - begin:.1f} s, WatchdogSec={orind.show('WatchdogUSec')}")
        assert [answer.outcome for answer in answers] == ["ok"]
    said = orind.journal()
    assert "Watchdog timeout" in said and "Failed with result 'watchdog'" in said
    assert orind.main_pid not in (0, first)


def test_an_engine_killed_for_memory_is_replaced_and_the_unit_runs_on(orind: Installed, picture: Any) -> None:
    """The kernel's OOM killer, within the unit's own cgroup; OOMPolicy=continue, so systemd leaves the rest alone."""
    orind.systemctl("start", UNIT)
    status = orind.serving()
    main = orind.main_pid
    active = next(e["pid"] for e in status["engines"] if e["role"] == "active")
    group = f"/sys/fs/cgroup/memory{orind.show('ControlGroup')}"
    orind.machine.path(f"/proc/{active}/oom_score_adj").write_text("1000")
    # so little that the engine's 1000 outweighs the hog's size, also where all else begins with an oom_score_adj of 600
    orind.systemctl("set-property", "--runtime", UNIT, "MemoryMax=270M")
    try:
        with orind.client(resend_after_s=60.0) as camera:
            hog = f"(echo $BASHPID >{group}/cgroup.procs; exec {PYTHON} {HOG} {group} 600); echo; echo hog: $?"
            ended = orind.machine.run("bash", "-c", hog).splitlines()[-1]
            orind.wait_for(lambda s: s["failovers"] == 1, "a take-over")
            camera.send(picture, "rgb8")
            assert [answer.outcome for answer in camera.wait_all(20)] == ["ok"]
        orind.wait_for(lambda s: s["state"] == "serving", "a new standby")
    finally:
        orind.systemctl("set-property", "--runtime", UNIT, "MemoryMax=")
    kills = re.findall(r"^oom_kill (\d+)$", orind.machine.path(f"{group}/memory.oom_control").read_text(), re.MULTILINE)
    # while the engine's memory goes back, the hog's page may be refused once more, and the hog is the largest by then
    assert (ended, kills) in (("hog: 0", ["1"]), ("hog: 137", ["2"])), "it was the kernel, and one engine was enough"
    assert (orind.main_pid, orind.show("NRestarts"), orind.show("ActiveState")) == (main, "0", "active")
    print(orind.status()["failover"])


def test_a_doctor_that_refuses_keeps_it_from_starting(orind: Installed) -> None:
    """A library is gone: the unit fails before `serve`, the journal names it, and the tries come to an end."""
    site = next(orind.machine.path("/opt/orind/lib").glob("python3.*")) / "site-packages"
    link = next(site.glob("[Pp]y[Yy][Aa][Mm][Ll]-*.dist-info"))
    target = link.readlink()
    link.unlink()
    orind.drop_in("soon", "[Unit]\nStartLimitBurst=2\n")
    try:
        with pytest.raises(MachineError, match="control process exited"):
            orind.systemctl("start", UNIT)
        orind.await_unit("ActiveState", "failed")
    finally:
        link.symlink_to(target)
    said = orind.journal()
    assert "missing: PyYAML; reinstall orind" in said and "orind starts" not in said
    assert orind.show("Result") in ("exit-code", "start-limit-hit")
    orind.systemctl("reset-failed", UNIT)
    orind.systemctl("start", UNIT)


def test_a_bad_configuration_is_not_tried_again(orind: Installed) -> None:
    orind.write(CONFIG, "models: {}\n", "root:orind", "640")
    with pytest.raises(MachineError, match="exited with error code"):
        orind.systemctl("start", UNIT)
    assert (orind.show("ActiveState"), orind.show("Result")) == ("failed", "exit-code")
    assert (orind.show("ExecMainStatus"), orind.show("NRestarts")) == ("78", "0")
    assert f"{CONFIG}:1" in orind.journal()


def test_the_clocks_are_restored_after_kill_9(orind: Installed, config: dict[str, Any]) -> None:
    """ExecStopPost, with a simulated AGX Orin as the board: capped by the governor, as found after the crash."""
    orind.machine.run("rm", "-rf", BOARD)
    plant = ["-p", "User=orind", "-p", "WorkingDirectory=/", "/opt/orind/bin/python", "-m", "orind.power.plant"]
    orind.machine.run("systemd-run", "--unit=board", *plant, "--root", BOARD)
    try:
        found = orind.machine.path(BOARD) / "sys/class/devfreq"
        end = time.monotonic() + 30
        while not (caps := list(found.glob("*/max_freq"))) and time.monotonic() < end:
            time.sleep(0.05)
        policy = "/etc/orind/power/agx-orin-30w.yaml"
        orind.configure({**config, "power": {"board": "agx-orin:MAXN", "policy": policy, "root": BOARD}})
        orind.drop_in("once", "[Service]\nRestart=no\n")
        before = caps[0].read_text()
        orind.systemctl("start", UNIT)
        orind.wait_for(lambda s: int(caps[0].read_text()) < int(before), "a cap")
        [steward] = [pid for pid, name in orind.processes().items() if name == "orind-steward"]
        orind.machine.run("kill", "-STOP", str(steward))  # it would see the end of main, and may be quick enough
        orind.kill_main()
        orind.await_unit("ActiveState", "failed")
        assert caps[0].read_text() == before
        assert f"max_freq: {before.strip()}" in orind.journal(), "it was ExecStopPost that did it"
    finally:
        orind.systemctl("stop", "board", check=False)


def test_kill_9_of_main_takes_all_with_it_and_the_next_start_is_clean(orind: Installed, picture: Any) -> None:
    """Stale sockets and locks lie there when systemd starts it again."""
    orind.drop_in("later", "[Service]\nRestartSec=2\n")
    orind.systemctl("start", UNIT)
    orind.serving()
    before = orind.processes()
    assert len(before) >= 4, "main, nursery, two engines"
    begin = time.monotonic()
    orind.kill_main()
    while orind.processes().keys() & before.keys():
        assert orind.show("NRestarts") == "0", f"the next start found {orind.processes()}"
    print(f"kill -9 of main to no process: {(time.monotonic() - begin) * 1000:.0f} ms")
    stale = {p.name for p in orind.machine.path("/run/orind").iterdir()}
    assert {"control", "frames", "frames.lock", "lock"} <= stale
    orind.await_unit("NRestarts", "1")
    orind.await_unit("ActiveState", "active")
    with orind.client() as camera:
        camera.send(picture, "rgb8")
        assert [answer.outcome for answer in camera.wait_all(20)] == ["ok"]


def test_a_second_instance_is_refused(orind: Installed, config: dict[str, Any], picture: Any) -> None:
    """On the same run_dir, and on another with the same endpoint; by hand, as the unit's own user."""
    orind.systemctl("start", UNIT)
    elsewhere = "/var/lib/orind/elsewhere.yaml"
    source = {**config["sources"][0], "endpoint": "ipc:///run/orind/frames"}
    orind.configure({**config, "run_dir": "/var/lib/orind/run", "sources": [source]}, elsewhere)
    for path, lock in ((CONFIG, "/run/orind/lock"), (elsewhere, "/run/orind/frames.lock")):
        second = subprocess.run(
            orind.machine.command("setpriv", "--reuid=orind", "--regid=orind", "--init-groups",
                                  "/opt/orind/bin/orind", "serve", path),
            capture_output=True, text=True, timeout=60, check=False,
        )
        assert second.returncode == 75, second.stderr
        assert f"another orind (pid {orind.main_pid}) holds {lock}: stop it first" in second.stderr
    with orind.client() as camera:
        camera.send(picture, "rgb8")
        assert [answer.outcome for answer in camera.wait_all(20)] == ["ok"]
