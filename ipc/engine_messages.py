"""What main and an engine say to each other, as fixed structs: BATCH out, ANSWER back, and the small ones.

Packed and unpacked once per batch on both sides. Messages are NamedTuples: as immutable as a frozen dataclass and six
times cheaper to make. Invariant: `unpack_*` returns a message of exactly the announced length or raises ChannelError.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import message_text
from .errors import ChannelError
from .message_text import HEAD, MAGIC, Kind, clip_text, close_at, open_head, read_text

FRAMES_MAX = 128
DIMS_MAX = 6
DETAIL_BYTES_MAX = 120
STATUS_OK, STATUS_ERROR = 0, 1

# The wire's encodings and those that a decode worker makes of a JPEG. Numbers never change their meaning.
ENCODING_CODES = {
    "bgr8": 1, "rgb8": 2, "mono8": 3, "nv12": 4, "i420": 5, "bayer_rggb8": 6, "jpeg": 7, "tensor": 8,
    "yuv420": 16, "yuv422": 17, "yuv444": 18, "gray": 21,
}
ENCODING_NAMES = {code: name for name, code in ENCODING_CODES.items()}
DTYPE_CODES = {
    "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8,
}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}

_BATCH = struct.Struct("<QIHH")  # batch_id, epoch, model, area
_FRAME = struct.Struct("<IIIIIHHI6I")  # slot, length, width, height, stride, encoding, dtype, ndim, shape
_ANSWER = struct.Struct("<QIHHqqqq")  # batch_id, epoch, area, 0, four times
_OUTCOME = struct.Struct("<HHI")  # status, bytes of detail, rows
_STAMP = struct.Struct("<Hq")  # flag, ns


class FrameRef(NamedTuple):
    """One frame of a batch: where it lies and what it is. Bytes and pixels as in ipc.wire.Header."""

    slot: int
    length: int
    width: int
    height: int
    stride: int
    encoding: str
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()


class Batch(NamedTuple):
    """main -> engine: run these frames through plan number `model`, leave the rows in result area `area`."""

    batch_id: int
    epoch: int
    model: int
    area: int
    frames: tuple[FrameRef, ...]


class FrameAnswer(NamedTuple):
    """status: STATUS_OK or STATUS_ERROR; rows: how many the result area holds for this frame; detail: why not."""

    status: int
    rows: int
    detail: str = ""


class Answer(NamedTuple):
    """engine -> main. Times are CLOCK_MONOTONIC: batch taken, preprocessed, run, rows written."""

    batch_id: int
    epoch: int
    area: int
    t_start_ns: int
    t_pre_ns: int
    t_run_ns: int
    t_end_ns: int
    frames: tuple[FrameAnswer, ...]


class Notice(NamedTuple):
    """The small ones (NOTICES). ok and text as the kind needs them."""

    kind: Kind
    now_ns: int
    ok: bool
    text: str


NOTICES = (Kind.READY, Kind.PLACED, Kind.MEMORY, Kind.HEARTBEAT, Kind.GOLDEN, Kind.FAULT, Kind.CHECK)


def pack_batch(batch: Batch) -> bytes:
    """Raises ChannelError for a number that does not fit or an unknown encoding: main's own mistake, said at once."""
    batch_id, epoch, model, area, frames = batch
    if not 0 < len(frames) <= FRAMES_MAX:
        raise ChannelError(f"batch of {len(frames)} frames: 1 to {FRAMES_MAX}")
    try:
        parts = [HEAD.pack(MAGIC, Kind.BATCH, len(frames)), _BATCH.pack(batch_id, epoch, model, area)]
        for slot, length, width, height, stride, encoding, dtype, shape in frames:
            ndim = len(shape)
            sides = (*shape, 0, 0, 0, 0, 0, 0)[:DIMS_MAX] if ndim <= DIMS_MAX else ()
            code, kind = ENCODING_CODES[encoding], DTYPE_CODES[dtype]
            parts.append(_FRAME.pack(slot, length, width, height, stride, code, kind, ndim, *sides))
    except (struct.error, KeyError) as error:
        raise ChannelError(f"batch {batch_id} cannot be packed: {error}") from None
    return b"".join(parts)


def unpack_batch(data: bytes) -> Batch:
    count = open_head(data, Kind.BATCH, _BATCH.size, FRAMES_MAX)
    close_at(data, HEAD.size + _BATCH.size + count * _FRAME.size, Kind.BATCH)
    if count == 0:
        raise ChannelError("BATCH without a frame")
    frames = []
    for slot, length, width, height, stride, code, kind, ndim, *sides in _FRAME.iter_unpack(
        memoryview(data)[HEAD.size + _BATCH.size :]
    ):
        encoding, dtype = ENCODING_NAMES.get(code), DTYPE_NAMES.get(kind)
        if encoding is None or dtype is None or ndim > DIMS_MAX:
            raise ChannelError(f"BATCH with encoding {code}, dtype {kind}, {ndim} dimensions: unknown here")
        frames.append(FrameRef(slot, length, width, height, stride, encoding, dtype, tuple(sides[:ndim])))
    batch_id, epoch, model, area = _BATCH.unpack_from(data, HEAD.size)
    return Batch(batch_id, epoch, model, area, tuple(frames))


def pack_answer(answer: Answer) -> bytes:
    batch_id, epoch, area, t_start_ns, t_pre_ns, t_run_ns, t_end_ns, frames = answer
    if not 0 < len(frames) <= FRAMES_MAX:
        raise ChannelError(f"answer for {len(frames)} frames: 1 to {FRAMES_MAX}")
    try:
        parts = [
            HEAD.pack(MAGIC, Kind.ANSWER, len(frames)),
            _ANSWER.pack(batch_id, epoch, area, 0, t_start_ns, t_pre_ns, t_run_ns, t_end_ns),
        ]
        for status, rows, detail in frames:
            text = clip_text(detail, DETAIL_BYTES_MAX) if detail else b""
            parts += (_OUTCOME.pack(status, len(text), rows), text)
    except struct.error as error:
        raise ChannelError(f"answer to batch {batch_id} cannot be packed: {error}") from None
    return b"".join(parts)


def unpack_answer(data: bytes) -> Answer:
    count = open_head(data, Kind.ANSWER, _ANSWER.size, FRAMES_MAX)
    batch_id, epoch, area, _, t_start_ns, t_pre_ns, t_run_ns, t_end_ns = _ANSWER.unpack_from(data, HEAD.size)
    at = HEAD.size + _ANSWER.size
    frames = []
    for _ in range(count):
        if at + _OUTCOME.size > len(data):
            raise ChannelError(f"ANSWER of {len(data)} bytes is cut short")
        status, n, rows = _OUTCOME.unpack_from(data, at)
        at += _OUTCOME.size
        if status not in (STATUS_OK, STATUS_ERROR) or n > DETAIL_BYTES_MAX:
            raise ChannelError(f"ANSWER with status {status} and {n} bytes of detail: unknown here")
        frames.append(FrameAnswer(status, rows, read_text(data[at : at + n]) if n else ""))
        at += n
    close_at(data, at, Kind.ANSWER)
    return Answer(batch_id, epoch, area, t_start_ns, t_pre_ns, t_run_ns, t_end_ns, tuple(frames))


def pack_notice(kind: Kind, now_ns: int = 0, ok: bool = True, text: str = "") -> bytes:
    if kind not in NOTICES:
        raise ChannelError(f"{kind.name} is not a notice")
    raw = clip_text(text)
    return HEAD.pack(MAGIC, kind, len(raw)) + _STAMP.pack(ok, now_ns) + raw


def unpack_notice(data: bytes) -> Notice:
    kind = message_text.kind_of(data)
    if kind not in NOTICES:
        raise ChannelError(f"{kind.name} where a notice was due")
    count = open_head(data, kind, _STAMP.size, message_text.TEXT_BYTES_MAX)
    at = HEAD.size + _STAMP.size
    close_at(data, at + count, kind)
    ok, now_ns = _STAMP.unpack_from(data, HEAD.size)
    return Notice(kind, now_ns, bool(ok), read_text(data[at:]))


def pack_ready(now_ns: int, text: str = "") -> bytes:
    """engine -> main: plans mapped, golden-checked, warm. text: the device's own name, "" for the CPU."""
    return pack_notice(Kind.READY, now_ns, True, text)


def pack_placed(now_ns: int, text: str) -> bytes:
    """engine -> main, before READY, one a plan on a GPU. text: which steps run where, as daemon/placement.py has it."""
    return pack_notice(Kind.PLACED, now_ns, True, text)


def pack_memory(now_ns: int, text: str) -> bytes:
    """engine -> main, before READY and when it has changed. text: its memory, as daemon/memory_report.py has it."""
    return pack_notice(Kind.MEMORY, now_ns, True, text)


def pack_heartbeat(now_ns: int) -> bytes:
    """engine -> main, every 100 ms while idle, from the thread that works."""
    return pack_notice(Kind.HEARTBEAT, now_ns)


def pack_golden(now_ns: int, ok: bool, text: str = "") -> bytes:
    """engine -> main, the answer to CHECK."""
    return pack_notice(Kind.GOLDEN, now_ns, ok, text)


def pack_fault(now_ns: int, text: str) -> bytes:
    """engine -> main, its last word before it exits non-zero."""
    return pack_notice(Kind.FAULT, now_ns, False, text)


def pack_check(now_ns: int) -> bytes:
    """main -> engine: run the golden input now."""
    return pack_notice(Kind.CHECK, now_ns)


def unpack(data: bytes) -> Batch | Answer | Notice:
    """Any engine message. Raises ChannelError."""
    kind = message_text.kind_of(data)
    if kind is Kind.ANSWER:
        return unpack_answer(data)
    return unpack_batch(data) if kind is Kind.BATCH else unpack_notice(data)
