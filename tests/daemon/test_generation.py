"""A generation: its start, what it serves, its memory and placement, how it ends."""

from __future__ import annotations

import json
import logging

import pytest
from stage import BUDGET, ROW, Stage
from stand_ins import MS, S, config

from orind.daemon import memory_report
from orind.daemon.failover import Failover
from orind.daemon.faults import Fault
from orind.daemon.placement import to_text
from orind.daemon.standing import Standing, rules_of
from orind.ipc import engine_messages as messages
from orind.kernels.memory.reservation import HostReservation
from orind.kernels.placement import Placement


def test_two_engines_are_started_and_the_first_ready_one_serves(stage: Stage) -> None:
    stage.start()
    assert sorted(stage.engines) == [1, 2] and stage.generation.active is None
    stage.engines[2].ready()
    stage.turn()
    assert stage.active == [2] and stage.lost == []
    stage.send(5)
    (order,) = stage.engines[2].hear()
    stage.engines[2].answer(order, [ROW])
    stage.turn(MS)
    assert stage.answers == [(2, [5])] and not stage.generation.frames_in_flight()


PLACED = Placement(5, (("a", "MaxPool"), ("b", "MaxPool"), ("c", "Unary")), 2)


def test_which_steps_run_on_the_cpu_is_kept_and_logged_once_an_engine(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orind")
    stage.start()
    assert stage.generation.placements == {}
    for engine in stage.engines.values():
        engine.say(messages.pack_placed(0, to_text(0, PLACED, 1)))
        engine.ready()
        stage.turn()
    assert stage.generation.placements == {
        "m": {
            "steps": 5, "cpu_steps": 3, "gpu_segments": 2,
            "on_cpu": {"MaxPool": {"count": 2, "names": ["a", "b"]}, "Unary": {"count": 1, "names": ["c"]}},
        }
    }
    said = [r.getMessage() for r in caplog.records if "model m" in r.getMessage()]
    assert said == [
        f"generation 1: engine {epoch}: model m: 3 of 5 steps run on the CPU (2 MaxPool, 1 Unary), 2 GPU segments"
        for epoch in (1, 2)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", to_text(1, PLACED, 1), to_text(0, PLACED, 1).replace("5", '"5"', 1),
        to_text(0, PLACED, 1).replace('"a"', "1"), to_text(0, PLACED, 1).replace('"names"', '"name"'),
    ],
)
def test_a_placement_that_cannot_be_read_ends_the_engine(stage: Stage, text: str) -> None:
    stage.start()
    stage.engines[1].say(messages.pack_placed(0, text))
    stage.turn()
    assert 1 not in stage.generation.handles and stage.generation.placements == {}


def test_an_engine_that_is_ready_tells_what_its_device_calls_itself(stage: Stage) -> None:
    stage.start()
    stage.engines[1].say(messages.pack_ready(0, "Orin\n" + "x" * 999))
    stage.turn()
    name = stage.generation.handles[1].device_name
    assert name.startswith("Orin") and "\n" not in name and len(name) <= 200
    assert stage.generation.handles[2].device_name == ""


def test_what_a_lost_engine_said_of_its_memory_is_not_kept(stage: Stage) -> None:
    """Both lie there when main looks: the golden answer is wrong, and the memory is in pieces."""
    stage.serve()
    stage.engines[2].say(messages.pack_golden(0, ok=False, text="output 'scores' differs"))
    stage.engines[2].say(messages.pack_memory(0, memory_text(20)))
    stage.turn()
    assert 2 not in stage.generation.handles and stage.generation.machine.losses == {Fault.WRONG: 1}
    assert stage.generation.memory.table(2) is None and stage.generation.memory.problems() == []


def memory_text(percent: float) -> str:
    fields = json.loads(memory_report.to_text(HostReservation(1 << 20, 0)))
    return json.dumps({**fields, "free": 1000 << 20, "largest_free": round((1000 - 10 * percent) * (1 << 20))})


def test_an_engine_whose_memory_falls_to_pieces_is_renewed_through_the_standby(stage: Stage) -> None:
    stage.start()
    for engine in stage.engines.values():
        engine.say(messages.pack_memory(0, memory_text(1)))
        engine.ready()
        stage.turn()
    assert stage.generation.memory.table(1) is not None and stage.active == [1]
    stage.send(5)
    stage.engines[1].say(messages.pack_memory(0, memory_text(20)))
    stage.turn()
    assert stage.active == [1] and stage.generation.memory.problems() == [
        "engine 1: 20.0 % of its free memory is in pieces, the limit is 15 %"
    ], "not while it works"
    (order,) = stage.engines[1].hear()
    stage.engines[1].answer(order, [ROW])
    stage.turn()
    assert stage.active == [1, 2] and 1 not in stage.generation.handles and 3 in stage.generation.handles
    assert (stage.lost, stage.generation.machine.renewals, stage.generation.machine.losses) == ([], 1, {})
    assert stage.generation.memory.table(1) is None and stage.generation.memory.problems() == []


def test_a_report_of_memory_that_cannot_be_read_ends_the_engine(stage: Stage) -> None:
    stage.start()
    stage.engines[1].say(messages.pack_memory(0, "{}"))
    stage.turn()
    assert 1 not in stage.generation.handles
    assert "it tells of its memory what cannot be read" in stage.lost[0][2]


def test_serving_is_what_the_plans_and_the_configuration_say(stage: Stage) -> None:
    serving = stage.generation.serving()
    assert (serving.generation, serving.depth, serving.rule.window_ns, serving.rule.max_size) == (1, 2, 5 * MS, 1)
    assert serving.plans["m"].sizes == (1,) and serving.plans["m"].labels.names == ("a",)


def test_result_memory_is_as_large_as_what_is_served_can_ever_use(stage: Stage) -> None:
    """The plan could also be run with batches of 4, but batching.max_size is 1."""
    assert stage.generation.plans[0].spec.batch == (1, 4)
    stage.start()
    assert stage.engines[1].start["results"] == [2, 1, 600, 1]


def test_a_retired_generation_starts_nothing_and_ends_with_its_last_answer(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    stage.generation.retire()
    assert stage.generation.frames_in_flight() == 1
    stage.engines[2].die()
    stage.turn(S)
    assert sorted(stage.generation.handles) == [1] and len(stage.processes.started) == 2
    (order,) = stage.engines[1].hear()
    stage.engines[1].answer(order, [ROW])
    stage.turn()
    assert not stage.generation.frames_in_flight() and stage.generation.machine.engines[1].standing is Standing.ACTIVE


def test_what_is_in_flight_can_be_taken_back(stage: Stage) -> None:
    stage.serve()
    stage.send(1)
    stage.send(2)
    assert [[f.seq for f in b.frames] for b in stage.generation.take_in_flight()] == [[1], [2]]
    assert not stage.generation.frames_in_flight()


def test_rules_are_the_configurations_times() -> None:
    rules = rules_of(config(engine={"heartbeat_missed_ms": 200, "golden_interval_s": 4, "restart_budget": 7}))
    assert (rules.heartbeat_missed_ns, rules.golden_interval_ns, rules.restart_budget) == (200 * MS, 4 * S, 7)
    assert (rules.batch_watchdog_ns, rules.ready_timeout_ns, rules.restart_window_ns) == (2 * S, 60 * S, 60 * S)


def test_busy_time_of_an_engine_counts_once(stage: Stage) -> None:
    stage.serve()
    handle = stage.generation.handles[1]
    stage.send(1)
    (order,) = stage.engines[1].hear()
    stage.engines[1].answer(order, [ROW])
    stage.turn(7 * MS)
    assert handle.take_busy_ns() == 7 * MS and handle.take_busy_ns() == 0 and handle.running_since_ns == 0


def test_how_an_engine_ended() -> None:
    stage = Stage()
    stage.start()
    handle = stage.generation.handles[1]
    assert handle.pid == 1_000_001 and handle.end_reason() == "its process ended"
    assert handle.child is not None
    handle.child.status = -11
    assert handle.end_reason() == "its process ended with status -11"
    stage.close()


def test_each_engine_runs_on_the_device_of_its_seat_and_the_last_resort_on_the_cpu(stage: Stage) -> None:
    engine = {**BUDGET["engine"], "device": "cuda"}
    stage.generation.config = made = config(engine=engine, standby={"device": "cuda:1", "last_resort": "cpu"})
    stage.generation.machine = Failover(rules_of(made))
    stage.serve()
    assert {epoch: handle.device for epoch, handle in stage.generation.handles.items()} == {1: "cuda", 2: "cuda:1"}
    stage.send(7)
    for epoch in (1, 2):
        stage.engines[epoch].die()
    stage.turn()
    stage.turn()
    last = stage.engines[max(stage.engines)]
    assert last.start["device"] == "cpu"
    last.ready()
    stage.turn()
    assert stage.generation.active is not None and stage.generation.active.last_resort
    stage.send(8)
    stage.turn(S)
    again = stage.engines[max(stage.engines)]
    assert again.start["device"] == "cuda"
    again.ready()
    stage.turn()
    assert stage.generation.active.epoch == again.epoch and not stage.generation.active.last_resort
    assert stage.let_go == [([[8]], "an engine of the pair serves again")]
