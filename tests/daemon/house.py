"""The whole daemon in one process: a camera, and engines that the test plays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from stand_ins import EngineStandIn, Processes, config

from orind.daemon.candidate import Candidate
from orind.daemon.config import Config
from orind.daemon.daemon import Daemon
from orind.daemon.notify import ServiceManager
from orind.daemon.plans import ServedPlan
from orind.daemon.poller import Poller
from orind.daemon.signals import SignalInbox
from orind.ipc.control import ControlClient
from orind.kernels.model import Interface
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

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
