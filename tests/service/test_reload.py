"""Reload, versions by share and rollback, seen from outside the real daemon."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import built_plans
import harness
import pytest

from orind.ipc.control import ControlClient
from orind.ipc.errors import ControlError


def test_versions_by_share_and_back_to_what_served_before(folder: Path, identity: Path) -> None:
    models = {"v1": {"plan": str(identity)}, "v2": {"plan": str(identity)}}
    before = {"models": models, "cameras": {"line1": {"model": "v1"}}}
    with harness.Service(folder, before) as service, service.client() as camera:
        where = ["--run-dir", str(service.run_dir)]
        nothing = service.orind("rollback", *where)
        assert (nothing.returncode, nothing.stdout.count("there is nothing to go back to")) == (1, 1)
        service.configure({"models": models, "cameras": {"line1": {"model": {"v1": 3, "v2": 1}}}})
        assert service.reload()["ok"]
        for seq in range(40):
            camera.send(built_plans.identity_tensor(4, seq), "tensor")
        answers = camera.wait_all(30)
        assert [a.outcome for a in answers] == ["ok"] * 40
        versions = {a.seq: a.model for a in answers}
        assert Counter(versions.values()) == {"v1": 30, "v2": 10}
        blocks = [[versions[seq] for seq in range(first, first + 4)] for first in range(0, 40, 4)]
        assert all(block.count("v2") == 1 for block in blocks)
        status = service.status()
        assert {name: model["frames"] for name, model in status["models"].items()} == {
            "v1": {"ok": 30}, "v2": {"ok": 10},
        }
        back = service.orind("rollback", "--wait", *where)
        assert (back.returncode, back.stdout) == (0, "generation 3 serves what generation 1 served\n"), back.stderr
        for seq in range(8):
            camera.send(built_plans.identity_tensor(4, seq), "tensor")
        assert Counter(a.model for a in camera.wait_all(30)) == {"v1": 8}
        status = service.status()
        assert str(service.config_path) in status["reload"]["differs"] in status["health"]["reasons"]
        assert service.reload()["ok"] and service.reload()["ok"]
        assert service.orind("rollback", "--wait", *where).returncode == 0
        assert service.status()["reload"]["differs"] == "", "the file says what served before"
        assert harness.account_gap(status) == 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def named(pids: list[int], name: str) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            found += [pid] if Path(f"/proc/{pid}/comm").read_text().strip() == name else []
    return found


class Waiting(threading.Thread):
    """A client that waits for its reload. `answer` is empty where the daemon ended without one."""

    def __init__(self, service: harness.Service) -> None:
        super().__init__()
        self.answer: dict[str, Any] = {}
        self._client = ControlClient(service.run_dir / "control")
        self.start()

    def run(self) -> None:
        with self._client as client:
            try:
                self.answer = client.request({"op": "reload", "wait": True}, 30.0)
            except ControlError:
                self.answer = {}


def await_stage(stage: str, service: harness.Service) -> None:
    """Until the checker is there, or the new engines are, beside the two that serve."""
    (nursery,) = children(service.pid)
    there: Callable[[], list[int]] = lambda: children(nursery)  # noqa: E731
    begun = {"checking": lambda: named(there(), "orind-checker"), "starting": lambda: len(there()) > 3}
    service.wait_for(lambda _: begun[stage]() or service.status()["generation"] > 1, stage)


@pytest.mark.parametrize("stage", ["checking", "starting"])
def test_a_stop_during_a_reload_answers_everybody_and_ends_with_0(folder: Path, identity: Path, stage: str) -> None:
    config = {"models": {"v1": {"plan": str(identity)}}, "cameras": {"line1": {"model": "v1"}}}
    with harness.Service(folder, config) as service, service.client() as camera:
        for seq in range(20):
            camera.send(built_plans.identity_tensor(4, seq), "tensor")
        service.wait_for(lambda s: s["frames"]["received"] == 20, "20 frames received")
        waiting = Waiting(service)
        await_stage(stage, service)
        service.send_signal(signal.SIGTERM)
        assert [a.outcome for a in camera.wait_all(30)] == ["ok"] * 20
        assert service.wait_exit() == 0
        waiting.join(30)
    assert waiting.answer["result"] in ("refused: the daemon is draining", "generation 2 serves")


def test_the_death_of_the_nursery_during_a_reload_ends_everything_and_says_so(folder: Path, identity: Path) -> None:
    config = {"models": {"v1": {"plan": str(identity)}}, "cameras": {"line1": {"model": "v1"}}}
    with harness.Service(folder, config) as service:
        (nursery,) = children(service.pid)
        waiting = Waiting(service)
        await_stage("starting", service)
        watched = [os.pidfd_open(pid) for pid in children(nursery)]
        os.kill(nursery, signal.SIGKILL)
        assert service.wait_exit() != 0
        service.kill()
        waiting.join(30)
        for fd in watched:
            assert select.select([fd], [], [], 10.0)[0], "an engine outlived the nursery"
            os.close(fd)
    assert not waiting.answer or waiting.answer["result"] in ("refused: the daemon ends", "generation 2 serves")
    assert "the nursery process ended" in service.log()
