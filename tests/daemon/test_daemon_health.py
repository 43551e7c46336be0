"""What the daemon says of its health and state when something is missing, and what ends it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from house import ENGINES, House, made_config

from orind.daemon.candidate import Candidate
from orind.daemon.nursery_client import NurseryDied
from orind.daemon.signals import SignalInbox
from orind.daemon.status import FAILED_REMEDY, with_latency
from orind.daemon.status_page import render
from orind.ipc.errors import IpcError
from orind.ipc.stats_page import StatsReader


def test_while_nobody_serves_it_is_recovering_and_unhealthy(house: House) -> None:
    house.serve()
    for engine in house.engines[:2]:
        engine.die()
    status = house.until(lambda: house.status() if house.daemon.generation.active is None else None)
    assert status["state"] == "recovering" and not status["health"]["ok"]
    reason = "no engine has given a right golden answer yet; the last one was lost"
    assert status["health"]["reasons"][0].startswith(reason)


def test_an_engine_stands_back_only_behind_one_that_serves(house: House) -> None:
    house.serve()
    house.engines[0].die()
    house.until(lambda: len(house.engines) == 3)
    assert [engine.start["others_serve"] for engine in house.engines] == [False, False, True]
    for engine in house.engines[1:]:
        engine.die()
    house.until(lambda: len(house.engines) == 5)
    assert not house.engines[3].start["others_serve"]


def test_out_of_engines_is_failed_and_unhealthy(
    tmp_path: Path, signals_restored: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("orind.daemon.realtime.quiet_collector", lambda: None)
    monkeypatch.setitem(ENGINES, "restart_budget", 1)
    house = House(tmp_path)
    house.serve()
    house.engines[1].die()
    house.until(lambda: len(house.engines) == 3)
    house.engines[2].die()
    status = house.until(lambda: house.status() if house.daemon.generation.machine.failed else None)
    assert status["state"] == "degraded" and status["health"]["reasons"][0].startswith("no standby any more: 2 engines")
    house.engines[0].die()
    status = house.until(lambda: house.status() if house.daemon.generation.active is None else None)
    assert status["state"] == "failed" and not status["health"]["ok"]
    assert status["health"]["reasons"][0].startswith("failed: 3 engines lost")
    said = house.until(lambda: [r.getMessage() for r in caplog.records if r.levelname == "ERROR"])
    why = status["health"]["reasons"][0].removeprefix("failed: ")
    assert said == [f"no engine serves any more: {why}; {FAILED_REMEDY}"]
    house.send(1)
    assert house.reply()["outcome"] == "expired"
    house.daemon.drain("test", time.monotonic_ns())
    assert house.daemon.run() == 0
    house.close()


def test_a_long_queue_is_unhealthy(house: House) -> None:
    house.serve()
    for engine in house.engines:
        engine.hear()
    made = made_config(house.folder, health={"queue_max": 1})
    object.__setattr__(house.daemon.generation, "config", made)
    for seq in range(6):
        house.send(seq)
    status = house.until(lambda: house.status() if house.daemon.ledger.received == 6 else None)
    assert status["health"] == {"ok": False, "reasons": ["4 frames wait, the limit is 1"]}


def test_the_stats_page_shows_turns_busy_time_and_the_status(house: House) -> None:
    reader = StatsReader(house.daemon.stats.readonly_fd())
    house.serve()
    before = reader.read_counters()
    house.send(1)
    house.until(house.engines[0].hear)
    house.until(lambda: reader.read_counters().busy_ns > before.busy_ns)
    after = reader.read_counters()
    assert after.loops > before.loops and after.now_ns > before.now_ns
    house.until(lambda: reader.read_blob().get("state") == "serving")
    reader.close()


def test_a_port_in_use_is_refused(tmp_path: Path, signals_restored: None) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(OSError, match="is another program using it"):
            House(tmp_path, http={"port": port})
    SignalInbox.install_early().close()


def test_a_fault_that_ends_main_still_answers_every_frame(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.serve()
    for seq in range(4):
        house.send(seq)
    house.until(lambda: house.daemon.ledger.received == 4)

    def died(now_ns: int) -> None:
        raise NurseryDied("gone")

    monkeypatch.setattr(house.processes, "tick", died)
    with pytest.raises(NurseryDied):
        house.daemon.run()
    monkeypatch.undo()
    house.daemon.close()
    answers = []
    while len(answers) < 4:
        assert house.camera.poll(10_000)
        answers.append(json.loads(house.camera.recv_multipart()[1]))
    assert sorted((a["seq"], a["outcome"], a["reason"]) for a in answers) == [
        (seq, "dropped", "the daemon ends by a fault") for seq in range(4)
    ]
    assert house.daemon.ledger.in_flight == 0


def test_a_status_that_does_not_fit_is_shown_shortened_and_main_lives(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house.serve()
    reader = StatsReader(house.daemon.stats.readonly_fd())
    house.daemon.power.report = {**house.daemon.power.report, "reason": "x" * 300_000}
    house.until(lambda: "the status is too long to be shown whole" in reader.read_blob()["health"]["reasons"])
    shown = reader.read_blob()
    assert shown["models"] == {} and shown["state"] == "serving" and "reason" not in shown["power"]
    assert render(with_latency(shown), 200, []).startswith("<!doctype html>")
    assert len([r for r in caplog.records if "long parts" in r.getMessage()]) == 1
    house.daemon.power.report = {**house.daemon.power.report, "reason": ""}
    house.until(lambda: reader.read_blob()["models"])
    reader.close()


def test_health_says_which_helper_is_missing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.serve()
    monkeypatch.setattr("orind.daemon.decode_pool.DecodePool.problem", "no JPEG decode worker: it ended by itself")
    monkeypatch.setattr("orind.daemon.http_link.HttpLink.problem", "it was silent")
    monkeypatch.setattr("orind.daemon.power_link.PowerLink.problem", "it has ended")
    house.daemon.descriptors.problem = "no further connections are taken: 9 of 9 descriptors are in use"
    house.processes.misplaced = ("engine.cpus: CPU 3 offline",)
    assert house.status()["health"] == {
        "ok": True,
        "reasons": [
            "the power governor does not run, the lowest pacing holds: it has ended",
            "the HTTP process does not run: it was silent",
            "engine.cpus: CPU 3 offline",
            "no JPEG decode worker: it ended by itself",
            "no further connections are taken: 9 of 9 descriptors are in use",
        ],
    }


def test_health_says_what_cannot_be_had_together(house: House) -> None:
    house.serve()
    house.daemon.power.report = {**house.daemon.power.report, "short": "deadline floor of 650 MHz cannot be met"}
    assert house.status()["health"] == {"ok": True, "reasons": ["power: deadline floor of 650 MHz cannot be met"]}


def test_a_reload_that_needs_more_descriptors_than_there_are_is_refused(house: House) -> None:
    house.daemon.descriptors._limit = 100
    with pytest.raises(OSError, match="needs at least"):
        house.daemon.afford(Candidate(made_config(house.folder), [], None))


def test_a_reload_that_contradicts_what_only_a_restart_changes_is_refused(house: House) -> None:
    house.serve()
    count = house.daemon._started_with.slots.count
    larger = made_config(house.folder, slots={"count": 4 * count}, batching={"max_size": 2 * count, "window_ms": 0})
    with pytest.raises(IpcError, match=rf"until a restart: batching\.max_size: {2 * count} .*slots\.count is {count}"):
        house.daemon.new_generation(Candidate(larger, [], None))


def test_a_turn_reads_all_that_came_before_anything_is_dispatched(house: House) -> None:
    house.serve()
    for seq in range(40):
        house.send(seq)
    read, turns = 0, 0
    while read < 40:
        time.sleep(0.02)  # for ZeroMQ's thread
        house.step()
        turns += house.daemon.ledger.received > read
        read = house.daemon.ledger.received
    assert turns < 20, "not a frame a turn: the newest must be known"
    assert house.daemon.ledger.outcomes["dropped"] == 32, "8 slots, and the engine has not been heard yet"
    house.answer_from(house.engines[0])
