"""Engines of the failover world: they die, hang, lie and crawl in simulated time, and their starts fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from stand_ins import MS, S, config

from orind.daemon.config import Config
from orind.daemon.engine_handle import EngineHandle, Launcher, ResultLayout
from orind.daemon.plans import ServedPlan
from orind.ipc import engine_messages as messages
from orind.ipc.channel import Received
from orind.ipc.engine_messages import Answer
from orind.ipc.message_text import Kind
from orind.ipc.slots import SlotRing
from orind.kernels.model import Interface
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

if TYPE_CHECKING:
    from failover_world import World

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
