"""The main process: wiring, the loop, and what it does on each event. No CUDA, no YAML, no spawning, no blocking.

`Daemon._open` is the start list, `close` the same backwards. Invariant: within one turn all sockets are read (bounded)
before anything is dispatched or judged overdue, so the newest frame is known and a late main kills no engine.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..ipc import meminfo
from ..ipc.clock import StampPolicy
from ..ipc.control import Request
from ..ipc.engine_messages import Answer
from ..ipc.slots import SlotRing
from ..ipc.source import Source
from ..ipc.stats_page import StatsWriter
from . import footprint, realtime, status, version
from .candidate import Candidate, PowerTables
from .config import Config
from .control_desk import ControlDesk, Reply
from .decode_pool import DecodePool
from .descriptors import Descriptors, raise_limit
from .endpoints import Endpoints
from .engine_handle import Batch, EngineHandle, Launcher
from .generation import Generation
from .http_link import HttpLink
from .leaks import LeakWatch
from .ledger import Ledger
from .notify import ServiceManager
from .nursery_client import NurseryClient
from .orders import Fence, Retire
from .pipeline import Pipeline
from .poller import Poller
from .power_link import PowerLink
from .reloading import Reloading
from .retired import Retired, Tally
from .signals import SignalInbox

log = logging.getLogger("orind")
TURN_MAX_NS = 20_000_000
TICK_NS = 5_000_000  # judging and reporting need not keep up with frames


class Daemon:
    """Everything that main owns."""

    def __init__(
        self,
        path: str,
        candidate: Candidate,
        signals: SignalInbox,
        nursery: NurseryClient,
        poller: Poller,
        manager: ServiceManager,
    ) -> None:
        """Raises EndpointError, IpcError, RealtimeError or OSError with what to do."""
        self.pid, self.path, self.version = os.getpid(), path, version.installed()
        self.draining = self._ready = False
        self.last_failover: dict[str, Any] = {}
        self._numbers = self._loops = self._busy_ns = self._next_tick_ns = self._drain_deadline_ns = 0
        self._page, self._collector = status.Page(), realtime.IdleCollector()
        self.retired, self._started_with = Retired(), candidate.config
        self._signals = signals
        self.nursery = nursery
        self._poller = poller
        self._manager = manager
        with ExitStack() as opened:  # also after a failure: a ZeroMQ context that is merely forgotten can hang the exit
            self._open(path, candidate, opened)
            self._opened = opened.pop_all()

    def _open(self, path: str, candidate: Candidate, stack: ExitStack) -> None:
        """The start list; what each step opens is closed in reverse."""
        nursery, poller, opened, config = self.nursery, self._poller, stack.callback, candidate.config
        run_dir = Path(config.run_dir)
        self.ring = SlotRing(config.slots.count, config.slots.bytes, sealed=not config.decode.workers)
        opened(self.ring.close)
        self.ledger = Ledger()
        self.stamps = StampPolicy()
        self.leaks = LeakWatch(config.memory.leak_minutes)
        nursery.on_usage, nursery.on_ended = self.leaks.note_process, self.leaks.ended
        self.stats = StatsWriter()
        opened(self.stats.close)
        opened(nursery.close)
        self.endpoints = Endpoints(config.slots.bytes, self._manager.sockets)
        opened(self.endpoints.close)
        self.descriptors = Descriptors(config, self.endpoints, raise_limit())
        self.endpoints.open(config)
        self._control = ControlDesk(run_dir / "control", poller, self._on_request)
        opened(self._control.close)
        self.http = HttpLink(config.http, nursery, poller, self.stats)
        opened(self.http.close)
        self._launcher = Launcher(nursery, self.ring, lambda: self.generation.active is not None)
        self.generation = self.new_generation(candidate)
        opened(lambda: self.generation.close())  # whichever it is by then
        opened(self.retired.close)
        self.decoders = DecodePool(nursery, poller, self.ring, config.decode)
        serving = self.generation.serving()
        self.pipeline = Pipeline(serving, self.ring, self.ledger, self.decoders, self.endpoints.publish)
        self.decoders.receiver = self.pipeline
        opened(self.decoders.close)
        self.power = PowerLink(nursery, poller, self.stats, run_dir)
        opened(self.power.close)
        self.power.configure(candidate.power, config.power_root, config.cameras)
        self.reloading = Reloading(self, nursery, poller, path, candidate.power)
        opened(self.reloading.close)
        poller.watch(self._signals.fd, self._on_signal)
        poller.watch(nursery.channel.fileno(), lambda _: nursery.on_readable())
        self.generation.start(time.monotonic_ns())
        realtime.apply(config.realtime)
        nursery.main_cpus = config.realtime.cpus

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until drained. Returns the exit code."""
        wait_ns = 0
        while not self._finished():
            wait_ns = self.turn(wait_ns)
        return 0

    def turn(self, wait_ns: int) -> int:
        """Read what is there, dispatch, judge. Waits at most `wait_ns`; returns how long the next turn may wait."""
        for call in self._poller.wait(min(wait_ns, TURN_MAX_NS)):
            call(time.monotonic_ns())
        now_ns = time.monotonic_ns()
        wait_ns = self.pipeline.dispatch(now_ns) or TURN_MAX_NS
        self._loops += 1
        if now_ns < self._next_tick_ns and not self.generation.broken():
            return min(wait_ns, self._next_tick_ns - now_ns)
        self._next_tick_ns = now_ns + TICK_NS
        self._tick(now_ns)
        return wait_ns

    def _tick(self, now_ns: int) -> None:
        self.nursery.tick(now_ns)
        self.generation.tick(now_ns)
        self.retired.tick(now_ns)
        self.decoders.tick(now_ns)
        self.reloading.tick(now_ns)
        self.power.tick(now_ns)
        self.http.tick(now_ns)
        self._control.tick(now_ns)
        self.descriptors.tick(now_ns)
        self.power.restrain(self.pipeline, now_ns)
        at_work_ns = self.generation.running_ns(now_ns) + self.retired.running_ns(now_ns)
        self.stats.write_counters(self._busy_ns + at_work_ns, now_ns, self._loops)
        if self._page.tick(self, now_ns):
            self.stamps.refresh()
            for handle in self.generation.handles.values():
                self.leaks.note_device(handle.device, self.generation.memory.device_free(handle.epoch), now_ns)
        self._collector.tick(self.ledger.in_flight, now_ns)
        self._manager.alive(now_ns)

    # -- events --------------------------------------------------------------------------------------------------

    def _on_frames(self, source: Source, _: int) -> None:
        for raw in source.drain():
            self.pipeline.receive(source, raw, time.monotonic_ns())

    def _on_signal(self, now_ns: int) -> None:
        for number in self._signals.take():
            if number in (signal.SIGTERM, signal.SIGINT):
                self.drain(f"signal {number.name}", now_ns)
            elif number is signal.SIGUSR2:
                self.reloading.request("reload", None)

    def _on_request(self, request: Request, reply: Reply, now_ns: int) -> None:
        if request.op == "status":
            reply(status.with_latency(status.build(self, now_ns)))
        elif request.op in ("reload", "rollback"):
            refusal = self.reloading.request(request.op, reply if request.wait else None)
            if not request.wait:
                reply({"ok": not refusal, "result": refusal or f"{request.op} requested", "problems": [], "notes": []})
        elif request.op == "power":
            reply(self.power.ask(request, now_ns))
        else:
            self.drain("asked for on the control socket", now_ns)
            reply({"ok": True, "result": "draining"})

    # -- what generations report: a lost engine's frames go back before anybody gets new ones --------------------

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        self._busy_ns += (busy_ns := engine.take_busy_ns())
        self.power.energy.ran(batch.plan.model, [frame.camera for frame in batch.frames], busy_ns)
        self.pipeline.answered(engine, batch, answer, now_ns)

    def fenced(self, generation: Generation, batches: list[Batch], order: Fence | Retire, now_ns: int) -> None:
        self.pipeline.replay(batches, order, now_ns)
        if isinstance(order, Fence) and order.was_active:
            self.last_failover = status.describe_failover(self.tally.failovers, batches, order, now_ns)
        if generation is self.generation:
            self.pipeline.active = generation.active

    def promoted(self, generation: Generation, now_ns: int) -> None:
        if generation is self.generation:
            self.pipeline.active = generation.active
            if not self._ready:
                self._begin_service()

    def _begin_service(self) -> None:
        """A golden answer was right: take frames from now on."""
        self._ready = True
        self.endpoints.watch(self._poller, self._on_frames)
        self._manager.ready(f"serving generation {self.generation.number}")
        log.info("serving")

    # -- what a reload asks --------------------------------------------------------------------------------------

    def afford(self, candidate: Candidate) -> None:
        """Raises OSError, IpcError where one generation more has no room: descriptors, memory, their number."""
        self.descriptors.afford(candidate.config)
        self.retired.check_room()
        footprint.check(candidate, meminfo.room())

    def new_generation(self, candidate: Candidate) -> Generation:
        """Raises IpcError where it contradicts what only a restart can change."""
        self._numbers += 1
        config = candidate.config.running_on(self._started_with)
        return Generation(self._numbers, config, candidate.plans, self._launcher, self._poller, self, self.stamps)

    def open(self, config: Config) -> list[str]:
        """Open the endpoints that are new. Returns what only a restart can apply of it, and what it newly gives up."""
        return self.endpoints.open(config) + config.reload_notes(self._started_with, self.generation.config)

    def switch(self, generation: Generation, power: PowerTables, now_ns: int) -> None:
        """The new generation takes the next frame; the old one answers what it has and ends."""
        old, self.generation = self.generation, generation
        self.retired.add(old)
        self.pipeline.active = generation.active
        self.pipeline.change_generation(generation.serving(), now_ns)
        self.descriptors.adopt(generation.config)
        self.leaks.adopt(generation.config.memory.leak_minutes)
        self.power.configure(power, generation.config.power_root, generation.config.cameras)
        if self._ready:
            self.endpoints.watch(self._poller, self._on_frames)
        else:
            self._begin_service()

    def reload_began(self) -> None:
        self._manager.reloading()

    def reload_ended(self, result: str) -> None:
        """systemd wants READY=1 after every reload, a refused one too."""
        if self._ready:
            state = self.state(time.monotonic_ns())
            self._manager.ready(f"{state}, generation {self.generation.number}; reload: {result}")

    @property
    def tally(self) -> Tally:
        return self.retired.tally.with_machine(self.generation.machine)

    # -- the end -------------------------------------------------------------------------------------------------

    def state(self, now_ns: int) -> str:
        """starting, serving, degraded, recovering (nobody serves at the moment), draining or failed."""
        machine = self.generation.machine
        if self.draining:
            return "draining"
        if self.generation.active is None:
            return "failed" if machine.failed else "recovering" if self._ready else "starting"
        return "serving" if machine.standby_ready(now_ns) else "degraded"

    def drain(self, reason: str, now_ns: int) -> None:
        """Stop taking frames; what was received is answered within the configured time."""
        if self.draining:
            return
        log.info("draining: %s", reason)
        self.draining = True
        self._drain_deadline_ns = now_ns + int(self.generation.config.stop.drain_timeout_s * 1e9)
        self.endpoints.forget(self._poller)
        self.reloading.abandon("refused: the daemon is draining", now_ns)
        self._manager.stopping(f"draining, {self.ledger.in_flight} frames without an answer")

    def _finished(self) -> bool:
        if not self.draining or not self.ledger.in_flight:
            return self.draining
        now_ns = time.monotonic_ns()
        if now_ns < self._drain_deadline_ns and not (self.generation.machine.failed and self.generation.active is None):
            return False
        self._drop_all("shutting down", now_ns)
        return True

    def _drop_all(self, text: str, now_ns: int) -> None:
        self.pipeline.drop_all(self.generation.take_in_flight() + self.retired.take_in_flight(), text, now_ns)

    def close(self) -> None:
        """The start list backwards. After a fault frames are still in flight: they are answered first."""
        try:
            if self.ledger.in_flight:
                self._drop_all("the daemon ends by a fault", time.monotonic_ns())
        finally:
            log.info("ended: %s", self.ledger.in_words())
            self._opened.close()
