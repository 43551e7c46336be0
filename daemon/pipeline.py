"""A frame's way: source -> validate -> slot -> (decode) -> admit -> batch -> engine -> answer -> sinks.

Read this file first. Main's loop calls `receive` for every message, `dispatch` after every drain of the sockets, and
`answered` for every batch that an engine returns. Invariant: every received trigger passes `_finish` exactly once, and
its slot is given back there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ipc.answer import build_result, mark_repeated
from ..ipc.engine_messages import Answer
from ..ipc.errors import WireError
from ..ipc.identity import IdentityWindows
from ..ipc.slots import SlotRing
from ..ipc.source import RawFrame
from . import batcher
from .answers import Labels, describe
from .decode_pool import DecodePool
from .engine_handle import Batch, EngineHandle
from .intake import Intake
from .ledger import Ledger
from .queues import Queues
from .trigger import ReplySocket, Trigger

STORED_ANSWER_BYTES = 64 * 1024


@dataclass(slots=True)
class Serving:
    """What a generation gives the pipeline: its rules and its plans. Replaced as a whole at a reload."""

    generation: int
    intake: Intake
    rule: batcher.Rule
    depth: int
    sizes: dict[str, tuple[int, ...]]
    indexes: dict[str, int]
    labels: dict[str, Labels]


class Pipeline:
    """All frames that have no outcome yet."""

    def __init__(
        self, serving: Serving, ring: SlotRing, ledger: Ledger, decoders: DecodePool, publish: Callable[[list[bytes]], None]
    ) -> None:
        self.serving = serving
        self.active: EngineHandle | None = None
        self.queues = Queues()
        self.times = batcher.ServiceTimes()
        self.batch_max = 64
        self.pace_ns = 0
        self.clock_hz = 0
        self._earliest_start_ns = 0
        self._ring = ring
        self._ledger = ledger
        self._decoders = decoders
        self._publish = publish
        self._identities = IdentityWindows()

    # -- source -> validate -> slot -> (decode) -> admit ---------------------------------------------------------

    def receive(self, source: ReplySocket, raw: RawFrame, now_ns: int) -> None:
        """Take one message. Whatever it holds, it ends in one outcome or is answered as a repeat."""
        reply_to = (source, raw.envelope)
        try:
            frame, replaced = self.serving.intake.parse(raw.head, raw.payload_bytes, now_ns)
        except WireError as error:
            frame = Trigger(error.camera or "", error.seq, error.trigger, error.ts_ns, "", now_ns, now_ns)
            self._open(frame, reply_to)
            self._finish(frame, "rejected", error.reason, str(error), now_ns)
            return
        if self._is_repeat(frame, reply_to):
            return
        self._open(frame, reply_to)
        self._identities.remember(frame.camera, frame.trigger, frame.seq, frame.ts_ns, frame)
        if replaced:
            self._ledger.clock_replaced += 1
        if not self.serving.intake.allowed(frame.camera, now_ns):
            self._finish(frame, "rejected", "rate_limit", "camera triggers above its rate_limit_hz", now_ns)
            return
        frame.slot = self._ring.take()
        if frame.slot is None:
            self._finish(frame, "dropped", "no_slot", "every frame slot is in use: the engine cannot keep up", now_ns)
            return
        self._ring.view(frame.slot)[: frame.length] = raw.payload
        if frame.encoding == "jpeg":
            self._decoders.submit(frame, now_ns)
        else:
            self._admit(frame, now_ns)

    def decoded(self, frame: Trigger, now_ns: int) -> None:
        """A decode worker has replaced the JPEG in the frame's slot by planes."""
        self._ledger.stages["decode"].add(now_ns - frame.received_ns)
        self._admit(frame, now_ns)

    def undecodable(self, frame: Trigger, outcome: str, code: str, text: str, now_ns: int) -> None:
        self._finish(frame, outcome, code, text, now_ns)

    def _admit(self, frame: Trigger, now_ns: int) -> None:
        frame.queued_ns = now_ns
        superseded = self.queues.push(frame)
        if superseded is not None:
            self._finish(superseded, "stale", "superseded", "a newer frame of this best-effort camera came", now_ns)

    # -- batch -> engine -----------------------------------------------------------------------------------------

    def dispatch(self, now_ns: int) -> int:
        """Start every batch that should start now. Returns when to look again, in ns from now (0: no date)."""
        wake_ns = 0
        self._expire(now_ns)
        engine = self.active
        if engine is None:
            return self._until_next_deadline(now_ns)
        if self.queues.retry:
            if not engine.in_flight:
                self._send(engine, [self.queues.retry.popleft()], 0, now_ns)
            return 0
        for model in self.queues.in_turn():
            decision = self._decide(engine, model, now_ns)
            while isinstance(decision, batcher.Go):
                frames = self.queues.models[model].take(decision.take)
                self._send(engine, frames, decision.size, now_ns)
                decision = self._decide(engine, model, now_ns)
            if decision.until_ns:
                wake_ns = min(wake_ns or decision.until_ns, decision.until_ns)
        return max(1, wake_ns - now_ns) if wake_ns else 0

    def _decide(self, engine: EngineHandle, model: str, now_ns: int) -> batcher.Go | batcher.Wait:
        queue, sizes = self.queues.models[model], self.serving.sizes[model]
        waiting = queue.first(max(sizes))
        facts = batcher.Facts(
            queued=len(queue),
            first_ns=waiting[0].queued_ns if waiting else 0,
            deadlines_ns=tuple(f.deadline_ns for f in waiting),
            sizes=sizes,
            in_flight=len(engine.in_flight),
            depth=self.serving.depth,
            batch_max=self.batch_max,
            earliest_start_ns=self._earliest_start_ns,
        )
        predicted = {size: self.times.predict(model, size, self.clock_hz) for size in sizes}
        return batcher.decide(self.serving.rule, facts, predicted, now_ns)

    def _send(self, engine: EngineHandle, frames: list[Trigger], size: int, now_ns: int) -> None:
        model = frames[0].model
        for frame in frames:
            frame.sent_ns = now_ns
            self._ledger.stages["queue"].add(now_ns - frame.queued_ns)
        if self.pace_ns:
            self._earliest_start_ns = max(now_ns, self._earliest_start_ns) + self.pace_ns * len(frames)
        engine.send_batch(self.serving.indexes[model], model, size or min(self.serving.sizes[model]), frames, now_ns)

    def _expire(self, now_ns: int) -> None:
        """Answer the frames that can no longer be served in time, before anything is started for them."""
        for model, queue in self.queues.models.items():
            if not queue:
                continue
            least_ns = self.times.predict(model, min(self.serving.sizes[model]), self.clock_hz)
            late = [(f, reason) for f in queue if (reason := batcher.too_late(f.deadline_ns, least_ns, now_ns))]
            queue.discard([f for f, _ in late])
            for frame, reason in late:
                self._finish(frame, "expired", "too_late", reason, now_ns)

    def _until_next_deadline(self, now_ns: int) -> int:
        deadlines = [f.deadline_ns for queue in self.queues.models.values() for f in queue]
        return max(1, min(deadlines) - now_ns) if deadlines else 0

    # -- answer -> sinks -----------------------------------------------------------------------------------------

    def answered(self, engine: EngineHandle, batch: Batch, answer: Answer, now_ns: int) -> None:
        """An engine has returned a batch: every frame of it gets its outcome."""
        self.times.learn(batch.model, batch.size, self.clock_hz, answer.t_end_ns - answer.t_start_ns)
        stages = self._ledger.stages
        for position, (frame, status) in enumerate(zip(batch.frames, answer.frames, strict=True)):
            stages["preprocess"].add(answer.t_pre_ns - answer.t_start_ns)
            stages["engine"].add(answer.t_run_ns - answer.t_pre_ns)
            stages["answer"].add(max(0, now_ns - answer.t_end_ns))
            if not status.ok:
                self._finish(frame, "error", "engine", status.detail, now_ns)
            elif now_ns > frame.deadline_ns:
                late_ms = (now_ns - frame.deadline_ns) / 1e6
                self._finish(frame, "expired", "late_answer", f"answered {late_ms:.1f} ms after the deadline", now_ns)
            else:
                rows = engine.rows(batch, position, status.rows)
                self._finish(frame, "ok", "", None, now_ns, describe(self.serving.labels[frame.model], rows))

    def replay(self, batches: list[Batch], reason: str, now_ns: int) -> None:
        """Frames that a dead engine had: each again, alone. One that was alone at an earlier death already is poison."""
        again: list[Trigger] = []
        for batch in batches:
            for frame in batch.frames:
                if frame.suspect and len(batches) == 1 and len(batch.frames) == 1:
                    text = f"two engines died while they had only this frame ({reason})"
                    self._finish(frame, "error", "poison", text, now_ns)
                else:
                    frame.suspect = True
                    again.append(frame)
        self.queues.retry.extendleft(reversed(again))

    def change_generation(self, serving: Serving, now_ns: int) -> None:
        """Serve under a new configuration: what waits is admitted anew, what is in flight ends where it is."""
        self.serving = serving
        waiting = self.queues.take_all()
        for frame in waiting:
            problem = serving.intake.readmit(frame)
            if problem:
                self._finish(frame, "rejected", "reconfigured", problem, now_ns)
            elif frame.suspect:
                self.queues.retry.append(frame)
            else:
                self.queues.push(frame)

    def drop_all(self, text: str, now_ns: int) -> None:
        """Answer every frame that waits; those in flight come through `answered` or `replay` first."""
        for frame in self._decoders.take_all() + self.queues.take_all():
            self._finish(frame, "dropped", "shutdown", text, now_ns)

    # -- identity and the single outcome -------------------------------------------------------------------------

    def _open(self, frame: Trigger, reply_to: tuple[ReplySocket, list[bytes]]) -> None:
        self._ledger.opened()
        frame.reply_to.append(reply_to)

    def _is_repeat(self, frame: Trigger, reply_to: tuple[ReplySocket, list[bytes]]) -> bool:
        """A trigger that is known already: it attaches to the one in flight, or gets the same outcome again."""
        known = self._identities.lookup(frame.camera, frame.trigger, frame.seq, frame.ts_ns)
        if known is None:
            return False
        self._ledger.repeated += 1
        if isinstance(known, Trigger):
            known.reply_to.append(reply_to)
        else:
            self._answer(reply_to, mark_repeated(known))
        return True

    def _finish(
        self, frame: Trigger, outcome: str, code: str, text: str | None, now_ns: int, content: dict[str, object] | None = None
    ) -> None:
        self._ledger.closed(frame, outcome, code)
        if frame.slot is not None:
            self._ring.give(frame.slot)
            frame.slot = None
        self._ledger.stages["total"].add(max(0, now_ns - frame.capture_ns))
        parts = build_result(
            frame.camera or None, frame.seq, frame.trigger, frame.ts_ns, frame.clock or None, outcome, text,
            model=frame.model or None, generation=self.serving.generation,
            latency_ms={"total": round((now_ns - frame.capture_ns) / 1e6, 3)}, **(content or {}),
        )  # fmt: skip
        first, *others = frame.reply_to
        self._publish(parts)
        self._reply(first, parts)
        if others:
            repeated = mark_repeated(parts)
            for reply_to in others:
                self._answer(reply_to, repeated)
        if frame.ts_ns is not None and frame.camera:
            kept = parts if sum(map(len, parts)) <= STORED_ANSWER_BYTES else parts[:2]
            self._identities.answered(frame.camera, frame.trigger, frame.seq, frame.ts_ns, kept)
        frame.reply_to.clear()

    def _answer(self, reply_to: tuple[ReplySocket, list[bytes]], parts: list[bytes]) -> None:
        """An answer to a repeat: to its sender where it can be replied to, else on the results socket."""
        if reply_to[1]:
            self._reply(reply_to, parts)
        else:
            self._publish(parts)

    def _reply(self, reply_to: tuple[ReplySocket, list[bytes]], parts: list[bytes]) -> None:
        source, envelope = reply_to
        if envelope and not source.reply(envelope, parts):
            self._ledger.unroutable += 1
