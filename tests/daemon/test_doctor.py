"""`orind doctor`: what it says of this machine, and what it fails for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orind.daemon import cli, doctor
from orind.kernels.cuda import presence
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
    monkeypatch.setattr(doctor.presence, "first_gpu", lambda: "Orin")
    assert doctor._cuda().text.startswith("Orin, NVRTC 12.6") and doctor._cuda().text.endswith("PyCUDA 1")
    assert doctor._cuda().level == "ok"
    monkeypatch.setattr(doctor.nvrtc, "candidates", list)
    doctor.nvrtc.load.cache_clear()
    assert doctor._cuda().text.startswith("no NVRTC") and doctor._cuda().level == "absent"
    monkeypatch.undo()
    doctor.nvrtc.load.cache_clear()


def a_driver(folder: Path, *functions: str) -> str:
    """A library with these functions, each answering 0 unless its body says otherwise."""
    source = folder / "driver.c"
    source.write_text("\n".join(functions))
    subprocess.run(["gcc", "-shared", "-o", folder / "driver.so", source], check=True)
    return str(folder / "driver.so")


NO_ERROR_TEXT = "int cuGetErrorString(int code, char** text) { *text = 0; return 1; }"
VERSION = "int cuDriverGetVersion(int* version) { *version = 12060; return 0; }"


def test_doctor_says_what_of_a_gpu_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1")

    def with_driver(library: str) -> doctor.Finding:
        monkeypatch.setattr(presence, "DRIVER", library)
        return doctor._cuda()

    found = with_driver("libcuda.so.none")
    assert found.level == "absent" and found.text.startswith("no driver: libcuda.so.none not found: only engine.device")
    assert "NVRTC 12.6" in found.text and found.text.endswith("PyCUDA 1")
    (tmp_path / "half.so").write_text("half a library")
    assert "half.so: file too short" in with_driver(str(tmp_path / "half.so")).text
    failing = a_driver(tmp_path, "int cuInit(unsigned flags) { return 999; }", NO_ERROR_TEXT)
    assert with_driver(failing).text.startswith("the driver finds no GPU: cuInit:  (999): only engine.device")
    (tmp_path / "none").mkdir()
    without = a_driver(tmp_path / "none", "int cuInit(unsigned flags) { return 0; }", VERSION,
                       "int cuDeviceGetCount(int* count) { *count = 0; return 0; }")
    assert with_driver(without).text.startswith("the driver finds no GPU: only engine.device")
    for number, (said, *functions) in enumerate((  # a library of that name which is no driver, or half of one
        ("cuInit", VERSION), ("cuDriverGetVersion", "int cuInit(unsigned flags) { return 0; }"),
        ("cuGetErrorString", "int cuInit(unsigned flags) { return 999; }"),
    )):
        (tmp_path / str(number)).mkdir()
        lacking = a_driver(tmp_path / str(number), *functions)
        found = with_driver(lacking)
        assert found.level == "absent"
        assert found.text.startswith(f"no driver: {lacking}: undefined symbol: {said}: only")


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
