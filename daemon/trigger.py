"""One received trigger, from its arrival to its single outcome, and the words for outcomes.

Made by `pipeline.py`; owned by exactly one of: a decoder job, a queue, a batch in flight. Times are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

OUTCOMES = ("ok", "degraded", "stale", "rejected", "expired", "error", "dropped")
RANKS = {"critical": 0, "normal": 1, "best_effort": 2}


class ReplySocket(Protocol):
    """Where the answer to a DEALER or REQ goes; False when that peer is gone."""

    def reply(self, envelope: list[bytes], parts: list[bytes]) -> bool: ...


class FrameSlot(Protocol):
    """A frame slot that main took from the ring."""

    index: int
    serial: int


@dataclass(slots=True)
class Trigger:
    """A frame with its identity, its pixels' place and everything that its answer echoes."""

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
    slot: FrameSlot | None = None
    reply_to: list[tuple[ReplySocket, list[bytes]]] = field(default_factory=list)
    suspect: bool = False
    queued_ns: int = 0
    sent_ns: int = 0
    outcome: str = ""
