"""The host of reloads as a unit test plays it, and the checker that answers it."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from stand_ins import EngineStandIn, Processes, S, Started, config, turn

from orind.daemon.candidate import Candidate
from orind.daemon.config import Config
from orind.daemon.engine_handle import Batch, EngineHandle, Launcher
from orind.daemon.generation import Generation
from orind.daemon.orders import Fence
from orind.daemon.poller import Poller
from orind.daemon.reloading import Reloading
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.errors import EndpointError
from orind.ipc.fd_passing import send_with_fds
from orind.ipc.slots import SlotRing
from orind.kernels.spec import ModelSpec

GOOD: dict[str, Any] = {
    "problems": [],
    "passing": False,
    "config": config().model_dump(),
    "power": None,
    "plans": [{
        "name": "m", "path": "m.plan", "sha256": "ab", "bytes": 9, "spec": ModelSpec.for_tensor("m").to_json(),
        "interface": {"input_dtype": "uint8", "input_shape": [4], "rows_max": 4, "row_width": 1, "tensor_shape": [4]},
        "host_bytes": 7, "device_bytes": 9,
    }],
}
MISTAKES = ["a.yaml:3: x: unknown key", "a.yaml:9: y"]
BAD: dict[str, Any] = {"problems": MISTAKES, "passing": False, "config": None, "power": None, "plans": []}


class Main:
    """The host of reloads: notes what is asked of it."""

    def __init__(self) -> None:
        self.now = 10 * S
        self.poller, self.processes = Poller(), Processes()
        self.ring = SlotRing(4, 4096)
        self.reloading = Reloading(self, self.processes, self.poller, "/etc/orind.yaml", None)
        self.notes: list[str] = []
        self.in_use = ""
        self.number = 0
        self.generation = self.new_generation(Candidate(config(), [], None))
        self.short = ""
        self.switched: list[Generation] = []
        self.powers: list[dict[str, Any] | None] = []
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

    def new_generation(self, candidate: Candidate) -> Generation:
        self.number += 1
        launcher, made = Launcher(self.processes, self.ring), candidate.config
        return Generation(self.number, made, candidate.plans, launcher, self.poller, self, StampPolicy())

    def afford(self, candidate: Candidate) -> None:
        if self.short:
            raise OSError(errno.ENOMEM, self.short)

    def open(self, made: Config) -> list[str]:
        if self.in_use:
            raise EndpointError(self.in_use)
        return self.notes

    def switch(self, generation: Generation, power: dict[str, Any] | None, now_ns: int) -> None:
        self.switched.append(generation)
        self.powers.append(power)
        self.generation.close()
        self.generation = generation

    def reload_began(self) -> None:
        self.began += 1

    def reload_ended(self, result: str) -> None:
        self.ended.append(result)

    def reply(self, fields: Mapping[str, Any]) -> None:
        self.replies.append(dict(fields))

    def ask(self, wait: bool = True, op: str = "reload") -> None:
        """Ask as a client does, and let the loop turn once."""
        self.reloading.request(op, self.reply if wait else None)
        self.turn()

    def check_answers(self, answer: dict[str, Any]) -> None:
        """Play the checker that was started last."""
        started = self.processes.of("checker")[-1]
        assert started.arguments == ["/etc/orind.yaml"]
        play_checker(started, answer)
        self.turn()

    def serve(self, answer: dict[str, Any]) -> Generation:
        """Answer the checker, have the engines ready: what is switched to."""
        self.check_answers(answer)
        return self.be_ready()

    def be_ready(self) -> Generation:
        for engine in self.engines[-2:]:
            engine.ready()
        self.turn()
        return self.generation

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.reloading.tick(self.now)
        for started in self.processes.of("engine"):
            if started.fds:
                self.engines.append(EngineStandIn(started))

    def close(self) -> None:
        self.reloading.close()
        self.generation.close()
        for engine in self.engines:
            engine.die()
        self.processes.close()
        self.ring.close()


def play_checker(started: Started, answer: dict[str, Any]) -> None:
    """Answer as the checker process does, with a memfd for each plan, and end."""
    blob = os.memfd_create("answer")
    os.write(blob, json.dumps(answer).encode())
    fds = [blob, *(os.memfd_create("plan") for _ in answer["plans"])]
    with socket.socket(fileno=os.dup(started.fds[0])) as channel:
        send_with_fds(channel, {"op": "checked"}, fds)
    for fd in fds:
        os.close(fd)
    started.close()
