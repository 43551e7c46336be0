"""The frame of every fixed message between our processes: magic, kind, count, then what the kind says, then text.

Used by engine_messages.py and decode_messages.py. Invariant: a datagram is read only if its magic, kind and exact
length agree with what it announces; otherwise it is a ChannelError. Little-endian, no padding.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from .channel import MESSAGE_BYTES_MAX
from .errors import ChannelError

MAGIC = 0x314E524F  # "ORN1"
HEAD = struct.Struct("<IHH")  # magic, kind, count of items that follow
TEXT_BYTES_MAX = 4096


class Kind(IntEnum):
    BATCH = 1
    ANSWER = 2
    READY = 3
    HEARTBEAT = 4
    GOLDEN = 5
    FAULT = 6
    CHECK = 7
    DECODE = 8
    DECODED = 9
    PLACED = 10
    MEMORY = 11


KINDS = {int(kind): kind for kind in Kind}


def kind_of(data: bytes) -> Kind:
    """What a datagram is. Raises ChannelError for a foreign one."""
    if not HEAD.size <= len(data) <= MESSAGE_BYTES_MAX:
        raise ChannelError(f"datagram of {len(data)} bytes: not a message of ours")
    magic, kind, _ = HEAD.unpack_from(data)
    if magic != MAGIC or kind not in KINDS:
        raise ChannelError(f"datagram with magic {magic:#x} and kind {kind}: not from this version of orind")
    return KINDS[kind]


def open_head(data: bytes, expected: Kind, least: int, count_max: int = 0) -> int:
    """Check magic, kind, least length and the count's bound; -> count."""
    if len(data) < HEAD.size + least:
        raise ChannelError(f"{expected.name} of {len(data)} bytes is cut short: it has at least {HEAD.size + least}")
    magic, kind, count = HEAD.unpack_from(data)
    if magic != MAGIC or kind != expected:
        raise ChannelError(f"datagram with magic {magic:#x} and kind {kind} where {expected.name} was due")
    if count > count_max:
        raise ChannelError(f"{expected.name} announces {count} items: at most {count_max}")
    return int(count)


def close_at(data: bytes, end: int, kind: Kind) -> None:
    """Refuse a message that is shorter or longer than what it announced."""
    if len(data) != end:
        raise ChannelError(f"{kind.name} of {len(data)} bytes announces {end}: it is cut short or not ours")


def clip_text(text: str, limit: int = TEXT_BYTES_MAX) -> bytes:
    """UTF-8 of at most `limit` bytes, cut at a character."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore").encode()


def read_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
