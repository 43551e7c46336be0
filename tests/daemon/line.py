"""`Line`: a pipeline with everything real but the processes, and engines that a test plays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from stand_ins import MS, Camera, DecoderStandIn, EngineStandIn, Processes, S, config, frame, turn

from orind.daemon.answers import Labels
from orind.daemon.config import Config
from orind.daemon.decode_pool import DecodePool
from orind.daemon.engine_handle import Batch, EngineHandle, Launcher, PlanView, ResultLayout
from orind.daemon.faults import Fault
from orind.daemon.intake import Intake
from orind.daemon.ledger import Ledger
from orind.daemon.orders import Fence
from orind.daemon.pipeline import Pipeline
from orind.daemon.poller import Poller
from orind.daemon.sections import Decode
from orind.daemon.serving_rules import Serving, batch_rule, relief_policy
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.slots import SlotRing

START = 5_000 * S
ROW = np.array([[1, 2, 3, 4, 0.5, 0]], np.float32)


class Line:
    """Pipeline, ring, decode pool and as many engines as the test starts."""

    def __init__(self, slots: int = 8, **changes: Any) -> None:
        self.now = START
        self.config = config(slots={"count": slots, "bytes": 8192}, **changes)
        self.processes = Processes()
        self.poller = Poller()
        self.ring = SlotRing(slots, 8192)
        self.ledger = Ledger()
        self.launcher = Launcher(self.processes, self.ring)
        workers = self.config.decode.workers
        self.decoders = DecodePool(self.processes, self.poller, self.ring, Decode(workers=workers, timeout_ms=1000.0))
        self.published: list[dict[str, Any]] = []
        self.rows: list[bytes] = []
        self.pipeline = Pipeline(self.serving(self.config, 1), self.ring, self.ledger, self.decoders, self.publish)
        self.decoders.receiver = self.pipeline
        self.camera = Camera()
        self.handles: list[EngineHandle] = []
        self.engines: list[EngineStandIn] = []

    def serving(self, made: Config, number: int) -> Serving:
        sizes = tuple(n for n in (1, 4) if n <= made.batching.max_size)
        plans = {
            name: PlanView(index, name, sizes, Labels("detect", ("part",)), 6, number, served.plan)  # its path tells it
            for index, (name, served) in enumerate(made.models.items())
        }
        rule, policy = batch_rule(made.batching), relief_policy(made)
        return Serving(number, Intake(made, {}, StampPolicy()), rule, made.engine.queue_depth, plans, policy)

    def publish(self, parts: list[bytes]) -> None:
        self.published.append(json.loads(parts[1]))
        self.rows.append(b"".join(parts[2:]))

    def engine(self) -> EngineStandIn:
        """Start one and make it the active one."""
        handle = self.launcher.launch(self.config, "cpu", [], ResultLayout(4, 60, 1), lambda epoch, text: None)
        stand_in = EngineStandIn(self.processes.of("engine")[-1])
        self.handles.append(handle)
        self.engines.append(stand_in)
        self.pipeline.active = handle
        return stand_in

    def decoder(self) -> DecoderStandIn:
        self.decoders.tick(self.now)
        worker = DecoderStandIn(self.processes.of("decoder")[-1])
        worker.hello()
        turn(self.poller, self.now)
        return worker

    def give(self, seq: int, camera: str = "cam", **header: Any) -> None:
        self.pipeline.receive(self.camera, frame(seq, camera, **header), self.now)

    def hear(self, handle: EngineHandle) -> None:
        """As a generation does: what the engine has said goes to the pipeline."""
        for message in handle.receive():
            assert isinstance(message, Answer)
            batch = handle.complete(message, self.now)
            if batch is not None:
                self.pipeline.answered(handle, batch, message, self.now)

    def serve(self, took_ns: int = 5 * MS) -> None:
        """The active engine answers all it has."""
        stand_in, handle = self.engines[-1], self.handles[-1]
        for order in stand_in.hear():
            stand_in.answer(order, [ROW] * len(order.frames), took_ns=took_ns)
        self.hear(handle)

    def kill(self, reason: str = "SIGSEGV", fault: Fault = Fault.DIED) -> list[Batch]:
        """As a generation does at a fence: take back, forget, replay."""
        handle, stand_in = self.handles.pop(), self.engines.pop()
        batches = handle.take_in_flight()
        self.pipeline.active = None
        handle.fence()
        stand_in.die()
        self.pipeline.replay(batches, Fence(handle.epoch, fault, reason), self.now)
        return batches

    def outcomes(self) -> list[tuple[int, str]]:
        return [(r["seq"], r["outcome"]) for r in self.published]

    def check(self) -> None:
        """Every trigger has its outcome or is somewhere."""
        ledger = self.ledger
        held = sum(len(batch.frames) for handle in self.handles for batch in handle.in_flight.values())
        assert ledger.received - sum(ledger.outcomes.values()) == held + len(self.decoders) + len(self.pipeline.queues)
        assert len(self.published) - ledger.repeated <= ledger.received

    def close(self) -> None:
        for handle in self.handles:
            handle.fence()
        for stand_in in self.engines:
            stand_in.die()
        self.decoders.close()
        self.processes.close()
        self.ring.close()
