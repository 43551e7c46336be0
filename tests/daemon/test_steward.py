"""The steward process itself over a plant's tree."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import MS, S
from steward_link import SECTION, run_steward

from orind.daemon import steward
from orind.ipc.stats_page import StatsWriter
from orind.power.energy import PowerSample
from orind.power.limits import Limits


@pytest.mark.parametrize(("quiet", "told"), [(True, ("quiet", "cool")), (False, ("", None))])
def test_a_report_has_the_fan_profile_that_is_meant_and_the_active_one(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool, told: tuple[str, str | None]
) -> None:
    stats, policy = StatsWriter(), {"budget_w": 30, "quiet": {
        "budget_w": 20, "tj_warn_c": 60, "tj_limit_c": 65, "fan_profile": "quiet"}}
    if quiet:
        always = {"name": "always", "from": "00:00", "to": "00:00", "quiet": True}
        policy |= {"schedule": {"time_zone": "UTC", "windows": [always]}}

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        while not any("report" in message for message in said):
            said.append(json.loads(sock.recv(65_536)))
        sock.close()

    section = {**SECTION, "policy": policy, "root": str(plant), "state": str(tmp_path / "power-state.json")}
    code, said = run_steward(monkeypatch, stats, section, talk)
    report = next(message["report"] for message in said if "report" in message)
    assert code == 0 and (report["fan_profile"], report["fan_profile_active"]) == told
    stats.close()


def test_the_steward_sends_limits_and_reports_then_puts_the_clocks_back(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = StatsWriter()
    stats.write_counters(5 * MS, 10 * S, 1)
    caps = [p for p in plant.rglob("max_freq") if "devfreq" in str(p)]
    before = [p.read_text() for p in caps]
    during: list[str] = []

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        while sum("report" in message for message in said) < 3:
            said.append(json.loads(sock.recv(65_536)))
        during.extend(p.read_text() for p in caps)
        asked = {"budget": [18_000, time.monotonic_ns() + 60 * S, "uid 7 (pid 8)"], "ambient": None}
        for message in ({"asked": asked}, {"policy": {"budget_w": 25, "tick_ms": 20}}):
            sock.send(json.dumps(message).encode())
        while said[-1].get("report", {}).get("budget_w") != 18:
            said.append(json.loads(sock.recv(65_536)))
        sock.send(json.dumps({"asked": {"budget": None}}).encode())
        while said[-1].get("report", {}).get("budget_w") != 25:
            said.append(json.loads(sock.recv(65_536)))
        stats._words[1] += 1  # main stands still in the middle of a write: no reading, no exception
        said.append(json.loads(sock.recv(65_536)))
        sock.close()

    section = {**SECTION, "root": str(plant), "state": str(tmp_path / "power-state.json")}
    code, said = run_steward(monkeypatch, stats, section, talk)
    assert code == 0 and caps
    sent = [Limits.from_json(m["limits"]) for m in said if "limits" in m]
    assert sent and sent[0].expires_ns is not None
    report = next(m["report"] for m in said if "report" in m)
    samples = [PowerSample.from_json(m["sample"]) for m in said if "sample" in m]
    assert all(sample.board_mw and 8_000 < sample.idle_mw < 14_000 for sample in samples) and len(samples) > 2
    assert [s.now_ns for s in samples] == sorted({s.now_ns for s in samples})
    assert report["budget_w"] == 30 and report["board_w"] > 0 and report["gpu_cap_hz"] > 0
    assert [p.read_text() for p in caps] == before and during != before
    stats.close()


def test_main_hears_of_the_end_before_the_clocks_go_up(
    plant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats, heard, seen = StatsWriter(), threading.Event(), []
    (cap,) = (p for p in plant.rglob("max_freq") if "devfreq" in str(p))
    restore = steward.Steward.close

    def close(self: steward.Steward) -> tuple[str, ...]:
        seen.append((heard.wait(10), int(cap.read_text())))
        return restore(self)

    def talk(sock: socket.socket, said: list[dict[str, Any]]) -> None:
        while not any("report" in message for message in said):
            said.append(json.loads(sock.recv(65_536)))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65_536):
            pass
        heard.set()

    monkeypatch.setattr(steward.Steward, "close", close)
    section = {**SECTION, "root": str(plant), "state": str(tmp_path / "power-state.json")}
    code, _ = run_steward(monkeypatch, stats, section, talk)
    assert code == 0 and len(seen) == 1
    told_first, capped_hz = seen[0]
    assert told_first and capped_hz < int(cap.read_text()) == 1_300_500_000
    stats.close()


def test_a_board_that_is_not_there_is_said_and_ends_the_steward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = StatsWriter()
    (tmp_path / "empty").mkdir()
    section = {**SECTION, "root": str(tmp_path / "empty"), "state": str(tmp_path / "power-state.json")}
    code, said = run_steward(
        monkeypatch, stats, section, lambda sock, said: said.append(json.loads(sock.recv(65_536)))
    )
    assert code == 1 and said[0]["error"]
    stats.close()
