"""The bounded drain keeps frames fresh: a slow engine gets the newest frame, however many lie in ZeroMQ's queues.

A camera ten times as fast as the engine, over a real PUB/SUB socket. High-water marks do not help (they drop the
newest, and the kernel's buffers hold more); reading everything before each dispatch does. The last test takes that out.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from line import ROW, Line

from orind.ipc.source import Source

FRAMES_A_STEP = 10
STEPS = 40
LAG_MAX = 2 * FRAMES_A_STEP
"""In frames, at the median: what came within the step, and within one more where the machine was late."""


class Race:
    """The camera sends ten frames while the engine works at one; -> how far behind the newest each served frame was."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.line = Line(cameras={"live": {"model": "m", "deadline_ms": 60_000, "priority": "best_effort"}})
        self.source = Source(self.context, "sub", f"ipc://{folder}/live", slot_bytes=8192)
        self.camera = self.context.socket(zmq.XPUB)
        self.camera.linger, self.camera.sndhwm = 0, 1000
        self.camera.connect(self.source.endpoint)
        tries = 0
        while not self.camera.poll(20):  # a SUB that is bound subscribes when it is looked at
            assert self.source.drain() == [] and tries < 500, "no subscription"
            tries += 1
        self.line.engine()
        self.sent = 0

    def send(self) -> None:
        for _ in range(FRAMES_A_STEP):
            header = {"v": 1, "seq": self.sent, "encoding": "mono8", "width": 4, "height": 2}
            self.camera.send_multipart([b"live", json.dumps(header).encode(), bytes(8)])
            self.sent += 1

    def turn(self, limit: int | None) -> None:
        """As main's: read what is there (or only so much), then dispatch."""
        line = self.line
        line.now += 1_000_000
        for raw in self.source.drain() if limit is None else self.source.drain(limit):
            line.pipeline.receive(self.source, raw, line.now)
        line.pipeline.dispatch(line.now)

    def run(self, limit: int | None = None) -> list[int]:
        lags = []
        engine, handle = self.line.engines[0], self.line.handles[0]
        for _ in range(STEPS):
            self.send()
            time.sleep(0.005)  # for ZeroMQ's thread; where that is late, a frame counts to the next step
            self.turn(limit)
            engine.hear()
            order = engine.batches[0]
            engine.answer(order, [ROW])
            self.line.hear(handle)
            lags.append(self.sent - 1 - self.line.published[-1]["seq"])
        return lags

    def close(self) -> None:
        self.camera.close()
        self.source.close()
        self.context.term()
        self.line.check()
        self.line.close()


@pytest.fixture
def race(tmp_path: Path, no_fd_leak: None) -> Iterator[Race]:
    made = Race(tmp_path)
    yield made
    made.close()


def test_the_engine_gets_the_newest_frame(race: Race) -> None:
    lags = race.run()
    served = [r["seq"] for r in race.line.published if r["outcome"] == "ok"]
    assert served == sorted(served)
    assert len(served) == STEPS and statistics.median(lags) <= LAG_MAX


def test_without_the_drain_frames_grow_older_and_older(race: Race) -> None:
    lags = race.run(limit=1)
    assert lags[-1] > STEPS * (FRAMES_A_STEP - 2) / 2 and statistics.median(lags) > 4 * LAG_MAX
