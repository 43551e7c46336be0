"""What main and a decode worker say to each other: DECODE (slot to slot) out, DECODED back.

One of each per JPEG frame. Invariant: as in engine_messages.py; a worker touches only the two slots it was given, which
stay its own until it has answered or ended; and main believes no picture that its slot does not hold (decode_pool.py).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .engine_messages import DETAIL_BYTES_MAX, ENCODING_CODES, ENCODING_NAMES, STATUS_ERROR, STATUS_OK
from .errors import ChannelError
from .message_text import HEAD, MAGIC, Kind, clip_text, close_at, open_head, read_text

_DECODE = struct.Struct("<QIII")
_DECODED = struct.Struct("<QHHIIIHH")


class Decode(NamedTuple):
    """main -> worker: `length` bytes of JPEG lie in slot_in; planes go to slot_out."""

    job: int
    slot_in: int
    length: int
    slot_out: int


class Decoded(NamedTuple):
    """worker -> main: what lies in slot_out now; on STATUS_ERROR text says why and the rest is 0."""

    job: int
    status: int
    width: int
    height: int
    length: int
    encoding: str
    text: str = ""


HELLO = Decoded(0, STATUS_OK, 0, 0, 0, "gray", "ready")  # a worker's first word; jobs count from 1


def pack_decode(message: Decode) -> bytes:
    try:
        return HEAD.pack(MAGIC, Kind.DECODE, 0) + _DECODE.pack(*message)
    except struct.error as error:
        raise ChannelError(f"decode job {message.job} cannot be packed: {error}") from None


def unpack_decode(data: bytes) -> Decode:
    open_head(data, Kind.DECODE, _DECODE.size)
    close_at(data, HEAD.size + _DECODE.size, Kind.DECODE)
    return Decode(*_DECODE.unpack_from(data, HEAD.size))


def pack_decoded(message: Decoded) -> bytes:
    """encoding: a name of ENCODING_CODES; on STATUS_ERROR it may be empty."""
    job, status, width, height, length, encoding, text = message
    raw = clip_text(text, DETAIL_BYTES_MAX)
    if status != STATUS_ERROR and encoding not in ENCODING_CODES:
        raise ChannelError(f"decode job {job} made {encoding!r}: no such encoding")
    code = ENCODING_CODES.get(encoding, 0)
    try:
        body = _DECODED.pack(job, status, len(raw), width, height, length, code, 0)
    except struct.error as error:
        raise ChannelError(f"answer to decode job {job} cannot be packed: {error}") from None
    return HEAD.pack(MAGIC, Kind.DECODED, 0) + body + raw


def unpack_decoded(data: bytes) -> Decoded:
    open_head(data, Kind.DECODED, _DECODED.size)
    job, status, n, width, height, length, code, _ = _DECODED.unpack_from(data, HEAD.size)
    at = HEAD.size + _DECODED.size
    close_at(data, at + n, Kind.DECODED)
    encoding = ENCODING_NAMES.get(code, "")
    if status not in (STATUS_OK, STATUS_ERROR) or (status == STATUS_OK and not encoding) or n > DETAIL_BYTES_MAX:
        raise ChannelError(f"DECODED with status {status}, encoding {code}, {n} bytes of text: unknown here")
    return Decoded(job, status, width, height, length, encoding, read_text(data[at:]))
