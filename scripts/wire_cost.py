"""CPU time of main and engine for a frame that only passes through, against a bare ROUTER loop in the same run.

Used by bench_cpu; run by itself (`wire_cost.py ENDPOINT REPLY.json`) it is the bare loop, the floor. Closed loop: one
DEALER client, one frame under way, daemon and floor in turn. Invariant: a frame that is not answered ok ends the run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from built_plans import PAGE_BYTES, identity_plan, identity_tensor
from figures import spread
from harness import Service, account_gap

from orind.daemon.terminal import table
from orind.ipc import wire

SIZES = (("150 KB", "small", 37, 2.0), ("1.2 MB", "large", 300, 1.4))  # name, camera, pages, aim
WARM_UP_FRAMES = 50
REPLY_TIMEOUT_MS = 20_000
SLOT_BYTES = 2 << 20


@dataclass
class Cost:
    """CPU ns a frame by round."""

    main: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    trip: list[float] = field(default_factory=list)
    bare_trip: list[float] = field(default_factory=list)


def cpu_ns(pid: int) -> int:
    """CPU time of a whole process, user and system (clock_gettime(2): the clock's id is made of the pid)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


class Camera:
    """A DEALER client that sends a frame and waits for its answer."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, camera: str, pages: int) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        tensor = identity_tensor(pages)
        self._shape = tensor.shape
        self._name, self._payload = camera.encode(), tensor.tobytes()
        self._seq = 0
        self.reply: list[bytes] = []

    def turn(self, frames: int) -> float:
        """Send and await `frames`, one at a time, -> ns a frame. Raises SystemExit when an answer is not `ok`."""
        began_ns = time.monotonic_ns()
        for _ in range(frames):
            header = wire.build_header(
                seq=self._seq, ts_ns=time.monotonic_ns(), encoding="tensor", dtype="uint8", shape=self._shape
            )
            self._seq += 1
            self._socket.send_multipart((self._name, header, self._payload), copy=False)
            if not self._socket.poll(REPLY_TIMEOUT_MS):
                raise SystemExit(f"frame {self._seq - 1} of {self._name.decode()} was not answered")
            self.reply = self._socket.recv_multipart()
            if b'"outcome":"ok"' not in self.reply[1]:
                raise SystemExit(f"a frame was not answered ok: {self.reply[1].decode()}")
        return (time.monotonic_ns() - began_ns) / frames

    def close(self) -> None:
        self._socket.close()


def measure_wire(folder: Path, rounds: int, frames: int) -> tuple[list[str], list[str]]:
    """Lines to print, and what went wrong."""
    config = {
        "models": {camera: {"plan": str(identity_plan(pages))} for _, camera, pages, _ in SIZES},
        "cameras": {camera: {"model": camera} for _, camera, _, _ in SIZES},
        "slots": {"count": 32, "bytes": SLOT_BYTES},
        "results": None,  # the floor publishes nothing either
    }
    costs = {camera: Cost() for _, camera, _, _ in SIZES}
    with Service(folder, config) as service, zmq.Context() as context:
        engine = service.active_pid()
        for _, camera, pages, _ in SIZES:
            ours = Camera(context, service.endpoint, camera, pages)
            ours.turn(WARM_UP_FRAMES)
            endpoint = f"ipc://{folder}/bare-{camera}"
            floor_process = _start_bare(folder, endpoint, ours.reply)
            floor = Camera(context, endpoint, camera, pages)
            try:
                floor.turn(WARM_UP_FRAMES)
                for _ in range(rounds):
                    _take_round(costs[camera], ours, floor, (service.pid, engine, floor_process.pid), frames)
            finally:
                floor_process.kill()
                floor_process.wait()
                floor.close()
                ours.close()
        status = service.status()
    faults = [f"{account_gap(status)} frames are unaccounted for"] if account_gap(status) else []
    if status["frames"]["ok"] != status["frames"]["received"]:
        faults.append(f"not every frame was ok: {status['frames']}")
    return _lines(costs, rounds, frames), faults


def _take_round(cost: Cost, ours: Camera, floor: Camera, pids: tuple[int, int, int], frames: int) -> None:
    """One turn of the daemon and one of the bare loop."""
    main, engine, bare = pids
    before = cpu_ns(main), cpu_ns(engine)
    cost.trip.append(ours.turn(frames))
    cost.main.append((cpu_ns(main) - before[0]) / frames)
    cost.engine.append((cpu_ns(engine) - before[1]) / frames)
    bare_before = cpu_ns(bare)
    cost.bare_trip.append(floor.turn(frames))
    cost.bare.append((cpu_ns(bare) - bare_before) / frames)


def _lines(costs: dict[str, Cost], rounds: int, frames: int) -> list[str]:
    rows = []
    for name, camera, _, aim in SIZES:
        cost = costs[camera]
        ratios = [(m + e) / b for m, e, b in zip(cost.main, cost.engine, cost.bare, strict=True)]
        trips = [a / b for a, b in zip(cost.trip, cost.bare_trip, strict=True)]
        times = [f"{statistics.median(v) / 1e3:.0f}" for v in (cost.main, cost.engine, cost.bare)]
        rows.append([name, *times, spread(ratios), f"{aim:g}", spread(trips)])
    head = ["CPU per frame, us", "main", "engine", "bare loop", "main + engine / bare", "aim", "round trip / bare"]
    return [*table(head, rows), f"median (10th-90th percentile) of {rounds} rounds of {frames} frames, closed loop"]


# -- the floor ---------------------------------------------------------------------------------------------------


def _start_bare(folder: Path, endpoint: str, reply: Sequence[bytes]) -> subprocess.Popen[bytes]:
    """The bare loop in a process of its own, answering as the daemon just did."""
    model = folder / "reply.json"
    told = {"topic": reply[0].decode(), "fields": json.loads(reply[1]), "floats": len(reply[2]) // 4}
    model.write_text(json.dumps(told))
    return subprocess.Popen([sys.executable, __file__, endpoint, str(model)], stdin=subprocess.DEVNULL)


def serve_bare(endpoint: str, reply: Path) -> None:
    """Parse the header, copy the pixels once, touch every page, send the daemon's reply. Until killed."""
    told: dict[str, Any] = json.loads(reply.read_text())
    topic, fields = told["topic"].encode(), told["fields"]
    rows = np.zeros(told["floats"], np.float32)
    slot = np.empty(SLOT_BYTES, np.uint8)
    view = slot.data
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(endpoint)
    while True:
        sender, _, header, pixels = socket.recv_multipart(copy=False)
        asked = json.loads(header.bytes)
        count = len(pixels)
        view[:count] = pixels.buffer
        touched = slot[:count:PAGE_BYTES]
        rows[: len(touched)] = touched
        fields["seq"], fields["ts_ns"] = asked["seq"], asked["ts_ns"]
        answer = json.dumps(fields, separators=(",", ":")).encode()
        socket.send_multipart([sender.bytes, topic, answer, rows.tobytes()])


if __name__ == "__main__":
    serve_bare(sys.argv[1], Path(sys.argv[2]))
