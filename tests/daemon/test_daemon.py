"""Main in this process with its real sockets, children played by the test: serving, status, reload, drain, stop."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from stand_ins import EngineStandIn, Processes, S, config

from orind.daemon import memory_report, version
from orind.daemon.candidate import Candidate
from orind.daemon.config import Config
from orind.daemon.daemon import Daemon
from orind.daemon.faults import Fault
from orind.daemon.notify import ServiceManager
from orind.daemon.nursery_client import NurseryDied
from orind.daemon.orders import Fence
from orind.daemon.plans import ServedPlan
from orind.daemon.poller import Poller
from orind.daemon.power_link import UNMEASURED
from orind.daemon.signals import SignalInbox
from orind.daemon.status import FAILED_REMEDY, with_latency
from orind.daemon.status_page import render
from orind.ipc import engine_messages
from orind.ipc.control import ControlClient
from orind.ipc.errors import IpcError
from orind.ipc.stats_page import StatsReader
from orind.kernels.memory.reservation import HostReservation
from orind.kernels.model import Interface
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.power.energy import PowerSample

DETECT = ModelSpec("m", "detect", ("part",), (1,), InputSpec(), DecoderSpec(kind="yolo"))
ROW = np.array([[1, 2, 3, 4, 0.5, 0]], np.float32)
HEADER = {"v": 1, "encoding": "mono8", "width": 4, "height": 2}
ENGINES = {"heartbeat_missed_ms": 60_000, "golden_interval_s": 600, "ready_timeout_s": 600, "batch_watchdog_ms": 15_000}


def plan() -> ServedPlan:
    return ServedPlan("m", os.memfd_create("plan"), "m.plan", "00", 1, DETECT, Interface("int8", (8, 8, 3), 100, 6, ()))


def made_config(folder: Path, **changes: Any) -> Config:
    results = {"endpoint": f"ipc://{folder}/out"}
    return config(folder, **{"results": results, "engine": ENGINES, "decode": {"workers": 0}, **changes})


class House:
    """The daemon, a camera, and whoever plays the engines."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.processes, self.poller = Processes(), Poller()
        self.signals = SignalInbox()
        self.manager = ServiceManager(self.told.append)
        self.config = made_config(folder, **changes)
        self.daemon = Daemon(
            "/etc/orind.yaml", Candidate(self.config, [plan()], None), self.signals, self.processes, self.poller,
            self.manager,
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.camera = self.context.socket(zmq.DEALER)
        self.camera.connect(f"ipc://{folder}/in")
        self.engines: list[EngineStandIn] = []
        self.meet()

    def meet(self) -> list[EngineStandIn]:
        fresh = [EngineStandIn(s) for s in self.processes.of("engine") if s.fds]
        self.engines += fresh
        return fresh

    def step(self) -> None:
        """One turn of the daemon's loop."""
        self.daemon.turn(1_000_000)
        self.meet()

    def until(self, condition: Any) -> Any:
        for _ in range(20_000):
            self.step()
            found = condition()
            if found:
                return found
        raise AssertionError("it does not come to that")

    def serve(self) -> None:
        for engine in self.engines:
            engine.ready()
        self.until(lambda: self.status()["state"] == "serving")

    def send(self, seq: int) -> None:
        self.camera.send_multipart([b"cam", json.dumps({**HEADER, "seq": seq}).encode(), bytes(8)])

    def answer_from(self, engine: EngineStandIn) -> int:
        orders = self.until(engine.hear)
        for order in orders:
            engine.answer(order, [ROW] * len(order.frames))
        return len(orders)

    def reply(self) -> dict[str, Any]:
        parts = self.until(lambda: self.camera.poll(0) and self.camera.recv_multipart())
        fields: dict[str, Any] = json.loads(parts[1])
        return fields

    def status(self) -> dict[str, Any]:
        return self.ask({"op": "status"})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with ControlClient(self.folder / "control") as client:
            client._sock.send(json.dumps(request).encode())
            client._sock.setblocking(False)
            for _ in range(5_000):
                self.step()
                try:
                    data = client._sock.recv(200_000)
                except BlockingIOError:
                    continue
                fields: dict[str, Any] = json.loads(data)
                return fields
        raise AssertionError("no reply")

    def close(self) -> None:
        self.camera.close(linger=0)
        self.context.term()
        self.daemon.close()
        self.signals.close()
        for engine in self.engines:
            engine.die()
        self.processes.close()


@pytest.fixture
def house(tmp_path: Path, signals_restored: None, no_fd_leak: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr("orind.daemon.realtime.quiet_collector", lambda: None)
    made = House(tmp_path)
    yield made
    made.close()


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
    assert [sorted(e) for e in status["engines"]] == [["device", "epoch", "memory", "pid", "role", "state"]] * 2
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
