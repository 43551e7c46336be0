"""scripts/hil: scenarios that are refused, figures and limits that can fail, a real board that is left as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import hil
import hil_report
import hil_settings
from harness import ServiceError
from hil_board import RealBoard
from hil_figures import FIGURES, Frame, Run, Sample, figures
from hil_report import Outcome
from hil_scenario import Step, read
from hil_settings import RecordError
from hil_trigger import Line, Pulses

from orind.daemon.config_file import ConfigError
from orind.ipc.control import ControlServer
from orind.ipc.exit_codes import Exit
from orind.power.nvpmodel import read_mode_id
from orind.power.plant.board import PlantBoard
from orind.power.plant.model import PlantModel
from orind.power.plant.modules import JETPACKS, MODULES, ORIN_NX_SUPER
from orind.power.sensors import Sensors
from orind.power.sysfs import Sysfs

ROOT = Path(__file__).parents[2]
GOOD = """\
title: a test
board: orin-nx
policy: POLICY
seconds: 4
cameras:
  line1: {rate_hz: 15, deadline_ms: 10000}
steps:
  - {at_s: 1, phase: late, mode_behind: 25W}
limits:
  - lost == 0
"""
SAMPLE = Sample(0.0, 10.0, 50.0, 918.0, 1020.0, 80, 0.5, 20.0, "serving", True, 0, 0, 1, ())


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """hil sets handlers of its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *hil.ENDS)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def nx(tmp_path: Path) -> Path:
    """The tree of a simulated Orin NX that stands still; it is taken for a real one."""
    model = PlantModel(ORIN_NX_SUPER.constants, fan_profile="quiet")
    PlantBoard(tmp_path / "board", model, MODULES["orin-nx"], JETPACKS["6"])
    return tmp_path / "board"


def write(folder: Path, old: str = "", new: str = "", text: str = GOOD) -> Path:
    assert old in text
    path = folder / "scenario.yaml"
    path.write_text(text.replace(old, new, 1).replace("POLICY", str(ROOT / "configs/power/orin-nx-20w.yaml")))
    return path


# -- scenarios ---------------------------------------------------------------------------------------------------


def test_every_shipped_scenario_is_good() -> None:
    paths = sorted(hil.SCENARIOS.glob("*.yaml"))
    assert len(paths) >= 8 and sum(read(path).scenario.seconds for path in paths) < 600
    assert all(read(path).scenario.parsed_limits() for path in paths)


def test_everything_that_a_scenario_may_say_is_documented() -> None:
    text = (ROOT / "docs" / "hil.md").read_text()
    keys = [name for name in Step.model_fields if name not in ("at_s", "phase")]
    assert [name for name in (*FIGURES, *keys) if f"`{name}" not in text] == []
    assert [path.name for path in hil.SCENARIOS.glob("*.yaml") if f"| `{path.name}` |" not in text] == []


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("seconds: 4", "seconds: soon", 4, "seconds: input should be a valid number, got 'soon'"),
        ("rate_hz: 15, ", "rate_hertz: 15, ", 6, "cameras.line1.rate_hertz: unknown key; did you mean 'rate_hz'?"),
        ("at_s: 1,", "at_s: 9,", 8, "steps.0.at_s: 9 s is not within the run (seconds: 4)"),
        ("at_s: 1, phase: late, mode_behind: 25W", "at_s: 1", 8, "steps.0: does nothing; give it a phase or an action"),
        ("mode_behind: 25W", "mode: 24W", 8, "Jetson Orin NX 16 GB has no mode '24W' (known: MAXN_SUPER, "),
        ("mode_behind: 25W", "load: {line2: 5}", 8, "steps.0.load.line2: no such camera (known: line1)"),
        ("mode_behind: 25W", "load: {line1: lots}", 8,
         "steps.0.load.line1: should be frames a second (0 to 1000) or full, got 'lots'"),
        ("mode_behind: 25W", "kill: both", 8, "steps.0.kill: input should be 'active' or 'standby', got 'both'"),
        ("mode_behind: 25W", "sensors: {tj: hot}", 8, "should be missing, stuck, or the whole number"),
        ("mode_behind: 25W", "sensors: {tk: stuck}", 8, "steps.0.sensors.tk: Jetson Orin NX 16 GB has no such sensor"),
        ("mode_behind: 25W", "budget_w: 2", 8, "steps.0.budget_w: 2 W is not above the idle power"),
        ("mode_behind: 25W", "ask_budget_w: 90", 8, "steps.0.ask_budget_w: 90 W is above what Jetson Orin NX"),
        ("mode_behind: 25W", "ask_budget_w: true", 8, "steps.0.ask_budget_w: should be W (0 to 200) or off, got True"),
        ("late, mode_behind: 25W}", "late, reload: true}\n  - {at_s: 0.5, reload: true}", 9,
         "steps.1.at_s: 0.5 s is before the step above (1 s)"),
        ("late, mode_behind: 25W}", "late}\n  - {at_s: 2, phase: late}", 9, "steps.1.phase: 'late' began before"),
        ("lost == 0", "lots == 0", 10, "limits.0: unknown figure 'lots'; did you mean 'lost'?"),
        ("lost == 0", "early.lost == 0", 10, "limits.0: no phase 'early' (known: late)"),
        ("lost == 0", "lost is 0", 10, "limits.0: 'lost is 0' is no limit; write FIGURE SIGN NUMBER, such as"),
        ("board: orin-nx", "board: orin-xy", 2, "board: no board 'orin-xy' (known: agx-orin, "),
        ("board: orin-nx", "board: agx-orin", 3, "boards: made for orin-nx, but the board is agx-orin"),
        ("policy: POLICY", "policy: no.yaml", 3, "no such file; the path is relative to the scenario"),
        ("title: a test", "title: [", 3, "not valid YAML"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, old, new)
    assert hil.main([str(path)]) == Exit.CONFIGURATION
    told = capsys.readouterr().err
    assert f"{path}:{line}: " in told and said in told and "pydantic" not in told


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, "seconds: 4", "seconds: 0\nsecond: 4"))
    assert [text.split(": ")[1] for text in caught.value.problems] == ["seconds", "second"]


def test_a_scenario_that_is_no_file_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert hil.main([str(tmp_path / "pipe.yaml")]) == Exit.CONFIGURATION
    assert "is no regular file" in capsys.readouterr().err


def test_a_scenario_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hil.main([str(tmp_path / "none.yaml")]) == Exit.NO_INPUT
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--all", "x.yaml"], ["--board", "toy", "x.yaml"]])
def test_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        hil.main(arguments)
    assert caught.value.code == 2


# -- figures and limits ------------------------------------------------------------------------------------------


def a_run(**changes: Any) -> Run:
    """20 s at 10 samples a second; budget 20 W, from 10 s to 14 s over it by 3 W; an alarm from 15 s to 17 s."""
    samples = [
        dataclasses.replace(
            SAMPLE, at_s=n / 10, board_w=23.0 if 100 <= n < 140 else 15.0, alarms=("x",) if 150 <= n < 170 else (),
            failovers=int(n >= 100), tj_c=None if n < 100 else 60.0 + n / 100,
        )
        for n in range(200)
    ]
    frames = [Frame("line1", n, n / 10, n / 10 + 0.02, "ok") for n in range(200)]
    return Run(**{"seconds": 20.0, "samples": samples, "frames": frames, "begins": [(10.0, "late")], **changes})


def test_figures_of_a_run_that_is_known() -> None:
    found = figures(a_run())
    # a mean over one second is above 21.5 W from 0.8 s after the step until 0.2 s after its end
    assert found[""]["over_budget_s"] == pytest.approx(3.3, abs=0.11) and found["late"]["board_w_max"] == 23.0
    assert found["late"]["alarm_after_s"] == 5.0 and found["late"]["calm_after_s"] == pytest.approx(6.9)
    assert found["late"]["alarm_s"] == pytest.approx(2.0) and found[""]["failovers"] == 1
    assert found["late"]["failovers"] == 1, "what happens as a phase begins is of that phase"
    assert found[""]["latency_p99_ms"] == pytest.approx(20) and found[""]["gap_max_ms"] == pytest.approx(20)
    assert found[""]["ok_hz"] == 10 and found[""]["tj_max_c"] == pytest.approx(61.99)


def test_a_gap_counts_while_a_frame_is_on_its_way() -> None:
    """The camera pauses from 1 s to 5 s; the frame of 5 s waits for 0.5 s, with two behind it."""
    frames = [Frame("line1", n, n / 10, n / 10 + 0.01, "ok") for n in range(10)]
    frames += [Frame("line1", 10 + n, 5 + n / 10, 5.5 + n / 100, "ok") for n in range(3)]
    assert figures(a_run(frames=frames))[""]["gap_max_ms"] == pytest.approx(500)


def test_what_was_not_seen_is_no_figure() -> None:
    found = figures(Run(seconds=1.0))[""]
    assert {found[name] for name in ("tj_max_c", "over_budget_s", "latency_p99_ms", "failovers", "alarm_s")} == {None}
    assert figures(a_run(samples=a_run().samples[:160]))["late"]["calm_after_s"] is None, "it never became calm"
    assert figures(a_run())["late"]["calm_after_s"] is not None


def outcome(tmp_path: Path, limit: str, run: Run | None = None, kind: str = "virtual") -> Outcome:
    case = read(write(tmp_path, "lost == 0", limit))
    found = Outcome("test", case.scenario, case.text, run=run or a_run())
    found.figures = figures(found.run)
    found.judged = [hil.judge(limit, found.figures, kind) for limit in case.scenario.parsed_limits()]
    return found


@pytest.mark.parametrize(
    ("limit", "kind", "verdict"),
    [
        ("late.tj_max_c <= 62", "virtual", "pass"), ("late.tj_max_c <= 61", "virtual", "fail"),
        ("failovers == 1", "virtual", "pass"), ("failovers == 2", "virtual", "fail"), ("sent > 199", "virtual", "pass"),
        ("sent >= 201", "virtual", "fail"), ("sent < 200", "virtual", "fail"),
        ("latency_p99_ms <= 15 on real", "virtual", "pass"), ("latency_p99_ms <= 15 on real", "real", "fail"),
    ],
)
def test_limits_can_fail(tmp_path: Path, limit: str, kind: str, verdict: str) -> None:
    assert outcome(tmp_path, limit, kind=kind).verdict == verdict


def test_no_limit_is_kept_by_what_was_not_seen(tmp_path: Path) -> None:
    found = outcome(tmp_path, "tj_max_c <= 85", Run(seconds=1.0))
    assert found.verdict == "fail" and found.reasons() == ["tj_max_c <= 85: nothing seen"]
    assert outcome(tmp_path, "late.lost == 0", a_run(begins=[])).verdict == "fail", "the phase never began"


def test_what_must_never_be_fails_whatever_the_limits_say(tmp_path: Path) -> None:
    assert outcome(tmp_path, "lost == 0", a_run(wrong=["1 frames are not accounted for"])).verdict == "fail"


def test_the_report_shows_what_was_not_run_as_such(tmp_path: Path) -> None:
    good = outcome(tmp_path, "latency_p99_ms <= 15 on real")
    left = Outcome("wired", good.scenario, good.text, not_run="needs wiring")
    (tmp_path / "test").mkdir()
    page = hil_report.write_report(tmp_path, {"time": "now", "<b>": "&"}, [good, left], "", 20.0).read_text()
    assert "1 passed, 0 failed, 1 not run" in page and "needs wiring" in page and "not judged" in page
    assert "data:image/png;base64," in page and "20 times as fast" in page and "&lt;b&gt;" in page
    assert (tmp_path / "test" / "run.png").read_bytes()[:4] == b"\x89PNG"
    lost = hil_report.write_report(tmp_path, {"time": "now"}, [good], "/max_freq: 1, not 2", 0.0).read_text()
    assert "hil: fail" in lost and "not put back: /max_freq" in lost and "times as fast" not in lost


# -- a real board ------------------------------------------------------------------------------------------------


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


# -- a wired board -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("camera: line1", "camera: line2", "trigger.camera: no such camera (known: line1)"),
        ("period_s: 0.5", "period_s: 0.3", "trigger.period_s: a result must be here before the next pulse: at least"),
        ("deadline_ms: 200", "deadline_ms: 200, rate_hz: 5", "give it no rate_hz and no load"),
        ("tcp://", "udp://", "should be ipc:///path, tcp://host:port"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (hil.SCENARIOS / "trigger.yaml").read_text().replace("../power/orin-nx-20w.yaml", "POLICY")
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, old, new, text))
    assert len(caught.value.problems) == 1 and said in caught.value.problems[0]


def test_what_needs_wiring_is_not_run_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hil.SCENARIOS / "trigger.yaml"
    assert hil.main([str(path), "--output", str(tmp_path / "out")]) == hil.NOTHING_RUN
    assert "not run  trigger" in (told := capsys.readouterr().out) and "needs wiring" in told
    assert "0 passed, 0 failed, 1 not run" in (tmp_path / "out" / "report.html").read_text()
    real = hil.Place("real", "cpu", 0)
    assert "needs wiring" in hil.why_not(read(path), real)
    assert hil.why_not(read(path), dataclasses.replace(real, wiring="/dev/gpiochip0:5")) == ""
    with pytest.raises(SystemExit):
        hil.main([str(path), "--board", "real", "--wiring", "pin 5"])


class Gpio:
    """Stands in for the package gpiod; `done`: what was asked of the line."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.line = SimpleNamespace(Value=SimpleNamespace(ACTIVE=1, INACTIVE=0), Direction=SimpleNamespace(OUTPUT=3))

    def LineSettings(self, **settings: int) -> dict[str, int]:
        return settings

    def request_lines(self, path: str, config: dict[int, Any], consumer: str) -> Gpio:
        if path != "/dev/gpiochip0":
            raise FileNotFoundError(2, "No such file or directory")
        self.done.append((config, consumer))
        return self

    def set_value(self, line: int, value: int) -> None:
        self.done.append((line, value))

    def release(self) -> None:
        self.done.append("released")


def test_a_line_is_left_inactive(monkeypatch: pytest.MonkeyPatch) -> None:
    gpio = Gpio()
    monkeypatch.setitem(sys.modules, "gpiod", gpio)
    with pytest.raises(ServiceError, match=r"cannot be driven: .*No such file"):
        Line("/dev/gpiochip9:5", 0.001)
    with pytest.raises(RuntimeError), Line("/dev/gpiochip0:5", 0.001) as line:
        begun_ns = time.monotonic_ns()
        assert begun_ns <= line.pulse() <= time.monotonic_ns() - 1_000_000
        raise RuntimeError
    asked = ({5: {"direction": 3, "output_value": 0}}, "orind-hil")
    assert gpio.done == [asked, (5, 1), (5, 0), (5, 0), "released"]
    monkeypatch.setitem(sys.modules, "gpiod", None)
    with pytest.raises(ServiceError, match="pip install"):
        Line("/dev/gpiochip0:5", 0.001)


def test_each_result_belongs_to_its_pulse() -> None:
    """Of four pulses the second has no result, the third two; two results came before the first."""
    waiting: list[Any] = ["early", "early"]
    counts = iter([1, 0, 2, 1])

    def pulse() -> int:
        waiting.extend([SimpleNamespace(outcome="ok", reason=None)] * next(counts, 0))
        return time.monotonic_ns()

    def receive(timeout_s: float) -> Any:
        if waiting:
            return waiting.pop(0)
        time.sleep(min(timeout_s, 0.01))
        return None

    pulses = Pulses("line1", pulse, receive, 0.1, time.monotonic())
    pulses.start()
    while len(pulses.frames) < 3:
        time.sleep(0.005)
    pulses.stop()
    assert [frame.outcome for frame in pulses.frames[:4]] == ["ok", "", "ok", "ok"] and pulses.surplus == 3
    assert pulses.frames[1].answered_s is None and pulses.error == ""
    assert all(a.sent_s < b.sent_s for a, b in pairwise(pulses.frames))
    broken = Pulses("line1", lambda: 1 // 0, lambda _: None, 0.1, 0.0)
    broken.start()
    broken.stop()
    assert broken.error == "the pulses ended: ZeroDivisionError: integer division or modulo by zero"


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
