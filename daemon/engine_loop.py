"""What an engine does all day: one thread, one channel, batches in, answers out, a heartbeat while idle.

Run by `engine.py` in its own process and by tests in theirs. Invariant: a batch is answered exactly once, with a status
for every frame, and `ok` never stands on a number that is not finite.
"""

from __future__ import annotations

import select
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..ipc import engine_messages as messages
from ..ipc.channel import Channel
from ..ipc.message_text import Kind
from ..ipc.results import ResultArea
from ..ipc.slots import SlotReader
from ..kernels.devices import Device
from ..kernels.ir.errors import DeviceFault, GoldenMismatch
from ..kernels.memory.reservation import Reservation
from ..kernels.model import FrameFault, Interface, open_models
from ..kernels.picture import Picture
from ..kernels.placement import Placement
from ..kernels.plan.file import PlanFile
from . import memory_report
from .placement import to_text

MEMORY_EVERY_NS = 5_000_000_000

class Servable(Protocol):
    """A model as the loop uses it."""

    def run(self, pictures: Sequence[Picture], targets: Sequence[NDArray[np.float32]]) -> list[int | FrameFault]: ...
    def golden(self) -> None: ...
    @property
    def interface(self) -> Interface: ...
    @property
    def placement(self) -> Placement | None: ...
    def close(self) -> None: ...
    @property
    def preprocessed_ns(self) -> int: ...
    @property
    def executed_ns(self) -> int: ...


class EngineLoop:
    """The loop over one channel."""

    def __init__(
        self, channel: Channel, slots: SlotReader, results: ResultArea, models: Sequence[Servable], heartbeat_ms: float,
        memory: Reservation | None = None, device_name: str = "",
    ) -> None:
        self._channel = channel
        self._slots = slots
        self._results = results
        self._models = models
        self._heartbeat_ms = heartbeat_ms
        self._memory = memory
        self._device_name = device_name
        self._told_memory_ns, self._told_changes = -MEMORY_EVERY_NS, 0

    @classmethod
    def open(
        cls,
        channel: Channel,
        slots: SlotReader,
        results: ResultArea,
        plan_fds: Sequence[int],
        device: Device,
        heartbeat_ms: float,
        emergency_bytes: int,
    ) -> EngineLoop:
        """Map the plans and open them on the device, in one reservation."""
        plans = [PlanFile.open_fd(fd) for fd in plan_fds]
        models = open_models(plans, device, slots.size, emergency_bytes)
        return cls(channel, slots, results, models, heartbeat_ms, device.memory, device.name)

    def run(self, on_proved: Callable[[], None]) -> int:
        """Check, say READY, serve until main is gone. Returns the process's exit code.

        `on_proved`: called when the golden answers were right, before READY is said.
        Whatever ends it is its last word: main hears of it at once and in words, the standby takes over.
        """
        try:
            return self._run(on_proved)
        except DeviceFault as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 a bare end of file would leave the reason to whoever reads the journal
            traceback.print_exc()
            text = in_words(error)
        self._channel.send(messages.pack_fault(time.monotonic_ns(), text))
        return 1

    def _run(self, on_proved: Callable[[], None]) -> int:
        self._tell_placements()
        try:
            self._check_all()
        except GoldenMismatch as error:
            self._channel.send(messages.pack_fault(time.monotonic_ns(), f"golden check failed: {error}"))
            return 1
        on_proved()
        self._tell_memory(time.monotonic_ns())
        self._channel.send(messages.pack_ready(time.monotonic_ns(), self._device_name))
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        while True:
            if poller.poll(self._heartbeat_ms):
                data = self._channel.receive()
                if data is None:
                    break
                self._serve(data)
            else:
                self._channel.send(messages.pack_heartbeat(time.monotonic_ns()))
            self._tell_memory(time.monotonic_ns())
        for model in self._models:
            model.close()
        return 0

    def _tell_placements(self) -> None:
        for index, model in enumerate(self._models):
            if model.placement is not None:
                text = to_text(index, model.placement, len(self._models))
                self._channel.send(messages.pack_placed(time.monotonic_ns(), text))

    def _tell_memory(self, now_ns: int) -> None:
        """At first, and every few seconds if it has changed; what the device has free may always have."""
        memory = self._memory
        if memory is None or now_ns - self._told_memory_ns < MEMORY_EVERY_NS:
            return
        changed = memory.pool.changes != self._told_changes
        self._told_memory_ns, self._told_changes = now_ns, memory.pool.changes
        if changed or memory.device_free() is not None:
            self._channel.send(messages.pack_memory(now_ns, memory_report.to_text(memory)))

    def _serve(self, data: bytes) -> None:
        message = messages.unpack(data)
        if isinstance(message, messages.Batch):
            self._channel.send(messages.pack_answer(self._answer(message)))
        elif isinstance(message, messages.Notice) and message.kind is Kind.CHECK:
            self._report_golden()

    def _check_all(self) -> None:
        for model in self._models:
            model.golden()

    def _report_golden(self) -> None:
        try:
            self._check_all()
        except GoldenMismatch as error:
            self._channel.send(messages.pack_golden(time.monotonic_ns(), False, str(error)))
        else:
            self._channel.send(messages.pack_golden(time.monotonic_ns(), True))

    def _answer(self, batch: messages.Batch) -> messages.Answer:
        start_ns = time.monotonic_ns()
        model = self._models[batch.model]
        pictures, targets = [], []
        for position, frame in enumerate(batch.frames):
            pixels = self._slots.view(frame.slot)[: frame.length]
            pictures.append(
                Picture(frame.encoding, frame.width, frame.height, frame.stride, pixels, frame.dtype, frame.shape)
            )
            targets.append(self._results.rows(batch.area, position, model.interface.row_width))
        self._results.begin(batch.area, batch.batch_id)
        statuses = [_status(outcome) for outcome in model.run(pictures, targets)]
        self._results.finish(batch.area, batch.batch_id)
        return messages.Answer(
            batch.batch_id, batch.epoch, batch.area, start_ns, model.preprocessed_ns, model.executed_ns,
            time.monotonic_ns(), tuple(statuses),
        )


def in_words(error: Exception) -> str:
    """Python's own with their kind: a MemoryError has no text, that of a KeyError says nothing alone."""
    name = type(error).__name__
    return f"{name}: {error}".removesuffix(": ") if type(error).__module__ == "builtins" else str(error) or name


def _status(outcome: int | FrameFault) -> messages.FrameAnswer:
    if isinstance(outcome, FrameFault):
        return messages.FrameAnswer(messages.STATUS_ERROR, 0, outcome.text)
    return messages.FrameAnswer(messages.STATUS_OK, outcome)
