"""Fixed messages: right values back, and nothing but ChannelError out of hostile bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.ipc import decode_messages, engine_messages, message_text
from orind.ipc.channel import MESSAGE_BYTES_MAX
from orind.ipc.decode_messages import Decode, Decoded
from orind.ipc.engine_messages import STATUS_ERROR, STATUS_OK, Answer, Batch, FrameAnswer, FrameRef
from orind.ipc.errors import ChannelError
from orind.ipc.message_text import Kind

RAW = FrameRef(3, 2_764_800, 1280, 720, 3840, "bgr8")
TENSOR = FrameRef(0, 48, 0, 0, 0, "tensor", "float32", (1, 3, 4))
BATCH = Batch(2**50, 7, 2, 1, (RAW, TENSOR))
ANSWER = Answer(9, 7, 1, 10, 20, 30, 40, (FrameAnswer(STATUS_OK, 12), FrameAnswer(STATUS_ERROR, 0, "nicht endlich: ∞")))
DECODE = Decode(2**50, 1, 123_456, 2)
DECODED = Decoded(5, STATUS_OK, 1280, 720, 1_382_400, "yuv420")
MESSAGES: list[tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (BATCH, engine_messages.pack_batch, engine_messages.unpack_batch),
    (ANSWER, engine_messages.pack_answer, engine_messages.unpack_answer),
    (DECODE, decode_messages.pack_decode, decode_messages.unpack_decode),
    (DECODED, decode_messages.pack_decoded, decode_messages.unpack_decoded),
]


@pytest.mark.parametrize(("message", "pack", "unpack"), MESSAGES)
def test_round_trip_and_every_cut(message: Any, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]) -> None:
    data = pack(message)
    assert unpack(data) == message and len(data) <= MESSAGE_BYTES_MAX
    for end in range(len(data)):
        with pytest.raises(ChannelError):
            unpack(data[:end])
    for foreign in (data + b"\x00", b"\x00" + data[1:], data[:4] + b"\x63" + data[5:]):
        with pytest.raises(ChannelError):
            unpack(foreign)


@pytest.mark.parametrize(("message", "pack", "unpack"), MESSAGES)
def test_fuzz(message: Any, pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]) -> None:
    rng = random.Random(11)
    good = pack(message)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for parse in (unpack, engine_messages.unpack):
            try:
                parse(bytes(data))
            except ChannelError as error:
                assert str(error)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(list(Kind)), st.integers(0, 65_535))
def test_fuzz_behind_a_good_head(tail: bytes, kind: Kind, count: int) -> None:
    data = struct.pack("<IHH", message_text.MAGIC, kind, count) + tail
    for parse in (engine_messages.unpack, decode_messages.unpack_decode, decode_messages.unpack_decoded):
        try:
            parse(data)
        except ChannelError as error:
            assert str(error)


def test_the_largest_messages_fit_a_datagram() -> None:
    frames = (TENSOR._replace(shape=(1, 2, 3, 4, 5, 6)),) * engine_messages.FRAMES_MAX
    data = engine_messages.pack_batch(BATCH._replace(frames=frames))
    assert len(data) <= MESSAGE_BYTES_MAX and engine_messages.unpack_batch(data).frames == frames
    answers = (FrameAnswer(STATUS_ERROR, 0, "é" * 100),) * engine_messages.FRAMES_MAX
    data = engine_messages.pack_answer(ANSWER._replace(frames=answers))
    assert len(data) <= MESSAGE_BYTES_MAX
    assert engine_messages.unpack_answer(data).frames[0].detail == "é" * 60


def test_notices() -> None:
    notice = engine_messages.unpack_notice(engine_messages.pack_ready(5, "CPU, 1 thread"))
    assert notice == (Kind.READY, 5, True, "CPU, 1 thread")
    for pack, kind, ok in (
        (lambda: engine_messages.pack_placed(1, "{}"), Kind.PLACED, True),
        (lambda: engine_messages.pack_memory(1, "{}"), Kind.MEMORY, True),
        (lambda: engine_messages.pack_heartbeat(1), Kind.HEARTBEAT, True),
        (lambda: engine_messages.pack_golden(1, False, "step 3"), Kind.GOLDEN, False),
        (lambda: engine_messages.pack_golden(1, True), Kind.GOLDEN, True),
        (lambda: engine_messages.pack_fault(1, "illegal address"), Kind.FAULT, False),
        (lambda: engine_messages.pack_check(1), Kind.CHECK, True),
    ):
        got = engine_messages.unpack(pack())
        assert isinstance(got, engine_messages.Notice) and (got.kind, got.ok, got.now_ns) == (kind, ok, 1)
    assert len(engine_messages.unpack_notice(engine_messages.pack_fault(1, "x" * 10_000)).text) == 4096



@pytest.mark.parametrize(
    "make",
    [
        lambda: engine_messages.pack_batch(BATCH._replace(frames=())),
        lambda: engine_messages.pack_batch(BATCH._replace(frames=(RAW,) * 129)),
        lambda: engine_messages.pack_batch(BATCH._replace(frames=(RAW._replace(encoding="png"),))),
        lambda: engine_messages.pack_batch(BATCH._replace(frames=(RAW._replace(width=-1),))),
        lambda: engine_messages.pack_batch(BATCH._replace(frames=(TENSOR._replace(shape=(1,) * 7),))),
        lambda: engine_messages.pack_batch(BATCH._replace(epoch=1 << 32)),
        lambda: engine_messages.pack_answer(ANSWER._replace(frames=())),
        lambda: engine_messages.pack_answer(ANSWER._replace(frames=(FrameAnswer(0, -1),))),
        lambda: engine_messages.pack_notice(Kind.BATCH),
        lambda: engine_messages.unpack_notice(engine_messages.pack_batch(BATCH)),
        lambda: decode_messages.pack_decode(DECODE._replace(length=1 << 32)),
        lambda: decode_messages.pack_decoded(DECODED._replace(encoding="png")),
        lambda: decode_messages.pack_decoded(DECODED._replace(width=-1)),
        lambda: message_text.kind_of(b"x"),
        lambda: engine_messages.unpack_batch(struct.pack("<IHHQIHH", message_text.MAGIC, 1, 0, 1, 1, 1, 1)),
    ],
)
def test_refusals(make: Callable[[], object]) -> None:
    with pytest.raises(ChannelError):
        make()


def test_a_failed_decode_needs_no_encoding() -> None:
    failed = Decoded(5, STATUS_ERROR, 0, 0, 0, "", "JPEG ends early")
    assert decode_messages.unpack_decoded(decode_messages.pack_decoded(failed)) == failed
