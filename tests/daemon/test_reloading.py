"""A reload step by step: the checker's answer, the new engines, the switch, and every way in which it is refused."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import zmq
from stand_ins import EngineStandIn, Processes, S, config, turn

from orind.daemon.config import Config
from orind.daemon.engine_handle import Batch, EngineHandle, Launcher
from orind.daemon.generation import Generation
from orind.daemon.orders import Fence
from orind.daemon.plans import ServedPlan
from orind.daemon.poller import Poller
from orind.daemon.reloading import CHECK_TIMEOUT_NS, WAITING_MAX, Reloading
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.errors import ChannelError, EndpointError
from orind.ipc.fd_passing import send_with_fds
from orind.ipc.slots import SlotRing
from orind.kernels.spec import ModelSpec

GOOD: dict[str, Any] = {
    "problems": [],
    "config": config().model_dump(),
    "power": None,
    "plans": [{
        "name": "m", "path": "m.plan", "sha256": "ab", "bytes": 9, "spec": ModelSpec.for_tensor("m").to_json(),
        "interface": {"input_dtype": "uint8", "input_shape": [4], "rows_max": 4, "row_width": 1, "tensor_shape": [4]},
    }],
}  # fmt: skip
MISTAKES = ["a.yaml:3: x: unknown key", "a.yaml:9: y"]
BAD: dict[str, Any] = {"problems": MISTAKES, "config": None, "power": None, "plans": []}


class Main:
    """The host of reloads: notes what is asked of it."""

    def __init__(self) -> None:
        self.now = 10 * S
        self.poller, self.processes = Poller(), Processes()
        self.ring = SlotRing(4, 4096)
        self.reloading = Reloading(self, self.processes, self.poller, "/etc/orind.yaml")
        self.notes: list[str] = []
        self.in_use = ""
        self.number = 1
        self.switched: list[Generation] = []
        self.began = 0
        self.ended: list[str] = []
        self.replies: list[dict[str, Any]] = []
        self.engines: list[EngineStandIn] = []

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        raise AssertionError("nothing was sent")

    def fenced(self, generation: Generation, batches: list[Batch], order: Fence, now_ns: int) -> None:
        assert not batches

    def promoted(self, generation: Generation, now_ns: int) -> None:
        """`switch` asks who is active."""

    def new_generation(self, made: Config, plans: list[ServedPlan]) -> Generation:
        self.number += 1
        launcher = Launcher(self.processes, self.ring)
        return Generation(self.number, made, plans, launcher, self.poller, self, StampPolicy())

    def prepare(self, made: Config) -> list[str]:
        if self.in_use:
            raise EndpointError(self.in_use)
        return self.notes

    def switch(self, generation: Generation, power: dict[str, Any] | None, now_ns: int) -> None:
        self.switched.append(generation)

    def reload_began(self) -> None:
        self.began += 1

    def reload_ended(self, result: str) -> None:
        self.ended.append(result)

    def reply(self, fields: Mapping[str, Any]) -> None:
        self.replies.append(dict(fields))

    def ask(self, wait: bool = True) -> None:
        self.reloading.request(self.reply if wait else None, self.now)

    def check_answers(self, answer: dict[str, Any]) -> None:
        """Play the checker that was started last."""
        started = self.processes.of("checker")[-1]
        assert started.arguments == ["/etc/orind.yaml"]
        blob = os.memfd_create("answer")
        os.write(blob, json.dumps(answer).encode())
        fds = [blob, *(os.memfd_create("plan") for _ in answer["plans"])]
        with socket.socket(fileno=os.dup(started.fds[0])) as channel:
            send_with_fds(channel, {"op": "checked"}, fds)
        for fd in fds:
            os.close(fd)
        started.close()
        self.turn()

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.reloading.tick(self.now)
        for started in self.processes.of("engine"):
            if started.fds:
                self.engines.append(EngineStandIn(started))

    def close(self) -> None:
        for generation in self.switched:
            generation.close()
        for engine in self.engines:
            engine.die()
        self.processes.close()
        self.ring.close()


@pytest.fixture
def main(no_fd_leak: None) -> Iterator[Main]:
    made = Main()
    yield made
    made.close()


def test_a_good_configuration_is_switched_to_when_both_engines_are_ready(main: Main) -> None:
    main.notes = ["slots has changed, which takes effect at the next restart"]
    main.ask()
    assert main.reloading.running and main.began == 1
    main.turn()
    main.check_answers(GOOD)
    assert len(main.engines) == 2 and not main.switched
    main.engines[0].ready()
    main.turn()
    assert not main.switched
    main.engines[1].ready()
    main.turn()
    (generation,) = main.switched
    assert generation.number == 2 and [p.path for p in generation.plans] == ["m.plan"]
    assert main.replies == [{"ok": True, "result": "generation 2 serves", "problems": [], "notes": main.notes}]
    assert main.ended == ["generation 2 serves"] and not main.reloading.running
    assert (main.reloading.requested, main.reloading.done) == (1, 1)


def test_a_bad_configuration_changes_nothing_and_every_mistake_is_told(main: Main) -> None:
    main.ask()
    main.check_answers(BAD)
    (reply,) = main.replies
    assert not reply["ok"] and reply["problems"] == BAD["problems"]
    assert main.ended == ["refused, nothing has changed: a.yaml:3: x: unknown key"]
    assert main.reloading.done == 0 and not main.engines


def test_an_endpoint_in_use_refuses_the_reload_and_main_lives(main: Main) -> None:
    main.in_use = "endpoint tcp://*:5555 cannot be bound: it is in use by another process"
    main.ask()
    main.check_answers(GOOD)
    assert main.replies == [
        {"ok": False, "result": "refused, nothing has changed", "problems": [main.in_use], "notes": []}
    ]
    assert not main.reloading.running and not main.engines


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        zmq.ZMQError(errno.EMFILE),
        ChannelError("message of 70000 bytes"),
    ],
)
@pytest.mark.parametrize("where", ["prepare", "start", "new_generation", "spawn"])
def test_whatever_cannot_be_opened_refuses_the_reload_and_main_lives(
    main: Main, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    owner = {"start": Generation, "spawn": Processes}.get(where, Main)
    with monkeypatch.context() as short:
        if where == "spawn":
            short.setattr(owner, where, fail)
        main.ask()
        if where != "spawn":
            short.setattr(owner, where, fail)
            main.check_answers({**GOOD, "plans": []} if where == "new_generation" else GOOD)
    (reply,) = main.replies
    assert (reply["ok"], reply["result"]) == (False, "refused, nothing has changed")
    assert str(error.strerror if isinstance(error, OSError) else error) in reply["problems"][0]
    assert not main.reloading.running and len(main.ended) == 1
    main.ask()
    main.check_answers(BAD)
    assert main.replies[1]["problems"] == MISTAKES


def test_texts_of_a_checker_are_bounded_in_reply_and_status(main: Main) -> None:
    main.ask()
    main.check_answers({**BAD, "problems": ["x" * 300_000] + ["y\nz"] * 99})
    (reply,) = main.replies
    assert len(reply["problems"]) == 51 and reply["problems"][-1] == "and 50 more"
    assert max(map(len, reply["problems"])) == 500 and reply["problems"][1] == "y z"
    assert len(main.ended[0]) <= 500 and main.reloading.result == main.ended[0]


@pytest.mark.parametrize("answer", ["garbage", "no blob", "huge"])
def test_an_answer_that_cannot_be_read_refuses_the_reload(main: Main, answer: str) -> None:
    main.ask()
    started = main.processes.of("checker")[-1]
    blob = os.memfd_create("answer")
    os.write(blob, b"{")
    with socket.socket(fileno=os.dup(started.fds[0])) as channel:
        if answer == "huge":
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            channel.send(bytes(70_000))
        else:
            send_with_fds(channel, {}, [blob] if answer == "garbage" else [])
    os.close(blob)
    main.turn()
    assert "answer cannot be read" in main.replies[0]["problems"][0] and started.killed


def test_those_who_wait_for_the_next_reload_are_bounded(main: Main) -> None:
    for _ in range(1 + WAITING_MAX + 1):
        main.ask()
    assert [r.get("error", "")[:5] for r in main.replies] == ["busy:"]
    main.check_answers(BAD)
    main.check_answers(BAD)
    assert len(main.replies) == 1 + 1 + WAITING_MAX


def test_a_checker_that_dies_refuses_the_reload(main: Main) -> None:
    main.ask()
    main.processes.of("checker")[-1].close()
    main.turn()
    assert "ended without an answer" in main.replies[0]["problems"][0]


def test_a_checker_that_cannot_be_started_or_hangs_refuses_the_reload(main: Main) -> None:
    main.ask()
    child = main.processes.of("checker")[-1].child
    assert child.on_failed is not None
    child.on_failed("no memory")
    main.turn()
    assert main.replies[0]["problems"] == ["no memory"]
    main.ask()
    main.turn(CHECK_TIMEOUT_NS)
    assert len(main.replies) == 1
    main.turn(1)
    assert main.replies[1]["problems"] == ["checking took longer than 60 s"]
    assert main.processes.of("checker")[-1].killed, "it may hang for ever"
    main.processes.of("checker")[-1].child.on_failed = None
    child.on_failed("again")  # too late, ignored


def test_engines_that_are_not_ready_in_time_refuse_the_reload(main: Main) -> None:
    main.ask()
    main.check_answers(GOOD)
    main.turn(60 * S)
    assert main.replies == []
    main.turn(1)
    assert main.replies[0]["result"] == "refused, nothing has changed: its engines were not ready in time"
    assert all(started.killed for started in main.processes.of("engine"))


def test_engines_that_die_refuse_the_reload(main: Main) -> None:
    main.ask()
    main.check_answers(GOOD)
    while not main.replies:
        for engine in main.engines:
            engine.die()
        main.turn(S // 10)
    assert "engines lost within 60 s" in main.replies[0]["result"] and not main.switched


def test_requests_during_a_reload_lead_to_exactly_one_more(main: Main) -> None:
    main.ask()
    main.ask()
    main.ask(wait=False)
    main.ask()
    main.check_answers(BAD)
    assert len(main.replies) == 1 and main.reloading.running and main.began == 2
    main.check_answers(BAD)
    assert len(main.replies) == 3 and not main.reloading.running and main.reloading.requested == 4


def test_a_drain_tells_everybody_who_waits(main: Main) -> None:
    main.reloading.abandon("refused: draining", main.now)
    assert main.ended == []
    main.ask()
    main.ask()
    main.check_answers(GOOD)
    main.reloading.abandon("refused: draining", main.now)
    assert [r["result"] for r in main.replies] == ["refused: draining"] * 2
    assert not main.reloading.running and main.began == 1
