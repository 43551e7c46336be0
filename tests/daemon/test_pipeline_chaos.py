"""Random schedules of everything that can happen to frames: the sums hold after every event."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from line import ROW, Line
from stand_ins import MS, DecoderStandIn, config, turn

from orind.ipc.engine_messages import Batch as Order


class Chaos:
    """Thousands of random events; after each of them the sums hold, in the end every trigger has one outcome."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.line = Line(slots=self.rng.choice([4, 8, 24]), batching={"max_size": 4, "window_ms": 5})
        self.workers: list[DecoderStandIn] = []
        self.orders: list[Order] = []
        self.seq = 0
        self.sent: list[tuple[int, str, int | None]] = []
        self.generation = 1

    def step(self) -> None:
        rng, line = self.rng, self.line
        line.now += rng.choice([0, 0, MS, 5 * MS, 30 * MS, 200 * MS if rng.random() < 0.1 else MS])
        event = rng.random()
        if event < 0.45:
            self.send()
        elif event < 0.70:
            self.engine_answers()
        elif event < 0.80:
            self.decoder_works()
        elif event < 0.82 and line.handles:
            line.kill()
            self.orders.clear()
        elif event < 0.88 and not line.handles:
            line.engine()
        elif event < 0.885:
            self.reload()
        elif event < 0.89 and self.workers:
            self.workers.pop().die()
        else:
            line.decoders.tick(line.now)
            for started in line.processes.of("decoder"):
                if started.fds:
                    self.workers.append(DecoderStandIn(started))
                    self.workers[-1].hello()
        turn(line.poller, line.now)
        line.pipeline.dispatch(line.now)
        line.check()
        assert line.ledger.in_flight <= line.ring.count
        assert line.ring.count - line.ring.free <= line.ledger.in_flight + len(line.decoders._workers)

    def send(self) -> None:
        rng, line = self.rng, self.line
        if self.sent and rng.random() < 0.1:
            seq, camera, stamp = rng.choice(self.sent[-20:])
            line.give(seq, camera, ts_ns=stamp)
            return
        self.seq += 1
        camera = rng.choice(["cam", "live", "live", "nobody"])
        stamp = rng.choice([None, line.now])
        if stamp is not None and camera != "nobody":
            self.sent.append((self.seq, camera, stamp))
        jpeg = {"encoding": "jpeg", "payload": b"x"} if rng.random() < 0.3 else {}
        line.give(self.seq, camera, ts_ns=stamp, deadline_ms=rng.choice([5, 50, 400]), **jpeg)

    def engine_answers(self) -> None:
        line, rng = self.line, self.rng
        if not line.handles:
            return
        stand_in = line.engines[-1]
        self.orders += stand_in.hear()
        if self.orders:
            order = self.orders.pop(0)
            rows = ["bad number" if rng.random() < 0.1 else ROW for _ in order.frames]
            stand_in.answer(order, rows, took_ns=rng.randrange(1, 40) * MS)
            line.hear(line.handles[-1])

    def decoder_works(self) -> None:
        for worker in self.workers:
            for job in worker.hear() and list(worker.jobs):
                if self.rng.random() < 0.8:
                    worker.answer(job, text="broken" if self.rng.random() < 0.2 else "")

    def reload(self) -> None:
        self.generation += 1
        cameras = {"cam": {"model": "m", "deadline_ms": 500}}
        if self.rng.random() < 0.7:
            cameras["live"] = {"model": "m2", "deadline_ms": 300, "priority": "best_effort"}
        made = config(models={"m": {"plan": "m"}, "m2": {"plan": "m"}}, cameras=cameras, batching={"max_size": 4})
        self.line.pipeline.change_generation(self.line.serving(made, self.generation), self.line.now)

    def end(self) -> None:
        line = self.line
        batches = [b for h in line.handles for b in h.take_in_flight()]
        line.pipeline.drop_all(batches, "shutting down", line.now)
        line.check()
        ledger = line.ledger
        assert ledger.in_flight == 0 and ledger.received == sum(ledger.outcomes.values())
        once = Counter(r["seq"] for r in line.published if not r.get("repeated"))
        assert set(once) == set(range(1, self.seq + 1)) and sum(once.values()) == ledger.received
        assert len(line.camera.replies) == ledger.received + ledger.repeated
        assert all(ledger.outcomes[name] for name in ("ok", "stale", "rejected", "expired", "error", "dropped"))
        for worker in self.workers:
            worker.die()
        line.close()


@pytest.mark.parametrize("seed", range(4))
def test_sums_hold_after_every_event_of_a_random_schedule(seed: int, no_fd_leak: None) -> None:
    chaos = Chaos(seed)
    for _ in range(6000):
        chaos.step()
    chaos.end()
