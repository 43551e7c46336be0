"""One received trigger, from its arrival to its single outcome, and the ranks of priorities.

Made by `pipeline.py`; owned by exactly one of: a decoder job, a queue, a batch in flight. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ipc.identity import Entry
from ..ipc.slots import Slot
from ..ipc.wire import CLASSES

RANKS = {name: rank for rank, name in enumerate(CLASSES)}


class ReplySocket(Protocol):
    """Where a frame came from and its answer goes; `reply` is False when that peer is gone.

    `same_host`: only this host's processes can send there, so that their monotonic stamps mean something.
    """

    same_host: bool

    def reply(self, envelope: Sequence[bytes], parts: Sequence[bytes]) -> bool: ...


@dataclass(slots=True)
class Trigger:
    """A frame with its identity, its pixels' place and everything that its answer echoes.

    `replayed`: an engine was lost that had it; `deaths`: of how many engines it may be the cause; `decoder_deaths`: of
    how many decode workers; `generation`: whose engine has answered it, 0 where none has.
    """

    camera: str
    seq: int | None
    trigger: str | None
    ts_ns: int | None
    clock: str
    received_ns: int
    capture_ns: int = 0
    deadline_ns: int = 0
    rank: int = 1
    model: str = ""
    encoding: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    length: int = 0
    slot: Slot | None = None
    source: ReplySocket | None = None
    envelope: Sequence[bytes] = ()
    entry: Entry | None = None
    replayed: bool = False
    deaths: int = 0
    decoder_deaths: int = 0
    generation: int = 0
    queued_ns: int = 0
    outcome: str = ""
