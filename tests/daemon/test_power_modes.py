"""`orind power modes` and `mode`: the table, the JSON, and what is said where the file or the switch is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orind.daemon import cli
from orind.power.plant.modules import AGX_ORIN, JETPACKS
from orind.power.plant.tree import Layout, build_tree


@pytest.fixture
def board(tmp_path: Path) -> Path:
    build_tree(tmp_path / "board", Layout(AGX_ORIN, JETPACKS["6"], 0))
    return tmp_path / "board"


def _modes(root: Path, *more: str) -> int:
    return cli.main(["power", "modes", "--root", str(root), *more])


def test_the_table(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _modes(board) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{board}/etc/nvpmodel.conf: active: 0 MAXN; default: 2"
    assert lines[1].split()[:3] == ["id", "mode", "CPUs"] and lines[1].endswith("switch")
    assert lines[2].split() == ["0", "MAXN", "12", "-", "-", "-", "0", "-", "active"]
    assert lines[3].split() == ["1", "MODE_15W", "4", "1113.6", "408.0", "2133.0", "248", "-", "reboot:", "TPC", "mask",
                                "0", "->", "248"]
    assert lines[5].split() == ["3", "MODE_50W", "12", "1497.6", "816.0", "-", "0", "-", "live"]
    assert lines[6].startswith("caps, not watts")


@pytest.mark.parametrize(("status", "said"), [
    (None, "active: not known, nvpmodel has not written its status file"),
    ("pmode:0009\n", "active: 9 (not in this file)")])
def test_an_active_mode_that_is_not_known_is_said(board: Path, capsys: pytest.CaptureFixture[str],
                                                  status: str | None, said: str) -> None:
    file = board / "var/lib/nvpmodel/status"
    if status is None:
        file.unlink()
    else:
        file.write_text(status)
    assert _modes(board) == 0
    out = capsys.readouterr().out
    assert said in out and "MAXN               12        -        -        -     0     -  live" in out


def test_json(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _modes(board, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["active"], told["waiting"], told["default"]) == (0, False, 2)
    assert told["live"] == {"tpc_pg_mask": 0, "fbp_pg_mask": None}
    assert told["modes"][2] == {"id": 2, "name": "MODE_30W", "cpus": list(range(8)), "cpu_max_khz": 1_728_000,
                                "gpu_max_hz": 612_000_000, "emc_max_hz": None, "tpc_pg_mask": 240, "fbp_pg_mask": None,
                                "switch": {"kind": "reboot", "reason": "TPC mask 0 -> 240"}}


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _modes(tmp_path) == 66
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"orind power: {tmp_path}/etc/nvpmodel.conf: cannot be read: ENOENT")


def test_a_wrong_file_names_its_mistakes_up_to_a_bound(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (board / "etc/nvpmodel.conf").write_text("stray\n" * 30)
    assert _modes(board) == 78
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 21 and lines[20] == "orind power: and 12 more"
    assert lines[2] == f"orind power: {board}/etc/nvpmodel.conf:1: 'stray' stands in no PARAM and no POWER_MODEL"


# -- orind power mode ----------------------------------------------------------------------------------------------


def _mode(root: Path, name: str) -> int:
    return cli.main(["power", "mode", name, "--root", str(root), "--run-dir", str(root.parent / "run")])


def test_a_mode_is_entered(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _mode(board, "MODE_50W") == 0 and capsys.readouterr().out == "MODE_50W is active\n"
    assert _modes(board) == 0 and "active: 3 MODE_50W" in capsys.readouterr().out
    (board.parent / "run").mkdir()
    (board.parent / "run/power-state.json").write_text("{}")
    assert _mode(board, "MODE_50W") == 0, "a daemon that governs does not stand in the way"


@pytest.mark.parametrize(("name", "code", "said"), [
    ("MODE_30W", 1, "MODE_30W needs a reboot (TPC mask 0 -> 240); nothing was changed"),
    ("MODE_50W", 1, "/usr/sbin/nvpmodel cannot be run: No such file or directory; nothing was changed"),
    ("50W", 2, "no mode '50W' (known: MAXN, MODE_15W, MODE_30W, MODE_50W)")])
def test_a_mode_that_is_not_entered(board: Path, capsys: pytest.CaptureFixture[str], name: str, code: int,
                                    said: str) -> None:
    (board / "usr/sbin/nvpmodel").unlink()
    assert _mode(board, name) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("orind power: ") and err.endswith(f"{said}\n")


def test_a_mode_of_a_missing_or_wrong_file(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (board / "etc/nvpmodel.conf").write_text("")
    assert _mode(board, "MODE_50W") == 78 and "has no POWER_MODEL" in capsys.readouterr().err
    (board / "etc/nvpmodel.conf").unlink()
    assert _mode(board, "MODE_50W") == 66 and "ENOENT" in capsys.readouterr().err
