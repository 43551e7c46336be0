"""Time-outs of the unit against those of the configuration: read as systemd reads them, and refused by both names."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from stand_ins import config

from orind.daemon import unit_file
from orind.daemon.checker import check
from orind.daemon.config import Config
from orind.daemon.config_check import CHECK_TIMEOUT_NS
from orind.daemon.reload_command import DEFAULT_TIMEOUT_S
from orind.daemon.unit_file import UnitTimeOuts, find, of_configuration, span_s
from orind.daemon.unit_limits import CHECK_S, contradictions

SHIPPED = Path(__file__).parents[2] / "systemd"
SERVED = Path("/etc/orind/orind.yaml")
BY_HAND = "0::/user.slice/session.scope\n"


def unit(folder: Path, **settings: str) -> Path:
    """orind.service in a folder of units."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key}={value}" for key, value in {"ExecStart": f"/x/orind serve {SERVED}", **settings}.items()]
    (folder / "orind.service").write_text("\n".join(["[Unit]", "TimeoutStopSec=1", "[Service]", *lines]) + "\n")
    return folder


def read(*folders: Path, path: Path = SERVED, cgroup: str = BY_HAND) -> UnitTimeOuts:
    found = find(path, folders, cgroup)
    assert found is not None
    return found


def problems(found: UnitTimeOuts, **more: Any) -> list[str]:
    return list(contradictions(config(Path("/x"), **more), found))


def test_the_shipped_unit_holds_every_default_and_the_longest_drain() -> None:
    found = read(SHIPPED)
    assert (found.start.seconds, found.stop.seconds) == (180, 45)
    assert problems(found) == [] and problems(found, stop={"drain_timeout_s": 30}) == []


def test_a_drain_that_systemd_would_cut_off_names_both(tmp_path: Path) -> None:
    found = read(unit(tmp_path, TimeoutStopSec="20", TimeoutStartSec="180"))
    assert problems(found, stop={"drain_timeout_s": 20}) == [
        "stop.drain_timeout_s: 20 s and 5 s for the end of the processes must fit into "
        f"TimeoutStopSec=20 of {tmp_path}/orind.service, or systemd kills a drain"
    ]
    assert problems(found, stop={"drain_timeout_s": 15}) == []


def test_a_start_that_systemd_would_cut_off_names_both(tmp_path: Path) -> None:
    found = read(unit(tmp_path))
    (said,) = problems(found)
    assert said == (
        "engine.ready_timeout_s: 60 s and 60 s for the check of the configuration must fit into "
        "TimeoutStartSec=90 (systemd's default), which bounds start and reload"
    )
    assert problems(found, engine={"ready_timeout_s": 30}) == []
    assert CHECK_S * 10**9 == CHECK_TIMEOUT_NS
    longest_s = Config.model_json_schema()["$defs"]["EngineSection"]["properties"]["ready_timeout_s"]["maximum"]
    assert CHECK_S + longest_s < DEFAULT_TIMEOUT_S, "orind reload --wait does not give up before systemd"


def test_drop_ins_count_as_for_systemd(tmp_path: Path) -> None:
    """By name, whatever their folder; of two with one name the folder of higher priority; a later setting wins."""
    etc, lib = unit(tmp_path / "etc"), unit(tmp_path / "lib", TimeoutStopSec="1")
    for folder, place, name, text in (
        (lib, "orind.service.d", "10-a", "TimeoutStopSec=50\n# TimeoutStopSec=3\n; TimeoutStopSec=3"),
        (etc, "orind.service.d", "10-a", "TimeoutSec=1min \\\n 5s"),
        (lib, "service.d", "05-all", "TimeoutStartSec=7\nTimeoutStopSec=7"),
        (lib, "orind.service.d", "20-b", "TimeoutStartSec=soon\nTimeoutStartSec=0\n[Install]\nTimeoutStopSec=2"),
        (etc, "orind.service.d", "not-one.txt", "TimeoutStopSec=2"),
    ):
        (folder / place).mkdir(exist_ok=True)
        suffix = "" if name.endswith("txt") else ".conf"
        (folder / place / f"{name}{suffix}").write_text(f"[Service]\n{text}\n")
    found = read(etc, lib)
    assert (found.start.seconds, found.stop.seconds) == (math.inf, 65)
    assert found.stop.said == f"TimeoutSec=1min   5s of {etc}/orind.service.d/10-a.conf"
    (etc / "orind.service.d" / "30-c.conf").write_text("[Service]\nTimeoutStopSec=\n")
    assert read(etc, lib).stop.seconds == 90


def test_systemd_reads_the_same(tmp_path: Path) -> None:
    """Its own verdict on spans; systemd-analyze is on every machine that has systemd."""
    assert shutil.which("systemd-analyze")
    for text in ("5", "1.5s", "2min 200ms", "1h30m", "3us", "1week 2days", "infinity"):
        done = subprocess.run(["systemd-analyze", "timespan", text], capture_output=True, text=True, check=True)
        micros = int(done.stdout.split("μs:")[1].split()[0])
        assert span_s(text) == (math.inf if text == "infinity" else micros / 1e6), text
    for text in ("", "soon", "5 parsecs", "-1", "1..5", "5;"):
        assert span_s(text) is None
        command = ["systemd-analyze", "timespan", "--", text]
        assert not text or subprocess.run(command, capture_output=True, check=False).returncode


def test_only_the_unit_that_serves_this_file_counts(tmp_path: Path) -> None:
    folder = unit(tmp_path, TimeoutStopSec="20")
    assert find(tmp_path / "other.yaml", [folder], BY_HAND) is None
    assert find(SERVED, [tmp_path / "none"], BY_HAND) is None
    (folder / "orind.service").rename(folder / "line2.service")
    assert find(SERVED, [folder], BY_HAND) is None
    hybrid = "4:memory:/x\n1:name=systemd:/system.slice/line2.service\n0::/\n"
    for cgroup in ("0::/system.slice/line2.service\n", hybrid):
        assert read(folder, cgroup=cgroup).stop.seconds == 20
    (folder / "line2.service").write_text("[Service]\nExecStart=/x 'serve\nExecStart=\n")
    assert find(SERVED, [folder], "0::/system.slice/line2.service\n") is None
    assert of_configuration(SERVED) is None, "this machine has no orind installed"


def test_check_refuses_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orind.yaml"
    path.write_text(
        "models: {m: {plan: none.plan}}\ncameras: {a: {model: m, deadline_ms: 100}}\n"
        "sources: [{name: in, endpoint: 'ipc:///run/orind/frames'}]\nstop:\n  drain_timeout_s: 25\n"
    )
    units = unit(tmp_path / "units", ExecStart=f"/x/orind serve {path}", TimeoutSec="2min", TimeoutStopSec="25s")
    monkeypatch.setattr(unit_file, "FOLDERS", (units,))
    monkeypatch.setattr(unit_file, "CGROUP", tmp_path / "none")
    found = [problem for problem in check(path).problems if "drain" in problem]
    assert len(found) == 1 and found[0].startswith(f"{path}:5: stop.drain_timeout_s: 25 s and 5 s")
    assert f"TimeoutStopSec=25s of {units}/orind.service" in found[0]
