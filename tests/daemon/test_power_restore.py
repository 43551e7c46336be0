"""`orind power restore`: what a crash left is written back, once, and by nobody beside a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orind.daemon import power_command
from orind.ipc.control import ControlServer


def run_restore(folder: Path) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    power_command.add_arguments(parser)
    return power_command.run(parser.parse_args(["restore", "--run-dir", str(folder)]))


def test_restore_without_anything_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_restore(tmp_path) == 0 and capsys.readouterr().out == "nothing to restore\n"


def test_restore_beside_a_daemon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "power-state.json").write_text("kept")
    server = ControlServer(tmp_path / "control")
    assert run_restore(tmp_path) == 1
    assert "a daemon runs in" in capsys.readouterr().err and (tmp_path / "power-state.json").read_text() == "kept"
    server.close()


def test_restore_of_a_damaged_file_fails_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "power-state.json").write_text("{")
    assert run_restore(tmp_path) == 1
    assert capsys.readouterr().err.startswith("orind power: ")


def test_restore_writes_back_what_was_saved(
    tmp_path: Path, plant: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cap,) = (p for p in plant.rglob("max_freq") if "devfreq" in str(p))
    saved = cap.read_text().strip()
    path = f"sys/class/devfreq/{cap.parent.name}/max_freq"
    state = {"version": 1, "root": str(plant), "values": {path: int(saved)}, "mode": None, "mode_values": {}}
    (tmp_path / "power-state.json").write_text(json.dumps(state))
    cap.write_text("1\n")
    assert run_restore(tmp_path) == 0
    assert cap.read_text().strip() == saved and capsys.readouterr().out == f"{plant}/{path}: {saved}\n"
