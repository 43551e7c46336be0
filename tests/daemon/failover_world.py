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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stand_ins import MS, Camera, S, config, frame

from orind.daemon import status
from orind.daemon.config import Config
from orind.daemon.decode_pool import DecodePool
from orind.daemon.engine_handle import Batch, EngineHandle, Launcher, ResultLayout
from orind.daemon.faults import Fault
from orind.daemon.generation import Generation
from orind.daemon.ledger import Ledger
from orind.daemon.orders import Fence, Retire
from orind.daemon.pipeline import Pipeline
from orind.daemon.plans import ServedPlan
from orind.daemon.retired import Retired
from orind.daemon.standing import Standing
from orind.ipc import engine_messages as messages
from orind.ipc.channel import Received
from orind.ipc.clock import StampPolicy
from orind.ipc.engine_messages import Answer
from orind.ipc.message_text import Kind
from orind.ipc.slots import SlotRing
from orind.ipc.source import RawFrame
from orind.kernels.model import Interface
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

START_NS = 1_000 * S
FAULTS_NS, HEALED_NS = 3 * S, 30 * S
BEAT_NS, WATCHDOG_MS, DEADLINE_MS, WINDOW_S = 100 * MS, 400, 200, 5
ENGINE = {
    "heartbeat_missed_ms": 150, "batch_watchdog_ms": WATCHDOG_MS, "golden_interval_s": 1, "golden_timeout_ms": 300,
    "ready_timeout_s": 0.6, "restart_window_s": WINDOW_S,
}
BUDGETS = (0, 2, 6, 1000)
CAMERAS = {
    "cam": {"model": "m", "deadline_ms": DEADLINE_MS},
    "live": {"model": "m", "deadline_ms": DEADLINE_MS, "priority": "best_effort"},
}
CONFIGS = [config(cameras=CAMERAS, engine={**ENGINE, "restart_budget": n}) for n in BUDGETS]
CONFIGS += [
    config(cameras=CAMERAS, engine={**ENGINE, "device": "cuda", "restart_budget": n}, standby={"last_resort": "cpu"})
    for n in BUDGETS
]
RING = SlotRing(8, 8192)
PLAN = ServedPlan(
    "m", -1, "m.plan", "00", 1, ModelSpec("m", "detect", ("a",), (1,), InputSpec(), DecoderSpec(kind="yolo")),
    Interface("int8", (8, 8, 3), 100, 6, ()),
)
KINDS = (
    "die", "signal", "report", "hang", "pause", "wrong", "unproven", "slow", "slow", "garbage", "miscount", "deaf",
    "bad rows",
)


READY = messages.pack_ready(0)


@dataclass
class Account:
    """What a generation has lost, counted by the test itself. `in_a_row`: without a ready engine in between."""

    budget: int
    free: int = 2
    losses: list[int] = field(default_factory=list)
    in_a_row: int = 0
    starts: int = 0

    def lose(self, now_ns: int) -> None:
        self.losses.append(now_ns)
        self.in_a_row += 1

    def over(self) -> bool:
        """Whether ever more were lost within the window than the budget allows."""
        pairs = zip(self.losses, self.losses[self.budget :], strict=False)
        return any(b - a <= WINDOW_S * S for a, b in pairs)

    def allows(self, now_ns: int) -> bool:
        """Whether an engine may be started now: one of the first, or within the budget and after the back-off."""
        self.starts += 1
        if self.starts <= self.free:
            return True
        wait_ns = min(100 * MS << (self.in_a_row - 2), 10 * S) if self.in_a_row > 1 else 0
        return not self.over() and (not self.losses or now_ns >= self.losses[-1] + wait_ns)


class Wire:
    """An engine's channel: what main sends is with the engine at once, what it sends waits until main reads it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.to_main: list[bytes] = []
        self.ended = self.closed = False

    def fileno(self) -> int:
        return 2 * self._engine.epoch

    def send(self, data: bytes) -> bool:
        assert not self.closed, "a fenced engine is sent nothing"
        return self._engine.take(data)

    def recv_all(self) -> Received:
        taken, self.to_main = self.to_main, []
        if READY in taken:
            self._engine.account.in_a_row = 0
        return Received(taken, self.ended)

    def close(self) -> None:
        self.closed = True


class Rows:
    """The result area: a row of zeros for every object, or a number that is none."""

    def __init__(self) -> None:
        self.fill = 0.0

    def read(self, area: int, position: int, batch: int, count: int, width: int) -> NDArray[np.float32]:
        return np.full((count, width), self.fill, np.float32)

    def close(self) -> None:
        """Nothing is mapped."""


class Engine(EngineHandle):
    """Main's handle and the process behind it in one. `fault`: what was done to it, '' while it is healthy."""

    def __init__(self, world: World, epoch: int, account: Account, device: str) -> None:
        self.account = account
        self.wire, self.memory = Wire(self), Rows()
        super().__init__(epoch, self.wire, 2 * epoch + 1, self.memory, device, 2)  # type: ignore[arg-type]
        self.world, self.fault, self.alive, self.hung = world, "", True, False
        self.wrong = self.unproven = self.deaf = self.miscounts = False
        self.factor = 1
        self.free_ns = self.spoke_ns = world.now
        self.inbox: list[bytes] = []
        self.working: messages.Batch | None = None
        self.pipe = ""

    # -- main's side ---------------------------------------------------------------------------------------------

    def fence(self) -> None:
        assert not self.in_flight, "its frames were taken back"
        self.wire.close()
        self.alive = False

    def read_fault_pipe(self) -> str:
        text, self.pipe = self.pipe, ""
        return text

    # -- the process ---------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> bool:
        if self.deaf or not self.alive:
            return False
        message = messages.unpack(data)
        if isinstance(message, messages.Batch):
            self.world.received(self)
        self.inbox.append(data)
        self.work()
        return True

    def say(self, data: bytes) -> None:
        if self.alive and not self.hung:
            self.spoke_ns = self.world.now
            self.wire.to_main.append(data)

    def begin(self) -> None:
        """It loads and checks itself, says so, and beats from then on."""

        def ready() -> None:
            if self.alive and not self.hung:
                self.say(READY)
                beat()

        def beat() -> None:
            if self.alive:
                silent_ns = self.world.now - self.spoke_ns
                if not self.working and silent_ns >= BEAT_NS:
                    self.say(messages.pack_heartbeat(0))
                self.world.at(BEAT_NS - silent_ns if silent_ns < BEAT_NS else BEAT_NS, beat)

        self.world.at(self.world.rng.randrange(20, 300) * MS, ready)

    def work(self) -> None:
        """Take the next message, if nothing is being done and anything can be."""
        if self.working is not None or not self.inbox or self.hung or not self.alive:
            return
        message = messages.unpack(self.inbox.pop(0))
        rng = self.world.rng
        if isinstance(message, messages.Batch):
            self.working, begin_ns = message, self.world.now
            poison = self.world.poison.get(message.frames[0].length)
            if poison is not None:
                self.world.at(MS, lambda: self.suffer(poison))
                self.fault = self.fault or poison
            else:
                self.world.at(rng.randrange(2, 15) * MS * self.factor, lambda: self.answer(message, begin_ns))
        elif isinstance(message, messages.Notice) and message.kind is Kind.CHECK:
            self.world.at(rng.randrange(2, 40) * MS, self.prove)

    def prove(self) -> None:
        if not self.unproven:
            self.say(messages.pack_golden(0, not self.wrong, "step 3" if self.wrong else ""))
        self.work()

    def answer(self, batch: messages.Batch, begin_ns: int) -> None:
        if not self.alive:
            return
        if self.hung:  # stopped in the midst of it: it goes on from there, if ever
            self.world.at(20 * MS, lambda: self.answer(batch, begin_ns))
            return
        frames = [messages.FrameAnswer(messages.STATUS_OK, 1)] * (len(batch.frames) + self.miscounts)
        times = (begin_ns, begin_ns, begin_ns, self.world.now)
        self.say(messages.pack_answer(Answer(batch.batch_id, batch.epoch, batch.area, *times, tuple(frames))))
        self.working = None
        self.work()

    def suffer(self, kind: str) -> None:
        """One of KINDS happens to it."""
        if not self.alive:
            return
        self.fault = self.fault or kind
        if kind in ("die", "signal", "report"):
            if kind == "signal":
                self.pipe = "Fatal Python error: Segmentation fault"
            if kind == "report":
                self.say(messages.pack_fault(0, "GPU fault: illegal address"))
            self.alive = False
            self.world.at(self.world.rng.randrange(20) * MS, lambda: setattr(self.wire, "ended", True))
        elif kind in ("hang", "pause"):
            self.hung = True
            if kind == "pause":
                self.world.at(self.world.rng.randrange(600) * MS, self.resume)
        elif kind == "garbage":
            self.say(b"\1\2\3")
        elif kind == "slow":
            self.factor = self.world.rng.randrange(10, 30)
        elif kind == "bad rows":
            self.memory.fill = float("nan")
        else:
            setattr(self, {"miscount": "miscounts"}.get(kind, kind), True)

    def resume(self) -> None:
        self.hung = False
        self.work()


class Starts(Launcher):
    """Starts the engines of one generation, or does not."""

    def __init__(self, world: World) -> None:
        budget = world.config.engine.restart_budget
        self.world, self.pair, self.last_resort = world, Account(budget), Account(budget, free=1)

    def launch(
        self,
        config: Config,
        device: str,
        plan_fds: Sequence[int],
        layout: ResultLayout,
        on_failed: Callable[[int, str], None],
    ) -> EngineHandle:
        world = self.world
        account = self.pair if device == config.engine.device else self.last_resort
        assert account is self.pair or self.pair.losses, "the last resort comes after a loss"
        assert account.allows(world.now), "no start beyond the budget, nor before its time"
        fate = world.rng.random() if world.faulty() else 1.0
        if fate < 0.05:
            account.lose(world.now)
            raise OSError("no memory")
        engine = world.engines[len(world.engines) + 1] = Engine(world, len(world.engines) + 1, account, device)
        if fate < 0.10:
            engine.fault = "not started"
            world.at(world.rng.randrange(30) * MS, lambda: on_failed(engine.epoch, "no memory"))
        else:
            engine.begin()
            if fate < 0.25:
                kind = world.rng.choice(("die", "report", "hang"))
                world.at(world.rng.randrange(200) * MS, lambda: engine.suffer(kind))
        return engine


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
