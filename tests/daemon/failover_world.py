"""A daemon in simulated time: the real machine, generation and pipeline, with engines that die, hang, lie and crawl.

`World(seed).run()` plays one random schedule of frames, faults, failed starts, a main that is late, and reloads, then
lets everything heal. It asserts as it goes. No process, no socket and no clock is used: a schedule takes milliseconds.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from failover_engines import (
    CONFIGS,
    DEADLINE_MS,
    FAULTS_NS,
    HEALED_NS,
    KINDS,
    PLAN,
    RING,
    START_NS,
    WATCHDOG_MS,
    Engine,
    Starts,
)
from stand_ins import MS, Camera, config, frame

from orind.daemon import status
from orind.daemon.decode_pool import DecodePool
from orind.daemon.engine_handle import Batch, EngineHandle
from orind.daemon.faults import Fault
from orind.daemon.generation import Generation
from orind.daemon.ledger import Ledger
from orind.daemon.orders import Fence, Retire
from orind.daemon.pipeline import Pipeline
from orind.daemon.retired import Retired
from orind.daemon.standing import Standing
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.source import RawFrame


class World:
    """Main, as `daemon.py` wires it, and everything around it."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now = self.paired_ns = START_NS
        self.stamps = StampPolicy()
        self.config = rng.choice(CONFIGS)
        self.deaths_max = 2 + (self.config.standby.last_resort == "cpu")
        self.watched: dict[int, Callable[[int], object]] = {}
        self.engines: dict[int, Engine] = {}
        self.events: list[tuple[int, int, Callable[[], object]]] = []
        self.order = itertools.count()
        self.socket: list[tuple[int, RawFrame]] = []
        self.poison: dict[int, str] = {}  # length of the frame -> what it does to an engine
        self.answers: dict[int, tuple[str, int]] = {}
        self.given: dict[int, int] = {}
        self.blamed: Counter[int] = Counter()
        self.fences: list[tuple[int, Fence]] = []
        self.stalled_until = self.stalled_ns = self.renewals = 0
        self.ledger, self.retired = Ledger(), Retired()
        self.camera = Camera()
        self.decoders = DecodePool(None, None, RING, config(decode={"workers": 0}).decode)  # type: ignore[arg-type]
        self.generation = self.new_generation(1)
        self.next_generation: Generation | None = None
        self.pipeline = Pipeline(self.generation.serving(), RING, self.ledger, self.decoders, self.publish)

    def new_generation(self, number: int) -> Generation:
        plan = replace(PLAN, fd=os.open(os.devnull, os.O_RDONLY))
        return Generation(number, self.config, [plan], Starts(self), self, self, self.stamps)

    def at(self, delay_ns: int, event: Callable[[], object]) -> None:
        heapq.heappush(self.events, (self.now + delay_ns, next(self.order), event))

    def faulty(self) -> bool:
        return self.now - START_NS < FAULTS_NS

    # -- what generations ask of main ----------------------------------------------------------------------------

    def watch(self, fd: int, call: Callable[[int], object]) -> None:
        self.watched[fd] = call

    def forget(self, fd: int) -> None:
        del self.watched[fd]

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        self.pipeline.answered(engine, batch, answer, now_ns)

    def fenced(self, generation: Generation, batches: list[Batch], order: Fence | Retire, now_ns: int) -> None:
        engine = self.engines[order.epoch]
        if isinstance(order, Retire):
            assert not batches or engine.last_resort, "a worn engine goes at a moment without work"
            self.replay(generation, batches, order)
            return
        assert order.reason and all(known.epoch != order.epoch for _, known in self.fences), "fenced once"
        slow = order.fault is Fault.SLOW
        assert engine.fault or slow, f"a healthy engine was given up: {order}"
        self.fences.append((now_ns, order))
        if order.fault.blames_frames:
            self.blamed.update(f.seq for b in batches if b.delivered for f in b.frames if f.seq is not None)
        engine.account.lose(now_ns)
        machine = generation.machine
        said = machine.last_resort_restarts.failed if engine.last_resort else machine.failed
        assert bool(said) or not engine.account.over(), "out of restarts is said"
        assert not (slow and generation.machine.failed), "slowness never takes the last restart"
        self.replay(generation, batches, order)

    def replay(self, generation: Generation, batches: list[Batch], order: Fence | Retire) -> None:
        self.pipeline.replay(batches, order, self.now)
        if generation is self.generation:
            self.pipeline.active = generation.active

    def promoted(self, generation: Generation, now_ns: int) -> None:
        assert generation.active is not None and not generation.active.wire.closed  # type: ignore[attr-defined]
        if generation is self.generation:
            self.pipeline.active = generation.active

    def received(self, engine: Engine) -> None:
        """A batch reaches an engine: it must be the one and only active one of the generation that serves."""
        assert engine is self.pipeline.active and engine is self.generation.active
        standings = [e.standing for e in self.generation.machine.engines.values()]
        assert standings.count(Standing.ACTIVE) == 1 and self.generation.machine.active == engine.epoch

    # -- frames --------------------------------------------------------------------------------------------------

    def give(self) -> None:
        """A trigger, now and then one that ends every engine that looks at it; each has a length of its own."""
        seq = len(self.given)
        self.given[seq] = 0
        if self.rng.random() < 0.01:
            self.poison[seq + 1] = self.rng.choice(("die", "signal", "report", "hang"))
        camera = "live" if self.rng.random() < 0.2 else "cam"
        raw = frame(seq, camera, width=seq + 1, height=1, payload=bytes(seq + 1))
        self.socket.append((seq, raw))

    def publish(self, parts: list[bytes]) -> None:
        said: dict[str, Any] = json.loads(parts[1])
        seq = said["seq"]
        assert seq not in self.answers, "one outcome each"
        assert said["outcome"] == "ok" or said["reason"]
        late_ns = self.now - self.given[seq] - DEADLINE_MS * MS
        assert late_ns <= 2 * WATCHDOG_MS * MS + self.stalled_ns + 20 * MS, f"{seq} waited {late_ns / 1e6} ms too long"
        if said["reason"] and "engines died of it" in said["reason"]:
            assert self.blamed[seq] >= self.deaths_max
        self.answers[seq] = (said["outcome"], self.now)

    # -- time ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        rng = self.rng
        self.generation.start(self.now)
        self.at(400 * MS, lambda: self.frames_every(rng.randrange(8, 60) * MS))
        for _ in range(rng.choice((1, 3, 10))):
            self.at(rng.randrange(FAULTS_NS), self.strike)
        if rng.random() < 0.3:
            self.at(rng.randrange(FAULTS_NS), self.reload)
        if rng.random() < 0.3:
            self.at(rng.randrange(FAULTS_NS), self.wear)
        while not self.over():
            self.turn()
        self.judge()

    def frames_every(self, period_ns: int) -> None:
        if self.faulty():
            self.give()
            self.at(period_ns, lambda: self.frames_every(period_ns))

    def strike(self) -> None:
        """Something happens to an engine, to both, or to main."""
        rng = self.rng
        living = [e for e in self.engines.values() if e.alive]
        if rng.random() < 0.1:
            stall_ns = rng.randrange(1500) * MS  # main sleeps; everybody else goes on
            self.stalled_until, self.stalled_ns = self.now + stall_ns, self.stalled_ns + stall_ns
            return
        for engine in living if rng.random() < 0.2 else rng.sample(living, min(1, len(living))):
            engine.suffer(rng.choice(KINDS))

    def wear(self) -> None:
        """The memory of an engine becomes fragmented: it is sound, but is to be renewed."""
        for epoch in self.generation.handles:
            self.generation.machine.wear(epoch, "in pieces")

    def reload(self) -> None:
        if self.next_generation is None:
            self.next_generation = self.new_generation(self.generation.number + 1)
            self.next_generation.start(self.now)

    def turn(self) -> None:
        """As `Daemon.turn`: read what is there, dispatch, judge."""
        self.live(self.now + (10 if self.faulty() or self.ledger.in_flight else 50) * MS)
        while self.now < self.stalled_until:
            self.live(self.stalled_until)
        for seq, raw in self.socket:
            self.given[seq] = self.now
            self.pipeline.receive(self.camera, raw, self.now)
        self.socket.clear()
        for engine in list(self.engines.values()):
            if engine.wire.closed:
                continue
            if engine.pipe:
                self.watched[engine.fault_fd](self.now)
            elif engine.wire.to_main or engine.wire.ended:
                self.watched[engine.fd](self.now)
        self.pipeline.dispatch(self.now)
        active = self.pipeline.active
        if active is not None and not active.broken:
            assert active.in_flight or not len(self.pipeline.queues), "frames wait, an engine has nothing to do"
        self.generation.tick(self.now)
        self.retired.tick(self.now)
        self.advance_reload()
        for generation in filter(None, (self.generation, self.next_generation)):
            ready = any(e.standing is Standing.READY for e in generation.machine.engines.values())
            assert not ready or generation.active is not None, "who is ready serves"
        self.see_proofs()
        assert status.frames_held(self) == self.ledger.in_flight, "every trigger is somewhere"  # type: ignore[arg-type]

    def see_proofs(self) -> None:
        """Who serves has answered its golden input rightly a moment ago, wherever another one could relieve it."""
        machine = self.generation.machine
        if self.pipeline.active is None or not machine.standby_ready(self.now) or self.now <= self.stalled_until:
            self.paired_ns = self.now
            return
        proof_ns = machine.engines[self.pipeline.active.epoch].golden_ns
        # the interval, and the time until a standby that answers no check is given up
        assert self.now - max(proof_ns, self.paired_ns) <= (1000 + 300 + 50) * MS, "an engine serves unproved"

    def live(self, until_ns: int) -> None:
        """Everything but main goes on until then."""
        while self.events and self.events[0][0] <= until_ns:
            self.now, _, event = heapq.heappop(self.events)
            event()
        self.now = until_ns

    def advance_reload(self) -> None:
        generation = self.next_generation
        if generation is None:
            return
        generation.tick(self.now)
        if generation.machine.all_ready():
            self.retired.add(self.generation)
            self.generation, self.next_generation = generation, None
            self.pipeline.active = generation.active
            self.pipeline.change_generation(generation.serving(), self.now)
        elif generation.machine.failed:
            generation.close()
            self.next_generation = None

    # -- the end -------------------------------------------------------------------------------------------------

    def healed(self) -> bool:
        machine = self.generation.machine
        if machine.failed and machine.rules.last_resort and not machine.last_resort_restarts.failed:
            return self.generation.active is not None
        return bool(machine.failed) or machine.standby_ready(self.now)

    def over(self) -> bool:
        if self.now - START_NS > HEALED_NS:
            return True
        return not self.faulty() and not self.ledger.in_flight and self.healed() and self.next_generation is None

    def judge(self) -> None:
        assert self.healed(), "when the faults end, a standby is ready again or it is said why not"
        assert sorted(self.answers) == sorted(self.given), "every trigger has its outcome"
        assert self.ledger.in_flight == 0 and RING.free == RING.count
        assert max(self.blamed.values(), default=0) <= self.deaths_max, "a frame is blamed for no more engines"
        slow = [at for at, order in self.fences if order.fault is Fault.SLOW]
        assert len(slow) <= self.generation.number, "one in a window that is longer than the faults"
        self.renewals = self.generation.machine.renewals
        self.generation.close()
