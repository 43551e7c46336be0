"""`orind doctor`: what it says of this machine, and what it fails for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from orind.daemon import cli, doctor
from orind.kernels.pre import jpeg
from orind.power.sysfs import Sysfs

Captured = pytest.CaptureFixture[str]


def test_doctor_says_what_is_there(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["doctor", "--json"]) == 0
    found = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    assert found["libraries"]["level"] == "ok" and "pyzmq" in found["libraries"]["text"]
    assert set(found) == {"python", "libraries", "jpeg", "systemd", "cuda", "board", "memory", "limits"}
    assert "NVRTC 12.6" in found["cuda"]["text"]
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().out.count("\n") == len(found)


def test_doctor_fails_for_what_serve_cannot_do_without(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def none(name: str) -> str:
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", none)
    monkeypatch.setenv("INVOCATION_ID", "x")
    monkeypatch.setattr(jpeg, "available", lambda: False)
    assert doctor._cuda().level == "absent" and doctor._cuda().text.startswith("NVRTC 12.6")
    assert cli.main(["doctor"]) == 69
    out = capsys.readouterr().out
    assert "error    libraries  missing: numpy" in out and "error    systemd" in out and "warning  jpeg" in out
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1")
    assert doctor._notify().level == "ok"
    assert doctor._cuda().text.endswith("PyCUDA 1")
    monkeypatch.setattr(doctor.nvrtc, "candidates", list)
    doctor.nvrtc.load.cache_clear()
    assert doctor._cuda().text.startswith("no NVRTC") and doctor._cuda().level == "absent"
    monkeypatch.undo()
    doctor.nvrtc.load.cache_clear()


def test_doctor_refuses_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9))
    assert doctor._python().level == "error"


@pytest.mark.parametrize(
    ("release", "level", "text"),
    [
        ("# R36 (release), REVISION: 4.3, GCID: 38968081", "ok", "L4T 36.4.3"),
        ("# R35 (release), REVISION: 5.0, GCID: 35550185", "warning", "has not been tested"),
        ("# R36", "absent", "not a Jetson"),
        (None, "absent", "not a Jetson"),
    ],
)
def test_doctor_knows_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, level: str, text: str
) -> None:
    (tmp_path / "etc").mkdir()
    if release is not None:
        (tmp_path / "etc" / "nv_tegra_release").write_text(release + "\n")
    monkeypatch.setattr(doctor, "Sysfs", lambda _: Sysfs(tmp_path))
    found = doctor._board()
    assert found.level == level and text in found.text, found
