"""Stand-ins for what a unit test of the daemon does not start: the nursery's processes, and a camera's socket.

They implement the real interfaces over real descriptors: `Processes` is given every spawn with its descriptors, as the
nursery would be, and a test then plays the child (`EngineStandIn`, `DecoderStandIn`) with the real messages. They can
fail on command: die, answer garbage, not answer at all.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orind.daemon.config import Config
from orind.daemon.nursery_client import Child, NurseryClient
from orind.daemon.poller import Poller
from orind.ipc import decode_messages, engine_messages
from orind.ipc.channel import Channel
from orind.ipc.message_text import Kind
from orind.ipc.results import ResultArea
from orind.ipc.slots import SlotReader
from orind.ipc.source import RawFrame

MS = 1_000_000
S = 1_000_000_000


def config(folder: Path | str = "/nowhere", **changes: Any) -> Config:
    """A small good configuration: camera `cam` with model `m`, camera `live` best effort. Sections replaced by name."""
    raw: dict[str, Any] = {
        "run_dir": str(folder),
        "models": {"m": {"plan": "m.plan"}},
        "cameras": {
            "cam": {"model": "m", "deadline_ms": 500},
            "live": {"model": "m", "deadline_ms": 500, "priority": "best_effort"},
        },
        "sources": [{"name": "in", "endpoint": f"ipc://{folder}/in"}],
        "slots": {"count": 8, "bytes": 8192},
    }
    return Config.model_validate({**raw, **changes})


@dataclass(slots=True)
class Started:
    """One spawn: its arguments, and the descriptors that the child would have."""

    child: Child
    role: str
    fds: list[int]
    arguments: list[str]
    killed: bool = False

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []


class Processes(NurseryClient):
    """The nursery client without a nursery. Takes copies of the descriptors, as the kernel would at SCM_RIGHTS."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self.channel, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._count = 0

    def spawn(
        self,
        role: str,
        fds: list[int],
        arguments: list[str],
        *,
        cpus: Sequence[int] = (),
        on_failed: Callable[[str], None] | None = None,
    ) -> Child:
        self._count += 1
        child = Child(self._count, role, on_failed=on_failed)
        child.pid = 1_000_000 + child.number
        self.started.append(Started(child, role, [os.dup(fd) for fd in fds], arguments))
        return child

    def kill(self, child: Child) -> None:
        for started in self.started:
            if started.child is child:
                started.killed = True

    def tick(self, now_ns: int) -> None:
        """Nobody there to be asked whether it lives."""

    def of(self, role: str) -> list[Started]:
        return [s for s in self.started if s.role == role]

    def close(self, timeout_s: float = 0) -> None:
        for started in self.started:
            started.close()
        self.channel.close()
        self._far_end.close()


class EngineStandIn:
    """Plays an engine over the descriptors of its spawn. `batches` holds what it was given and has not answered."""

    def __init__(self, started: Started) -> None:
        start = json.loads(started.arguments[-1])
        channel, self.fault_fd, slots, results, *self.plan_fds = started.fds
        started.fds = []
        self.epoch: int = start["epoch"]
        self.start: dict[str, Any] = start
        self.started = started
        self.channel = Channel.from_fd(channel, blocking=False)
        self.slots = SlotReader(slots, *start["slots"])
        areas, frames, rows_max, row_width = start["results"]
        self.results = ResultArea(areas, frames, rows_max, row_width, results)
        self.batches: list[engine_messages.Batch] = []
        self.checks = 0
        self.alive = True

    def hear(self) -> list[engine_messages.Batch]:
        """Take what main has sent; -> the batches among it."""
        fresh = []
        for data in self.channel.recv_all().messages:
            message = engine_messages.unpack(data)
            if isinstance(message, engine_messages.Batch):
                fresh.append(message)
            elif isinstance(message, engine_messages.Notice):
                self.checks += message.kind is Kind.CHECK
        self.batches += fresh
        return fresh

    def pixels(self, frame: engine_messages.FrameRef) -> bytes:
        return bytes(self.slots.view(frame.slot)[: frame.length])

    def say(self, data: bytes) -> None:
        self.channel.send(data)

    def ready(self) -> None:
        self.say(engine_messages.pack_ready(0))

    def beat(self) -> None:
        self.say(engine_messages.pack_heartbeat(0))

    def answer(
        self,
        batch: engine_messages.Batch,
        rows: Sequence[NDArray[np.float32] | str],
        *,
        row_width: int = 6,
        took_ns: int = 5 * MS,
        ended_ns: int = 0,
        announced: int | None = None,
    ) -> None:
        """rows: for each frame what it leaves in the result area, or the text of that frame's error.

        Its times are from 0 to took_ns, unless it is told when it ended.
        """
        if batch in self.batches:
            self.batches.remove(batch)
        self.results.begin(batch.area, batch.batch_id)
        said = []
        for position, content in enumerate(rows):
            if isinstance(content, str):
                said.append(engine_messages.FrameAnswer(engine_messages.STATUS_ERROR, 0, content))
                continue
            self.results.rows(batch.area, position, row_width)[: len(content)] = content
            count = len(content) if announced is None else announced
            said.append(engine_messages.FrameAnswer(engine_messages.STATUS_OK, count))
        self.results.finish(batch.area, batch.batch_id)
        start_ns = max(0, ended_ns - took_ns)
        times = (start_ns, start_ns + took_ns // 4, start_ns + took_ns // 2, start_ns + took_ns)
        self.say(
            engine_messages.pack_answer(
                engine_messages.Answer(batch.batch_id, self.epoch, batch.area, *times, tuple(said))
            )
        )

    def die(self) -> None:
        """Everything that ties it to main is closed, as at the end of a process."""
        if self.alive:
            self.alive = False
            self.channel.close()
            os.close(self.fault_fd)
            self.results.close()
            self.slots.close()
            for fd in self.plan_fds:
                os.close(fd)


class DecoderStandIn:
    """Plays a decode worker. `jobs` holds what it was given and has not answered."""

    def __init__(self, started: Started) -> None:
        channel, slots = started.fds
        started.fds = []
        self.started = started
        self.channel = Channel.from_fd(channel, blocking=False)
        self.slots = SlotReader(slots, *json.loads(started.arguments[-1])["slots"], writable=True)
        self.jobs: list[decode_messages.Decode] = []
        self.alive = True

    def hear(self) -> list[decode_messages.Decode]:
        fresh = [decode_messages.unpack_decode(data) for data in self.channel.recv_all().messages]
        self.jobs += fresh
        return fresh

    def hello(self) -> None:
        self.channel.send(decode_messages.pack_decoded(decode_messages.HELLO))

    def answer(self, job: decode_messages.Decode, width: int = 4, height: int = 2, *, text: str = "") -> None:
        """Leaves a gray plane of `width` x `height`; text: refuses the picture instead."""
        self.jobs.remove(job)
        status = engine_messages.STATUS_ERROR if text else engine_messages.STATUS_OK
        length = 0 if text else width * height
        self.slots.view(job.slot_out)[:length] = bytes(range(length))
        said = decode_messages.Decoded(job.job, status, width, height, length, "" if text else "gray", text)
        self.channel.send(decode_messages.pack_decoded(said))

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self.channel.close()
            self.slots.close()


@dataclass
class Camera:
    """A source's socket as the pipeline replies to it. `gone`: replies cannot be delivered."""

    same_host: bool = True
    gone: bool = False
    replies: list[tuple[tuple[bytes, ...], dict[str, Any]]] = field(default_factory=list)

    def reply(self, envelope: Sequence[bytes], parts: Sequence[bytes]) -> bool:
        if self.gone:
            return False
        self.replies.append((tuple(envelope), json.loads(parts[1])))
        return True


def frame(
    seq: int = 1,
    camera: str = "cam",
    *,
    ts_ns: int | None = None,
    payload: bytes | None = None,
    envelope: tuple[bytes, ...] = (b"id",),
    parts: int = 3,
    **header: Any,
) -> RawFrame:
    """A message as a source yields it: mono8 4x2 unless told otherwise."""
    fields: dict[str, Any] = {"v": 1, "seq": seq, "encoding": "mono8", "width": 4, "height": 2, **header}
    if ts_ns is not None:
        fields["ts_ns"] = ts_ns
    body = bytes(range(8)) if payload is None else payload
    return RawFrame(envelope, camera.encode(), json.dumps(fields).encode(), memoryview(body), parts)


def turn(poller: Poller, now_ns: int) -> int:
    """Call everything that is ready now; -> how many."""
    calls = poller.wait(0)
    for call in calls:
        call(now_ns)
    return len(calls)
