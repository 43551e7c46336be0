"""A frame's way: source -> validate -> slot -> (decode) -> admit -> batch -> engine -> answer -> sinks.

Read this file first. Main's loop calls `receive` for every message, `dispatch` after every drain of the sockets, and
`answered` for every batch that an engine returns. Invariant: every received trigger passes `_finish` exactly once, and
its slot is given back there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..ipc.answer import build_result
from ..ipc.engine_messages import STATUS_OK, Answer
from ..ipc.errors import ResultAreaError, WireError
from ..ipc.slots import SlotRing
from ..ipc.source import RawFrame
from . import batcher
from .answers import describe
from .decode_pool import DecodePool
from .device_times import DeviceTimes
from .engine_handle import Batch, EngineHandle
from .faults import Fault
from .ledger import Ledger
from .orders import Fence, Retire
from .queues import Queues
from .relief import Instead, Relief
from .repeats import Repeats
from .replay import sort_out
from .serving_rules import Serving
from .trigger import ReplySocket, Trigger

LAST_RESORT = ("degraded", "last_resort", "answered on the CPU as last resort: no engine on the GPU can serve")


class Pipeline:
    """All frames that have no outcome yet."""

    def __init__(
        self,
        serving: Serving,
        ring: SlotRing,
        ledger: Ledger,
        decoders: DecodePool,
        publish: Callable[[list[bytes]], None],
    ) -> None:
        self.serving = serving
        self.queues = Queues()
        self.times = batcher.ServiceTimes()
        self.relief = Relief(serving.relief)
        self._active: EngineHandle | None = None
        self._times = DeviceTimes(serving.plans.values())
        self.batch_max = 64
        self.pace_ns = self.clock_hz = self._earliest_start_ns = 0
        self._ring = ring
        self._ledger = ledger
        ledger.serve(serving.plans, serving.intake.cameras)
        self._decoders = decoders
        self._publish = publish
        self._repeats = Repeats(ledger, publish)

    @property
    def active(self) -> EngineHandle | None:
        """The engine that receives frames. What is predicted of it was measured on its device."""
        return self._active

    @active.setter
    def active(self, engine: EngineHandle | None) -> None:
        self._active = engine
        if engine is not None:
            self.times = self._times.on(engine.device)

    # -- source -> validate -> slot -> (decode) -> admit ---------------------------------------------------------

    def receive(self, source: ReplySocket, raw: RawFrame, now_ns: int) -> None:
        """Take one message. Whatever it holds, it ends in one outcome or is answered as a repeat."""
        try:
            frame = self.serving.intake.parse(raw, now_ns, source.same_host)
        except WireError as error:
            frame = Trigger(error.camera or "", error.seq, error.trigger, error.ts_ns, "", now_ns, now_ns)
            frame.source, frame.envelope = source, raw.envelope
            self._ledger.opened(frame)
            self._finish(frame, "rejected", error.reason, str(error), now_ns)
            return
        frame.source, frame.envelope = source, raw.envelope
        if self._repeats.known(frame):
            return
        self._ledger.opened(frame)
        if (refusal := self.serving.intake.refusal(frame.camera, now_ns)) is not None:
            self._finish(frame, "rejected", *refusal, now_ns)
            return
        if (instead := self.relief.instead(frame, now_ns)) is not None:
            self._finish_instead(frame, instead, now_ns)
            return
        # the last free slot is not for a JPEG: where all slots held JPEGs, none would be left to decode one into
        frame.slot = self._ring.take() if self._ring.free > (frame.encoding == "jpeg") else None
        if frame.slot is None:
            text = "every frame slot is in use: the engine cannot keep up"
            self._give_up(frame, "dropped", "no_slot", text, now_ns)
            return
        self.relief.admitted(frame)
        self._ring.view(frame.slot)[: frame.length] = raw.payload
        frame.queued_ns = now_ns
        if frame.encoding == "jpeg":
            self._decoders.submit(frame, now_ns)
        else:
            self._queue(frame, now_ns)

    def decoded(self, frame: Trigger, now_ns: int) -> None:
        """A decode worker has replaced the JPEG in the frame's slot by planes. A reload may have come in between."""
        self._ledger.stages["decode"].add(now_ns - frame.received_ns)
        frame.queued_ns = now_ns
        if self._readmitted(frame, now_ns):
            self._queue(frame, now_ns)

    def undecodable(self, frame: Trigger, outcome: str, code: str, text: str, now_ns: int) -> None:
        (self._give_up if outcome == "expired" else self._finish)(frame, outcome, code, text, now_ns)

    def _readmitted(self, frame: Trigger, now_ns: int) -> bool:
        """Whether the configuration that holds now can serve the frame; if not, it is answered."""
        refusal = self.serving.intake.readmit(frame, now_ns)
        if refusal is not None:
            self._finish(frame, "rejected", *refusal, now_ns)
        return refusal is None

    def _queue(self, frame: Trigger, now_ns: int) -> None:
        if (superseded := self.queues.push(frame)) is not None:
            self._finish(superseded, "stale", "superseded", "a newer frame of this best-effort camera came", now_ns)

    # -- batch -> engine -----------------------------------------------------------------------------------------

    def dispatch(self, now_ns: int) -> int:
        """Start every batch that should start now. Returns when to look again, in ns from now (0: no date)."""
        self.relief.judge(self.queues, self.serving.plans, self.times, self.clock_hz, self.pace_ns, now_ns)
        if not len(self.queues):
            return 0
        wake_ns = 0
        self._expire(now_ns)
        engine = self.active
        if engine is None or engine.broken:
            first_ns = self.queues.first_deadline_ns()
            return max(1, first_ns - now_ns) if first_ns else 0
        if any(batch.frames[0].deaths for batch in engine.in_flight.values()):
            return 0  # alone: if the engine dies now, it is known of what
        if self.queues.retry:
            if not engine.in_flight:
                self._send(engine, [self.queues.retry.popleft()], 0, now_ns)
            return 0
        for model in self.queues.in_turn():
            decision = self._decide(engine, model, now_ns)
            while isinstance(decision, batcher.Go):
                frames = self.queues.models[model].take(decision.take)
                if not self._send(engine, frames, decision.size, now_ns):
                    return 0
                decision = self._decide(engine, model, now_ns) if len(self.queues.models[model]) else batcher.EMPTY
            if decision.until_ns:
                wake_ns = min(wake_ns or decision.until_ns, decision.until_ns)
        return max(1, wake_ns - now_ns) if wake_ns else 0

    def _decide(self, engine: EngineHandle, model: str, now_ns: int) -> batcher.Go | batcher.Wait:
        queue, plan = self.queues.models[model], self.serving.plans[model]
        waiting = queue.first(max(plan.sizes))
        facts = batcher.Facts(
            queued=len(queue),
            first_ns=waiting[0].queued_ns if waiting else 0,
            deadlines_ns=tuple(f.deadline_ns for f in waiting),
            sizes=plan.sizes,
            in_flight=len(engine.in_flight),
            depth=self.serving.depth,
            batch_max=self.batch_max,
            earliest_start_ns=self._earliest_start_ns,
            recent_ns=self.times.recent_ns(plan.sha256),
            backlog_ns=engine.backlog_ns(self.times, self.clock_hz, now_ns),
        )
        predicted = {size: self.times.predict(plan.sha256, size, self.clock_hz) for size in plan.sizes}
        return batcher.decide(self.relief.rule(self.serving.rule), facts, predicted, now_ns)

    def _send(self, engine: EngineHandle, frames: list[Trigger], size: int, now_ns: int) -> bool:
        """Whether the engine takes more."""
        for frame in frames:
            self._ledger.stages["queue"].add(now_ns - frame.queued_ns)
        if self.pace_ns:
            self._earliest_start_ns = max(now_ns, self._earliest_start_ns) + self.pace_ns * len(frames)
        plan = self.serving.plans[frames[0].model]
        return engine.send_batch(plan, size or min(plan.sizes), frames, now_ns)

    def _expire(self, now_ns: int) -> None:
        """Answer the frames that can no longer be served in time, before anything is started for them."""
        plans, believed, hz = self.serving.plans, self.times.believed, self.clock_hz
        least_ns = {name: believed(plan.sha256, plan.sizes[0], hz, now_ns) for name, plan in plans.items()}
        backlog_ns = self.active.backlog_ns(self.times, hz, now_ns) if self.active is not None else 0
        late = self.queues.take_late(lambda f: batcher.too_late(f.deadline_ns, least_ns[f.model], backlog_ns, now_ns))
        for frame, reason in late:
            self._give_up(frame, "expired", "too_late", reason, now_ns)

    # -- answer -> sinks -----------------------------------------------------------------------------------------

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        """An engine has returned a batch: every frame of it gets its outcome."""
        took_ns = answer.t_end_ns - answer.t_start_ns
        batch.slowdown = self._times.learn(engine.device, batch, self.clock_hz, took_ns, now_ns)
        stages = self._ledger.stages
        for position, (frame, status) in enumerate(zip(batch.frames, answer.frames, strict=True)):
            frame.generation = batch.plan.generation
            stages["preprocess"].add(answer.t_pre_ns - answer.t_start_ns)
            stages["engine"].add(answer.t_run_ns - answer.t_pre_ns)
            stages["answer"].add(max(0, now_ns - answer.t_end_ns))
            if status.status != STATUS_OK:
                self._finish(frame, "error", "engine", status.detail, now_ns)
            elif now_ns > frame.deadline_ns:
                late_ms = (now_ns - frame.deadline_ns) / 1e6
                self._finish(frame, "expired", "late_answer", f"answered {late_ms:.1f} ms after the deadline", now_ns)
            else:
                self._deliver(frame, engine, batch, position, status.rows, now_ns)

    def _deliver(
        self, frame: Trigger, engine: EngineHandle, batch: Batch, position: int, count: int, now_ns: int
    ) -> None:
        """`ok` (of the last resort `degraded`) with what the engine left for the frame, if that can be an answer."""
        try:
            content = describe(batch.plan.labels, engine.rows(batch, position, count))
        except (ResultAreaError, ValueError) as error:
            engine.distrust(f"its answer cannot be used: {error}")
            self._finish(frame, "error", "engine", f"the engine's answer cannot be used: {error}", now_ns)
        else:
            outcome, code, text = LAST_RESORT if engine.last_resort else ("ok", "", None)
            if outcome == "ok" and frame.generation == self.serving.generation:
                self.relief.answered(frame, content)
            self._finish(frame, outcome, code, text, now_ns, content)

    def replay(self, batches: list[Batch], order: Fence | Retire, now_ns: int) -> None:
        """Frames that a lost engine had: each again, alone, or poison."""
        if isinstance(order, Fence) and order.fault is Fault.SLOW:
            self._times.forget()  # of that engine: they would refuse the next one's frames
        again, poison = sort_out(batches, order, self.serving.deaths_max, now_ns, self.serving.intake.quarantine)
        for frame, text in poison:
            self._finish(frame, "error", "poison", text, now_ns)
        for frame, text in self.queues.take_late(lambda f: self.serving.intake.quarantine.problem(f.camera, now_ns)):
            self._finish(frame, "rejected", "quarantine", text, now_ns)
        for frame in reversed(again):
            if self._readmitted(frame, now_ns):
                self.queues.retry.appendleft(frame)

    def change_generation(self, serving: Serving, now_ns: int) -> None:
        """Serve under a new configuration: what waits is admitted anew, what is in flight ends where it is."""
        for camera in self.serving.intake.cameras - serving.intake.cameras:
            self._repeats.forget(camera)
        self.serving = serving
        self.relief.configure(serving.relief)
        self._ledger.serve(serving.plans, serving.intake.cameras)
        self._times.serve(serving.plans.values())
        for frame in filter(lambda f: self._readmitted(f, now_ns), self.queues.take_all()):
            self.queues.retry.append(frame) if frame.replayed else self._queue(frame, now_ns)

    def drop_all(self, batches: list[Batch], text: str, now_ns: int) -> None:
        """Answer every frame that still has no outcome: those in `batches`, being decoded, and waiting."""
        in_flight = [frame for batch in batches for frame in batch.frames]
        for frame in in_flight + self._decoders.take_all() + self.queues.take_all():
            if not frame.outcome:  # where main ends by a fault, that may have come in the midst of a batch
                self._finish(frame, "dropped", "shutdown", text, now_ns)

    # -- the single outcome --------------------------------------------------------------------------------------

    def _give_up(self, frame: Trigger, outcome: str, code: str, text: str, now_ns: int) -> None:
        """The engine cannot serve it in time: that is its outcome, unless a held result may stand in."""
        instead = self.relief.given_up(frame, now_ns) or Instead(outcome, code, text, None)
        self._finish_instead(frame, instead, now_ns)

    def _finish_instead(self, frame: Trigger, instead: Instead, now_ns: int) -> None:
        self._finish(frame, instead.outcome, instead.code, instead.text, now_ns, instead.content)

    def _finish(
        self,
        frame: Trigger,
        outcome: str,
        code: str,
        text: str | None,
        now_ns: int,
        content: dict[str, Any] | None = None,
    ) -> None:
        """The one place where a trigger ends: counted, its slot given back, its result published, replied and kept."""
        self._ledger.closed(frame, outcome, code, text, now_ns)
        self.relief.ended(frame, outcome, code, now_ns)
        if frame.slot is not None:
            self._ring.give(frame.slot)
            frame.slot = None
            self._decoders.slot_freed(now_ns)
        total_ns = max(0, now_ns - frame.capture_ns)
        self._ledger.stages["total"].add(total_ns)
        build = partial(
            build_result, frame.camera or None, frame.seq, frame.trigger, frame.ts_ns, frame.clock or None, outcome,
            text, model=frame.model or None, generation=frame.generation or self.serving.generation,
            latency_ms={"total": round(total_ns / 1e6, 3)}, **(content or {}),
        )
        parts = build()
        self._publish(parts)
        self._repeats.reply(frame, parts)
        self._repeats.finished(frame, parts, lambda: build(rows_kept=False))
