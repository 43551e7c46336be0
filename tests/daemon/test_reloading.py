"""A reload step by step: the checker's answer, the new engines, the switch, and every way in which it is refused."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from reload_host import BAD, GOOD, MISTAKES, Main
from stand_ins import Processes, S

from orind.daemon.config_check import CHECK_TIMEOUT_NS
from orind.daemon.generation import Generation
from orind.daemon.reloading import WAITING_MAX
from orind.ipc.engine_messages import pack_fault
from orind.ipc.errors import ChannelError
from orind.ipc.fd_passing import send_with_fds


@pytest.fixture
def main(no_fd_leak: None) -> Iterator[Main]:
    made = Main()
    yield made
    made.close()


def test_a_good_configuration_is_switched_to_when_both_engines_are_ready(main: Main) -> None:
    main.notes = ["slots has changed, which takes effect at the next restart"]
    main.ask()
    assert main.reloading.running and main.began == 1
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
    assert main.ended == ["refused, nothing has changed (2 mistakes, all in the log): a.yaml:3: x: unknown key"]
    assert main.reloading.done == 0 and not main.engines


def test_an_endpoint_in_use_refuses_the_reload_and_main_lives(main: Main) -> None:
    """It is opened when everything else is there: nobody is left bound but unserved."""
    main.in_use = "endpoint tcp://*:5555 cannot be bound: it is in use by another process"
    main.ask()
    main.serve(GOOD)
    assert main.replies == [
        {"ok": False, "result": "refused, nothing has changed", "problems": [main.in_use], "notes": []}
    ]
    assert not main.reloading.running and not main.switched
    assert all(started.killed for started in main.processes.of("engine"))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        zmq.ZMQError(errno.EMFILE),
        ChannelError("message of 70000 bytes"),
    ],
)
@pytest.mark.parametrize("where", ["open", "afford", "start", "new_generation", "spawn"])
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
            main.check_answers(GOOD)
        if where == "open":
            main.be_ready()
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
    main.turn()
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
    assert child.on_failed is None, "nobody is told any more, and no circle of references is left"


def test_engines_that_are_not_ready_in_time_refuse_the_reload(main: Main) -> None:
    main.ask()
    main.check_answers(GOOD)
    main.turn(60 * S)
    assert main.replies == []
    main.turn(1)
    assert main.ended == [
        "refused, nothing has changed: a new engine was lost before it served: not ready within 60.0 s"
    ]
    assert all(started.killed for started in main.processes.of("engine"))


@pytest.mark.parametrize("ready", [False, True])
def test_an_engine_that_dies_before_the_switch_refuses_the_reload(main: Main, ready: bool) -> None:
    """At once and with what it said: the budget of restarts is for what serves."""
    main.ask()
    main.check_answers(GOOD)
    if ready:
        main.engines[0].ready()
        main.turn()
    main.engines[0].say(pack_fault(0, "golden check failed: step 3"))
    main.turn()
    assert main.ended == [
        "refused, nothing has changed: a new engine was lost before it served: it reports: golden check failed: step 3"
    ]
    assert not main.switched and all(started.killed for started in main.processes.of("engine"))
    assert len(main.processes.of("engine")) == 2, "none is started again"


def test_a_spawn_that_fails_refuses_the_reload(main: Main) -> None:
    main.ask()
    main.check_answers(GOOD)
    failed = main.processes.of("engine")[1].child.on_failed
    assert failed is not None
    failed("cannot start engine: no memory")
    main.turn()
    assert main.ended[0].endswith("lost before it served: cannot start engine: no memory")


def test_requests_before_the_checker_starts_are_one_reload_and_during_it_exactly_one_more(main: Main) -> None:
    for wait in (True, False, True):
        main.reloading.request("reload", main.reply if wait else None)
    main.turn()
    assert main.began == 1
    for wait in (True, False, False, True, True):
        main.ask(wait)
    main.check_answers(BAD)
    assert len(main.replies) == 2 and not main.reloading.running
    main.turn()
    assert main.reloading.running and main.began == 2
    for _ in range(3):
        main.check_answers(BAD) if main.reloading.running else main.turn()
    assert len(main.replies) == 5 and main.reloading.requested == 8 and main.began == 2
    assert len(main.processes.of("checker")) == 2


def test_requests_in_every_stage_lead_to_one_more(main: Main) -> None:
    main.ask()
    main.ask()
    main.check_answers(GOOD)
    main.ask()
    main.be_ready()
    assert main.generation.number == 2
    main.ask(wait=False)
    main.serve(GOOD)
    main.turn()
    assert main.generation.number == 3 and not main.reloading.running
    assert [r["result"] for r in main.replies] == ["generation 2 serves", *["generation 3 serves"] * 2]


@pytest.mark.parametrize("stage", ["asked", "checking", "engines"])
def test_a_drain_in_any_stage_tells_everybody_who_waits_and_who_comes_later(main: Main, stage: str) -> None:
    main.reloading.request("reload", main.reply)
    if stage != "asked":
        main.turn()
        main.ask()
    if stage == "engines":
        main.check_answers(GOOD)
    main.reloading.abandon("refused: draining", main.now)
    main.ask()
    main.ask(op="rollback")
    waited = 1 if stage == "asked" else 2
    assert [r["result"] for r in main.replies] == ["refused: draining"] * (waited + 2)
    assert not main.reloading.running and main.began == (stage != "asked")
    assert all(started.killed for started in main.processes.of("engine"))


# -- back to what served before ------------------------------------------------------------------------------------


def made(name: str, power: dict[str, Any] | None = None, sha256: str = "aa") -> dict[str, Any]:
    """A good answer with a plan of this name."""
    return {**GOOD, "power": power, "plans": [{**GOOD["plans"][0], "path": name, "sha256": sha256}]}


def test_a_rollback_serves_what_served_before_the_last_good_reload(main: Main) -> None:
    main.ask()
    main.serve(made("first.plan", {"mode": "a"}))
    main.ask()
    second = main.serve(made("second.plan"))
    main.ask()
    main.check_answers(BAD)
    assert main.reloading.can_roll_back and not main.reloading.differs
    (held,) = [os.fstat(plan.fd).st_ino for plan in second.plans]
    main.ask(op="rollback")
    assert main.reloading.running and len(main.processes.of("checker")) == 3, "what was kept was checked before"
    main.turn()
    back = main.be_ready()
    (plan,) = back.plans
    assert (back.number, plan.path, main.powers[-1]) == (4, "first.plan", {"mode": "a"})
    assert os.fstat(plan.fd).st_ino != held
    assert main.replies[-1]["result"] == "generation 4 serves what generation 2 served"
    assert (main.reloading.done, main.reloading.rollbacks) == (2, 1)
    assert "/etc/orind.yaml may say otherwise" in main.reloading.differs
    main.ask(op="rollback")
    assert "nothing to go back to" in main.replies[-1]["result"]
    main.ask()
    main.check_answers(BAD)
    assert main.reloading.differs, "a refused reload changes nothing"
    main.ask()
    main.serve(made("third.plan"))
    assert not main.reloading.differs and main.reloading.can_roll_back
    main.ask(op="rollback")
    main.turn()
    assert main.be_ready().plans[0].path == "first.plan"


@pytest.mark.parametrize(
    ("mode", "sha256", "warned"), [("a", "aa", False), ("b", "aa", True), ("a", "bb", True)]
)
def test_a_rollback_to_what_the_file_says_too_is_no_difference(
    main: Main, mode: str, sha256: str, warned: bool
) -> None:
    main.ask()
    main.serve(made("m.plan", {"mode": "a"}, "aa"))
    main.ask()
    main.serve(made("m.plan", {"mode": mode}, sha256))
    main.ask(op="rollback")
    main.turn()
    main.be_ready()
    assert main.reloading.rollbacks == 1 and bool(main.reloading.differs) is warned


def test_a_rollback_is_refused_where_nothing_is_kept_or_a_reload_is_under_way(main: Main) -> None:
    main.ask(op="rollback")
    main.ask()
    main.ask(op="rollback")
    main.check_answers(BAD)
    assert [r["result"].partition(": ")[2] for r in main.replies[:2]] == [
        "there is nothing to go back to: no reload has taken effect since the start or the last rollback",
        "a reload is under way, ask again when it is over",
    ]
    assert not main.engines


def test_a_rollback_whose_engines_cannot_serve_changes_nothing_and_can_be_tried_again(main: Main) -> None:
    main.ask()
    main.serve(made("first.plan"))
    main.ask()
    second = main.serve(made("second.plan"))
    main.ask(op="rollback")
    main.turn()
    main.engines[-1].die()
    main.turn()
    assert not main.replies[-1]["ok"] and main.generation is second
    main.short = "the new engines need more memory than there is"
    main.ask(op="rollback")
    main.turn()
    assert main.ended[-1] == f"refused, nothing has changed: {main.short}"
    main.short = ""
    main.ask(op="rollback")
    main.ask()
    main.turn()
    assert main.be_ready().plans[0].path == "first.plan"
    main.turn()
    assert main.reloading.running, "the reload that was asked for meanwhile"


def test_a_rollback_without_descriptors_changes_nothing(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    main.ask()
    main.serve(made("first.plan"))

    def none_left(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    main.ask()
    main.serve(made("second.plan"))
    with monkeypatch.context() as short:
        short.setattr(os, "dup", none_left)
        main.ask(op="rollback")
        main.turn()
    assert main.replies[-1]["problems"] == ["Too many open files"]
    assert main.reloading.can_roll_back
