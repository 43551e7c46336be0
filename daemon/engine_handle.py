"""Main's side of one engine process: its channel, its result memory, and what is in flight on it.

Made by the Launcher for a generation. Never blocks: an engine that does not take a message is lost, not waited for.
Invariant: after `fence` nothing that the engine wrote or sends is looked at any more.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..ipc import engine_messages as messages
from ..ipc.channel import Channel, make_pair
from ..ipc.errors import ChannelError
from ..ipc.results import ResultArea
from ..ipc.slots import SlotRing
from .answers import Labels
from .batcher import ServiceTimes
from .config import Config
from .nursery_client import Child, NurseryClient
from .plans import ServedPlan
from .trigger import Trigger

FAULT_TEXT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """How much an engine may write for a batch: frames, and rows of float32 a frame, over all plans of a generation."""

    frames: int
    rows_max: int
    row_width: int

    @classmethod
    def over(cls, plans: Sequence[ServedPlan], largest: int) -> ResultLayout:
        """Room for the largest batch that is served, none above `largest`, and for the longest rows of a plan."""
        rows = max(p.interface.rows_max * p.interface.row_width for p in plans)
        return cls(max(max(p.sizes(largest)) for p in plans), rows, 1)


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as main sees it: its place among the engine's plans, its batch sizes, and how to read its rows.

    `generation`: whose engines have it; `sha256`: of its file, the same in every generation that serves it.
    """

    index: int
    model: str
    sizes: tuple[int, ...]
    labels: Labels
    row_width: int
    generation: int
    sha256: str


@dataclass(slots=True)
class Batch:
    """Frames that an engine has. `size` is the plan's batch size, len(frames) <= size."""

    number: int
    plan: PlanView
    size: int
    area: int
    frames: list[Trigger]
    delivered: bool = True
    slowdown: float = 1.0  # times what such batches usually take, as was seen when it was answered


class EngineHandle:
    """One engine. `running_since_ns` is when the batch at the head began, 0 when nothing is in flight."""

    def __init__(
        self, epoch: int, channel: Channel, fault_fd: int, results: ResultArea, device: str, depth: int
    ) -> None:
        self.epoch = epoch
        self.device = device
        self.device_name = ""  # what it calls itself, once it is ready; nothing on the CPU
        self.last_resort = False
        self.child: Child | None = None
        self.in_flight: dict[int, Batch] = {}
        self.running_since_ns = 0
        self._busy_ns = 0
        self.ended = False
        self.fault_fd = fault_fd
        self._channel = channel
        self.fd = channel.fileno()
        self._nursery: NurseryClient | None = None
        self._results = results
        self._areas = list(range(depth))
        self._numbers = itertools.count(1)
        self._broken = ""
        self._fault_text = b""

    @property
    def pid(self) -> int:
        return self.child.pid if self.child is not None else 0

    # -- main to engine ------------------------------------------------------------------------------------------

    def send_batch(self, plan: PlanView, size: int, frames: list[Trigger], now_ns: int) -> bool:
        """Hand over frames. They are in flight from here on, even if the engine turns out to be gone. Returns whether
        it has them."""
        batch = Batch(next(self._numbers), plan, size, self._areas.pop(), frames)
        if not self.in_flight:
            self.running_since_ns = now_ns
        self.in_flight[batch.number] = batch
        references = []
        for frame in frames:
            assert frame.slot is not None
            references.append(
                messages.FrameRef(
                    frame.slot.index, frame.length, frame.width, frame.height, frame.stride,
                    frame.encoding, frame.dtype, frame.shape,
                )
            )
        batch.delivered = self._send(
            messages.pack_batch(messages.Batch(batch.number, self.epoch, plan.index, batch.area, tuple(references)))
        )
        return batch.delivered

    def check(self, now_ns: int) -> None:
        """Have it run its golden input."""
        self._send(messages.pack_check(now_ns))

    def _send(self, data: bytes) -> bool:
        """Whether the engine has it. One that takes no message is lost at the next tick."""
        sent = self._channel.send(data)
        if not sent:
            self._broken = self._broken or "its channel is closed or full"
        return sent

    # -- engine to main ------------------------------------------------------------------------------------------

    def receive(self) -> list[messages.Batch | messages.Answer | messages.Notice]:
        """Everything it has said. Sets `ended` after its last word; a message that is not ours ends it too."""
        try:
            received = self._channel.recv_all()
            self.ended = self.ended or received.ended
            return [messages.unpack(data) for data in received.messages]
        except ChannelError as error:
            self._broken = str(error)
            self.ended = True
            return []

    def complete(self, answer: messages.Answer, now_ns: int) -> Batch | None:
        """The batch that an answer belongs to; None for one of another epoch or already taken back."""
        if answer.epoch != self.epoch:
            return None
        batch = self.in_flight.pop(answer.batch_id, None)
        if batch is None:
            return None
        if len(answer.frames) != len(batch.frames):
            self.in_flight[answer.batch_id] = batch
            self._broken, self.ended = "it answered a batch with another number of frames", True
            return None
        self._areas.append(batch.area)
        self._busy_ns += max(0, now_ns - self.running_since_ns)
        self.running_since_ns = now_ns if self.in_flight else 0
        return batch

    def backlog_ns(self, times: ServiceTimes, clock_hz: int, now_ns: int) -> int:
        """Until it is probably through with what it has; 0 where that is not known, or it is overdue."""
        each = [times.believed(b.plan.sha256, b.size, clock_hz, now_ns) for b in self.in_flight.values()]
        running_ns = now_ns - self.running_since_ns
        return max(0, each[0] - running_ns) + sum(each[1:]) if each else 0

    def take_busy_ns(self) -> int:
        """ns that it has worked since the last call."""
        taken, self._busy_ns = self._busy_ns, 0
        return taken

    def rows(self, batch: Batch, position: int, count: int) -> NDArray[np.float32]:
        """A copy of the rows that the engine left for one frame, float32 (count, row width). Raises ResultAreaError."""
        return self._results.read(batch.area, position, batch.number, count, batch.plan.row_width)

    def distrust(self, reason: str) -> None:
        """It answered what cannot be: it is lost at the next tick."""
        self._broken = self._broken or reason

    def read_fault_pipe(self) -> str | None:
        """What faulthandler wrote at a fatal signal, once its first line is there; '' before (it writes in pieces, the
        signal's name after the first), None at the end of file."""
        try:
            data = os.read(self.fault_fd, FAULT_TEXT_BYTES)
        except BlockingIOError:
            return ""
        self._fault_text += data
        whole = b"\n" in self._fault_text or len(self._fault_text) >= FAULT_TEXT_BYTES or not data
        return (self._fault_text.decode(errors="replace").strip() or None) if whole else ""

    def end_reason(self) -> str:
        if self._broken:
            return self._broken
        status = self.child.status if self.child is not None else None
        return "its process ended" if status is None else f"its process ended with status {status}"

    @property
    def broken(self) -> str:
        """Why nothing can be sent to it any more, or ''."""
        return self._broken

    # -- the end -------------------------------------------------------------------------------------------------

    def take_in_flight(self) -> list[Batch]:
        batches = list(self.in_flight.values())
        self.in_flight.clear()
        self.running_since_ns = 0
        return batches

    def fence(self) -> None:
        """Close everything that ties it to us and kill it."""
        self._channel.close()
        os.close(self.fault_fd)
        self._results.close()
        if self._nursery is not None and self.child is not None:
            self._nursery.kill(self.child)


class Launcher:
    """Starts engines through the nursery. One for the life of main; epochs never repeat.

    `others_serve`: whether an engine serves now, before which one that starts stands back.
    """

    def __init__(
        self, nursery: NurseryClient, ring: SlotRing, others_serve: Callable[[], bool] = lambda: False
    ) -> None:
        self._others_serve = others_serve
        self._nursery = nursery
        self._ring = ring
        self._epochs = itertools.count(1)

    def launch(
        self,
        config: Config,
        device: str,
        plan_fds: Sequence[int],
        layout: ResultLayout,
        on_failed: Callable[[int, str], None],
    ) -> EngineHandle:
        """Ask for an engine process with its own memory; it says READY on its channel after its golden check.

        Raises IpcError where memory is short, OSError where descriptors are; nothing is left open then.
        """
        epoch, engine = next(self._epochs), config.engine
        with ExitStack() as ours, ExitStack() as theirs:  # what main keeps; what the child has copies of
            results = ResultArea(engine.queue_depth, layout.frames, layout.rows_max, layout.row_width)
            ours.callback(results.close)
            channel, far_end = make_pair()
            ours.callback(channel.close)
            theirs.callback(far_end.close)
            fault_read, fault_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            ours.callback(os.close, fault_read)
            theirs.callback(os.close, fault_write)
            os.set_blocking(fault_write, True)
            slots_fd = self._ring.readonly_fd()
            theirs.callback(os.close, slots_fd)
            results_fd = results.writable_fd()
            theirs.callback(os.close, results_fd)
            start = {
                "epoch": epoch, "device": device, "cpu_steps": engine.cpu_steps == "allow",
                "heartbeat_ms": engine.heartbeat_ms, "others_serve": self._others_serve(),
                "emergency_bytes": config.memory.emergency_reserve_mib << 20,
                "slots": [self._ring.count, self._ring.size],
                "results": [engine.queue_depth, layout.frames, layout.rows_max, layout.row_width],
            }
            handle = EngineHandle(epoch, channel, fault_read, results, device, engine.queue_depth)
            handle.child = self._nursery.spawn(
                "engine",
                [far_end.fileno(), fault_write, slots_fd, results_fd, *plan_fds],
                [json.dumps(start)],
                cpus=engine.cpus,
                on_failed=lambda text: on_failed(epoch, text),
            )
            ours.pop_all()
        handle._nursery = self._nursery
        return handle
