"""Main's side of the JPEG decode workers: jobs in, planes back, and what happens when a worker dies or hangs.

Called by `pipeline.py`. Invariant: a slot that a killed worker might still write into is given back only after that
worker's end of file, so no late write can reach another frame. A picture whose worker dies is tried once more, for it
may not have been the cause; one that takes too long is not.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ..ipc import decode_messages as messages
from ..ipc.channel import Channel, make_pair
from ..ipc.engine_messages import STATUS_OK
from ..ipc.errors import ChannelError, IpcError
from ..ipc.slots import Slot, SlotRing
from ..kernels.picture import PictureError, frame_bytes
from .nursery_client import Child, NurseryClient
from .poller import Watcher
from .respawn import Respawn
from .sections import Decode
from .trigger import Trigger

log = logging.getLogger("orind")
RESPAWN_NS = 200_000_000
START_TIMEOUT_NS = 20_000_000_000
DEATHS_MAX = 2  # of workers, before their picture counts as the cause


class Receiver(Protocol):
    """Who gets the outcome of a job: the pipeline."""

    def decoded(self, frame: Trigger, now_ns: int) -> None: ...
    def undecodable(self, frame: Trigger, outcome: str, code: str, text: str, now_ns: int) -> None: ...


@dataclass(slots=True)
class Job:
    """A frame being decoded. `target` is the slot that the planes go to; ours until the worker is done or dead."""

    number: int
    frame: Trigger
    target: Slot
    started_ns: int


@dataclass(slots=True)
class Worker:
    """One decode process; one job at a time, the first after it said that it is ready: its time-out counts decoding."""

    channel: Channel
    child: Child
    started_ns: int
    ready: bool = False
    job: Job | None = None
    killed: str = ""
    distrusted: bool = False  # unlike one that was only too slow


class DecodePool:
    """All workers, and the frames that wait for one."""

    def __init__(self, nursery: NurseryClient, watcher: Watcher, ring: SlotRing, settings: Decode) -> None:
        self.receiver: Receiver | None = None
        self._nursery = nursery
        self._watcher = watcher
        self._ring = ring
        self._wanted = settings.workers
        self._timeout_ns = int(settings.timeout_ms * 1e6)
        self._workers: list[Worker] = []
        self._waiting: deque[Trigger] = deque()
        self._numbers = itertools.count(1)
        self._respawn = Respawn(RESPAWN_NS)
        self.deaths = 0

    @property
    def problem(self) -> str:
        """How many workers are missing and why, or ''."""
        if not self._respawn.problem:
            return ""
        ready = sum(worker.ready and not worker.killed for worker in self._workers)
        how_many = f"{ready} of {self._wanted} JPEG decode workers" if ready else "no JPEG decode worker"
        return f"{how_many}: {self._respawn.problem}"

    def submit(self, frame: Trigger, now_ns: int) -> None:
        """Queue a frame whose slot holds a JPEG."""
        self._waiting.append(frame)
        self._assign(now_ns)

    def slot_freed(self, now_ns: int) -> None:
        """The pipeline gave a slot back: a frame may be waiting for one to decode into."""
        if self._waiting:
            self._assign(now_ns)

    def tick(self, now_ns: int) -> None:
        """Kill hung workers, answer frames past their deadline, replace the dead, give out what waits."""
        for worker in self._workers:
            reason = self._overdue(worker, now_ns)
            if reason and not worker.killed:
                worker.killed = reason
                self._nursery.kill(worker.child)
        late = [frame for frame in self._waiting if frame.deadline_ns < now_ns]
        for frame in late:
            self._waiting.remove(frame)
        for frame in late:
            text = "deadline passed while it waited for a decode worker"
            self._receiver().undecodable(frame, "expired", "too_late", text, now_ns)
        if len(self._workers) < self._wanted and self._respawn.due(now_ns):
            self._spawn(now_ns)
        self._assign(now_ns)

    def _overdue(self, worker: Worker, now_ns: int) -> str:
        if worker.job is not None and now_ns - worker.job.started_ns > self._timeout_ns:
            return f"decoding took longer than {self._timeout_ns / 1e6:.0f} ms"
        if not worker.ready and now_ns - worker.started_ns > START_TIMEOUT_NS:
            return f"it was not ready within {START_TIMEOUT_NS / 1e9:.0f} s"
        return ""

    def take_all(self) -> list[Trigger]:
        """Remove and return every frame, for the end: workers may still write, but nothing is read any more."""
        frames = [worker.job.frame for worker in self._workers if worker.job is not None] + list(self._waiting)
        for worker in self._workers:
            worker.job = None
        self._waiting.clear()
        return frames

    def __len__(self) -> int:
        """How many frames it has."""
        return len(self._waiting) + sum(worker.job is not None for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            self._watcher.forget(worker.channel.fileno())
            worker.channel.close()
        self._workers.clear()

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _assign(self, now_ns: int) -> None:
        for worker in self._workers:
            if not self._waiting:
                return
            if worker.job is not None or worker.killed or not worker.ready:
                continue
            frame = self._waiting[0]
            target = self._ring.take()
            if target is None:
                return
            self._waiting.popleft()
            assert frame.slot is not None
            worker.job = Job(next(self._numbers), frame, target, now_ns)
            order = messages.Decode(worker.job.number, frame.slot.index, frame.length, target.index)
            if not worker.channel.send(messages.pack_decode(order)):
                self._ring.give(target)
                self._waiting.appendleft(frame)  # which it never had; its end of file tells the rest
                worker.job, worker.killed = None, "its channel is closed"
                self._nursery.kill(worker.child)

    def _on_readable(self, worker: Worker, now_ns: int) -> None:
        try:
            received = worker.channel.recv_all()
            done = [messages.unpack_decoded(data) for data in received.messages]
        except ChannelError as error:
            log.error("decode worker %d: %s", worker.child.pid, error)
            worker.killed = str(error)
            self._nursery.kill(worker.child)
            return
        for message in done:
            self._complete(worker, message, now_ns)
        if received.ended:
            self._lost(worker, now_ns)
        self._assign(now_ns)

    def _complete(self, worker: Worker, message: messages.Decoded, now_ns: int) -> None:
        worker.ready = True
        if len(self._workers) == self._wanted and all(each.ready for each in self._workers):
            self._respawn.served()
        job = worker.job
        if job is None or message.job != job.number or worker.distrusted:
            return
        if message.status == STATUS_OK and (wrong := self._impossible(message)):
            log.error("decode worker %d: %s", worker.child.pid, wrong)
            worker.killed, worker.distrusted = wrong, True
            self._nursery.kill(worker.child)
            return
        worker.job = None
        if message.status != STATUS_OK:
            self._ring.give(job.target)
            self._receiver().undecodable(job.frame, "rejected", "jpeg", message.text, now_ns)
            return
        frame = job.frame
        assert frame.slot is not None
        self._ring.give(frame.slot)
        frame.slot = job.target
        frame.encoding, frame.width, frame.height = message.encoding, message.width, message.height
        frame.stride, frame.length = message.width, message.length
        self._receiver().decoded(frame, now_ns)

    def _impossible(self, message: messages.Decoded) -> str:
        """Why no slot holds what the worker says it made; ''."""
        try:
            expected = frame_bytes(message.encoding, message.width, message.height, 0)
        except PictureError as error:
            return f"it made what cannot be: {error}"
        if message.length != expected or expected > self._ring.size:
            return (
                f"it made what cannot be: {message.length} bytes of {message.encoding} {message.width}x"
                f"{message.height}, which has {expected}, in a slot of {self._ring.size}"
            )
        return ""

    def _lost(self, worker: Worker, now_ns: int) -> None:
        self._watcher.forget(worker.channel.fileno())
        worker.channel.close()
        self._workers.remove(worker)
        self.deaths += 1
        why = worker.killed or "it ended by itself"
        self._respawn.failed(now_ns, why)
        log.warning("decode worker %d is gone: %s", worker.child.pid, why)
        if worker.job is None:
            return
        frame = worker.job.frame
        self._ring.give(worker.job.target)
        frame.decoder_deaths += 1
        if worker.killed or frame.decoder_deaths >= DEATHS_MAX:
            text = worker.killed or f"{frame.decoder_deaths} decode workers died of it"
            self._receiver().undecodable(frame, "error", "decoder", text, now_ns)
        else:
            self._waiting.appendleft(frame)

    def _receiver(self) -> Receiver:
        if self.receiver is None:
            raise RuntimeError("the decode pool was used before the pipeline was connected to it")
        return self.receiver

    def _spawn(self, now_ns: int) -> None:
        try:
            channel, theirs = make_pair()
        except OSError as error:
            self._respawn.failed(now_ns, str(error))
            return
        start = {"slots": [self._ring.count, self._ring.size]}
        with theirs:
            try:
                slots_fd = self._ring.writable_fd()
                try:
                    child = self._nursery.spawn("decoder", [theirs.fileno(), slots_fd], [json.dumps(start)])
                finally:
                    os.close(slots_fd)
            except (IpcError, OSError) as error:
                channel.close()
                self._respawn.failed(now_ns, str(error))
                return
        worker = Worker(channel, child, now_ns)
        self._workers.append(worker)
        self._watcher.watch(channel.fileno(), lambda now_ns: self._on_readable(worker, now_ns))
