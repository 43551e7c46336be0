"""One configuration in service: its plans, its engines, and the state machine that says which of them receives frames.

Made by `daemon.py` at start and at each reload; two exist side by side while a reload is under way. Carries out what
`failover.py` decides. Invariant: a fenced engine's frames are replayed before its successor gets new ones.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Protocol

from ..ipc.bounded_text import bound_text
from ..ipc.clock import StampPolicy
from ..ipc.engine_messages import Answer, Notice
from ..ipc.errors import IpcError
from ..ipc.message_text import Kind
from .answers import Labels
from .batcher import FAR_SLOWER, SLOWER
from .config import Config
from .engine_handle import Batch, EngineHandle, Launcher, PlanView, ResultLayout
from .engine_memory import EngineMemory
from .failover import TAKES_TURN, Failover
from .faults import Fault
from .intake import Intake
from .orders import Action, Check, Fence, Promote, Retire, Spawn
from .placement import NAME_CHARS_MAX, from_text, in_words
from .plans import ServedPlan
from .poller import Watcher
from .serving_rules import Serving, batch_rule, relief_policy
from .standing import Seat, rules_of

log = logging.getLogger("orind")


class Owner(Protocol):
    """Main, as a generation sees it."""

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None: ...
    def fenced(self, generation: Generation, batches: list[Batch], order: Fence | Retire, now_ns: int) -> None: ...
    def promoted(self, generation: Generation, now_ns: int) -> None: ...


class Generation:
    """Plans and engines under one configuration. `active` is the engine that receives frames, or None."""

    def __init__(
        self,
        number: int,
        config: Config,
        plans: list[ServedPlan],
        launcher: Launcher,
        watcher: Watcher,
        owner: Owner,
        stamps: StampPolicy,
    ) -> None:
        self.number = number
        self.config = config
        self.plans = plans
        self.machine = Failover(rules_of(config))
        self.handles: dict[int, EngineHandle] = {}
        self.active: EngineHandle | None = None
        self.placements: dict[str, dict[str, Any]] = {}  # by model, as the engine that loaded last has it
        self.memory = EngineMemory(config.memory)
        self._launcher = launcher
        self._watcher = watcher
        self._owner = owner
        self._stamps = stamps
        self._now_ns = 0

    def serving(self) -> Serving:
        """What the pipeline needs to serve this generation."""
        tensors = {
            p.name: (p.interface.input_dtype, (1, *p.interface.input_shape))
            for p in self.plans
            if p.spec.task == "tensor"
        }
        views = {
            p.name: PlanView(
                index, p.name, p.sizes(self.config.batching.max_size),
                Labels(p.spec.task, p.spec.labels, p.interface.tensor_shape), p.interface.row_width, self.number,
                p.sha256,
            )
            for index, p in enumerate(self.plans)
        }
        rule = batch_rule(self.config.batching)
        return Serving(
            self.number, Intake(self.config, tensors, self._stamps), rule, self.config.engine.queue_depth, views,
            relief_policy(self.config), 3 if self.config.standby.last_resort == "cpu" else 2,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._apply(self.machine.start(), now_ns)

    def tick(self, now_ns: int) -> None:
        """Let time act. Call after every socket has been read."""
        self._now_ns = now_ns
        for handle in list(self.handles.values()):
            if handle.broken or self.machine.overdue(handle.epoch, now_ns):
                self._on_readable(handle, now_ns)  # it may be main that was late: what the engine said still lies there
            if handle.epoch not in self.handles:
                continue
            if handle.broken:
                self._lose(handle, Fault.UNTRUSTED, handle.broken, now_ns)
            else:
                self.machine.busy(handle.epoch, handle.running_since_ns)
        self._apply(self.machine.tick(now_ns), now_ns)

    def retire(self) -> None:
        """Start nothing any more; the engines end when they have answered what they have."""
        self.machine.end()

    def broken(self) -> bool:
        """Whether the active engine takes nothing more: the next tick must not wait."""
        return self.active is not None and bool(self.active.broken)

    def running_ns(self, now_ns: int) -> int:
        """How long the batches that run now have been running."""
        return sum(max(0, now_ns - h.running_since_ns) for h in self.handles.values() if h.running_since_ns)

    def frames_in_flight(self) -> int:
        """How many frames its engines have."""
        return sum(len(batch.frames) for handle in self.handles.values() for batch in handle.in_flight.values())

    def take_in_flight(self) -> list[Batch]:
        """Take back everything, at the end of a drain that ran out of time."""
        return [batch for handle in self.handles.values() for batch in handle.take_in_flight()]

    def close(self) -> None:
        """End all engines and let go of the plans."""
        self.active = None
        for handle in list(self.handles.values()):
            self._forget(handle)
        for plan in self.plans:
            os.close(plan.fd)
        self.plans = []

    # -- what engines say ----------------------------------------------------------------------------------------

    def _on_readable(self, handle: EngineHandle, now_ns: int) -> None:
        for message in handle.receive():
            if handle.epoch not in self.handles:
                return  # by what it said before
            if isinstance(message, Answer):
                batch = handle.complete(message, now_ns)
                if batch is not None:
                    self._owner.answered(handle, batch, message, now_ns)
                    self._apply(self.machine.served(handle.epoch, _is_late(batch, message), now_ns), now_ns)
            elif isinstance(message, Notice):
                self._apply(self._hear(handle, message, now_ns), now_ns)
        if handle.ended:
            fault = Fault.UNTRUSTED if handle.broken else Fault.DIED
            self._lose(handle, fault, handle.end_reason(), now_ns)

    def _lose(self, handle: EngineHandle, fault: Fault, reason: str, now_ns: int) -> None:
        self._apply(self.machine.lost(handle.epoch, fault, reason, now_ns), now_ns)

    def _hear(self, handle: EngineHandle, notice: Notice, now_ns: int) -> list[Action]:
        if notice.kind is Kind.READY:
            handle.device_name = bound_text(notice.text, NAME_CHARS_MAX)
            return self.machine.ready(handle.epoch, now_ns)
        if notice.kind is Kind.GOLDEN:
            return self.machine.golden(handle.epoch, notice.ok, notice.text, now_ns)
        if notice.kind is Kind.FAULT:
            return self.machine.lost(handle.epoch, Fault.REPORTED, f"it reports: {notice.text}", now_ns)
        if notice.kind is Kind.PLACED:
            self._note_placement(handle, notice.text)
        if notice.kind is Kind.MEMORY:
            self._note_memory(handle, notice.text)
        self.machine.heard(handle.epoch, now_ns)
        return []

    def _note_placement(self, handle: EngineHandle, text: str) -> None:
        try:
            index, placement = from_text(text)
            name = self.plans[index].name
        except (ValueError, IndexError):
            handle.distrust("it tells of its steps what cannot be read")
            return
        self.placements[name] = placement
        log.info("generation %d: engine %d: model %s: %s", self.number, handle.epoch, name, in_words(placement))

    def _note_memory(self, handle: EngineHandle, text: str) -> None:
        try:
            self.machine.wear(handle.epoch, self.memory.note(handle.epoch, text))
        except ValueError:
            handle.distrust("it tells of its memory what cannot be read")

    def _on_fault_pipe(self, handle: EngineHandle, now_ns: int) -> None:
        """faulthandler wrote to the pipe: a fatal signal, known before end of file. What it answered is read first."""
        text = handle.read_fault_pipe()
        if text is None:
            self._watcher.forget(handle.fault_fd)
        if not text:
            return
        log.error("engine %d: %s", handle.epoch, text)
        self._on_readable(handle, now_ns)
        self._lose(handle, Fault.DIED, text.splitlines()[0], now_ns)

    # -- carrying out --------------------------------------------------------------------------------------------

    def _apply(self, actions: list[Action], now_ns: int) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                self._spawn(action, now_ns)
            elif isinstance(action, Fence):
                self._fence(action, now_ns)
            elif isinstance(action, Promote):
                self.active = self.handles[action.epoch]
                level = logging.DEBUG if action.reason == TAKES_TURN else logging.INFO  # a routine, thousands a day
                log.log(level, "generation %d: engine %d is active (%s)", self.number, action.epoch, action.reason)
                self._owner.promoted(self, now_ns)
            elif isinstance(action, Retire):
                log.info("generation %d: engine %d is let go: %s", self.number, action.epoch, action.reason)
                self._part_with(action, now_ns)
            elif isinstance(action, Check):
                self.handles[action.epoch].check(now_ns)

    def _spawn(self, order: Spawn, now_ns: int) -> None:
        layout = ResultLayout.over(self.plans, self.config.batching.max_size)
        try:
            device, plan_fds = self._device_of(order.seat), [p.fd for p in self.plans]
            handle = self._launcher.launch(self.config, device, plan_fds, layout, self._spawn_failed)
        except (IpcError, OSError) as error:
            log.error("generation %d: an engine cannot be started: %s", self.number, error)
            self.machine.spawn_failed(order.seat, str(error), now_ns)
            return
        log.info("generation %d: engine %d starts on %s (%s)", self.number, handle.epoch, device, order.reason)
        handle.last_resort = order.seat is Seat.LAST_RESORT
        self.handles[handle.epoch] = handle
        self.machine.spawned(handle.epoch, order.seat, now_ns)
        self._watcher.watch(handle.fd, lambda now_ns: self._on_readable(handle, now_ns))
        self._watcher.watch(handle.fault_fd, lambda now_ns: self._on_fault_pipe(handle, now_ns))

    def _device_of(self, seat: Seat) -> str:
        device, standby = self.config.engine.device, self.config.standby
        return {Seat.FIRST: device, Seat.SECOND: standby.device or device, Seat.LAST_RESORT: standby.last_resort}[seat]

    def _spawn_failed(self, epoch: int, text: str) -> None:
        """Told by the nursery, perhaps when the engine was given up already, or the whole generation."""
        if epoch not in self.handles:
            return
        self._apply(self.machine.lost(epoch, Fault.NOT_STARTED, text, self._now_ns), self._now_ns)

    def _fence(self, action: Fence, now_ns: int) -> None:
        log.warning("generation %d: engine %d is fenced: %s", self.number, action.epoch, action.reason)
        self._part_with(action, now_ns)

    def _part_with(self, action: Fence | Retire, now_ns: int) -> None:
        """Take back what the engine has in flight, and end it."""
        handle = self.handles[action.epoch]
        batches = handle.take_in_flight()
        if handle is self.active:
            self.active = None
        self._forget(handle)
        self._owner.fenced(self, batches, action, now_ns)

    def _forget(self, handle: EngineHandle) -> None:
        del self.handles[handle.epoch]
        self.memory.forget(handle.epoch)
        self._watcher.forget(handle.fd)
        self._watcher.forget(handle.fault_fd)
        handle.fence()


def _is_late(batch: Batch, answer: Answer) -> bool:
    """Whether the engine itself was too slow: far slower than usual, or slower and therefore late for a frame that it
    was given for the first time. A deadline that is too tight for what it usually takes is no fault of the engine's.
    """
    late = any(answer.t_end_ns > frame.deadline_ns for frame in batch.frames if not frame.replayed)
    return batch.slowdown > FAR_SLOWER or (late and batch.slowdown > SLOWER)
