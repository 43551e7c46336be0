"""scripts/hil on a board: a real one that is refused or left as it was, and whole runs on the simulated one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hil
import hil_settings
import pytest
from harness import ServiceError
from hil_board import RealBoard
from hil_case import GOOD, ROOT, write
from hil_scenario import read
from hil_settings import RecordError

from orind.ipc.control import ControlServer
from orind.ipc.exit_codes import Exit
from orind.power.nvpmodel import read_mode_id
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import JETPACKS, MODULES, ORIN_NX_SUPER
from orind.power.sensors import Sensors
from orind.power.sysfs import Sysfs


@pytest.fixture
def nx(tmp_path: Path) -> Path:
    """The tree of a simulated Orin NX that stands still; it is taken for a real one."""
    model = PlantModel(ORIN_NX_SUPER.constants, fan_profile="quiet")
    PlantBoard(tmp_path / "board", model, MODULES["orin-nx"], JETPACKS["6"])
    return tmp_path / "board"


def refused(case_path: Path, root: Path, tmp_path: Path, sure: bool = True) -> str:
    place = hil.Place("real", "cpu", 0, root, restore_file=tmp_path / "restore.json")
    return hil.refusal(place, [read(case_path)], sure, tmp_path / "run")


def test_a_real_board_is_refused_where_it_may_not_be_used(
    nx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = write(tmp_path)
    assert refused(case, nx, tmp_path) == ""
    assert "--yes-this-is-a-test-board" in refused(case, nx, tmp_path, sure=False)
    assert "it has no device tree" in refused(case, tmp_path, tmp_path)
    agx = write(tmp_path, "board: orin-nx", "board: agx-orin", GOOD.replace("orin-nx-20w", "agx").replace(
        "POLICY", str(ROOT / "configs/power/agx-orin-30w.yaml")).replace("25W", "MODE_50W"))
    assert "is for Jetson AGX Orin" in refused(agx, nx, tmp_path)
    case = write(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "power-state.json").write_text("{}")
    assert "stop it first: sudo systemctl stop orind" in refused(case, nx, tmp_path)
    (tmp_path / "run" / "power-state.json").unlink()
    with contextlib.closing(ControlServer(tmp_path / "run" / "control")):  # it does not answer
        assert "stop it first: sudo systemctl stop orind" in refused(case, nx, tmp_path)
    status = nx / "var/lib/nvpmodel/status"
    before = status.read_text()
    status.write_text("pmode:0001 fmode:quiet\n")
    assert "power mode 1 waits for a boot" in refused(case, nx, tmp_path)
    status.write_text(before)
    (tmp_path / "restore.json").write_text("{}")
    assert "run scripts/hil --restore first" in refused(case, nx, tmp_path)
    (tmp_path / "restore.json").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("max_freq"))
    assert "max_freq cannot be written" in refused(case, nx, tmp_path) and "sudo" in refused(case, nx, tmp_path)
    assert hil.main([str(case), "--board", "real", "--root", str(nx)]) == Exit.USAGE
    assert "controls nothing" in capsys.readouterr().err and not (nx / hil.RESTORE_FILE).exists()


def test_what_a_real_board_cannot_do_is_not_run(tmp_path: Path) -> None:
    warm = read(write(tmp_path, "seconds: 4", "seconds: 4\nambient_c: 50")).scenario
    assert "tell the true one with --ambient" in warm.not_on_real(None) and warm.not_on_real(49) == ""
    dead = read(write(tmp_path, "mode_behind: 25W", "fan_works: false")).scenario
    assert "needs a fan to stop" in dead.not_on_real(25)


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in sorted((root / "sys").rglob("*"))
            if p.is_file() and not p.is_symlink()}


def test_every_setting_is_put_back(nx: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, file = contents(nx), tmp_path / "restore.json"
    hil_settings.save(hil_settings.record(nx, ("gpu",)), file)
    subprocess.run([nx / "usr/sbin/nvpmodel", "-m", "3"], check=True)
    devfreq = Sysfs(nx).find_devfreq(["gpu"])
    (nx / f"{devfreq}/governor").write_text("performance\n")
    (nx / "sys/devices/system/cpu/cpu5/online").write_text("0\n")
    assert read_mode_id(Sysfs(nx)) == 3 and contents(nx) != before
    assert hil.main(["--restore", "--restore-file", str(file)]) == Exit.DONE
    assert contents(nx) == before and read_mode_id(Sysfs(nx)) == 0 and not file.exists()
    assert "governor: nvhost_podgov" in capsys.readouterr().out
    assert hil.main(["--restore", "--restore-file", str(file)]) == Exit.DONE
    assert "no settings are waiting" in capsys.readouterr().out


def test_a_cap_that_a_daemon_left_behind_is_found(nx: Path) -> None:
    def look() -> hil_settings.Record:
        return hil_settings.record(nx, ("gpu",))

    before, devfreq = look(), Sysfs(nx).find_devfreq(["gpu"])
    cap, policy = nx / f"{devfreq}/max_freq", "sys/devices/system/cpu/cpufreq/policy0"
    assert hil_settings.left_behind(before, look(), moved=False) == []
    cap.write_text("612000000\n")
    found = hil_settings.left_behind(before, look(), moved=False)
    assert len(found) == 1 and found[0].endswith("/max_freq was 1173000000 before the daemon and is 612000000 after it")
    subprocess.run([nx / "usr/sbin/nvpmodel", "-m", "3"], check=True)
    assert hil_settings.left_behind(before, look(), moved=True) == [], "25W caps at 408 MHz and 1497.6 MHz"
    cap.write_text("306000000\n")
    (nx / policy / "scaling_max_freq").write_text("729600\n")
    (nx / policy / "scaling_governor").write_text("powersave\n")
    governor = before.values[f"{policy}/scaling_governor"]
    assert hil_settings.left_behind(before, look(), moved=True) == [
        "after the daemon, in 25W: CPU_A78_0 MAX_FREQ is 729600, not 1497600",
        "after the daemon, in 25W: GPU MAX_FREQ is 306000000, not 408000000",
        f"/{policy}/scaling_governor was {governor} before the daemon and is powersave after it"]
    (nx / "var/lib/nvpmodel/status").unlink()
    assert hil_settings.left_behind(before, look(), moved=True) == [
        "the caps of the mode that holds are not known: the status file says None"]
    (nx / "etc/nvpmodel.conf").unlink()
    assert "etc/nvpmodel.conf: cannot be read" in hil_settings.left_behind(before, look(), moved=True)[0]


def test_what_cannot_be_put_back_is_said_and_kept(nx: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "restore.json"
    hil_settings.save(hil_settings.record(nx, ("gpu",)), file)
    subprocess.run([nx / "usr/sbin/nvpmodel", "-m", "3"], check=True)
    (nx / "usr/sbin/nvpmodel").unlink()
    (nx / Sysfs(nx).find_devfreq(["gpu"]) / "governor").unlink()  # type: ignore[operator]
    assert hil.main(["--restore", "--restore-file", str(file)]) == Exit.FAILED
    told = capsys.readouterr().err
    assert "cannot be run" in told and "governor: No such file" in told and "mode: 3, not 0" in told and file.exists()
    good = json.loads(file.read_text())
    for text in ("{", "[" * 100_000, *(json.dumps({**good, **bad}) for bad in (
            {"root": 3}, {"root": "board"}, {"mode": "0"}, {"values": 3}, {"values": {"sys/a": 3}},
            {"values": {"../etc/passwd": "1"}}, {"values": {"/etc/passwd": "1"}}))):
        file.write_text(text)
        assert hil.main(["--restore", "--restore-file", str(file)]) == Exit.FAILED
        assert "not a record of settings" in capsys.readouterr().err
    with pytest.raises(RecordError, match="nothing was changed"):
        hil_settings.save(hil_settings.record(nx, ("gpu",)), Path("/proc/none/file.json"))
    with pytest.raises(RecordError, match="is this an Orin"):
        hil_settings.record(tmp_path / "nothing", ("gpu",))


def test_a_daemon_that_outlived_the_run_is_ended_first(nx: Path, tmp_path: Path) -> None:
    file, recorded = tmp_path / "restore.json", hil_settings.record(nx, ("gpu",))
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen(["sleep", "60"]) as ours:
        mine = hil_settings.daemon_of(ours.pid)
        hil_settings.save(dataclasses.replace(recorded, daemon=mine), file)
        hil_settings.restore(file)
        assert ours.wait(5) == -signal.SIGTERM
        # another process that got the number of an earlier one is left alone
        hil_settings.save(dataclasses.replace(recorded, daemon=hil_settings.Daemon(other.pid, mine.start + "0")), file)
        hil_settings.restore(file)
        assert other.poll() is None
        other.kill()
    with pytest.raises(RecordError, match="has ended"):
        hil_settings.daemon_of(ours.pid)


def test_sensors_of_a_real_board_break_for_the_daemon_alone(nx: Path, tmp_path: Path) -> None:
    facts = read(write(tmp_path)).facts
    board = RealBoard(nx, facts, tmp_path / "tap")
    board.open()
    whole = Sensors(nx, facts).read()
    assert Sensors(board.root, facts).read() == whole and Sysfs(board.root).read_compatible()
    board.break_sensors({"tj": "missing", "VDD_IN": 3000, "cpu": "stuck"})
    (nx / "sys/class/thermal/thermal_zone0/temp").write_text("77000\n")
    seen = Sensors(board.root, facts).read()
    assert seen.tj_mc is None and seen.rails_mw["VDD_IN"] == 15_000 and seen.zones_mc["cpu"] == whole.zones_mc["cpu"]
    assert Sensors(nx, facts).read().tj_mc == whole.tj_mc and Sensors(nx, facts).read().zones_mc["cpu"] == 77_000
    board.break_sensors({})
    assert Sensors(board.root, facts).read() == Sensors(nx, facts).read()
    with pytest.raises(ServiceError, match="no mode 26W"):
        board.enter_mode_behind("26W")
    with pytest.raises(ServiceError, match="cannot be set"):
        board.set_surroundings("ambient_c", 50)


# -- whole runs --------------------------------------------------------------------------------------------------


def test_a_scenario_on_the_simulated_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One limit of it cannot be kept: the run must fail, and for that reason alone."""
    steps = "load: {line1: full}}\n  - {at_s: 1.5, phase: late, sensors: {tj: missing}"
    text = GOOD.replace("phase: late, mode_behind: 25W", steps).replace("deadline_ms: 10000", "deadline_ms: 2000")
    text = text.replace("  - lost == 0", """\
  - lost == 0
  - sent >= 20
  - late.alarm_after_s <= 2
  - late.cap_mhz_min <= 306
  - alarm_s == 0""")
    assert hil.main([str(write(tmp_path, text=text)), "--output", str(tmp_path / "out")]) == Exit.FAILED
    shown = capsys.readouterr().out
    assert shown.startswith("1 scenario on the virtual board, report in ")
    assert "fail     scenario" in shown and shown.count("alarm_s == 0: ") == 1 and "; " not in shown.splitlines()[1]
    folder = tmp_path / "out" / "scenario"
    assert {p.name for p in folder.iterdir()} == {"board.log", "figures.json", "frames.csv", "orind.log", "orind.yaml",
                                                  "policy.yaml", "run.png", "samples.csv", "scenario.yaml"}
    page = (tmp_path / "out" / "report.html").read_text()
    for text in ("heated and cooled 20 times as fast", "commit", "INFO serving", "seed", "numpy", "tj: missing"):
        assert text in page, text


def test_a_run_on_a_real_board_that_is_ended_leaves_it_as_it_was(nx: Path, tmp_path: Path) -> None:
    before, text = contents(nx), GOOD.replace("seconds: 4", "seconds: 60")
    command = [sys.executable, str(ROOT / "scripts" / "hil.py"), str(write(tmp_path, text=text)), "--board", "real",
               "--root", str(nx), "--device", "cpu", "--yes-this-is-a-test-board", "--run-dir", str(tmp_path / "run"),
               "--output", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            end_s = time.monotonic() + 60
            while read_mode_id(Sysfs(nx)) != 3 and time.monotonic() < end_s and run.poll() is None:
                time.sleep(0.1)
            assert read_mode_id(Sysfs(nx)) == 3 and contents(nx) != before and (nx / hil.RESTORE_FILE).exists()
            run.terminate()
            said = run.communicate(timeout=60)[0]
        finally:
            run.kill()
    assert run.returncode == Exit.INTERRUPTED, said
    assert contents(nx) == before and read_mode_id(Sysfs(nx)) == 0 and not (nx / hil.RESTORE_FILE).exists()
    assert "settings put back:" in said and "mode 0" in said
