"""A generation and its owner, with engines that the test plays."""

from __future__ import annotations

import os

import numpy as np
from stand_ins import EngineStandIn, Processes, S, config, turn

from orind.daemon.engine_handle import Batch, EngineHandle, Launcher
from orind.daemon.faults import Fault
from orind.daemon.generation import Generation
from orind.daemon.orders import Fence, Retire
from orind.daemon.plans import ServedPlan
from orind.daemon.poller import Poller
from orind.daemon.trigger import Trigger
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.slots import SlotRing
from orind.kernels.model import Interface
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

DETECT = ModelSpec("m", "detect", ("a",), (1, 4), InputSpec(), DecoderSpec(kind="yolo"))
ROW = np.ones((1, 6), np.float32)
BUDGET = {"engine": {"restart_budget": 2, "golden_interval_s": 6, "ready_timeout_s": 5}}


class Stage:
    """A generation and its owner."""

    def __init__(self) -> None:
        self.now = 100 * S
        self.poller, self.processes = Poller(), Processes()
        self.ring = SlotRing(8, 8192)
        interface = Interface("int8", (8, 8, 3), 100, 6, ())
        plan = ServedPlan("m", os.memfd_create("plan"), "m.plan", "00", 1, DETECT, interface)
        self.generation = Generation(
            1, config(**BUDGET), [plan], Launcher(self.processes, self.ring), self.poller, self, StampPolicy()
        )
        self.answers: list[tuple[int, list[int | None]]] = []
        self.lost: list[tuple[list[list[int | None]], Fault, str]] = []
        self.slowdown = 1.0
        self.let_go: list[tuple[list[list[int | None]], str]] = []
        self.active: list[int] = []
        self.engines: dict[int, EngineStandIn] = {}

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        batch.slowdown = self.slowdown
        self.answers.append((engine.epoch, [f.seq for f in batch.frames]))

    def fenced(self, generation: Generation, batches: list[Batch], order: Fence | Retire, now_ns: int) -> None:
        assert generation.active is None or generation.active.epoch != order.epoch
        if isinstance(order, Retire):
            self.let_go.append(([[f.seq for f in b.frames] for b in batches], order.reason))
            return
        self.lost.append(([[f.seq for f in b.frames] for b in batches], order.fault, order.reason))

    def promoted(self, generation: Generation, now_ns: int) -> None:
        assert generation.active is not None
        self.active.append(generation.active.epoch)

    def start(self) -> None:
        self.generation.start(self.now)
        self.meet()

    def meet(self) -> None:
        for started in self.processes.of("engine"):
            if started.fds:
                made = EngineStandIn(started)
                self.engines[made.epoch] = made

    def serve(self) -> None:
        """Both ready: 1 active, 2 standby."""
        self.start()
        for engine in self.engines.values():
            engine.ready()
            self.turn()
        self.active.clear()

    def turn(self, passed_ns: int = 0) -> None:
        self.now += passed_ns
        turn(self.poller, self.now)
        self.generation.tick(self.now)
        self.meet()

    def beat(self, *but: int) -> None:
        for epoch, engine in self.engines.items():
            if epoch not in but and engine.alive and epoch in self.generation.handles:
                engine.beat()

    def send(self, seq: int, deadline_ns: int = 1_000 * S, replayed: bool = False) -> None:
        frame = Trigger("cam", seq, None, None, "arrival", self.now, encoding="mono8", width=1, height=1, length=1)
        frame.deadline_ns, frame.replayed = deadline_ns, replayed
        frame.slot = self.ring.take()
        assert self.generation.active is not None
        self.generation.active.send_batch(self.generation.serving().plans["m"], 1, [frame], self.now)

    def close(self) -> None:
        self.generation.close()
        for engine in self.engines.values():
            engine.die()
        self.processes.close()
        self.ring.close()
