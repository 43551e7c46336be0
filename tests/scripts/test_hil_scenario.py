"""scripts/hil: scenarios that are read, and those that are refused with their line."""

from __future__ import annotations

import os
from pathlib import Path

import hil
import pytest
from hil_case import ROOT, write
from hil_figures import FIGURES
from hil_scenario import Step, read

from orind.daemon.config_file import ConfigError
from orind.ipc.exit_codes import Exit


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
