"""Main in this process with its real sockets, children played by the test: serving, status, reload, drain, stop."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from house import ENGINES, ROW, House, made_config, plan
from stand_ins import S

from orind.daemon import memory_report, version
from orind.daemon.candidate import Candidate
from orind.daemon.faults import Fault
from orind.daemon.orders import Fence
from orind.daemon.power_link import UNMEASURED
from orind.daemon.status import FAILED_REMEDY
from orind.ipc import engine_messages
from orind.kernels.memory.reservation import HostReservation
from orind.power.energy import PowerSample


def test_ready_is_told_only_after_a_golden_checked_engine_and_only_then_frames_are_taken(house: House) -> None:
    assert house.status()["state"] == "starting" and house.told == []
    house.send(1)
    house.step()
    assert house.daemon.ledger.received == 0
    house.engines[0].ready()
    house.until(lambda: house.told)
    assert house.told[0] == "READY=1\nSTATUS=serving generation 1"
    status = house.status()
    assert status["state"] == "degraded" and status["health"] == {"ok": True, "reasons": ["no ready standby"]}
    house.answer_from(house.engines[0])
    result = house.reply()
    assert (result["seq"], result["outcome"], result["objects"][0]["label"]) == (1, "ok", "part")


def test_status_has_all_that_others_script_against(house: House) -> None:
    house.serve()
    house.send(1)
    house.answer_from(house.engines[0])
    house.reply()
    status = house.status()
    assert status["state"] == "serving" and status["generation"] == 1 and status["failovers"] == 0
    assert (status["config"], status["version"]) == ("/etc/orind.yaml", version.installed())
    assert [sorted(e) for e in status["engines"]] == [
        ["device", "device_name", "epoch", "memory", "pid", "role", "state"]
    ] * 2
    assert [(e["role"], e["state"], e["epoch"]) for e in status["engines"]] == [
        ("active", "active", 1), ("standby", "ready", 2),
    ]
    assert status["frames"] == {
        "received": 1, "ok": 1, "degraded": 0, "stale": 0, "rejected": 0, "expired": 0, "error": 0, "dropped": 0,
        "in_flight": 0, "repeated": 0,
    }
    assert set(status["latency_ms"]) >= {"queue", "engine", "total"}
    assert set(status["latency_ms"]["total"]) == {"p50", "p95", "p99"}
    assert status["reload"] == {
        "requested": 0, "done": 0, "rollbacks": 0, "result": "", "can_roll_back": False, "differs": "",
    }
    assert set(status["power"]) >= {"board_w", "budget_w", "tj_c", "gpu_hz", "gpu_cap_hz"}
    assert (status["energy"]["reason"], status["energy"]["board_joules"]) == (UNMEASURED, None)
    assert list(status["energy"]["models"]["m"]["cameras"]) == ["cam", "live"]
    assert status["models"]["m"]["plan"] == "m.plan" and status["pid"] == os.getpid()
    assert list(status["cameras"]) == ["cam", "live"] and status["cameras"]["cam"]["frames"] == {"ok": 1}


def test_a_trigger_that_is_nowhere_shows_in_the_books_and_in_health(house: House) -> None:
    house.serve()
    house.send(1)
    house.until(house.engines[0].hear)
    assert (house.status()["frames"]["received"], house.status()["frames"]["in_flight"]) == (1, 1)
    house.daemon.generation.take_in_flight()  # and nobody answers it
    status = house.status()
    assert (status["frames"]["received"], status["frames"]["in_flight"]) == (1, 0)
    assert status["health"]["reasons"] == [
        "1 triggers have no outcome and are nowhere: a bug of orind, please report it"
    ]


def test_what_grows_without_a_rest_is_a_reason_of_health_and_what_a_device_has_free_is_told(house: House) -> None:
    house.serve()
    report = json.loads(memory_report.to_text(HostReservation(1 << 20, 0)))
    house.engines[0].say(engine_messages.pack_memory(0, json.dumps({**report, "device_free": 5 << 30})))
    house.until(lambda: house.status()["processes"])
    assert house.status()["processes"] == [{"name": "device cpu", "device_free": 5 << 30, "leaks": []}]
    assert house.status()["engines"][0]["memory"]["device_free"] == 5 << 30
    assert house.processes.on_usage is not None
    for step in range(240):
        usage = {"role": "decoder", "pid": 5, "private": step << 20, "descriptors": 5, "threads": 1}
        house.processes.on_usage(usage, house.daemon._next_tick_ns + step * 10_000_000_000)
    status = house.status()
    assert status["health"]["ok"] and status["state"] == "serving"
    (reason,) = status["health"]["reasons"]
    assert reason.startswith("decoder (pid 5) may leak: private memory grows without a rest, by ")


def test_the_last_failover_is_of_the_engine_that_was_active(house: House) -> None:
    house.serve()
    daemon, generation = house.daemon, house.daemon.generation
    generation.machine.failovers += 1  # both were lost in one turn, and the standby is fenced first
    daemon.fenced(generation, [], Fence(2, Fault.SILENT, "no heartbeat"), 5)
    assert daemon.last_failover == {}
    daemon.fenced(generation, [], Fence(1, Fault.BATCH_OVERDUE, "a batch over its watchdog", was_active=True), 6)
    assert daemon.last_failover["fault"] == "batch_overdue" and daemon.last_failover["at_ns"] == 6


def test_a_dead_active_engine_costs_no_frame(house: House) -> None:
    house.serve()
    energy = house.daemon.power.energy
    energy.take(PowerSample(S, 30_000, 10_000, False))
    house.send(1)
    house.until(house.engines[0].hear)
    house.engines[0].die()
    house.answer_from(house.engines[1])
    assert house.reply()["outcome"] == "ok"
    energy.take(PowerSample(2 * S, 30_000, 10_000, True))
    energy.stop()
    booked = house.status()["energy"]["models"]["m"]["cameras"]["cam"]
    assert booked == {"joules": 20, "frames": 1, "joules_per_frame": 20}, "once, although two engines had it"
    status = house.status()
    assert status["failovers"] == 1 and status["failover"]["frames"] == 1 and status["state"] == "degraded"
    assert status["failover"]["fault"] == "died" and status["losses"] == {"died": 1}


def test_the_active_engine_comes_first_in_the_status(house: House) -> None:
    house.serve()
    generation = house.daemon.generation
    generation.active = generation.handles[2]  # as after a turn
    assert [(e["role"], e["epoch"]) for e in house.status()["engines"]] == [("active", 2), ("standby", 1)]


def test_a_reload_switches_generations_and_the_old_one_answers_what_it_has(house: House) -> None:
    house.serve()
    house.send(1)
    (old,) = house.until(house.engines[0].hear)
    candidate = Candidate(made_config(house.folder, health={"queue_max": 5}), [plan()], None)
    house.daemon.afford(candidate)
    generation = house.daemon.new_generation(candidate)
    assert house.daemon.open(generation.config) == [], "what it gives up was said before"
    generation.start(time.monotonic_ns())
    fresh = house.meet()
    house.daemon.reload_began()
    for engine in fresh:
        engine.ready()
    house.until(lambda: generation.machine.all_ready())
    house.daemon.switch(generation, None, time.monotonic_ns())
    house.daemon.reload_ended("generation 2 serves")
    assert house.told[-2].startswith("RELOADING=1\nMONOTONIC_USEC=") and house.told[-1].startswith("READY=1")
    house.send(2)
    house.answer_from(fresh[0])
    assert house.reply()["seq"] == 2
    house.engines[0].answer(old, [ROW])
    assert house.reply()["seq"] == 1
    house.until(lambda: not house.daemon.retired)
    assert house.status()["generation"] == 2 and len(house.status()["engines"]) == 2
    assert list(house.status()["energy"]["models"]["m"]["cameras"]) == ["cam", "live"]


def test_what_only_a_restart_can_change_is_said(house: House) -> None:
    changed = made_config(house.folder, slots={"count": 9, "bytes": 8192}, http={"port": 0})
    assert house.daemon.open(changed) == [
        "slots has changed, which takes effect at the next restart",
        "http has changed, which takes effect at the next restart",
    ]


def test_what_a_reload_newly_gives_up_is_said_once(house: House) -> None:
    slower = made_config(house.folder, engine={**ENGINES, "heartbeat_missed_ms": 61_000})
    assert house.daemon.open(house.daemon.generation.config) == []
    (said,) = house.daemon.open(slower)
    assert said == (
        "a hung idle engine is replaced after about 61030 ms; the aim is less than 200 ms (lower "
        "engine.heartbeat_missed_ms)"
    )


def test_requests_and_signals_lead_to_reloads(house: House) -> None:
    house.serve()
    assert house.ask({"op": "reload"})["result"] == "reload requested"
    house.until(lambda: house.processes.of("checker"))
    assert house.processes.of("checker")[0].arguments == ["/etc/orind.yaml"]
    os.kill(os.getpid(), signal.SIGUSR2)
    house.until(lambda: house.daemon.reloading.requested == 2)
    os.kill(os.getpid(), signal.SIGHUP)
    house.step()
    assert not house.daemon.draining
    house.daemon.drain("the test ends", time.monotonic_ns())
    assert not house.daemon.reloading.running


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "drain"])
def test_a_stop_answers_what_is_in_flight_and_exits_0(house: House, how: str) -> None:
    house.serve()
    house.send(1)
    (order,) = house.until(house.engines[0].hear)
    if how == "drain":
        assert house.ask({"op": "drain"}) == {"ok": True, "result": "draining"}
    else:
        os.kill(os.getpid(), getattr(signal, how))
        house.until(lambda: house.daemon.draining)
    status = house.status()
    assert status["state"] == "draining" and status["health"] == {"ok": False, "reasons": ["draining"]}
    assert house.ask({"op": "reload", "wait": True})["result"] == "refused: the daemon is draining"
    assert house.ask({"op": "drain"})["ok"]
    house.send(2)  # not taken any more
    house.step()
    house.engines[0].answer(order, [ROW])
    assert house.daemon.run() == 0
    assert house.daemon.ledger.outcomes["ok"] == 1 and house.daemon.ledger.received == 1
    assert house.told[-1] == "STOPPING=1\nSTATUS=draining, 1 frames without an answer"


def test_a_drain_that_runs_out_of_time_answers_the_rest(
    tmp_path: Path, signals_restored: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orind.daemon.realtime.quiet_collector", lambda: None)
    house = House(tmp_path)
    house.serve()
    house.send(1)
    house.until(house.engines[0].hear)
    house.daemon.drain("test", time.monotonic_ns() - 3600 * 10**9)
    house.daemon.drain("again", time.monotonic_ns())
    assert house.daemon.run() == 0
    assert house.daemon.ledger.outcomes["dropped"] == 1 and house.daemon.ledger.in_flight == 0
    house.close()


def test_engines_that_never_served_are_failed_with_the_last_ones_reason(
    tmp_path: Path, signals_restored: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("orind.daemon.realtime.quiet_collector", lambda: None)
    monkeypatch.setitem(ENGINES, "restart_budget", 1)
    house = House(tmp_path)
    assert house.status()["health"]["reasons"] == ["no engine has given a right golden answer yet"]
    house.engines[0].say(engine_messages.pack_fault(time.monotonic_ns(), "cannot start: no GPU"))
    status = house.until(lambda: found if (found := house.status())["losses"] else None)
    reason = "no engine has given a right golden answer yet; the last one was lost: it reports: cannot start: no GPU"
    assert (status["state"], status["health"]["reasons"]) == ("starting", [reason])
    house.engines[1].say(engine_messages.pack_fault(time.monotonic_ns(), "cannot start: no GPU at all"))
    house.until(lambda: house.status()["state"] == "failed")
    for _ in range(20):
        house.step()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "no engine ever served: 2 engines lost within 60 s, the last one: it reports: cannot start: no GPU at all; "
        + FAILED_REMEDY
    ]
    assert not house.told, "systemd was told nothing: its time-out for the start governs"
    house.daemon.drain("test", time.monotonic_ns())
    assert house.daemon.run() == 0
    house.close()
