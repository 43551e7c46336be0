"""Reloads of the real main with faults in every stage of them: each trigger has one outcome, the books agree.

The engines, the checker and the nursery are played by the test. Stages: `checking`, `starting` (no new engine is
ready), `half` (one is), `switched` (the old engine still has a frame).
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from house import DETECT, ROW, House, made_config
from reload_host import BAD, GOOD, play_checker
from stand_ins import EngineStandIn

from orind.daemon.daemon import Daemon
from orind.daemon.generation import Generation
from orind.daemon.nursery_client import GONE, NurseryDied
from orind.daemon.status import frames_held
from orind.ipc import meminfo
from orind.ipc.errors import IpcError
from orind.ipc.results import ResultArea

INTERFACE = {"input_dtype": "int8", "input_shape": [8, 8, 3], "rows_max": 100, "row_width": 6, "tensor_shape": []}
STAGES = ("checking", "starting", "half", "switched")


class Reload:
    """A reload of a House, led to a stage. `old`, `new`: engines of both generations. The old active has frame 1."""

    def __init__(self, house: House, stage: str, **changes: Any) -> None:
        self.house = house
        self.replies: list[dict[str, Any]] = []
        house.serve()
        house.send(1)
        (self.order,) = house.until(house.engines[0].hear)
        self.old, self.new = house.engines[:2], list[EngineStandIn]()
        self.ask()
        self.checker = house.until(lambda: house.processes.of("checker"))[-1]
        if stage != "checking":
            self.start_engines(**changes)
        if stage == "half":
            self.new[0].ready()
            house.until(lambda: self.engine_states() == ["active", "starting"])
        if stage == "switched":
            for engine in self.new:
                engine.ready()
            house.until(lambda: house.daemon.generation.number == 2)

    def ask(self, op: str = "reload") -> None:
        self.house.daemon.reloading.request(op, lambda fields: self.replies.append(dict(fields)))

    def answer_checker(self, host_bytes: int = 0, **changes: Any) -> None:
        """The file is good."""
        made = made_config(self.house.folder, **changes).model_dump()
        plan = {**GOOD["plans"][0], "spec": DETECT.to_json(), "interface": INTERFACE, "host_bytes": host_bytes}
        play_checker(self.checker, {**GOOD, "config": made, "plans": [plan]})

    def ask_again(self) -> None:
        self.replies.clear()
        self.ask()
        self.checker = self.house.until(lambda: [s for s in self.house.processes.of("checker") if s.fds])[-1]

    def start_engines(self, **changes: Any) -> None:
        self.answer_checker(**changes)
        before = len(self.house.engines)
        self.house.until(lambda: len(self.house.engines) == before + 2)
        self.new = self.house.engines[before:]

    def engine_states(self) -> list[str]:
        under_way = self.house.daemon.reloading._next
        assert under_way is not None
        return [e.standing.value for e in under_way.machine.engines.values()]

    def finish(self) -> None:
        """From `starting` to the end."""
        for engine in self.new:
            engine.ready()
        self.house.until(lambda: self.replies)
        assert self.replies[0]["ok"], self.replies

    def outcome(self, seq: int) -> str:
        reply = self.house.reply()
        assert reply["seq"] == seq
        return str(reply["outcome"])


def assert_books(daemon: Daemon, received: int, ok: int) -> None:
    """Every trigger has its one outcome, and no slot is kept."""
    ledger = daemon.ledger
    counted = (ledger.received, ledger.outcomes["ok"], frames_held(daemon), sum(ledger.outcomes.values()))
    assert counted == (received, ok, 0, received)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stop_in_any_stage_answers_what_was_received_and_ends_with_0(house: House, stage: str) -> None:
    reload = Reload(house, stage)
    os.kill(os.getpid(), signal.SIGTERM)
    house.until(lambda: house.daemon.draining)
    assert [r["result"] for r in reload.replies] == [
        "generation 2 serves" if stage == "switched" else "refused: the daemon is draining"
    ]
    assert all(e.started.killed for e in reload.new) == (stage != "switched")
    reload.old[0].answer(reload.order, [ROW])
    assert house.daemon.run() == 0
    assert_books(house.daemon, received=1, ok=1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_failover_in_any_stage_loses_no_frame(house: House, stage: str) -> None:
    """Of the old active engine, with a frame in flight: the old standby has it, or after the switch the new engine."""
    reload = Reload(house, stage)
    reload.old[0].die()
    house.answer_from(reload.new[0] if stage == "switched" else reload.old[1])
    assert reload.outcome(1) == "ok"
    if stage == "checking":
        reload.start_engines()
    if stage == "half":
        reload.new[1].ready()
    elif stage != "switched":
        reload.finish()
    house.until(lambda: house.daemon.generation.number == 2)
    house.send(2)
    house.answer_from(reload.new[0])
    assert reload.outcome(2) == "ok"
    house.until(lambda: not house.daemon.retired)
    assert house.status()["failovers"] == 1
    assert_books(house.daemon, received=2, ok=2)


def test_a_reload_while_nobody_serves_gives_the_waiting_frames_to_the_new_engines(house: House) -> None:
    """Both engines are lost in the midst of a failover; what they had waits for the new generation."""
    reload = Reload(house, "starting")
    for engine in reload.old:
        engine.die()
    house.until(lambda: house.daemon.generation.active is None)
    house.send(2)
    house.until(lambda: house.daemon.ledger.received == 2)
    reload.finish()
    house.answer_from(reload.new[0])
    assert reload.outcome(1) == "ok"
    house.answer_from(reload.new[0])
    assert reload.outcome(2) == "ok"
    assert_books(house.daemon, received=2, ok=2)


@pytest.mark.parametrize("stage", ["starting", "half"])
@pytest.mark.parametrize("which", [0, 1])
def test_the_death_of_a_new_engine_before_the_switch_changes_nothing(house: House, stage: str, which: int) -> None:
    reload = Reload(house, stage)
    reload.new[which].die()
    house.until(lambda: reload.replies)
    assert not reload.replies[0]["ok"] and "before it served" in reload.replies[0]["problems"][0]
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok" and house.status()["generation"] == 1
    assert house.status()["losses"] == {} and len(house.processes.of("engine")) == 4
    assert_books(house.daemon, received=1, ok=1)


def test_the_death_of_a_new_engine_just_after_the_switch_is_a_failover(house: House) -> None:
    reload = Reload(house, "switched")
    house.send(2)
    house.until(reload.new[0].hear)
    reload.new[0].die()
    house.answer_from(reload.new[1])
    assert reload.outcome(2) == "ok"
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"
    assert house.status()["failovers"] == 1
    assert_books(house.daemon, received=2, ok=2)


def test_the_death_of_both_just_after_the_switch_waits_for_their_successors(house: House) -> None:
    reload = Reload(house, "switched")
    house.send(2)
    house.until(reload.new[0].hear)
    for engine in reload.new:
        engine.die()
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"
    (fresh, *_) = house.until(lambda: house.engines[4:])
    fresh.ready()
    house.answer_from(fresh)
    assert reload.outcome(2) == "ok"
    assert_books(house.daemon, received=2, ok=2)


def test_the_death_of_the_checker_changes_nothing(house: House) -> None:
    reload = Reload(house, "checking")
    reload.checker.close()
    house.until(lambda: reload.replies)
    assert "ended without an answer" in reload.replies[0]["problems"][0]
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"
    assert_books(house.daemon, received=1, ok=1)


@pytest.mark.parametrize("stage", STAGES)
def test_the_death_of_the_nursery_ends_main_and_everybody_is_told(
    tmp_path: Path, signals_restored: None, no_fd_leak: None, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """No engine could be replaced any more: it ends by this fault, its frames are answered, a client that waits too."""
    monkeypatch.setattr("orind.daemon.realtime.quiet_collector", lambda: None)
    house = House(tmp_path)
    reload = Reload(house, stage)

    def died(now_ns: int) -> None:
        raise NurseryDied(GONE)

    monkeypatch.setattr(house.processes, "tick", died)
    with pytest.raises(NurseryDied):
        house.daemon.run()
    ledger, books = house.daemon.ledger, house.daemon
    house.close()
    assert [r["ok"] for r in reload.replies] == [stage == "switched"]
    assert ledger.outcomes["dropped"] == 1
    assert_books(books, received=1, ok=0)


def test_a_source_that_is_new_is_bound_only_with_the_generation_that_serves_it(house: House) -> None:
    """A reload whose engines fail leaves no socket behind that would swallow frames."""
    new = {"name": "more", "endpoint": f"ipc://{house.folder}/more"}
    sources = [{"name": "in", "endpoint": f"ipc://{house.folder}/in"}, new]
    reload = Reload(house, "half", sources=sources)
    reload.new[1].die()
    house.until(lambda: reload.replies)
    assert sorted(house.daemon.endpoints.sources) == ["in"] and not (house.folder / "more").exists()
    reload.ask_again()
    reload.start_engines(sources=sources)
    reload.finish()
    assert sorted(house.daemon.endpoints.sources) == ["in", "more"]
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"


def test_a_rollback_of_the_real_main_is_told_in_status_until_the_next_reload(house: House) -> None:
    reload = Reload(house, "switched", health={"queue_max": 5})
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok" and house.status()["reload"]["can_roll_back"]
    assert house.ask({"op": "rollback"})["ok"]
    fresh = house.until(lambda: house.engines[4:])
    house.send(2)
    house.until(lambda: house.daemon.ledger.received == 2)
    for engine in fresh:
        engine.ready()
    house.until(lambda: house.daemon.generation.number == 3)
    assert house.daemon.generation.config.health.queue_max == house.config.health.queue_max
    house.answer_from(reload.new[0])
    assert reload.outcome(2) == "ok"
    status = house.status()
    assert "may say otherwise" in status["reload"]["differs"] and status["health"]["ok"]
    assert status["health"]["reasons"] == [status["reload"]["differs"]]
    assert house.ask({"op": "rollback", "wait": True})["ok"] is False
    assert "nothing to go back to" in house.ask({"op": "rollback"})["result"]
    assert_books(house.daemon, received=2, ok=2)


def test_a_burst_of_signals_and_requests_is_one_reload_and_during_it_one_more(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    reload = Reload(house, "checking")
    checkers: Callable[[], list[Any]] = lambda: house.processes.of("checker")  # noqa: E731
    for _ in range(5):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert house.ask({"op": "reload"})["ok"]
        house.step()
    assert len(checkers()) == 1
    play_checker(reload.checker, BAD)
    house.until(lambda: len(checkers()) == 2)
    play_checker(checkers()[1], BAD)
    house.until(lambda: not house.daemon.reloading.running)
    for _ in range(20):
        house.step()
    assert len(checkers()) == 2
    assert house.daemon.reloading.requested == 11
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"


def test_a_reload_for_which_memory_is_short_is_refused_with_the_figures_before_anything_starts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a rollback: what needs a second pair of engines is held against what is available."""
    reload = Reload(house, "checking")
    with monkeypatch.context() as short:
        short.setattr(meminfo, "read", lambda: meminfo.Memory(1 << 33, 39 << 20))
        reload.answer_checker(host_bytes=30 << 20)
        house.until(lambda: reload.replies)
    assert reload.replies[0]["problems"] == [
        "the new engines need about 2 x 50 MiB and 1 MiB for results beside those that serve, 39 MiB are available: "
        "free memory, or restart orind, which needs no second pair"
    ]
    assert len(house.processes.of("engine")) == 2 and not house.daemon.reloading.running
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"


def test_a_reload_for_which_descriptors_are_short_is_refused_before_anything_starts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open counts: other generations may have had more models than the new one."""
    reload = Reload(house, "checking")
    with monkeypatch.context() as short:
        limit = house.daemon.descriptors._limit
        short.setattr("orind.daemon.descriptors.count_open", lambda: limit - 10)
        reload.answer_checker()
        house.until(lambda: reload.replies)
    (problem,) = reload.replies[0]["problems"]
    assert problem.startswith(f"{limit - 10} of {limit} descriptors are in use, the new engines and endpoints need")
    assert len(house.processes.of("engine")) == 2 and not house.daemon.reloading.running
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"


@pytest.mark.parametrize("which", [0, 1])
def test_result_memory_is_taken_before_the_switch_or_the_reload_is_refused(
    house: House, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Of either engine of the new pair."""
    reload = Reload(house, "checking")
    taken = count()
    real = ResultArea.__init__

    def take(self: ResultArea, *arguments: Any) -> None:
        if len(arguments) == 4 and next(taken) == which:
            raise IpcError("shared memory 'orind-results' of 9999 bytes cannot be allocated, 99 are free")
        real(self, *arguments)

    monkeypatch.setattr(ResultArea, "__init__", take)
    reload.answer_checker()
    house.until(lambda: reload.replies)
    assert "of 9999 bytes cannot be allocated, 99 are free" in reload.replies[0]["problems"][0]
    assert house.status()["generation"] == 1 and not house.daemon.retired
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"


def test_what_takes_a_restart_is_told_by_the_reload_and_does_not_come_into_force(house: House) -> None:
    reload = Reload(house, "checking")
    reload.start_engines(slots={"count": 9, "bytes": 8192})
    reload.finish()
    assert reload.replies[0]["notes"] == ["slots has changed, which takes effect at the next restart"]
    assert house.daemon.generation.config.slots.count == 8
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"


def test_generations_that_still_answer_do_not_pile_up(house: House) -> None:
    """Two may be draining; a third reload is refused until one of them has ended."""
    reload = Reload(house, "switched")
    house.send(2)
    (second,) = house.until(reload.new[0].hear)
    held = [(reload.old[0], reload.order), (reload.new[0], second)]
    for wanted in (True, False):
        reload.ask_again()
        if wanted:
            reload.start_engines()
            reload.finish()
        else:
            reload.answer_checker()
            house.until(lambda: reload.replies)
    assert reload.replies[0]["problems"] == [
        "generations 1 and 2 still answer what they have: ask again when they have ended"
    ]
    for engine, order in held:
        engine.answer(order, [ROW])
    assert {house.reply()["outcome"] for _ in held} == {"ok"}
    house.until(lambda: not house.daemon.retired)
    reload.ask_again()
    reload.start_engines()
    reload.finish()
    assert_books(house.daemon, received=2, ok=2)


def test_a_reload_leaves_nothing_that_only_the_collector_would_find(house: House) -> None:
    """Main collects what is young at most: a circle of references that grows old would stay for ever."""
    reload = Reload(house, "switched")
    reload.old[0].answer(reload.order, [ROW])
    assert reload.outcome(1) == "ok"
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            reload.ask_again()
            reload.start_engines()
            reload.finish()
            house.until(lambda: not house.daemon.retired)
        for engine in house.engines[:-2]:
            engine.die()
        # as the real nursery forgets who has ended, and so must the test
        house.processes.started, house.engines = house.processes.of("engine")[-2:], house.engines[-2:]
        del reload, engine
        kept = [o for o in gc.get_objects() if isinstance(o, Generation) and o._owner is house.daemon]
        assert gc.collect() == 0 and [g.number for g in kept] == [house.daemon.generation.number]
    finally:
        gc.enable()
