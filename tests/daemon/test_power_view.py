"""`orind power` without an action: the governor's state once, again and again, as JSON; and where there is none."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from test_commands import Daemon, with_daemon
from test_http import made_status

from orind.daemon import cli, power_view
from orind.daemon.power_link import UNGOVERNED
from orind.power.energy import EnergyMeter

Captured = pytest.CaptureFixture[str]
POWER: dict[str, Any] = {
    "board": "AGX Orin (simulated)", "board_w": 21.5, "budget_w": 30.0, "target_w": 30.0, "tj_c": 63.25,
    "budget_reason": "schedule, night",
    "gpu_hz": 612_000_000, "gpu_cap_hz": 714_000_000, "busy": 0.815, "cpu_khz": 2_201_600, "fan_pwm": 149,
    "emc_hz": 3_199_000_000, "emc_percent": 41, "over_current_hz": 0.0, "level": "free", "reason": "612 MHz fits",
    "model": {"bias_w": -0.42, "gain": 1.031}, "rails_w": {"VDD_GPU_SOC": 12.9, "VDD_CPU_CV": 2.1},
    "zones_c": {"tj": 63.25, "gpu": 63.1}, "mode": "MAXN", "waiting_mode": None, "notes": [], "faults": [],
}


NO_ENERGY = {"reason": "board power cannot be read, or was not yet", **EnergyMeter().table()}


def _status(reasons: tuple[str, ...] = (), **changed: Any) -> dict[str, Any]:
    return {**made_status(reasons=reasons), "power": {**POWER, **changed}}


def test_what_the_governor_sees_and_does(tmp_path: Path, capsys: Captured) -> None:
    code, request = with_daemon(tmp_path, _status(), "power")
    assert code == 0 and request.op == "status"
    assert capsys.readouterr().out.splitlines() == [
        "AGX Orin (simulated), mode MAXN",
        "power     21.5 of 30.0 W [##############.....|....]",
        "target   30.0 W; budget: schedule, night",
        "level    free: 612 MHz fits",
        "junction 63.2 C   fan 149 of 255",
        "GPU      612 MHz of at most 714 MHz, busy 82%",
        "CPU      2202 MHz",
        "memory   3199 MHz, busy 41%",
        "rails    VDD_GPU_SOC 12.9  VDD_CPU_CV 2.1  W",
        "zones    tj 63.2  gpu 63.1  C",
        "learned  -0.4 W, gain 1.03",
        "energy   0.083 Wh in 10 s: idle 67%, inference 33%, other 0%; unknown for 4 s",
        "         12 frames ran while power was unknown and are in no figure",
        "         m: 3.3333 J a frame above idle, 30 frames (<front> 3.3333, back 3.3333)",
    ]


def test_what_is_not_known_is_said_and_what_is_wrong_comes_first(tmp_path: Path, capsys: Captured) -> None:
    reasons = ("no ready standby", "the power governor does not run, the lowest pacing holds: it has ended")
    nothing = dict.fromkeys(("board", "board_w", "tj_c", "gpu_hz", "gpu_cap_hz", "busy", "cpu_khz", "fan_pwm", "model",
                             "target_w", "emc_hz"))
    status = _status(reasons, **nothing, over_current_hz=61.5, waiting_mode="MODE_30W", rails_w={}, zones_c={},
                     short="no", mode_wanted="15W", cpu_cap_khz=1_113_600,
                     faults=["zone tj: lost", "GPU cap: EACCES"], notes=["MODE_50W was entered by somebody else"])
    code, _ = with_daemon(tmp_path, {**status, "energy": NO_ENERGY}, "power")
    lines = capsys.readouterr().out.splitlines()
    assert code == 0 and lines[0] == "board unknown, mode MAXN (MODE_30W after the next boot)"
    assert lines[1:5] == [f"  ! {reasons[1]}", "  ! zone tj: lost", "  ! GPU cap: EACCES",
                          "  * MODE_50W was entered by somebody else"]
    assert lines[5:] == ["power    unreadable, budget 30.0 W", "target   unreadable; budget: schedule, night",
                         "level    free: 612 MHz fits",
                         "short    no", "mode     15W would hold the budget (orind power mode 15W)",
                         "junction unreadable   fan unreadable",
                         "GPU      unreadable of at most unreadable, busy unknown",
                         "CPU      unreadable of at most 1114 MHz",
                         "events   61.5 of over-current a second, which no clock shows",
                         "energy   not measured: board power cannot be read, or was not yet"]


@pytest.mark.parametrize(("wanted", "active", "told"), [
    ("quiet", "cool", "cool is active"), ("quiet", None, "which is active is not known"), ("quiet", "quiet", ""),
    ("", "cool", "")])
def test_a_fan_profile_that_is_not_the_active_one_is_told(tmp_path: Path, capsys: Captured, wanted: str,
                                                          active: str | None, told: str) -> None:
    assert with_daemon(tmp_path, _status(fan_profile=wanted, fan_profile_active=active), "power")[0] == 0
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fan ")]
    line = f"fan      profile quiet belongs to this budget, {told} (orind power fan quiet)"
    assert found == ([line] if told else [])


def test_a_governor_that_has_not_reported_yet(tmp_path: Path, capsys: Captured) -> None:
    status = {**made_status(), "power": {**UNGOVERNED, "budget_w": 30.0}, "energy": NO_ENERGY}
    assert with_daemon(tmp_path, status, "power")[0] == 0
    out = capsys.readouterr().out
    assert "board unknown" in out and "level    unknown: no report yet" in out and " 0" not in out.split("level")[1]


def test_json_is_the_section(tmp_path: Path, capsys: Captured) -> None:
    assert with_daemon(tmp_path, _status(), "power", "--json")[0] == 0
    assert json.loads(capsys.readouterr().out) == POWER


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_daemon_that_does_not_govern(tmp_path: Path, capsys: Captured, option: tuple[str, ...]) -> None:
    status = {**made_status(), "power": dict(UNGOVERNED)}
    assert with_daemon(tmp_path, status, "power", *option)[0] == 69
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("orind power: the running daemon does not govern power: add a section `power`")


def test_without_a_daemon(tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["power", "--run-dir", str(tmp_path)]) == 69
    assert capsys.readouterr().err.startswith(f"orind power: {tmp_path}/control: ")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _watch(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, turns: int = 2) -> int:
    """Watch until Ctrl-C comes in the pause after so many looks."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == turns:
            raise KeyboardInterrupt

    monkeypatch.setattr(power_view.time, "sleep", sleep)
    daemon = Daemon(folder, lambda request: _status())
    try:
        code = cli.main(["power", "--watch", *options, "--run-dir", str(folder)])
        assert len(daemon.asked) == turns and set(slept) == {1.0}
        return code
    finally:
        daemon.close()


def test_watching_ends_with_ctrl_c_and_has_no_escape_codes_in_a_file(tmp_path: Path, capsys: Captured,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watch(tmp_path, monkeypatch) == 130
    out, err = capsys.readouterr()
    assert "\x1b" not in out and out.count("AGX Orin (simulated)") == 2 and "\n\nAGX Orin" in out
    assert err == "orind power: ended by Ctrl-C\n"


def test_watching_as_json_is_a_line_each(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watch(tmp_path, monkeypatch, "--json", turns=3) == 130
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [POWER] * 3


def test_a_terminal_is_written_over_from_its_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((30, 6)))
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert _watch(tmp_path, monkeypatch) == 130
    screens = terminal.getvalue().split("\x1b[H")[1:]
    assert len(screens) == 2 and all(screen.endswith("\x1b[J") and screen.count("\n") == 5 for screen in screens)
    assert screens[0].splitlines()[1] == "power     21.5 of 30.0 W [###\x1b[K"


def test_watching_ends_when_the_daemon_does(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path, lambda request: _status())
    monkeypatch.setattr(power_view.time, "sleep", lambda seconds: daemon.close())
    assert cli.main(["power", "--watch", "--run-dir", str(tmp_path)]) == 69
    out, err = capsys.readouterr()
    assert "AGX Orin (simulated)" in out and "is orind serving?" in err


@pytest.mark.parametrize("option", [("--watch",), ("--json",), ("--run-dir", "/x")])
def test_options_of_the_view_are_not_an_actions(capsys: Captured, option: tuple[str, ...]) -> None:
    assert cli.main(["power", *option, "modes"]) == 2
    assert f"{option[0]} before modes is for the view without an action" in capsys.readouterr().err
