"""The frame header: what is read, what is refused and in which words, and that nothing but WireError ever comes out."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.ipc import wire
from orind.ipc.wire import WireError

GOOD: dict[str, Any] = {
    "v": 1, "seq": 7, "trigger": "T-7", "ts_ns": 123, "clock": "realtime", "encoding": "bgr8", "width": 4, "height": 3,
    "stride": 16, "deadline_ms": 12.5, "class": "critical",
}


def raw(**changes: Any) -> bytes:
    fields = {**GOOD, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def refusal(data: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        wire.parse_header(data)
    assert caught.value.reason in wire.REASONS
    return caught.value


def test_reads_every_field() -> None:
    header = wire.parse_header(raw())
    assert header == wire.Header(1, 7, "T-7", 123, "realtime", "bgr8", 4, 3, 16, 12.5, "critical", "uint8", (), 48)


def test_fills_in_what_may_be_left_out_and_ignores_what_it_does_not_know() -> None:
    header = wire.parse_header(b'{"v":1,"seq":0,"encoding":"mono8","width":5,"height":2,"colour":{"x":[1]}} \n')
    assert header == wire.Header(1, 0, None, None, "monotonic", "mono8", 5, 2, 5, None, None, "uint8", (), 10)


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"encoding": "bgr8", "width": 5, "height": 3}, 45),
        ({"encoding": "rgb8", "width": 5, "height": 3, "stride": 20}, 60),
        ({"encoding": "mono8", "width": 5, "height": 3}, 15),
        ({"encoding": "bayer_rggb8", "width": 6, "height": 4}, 24),
        ({"encoding": "nv12", "width": 6, "height": 4}, 36),
        ({"encoding": "nv12", "width": 5, "height": 3}, 6 * (3 + 2)),
        ({"encoding": "nv12", "width": 6, "height": 4, "stride": 8}, 48),
        ({"encoding": "i420", "width": 6, "height": 4}, 36),
        ({"encoding": "i420", "width": 5, "height": 3}, 15 + 2 * 6),
        ({"encoding": "jpeg"}, 0),
        ({"encoding": "jpeg", "width": 640, "height": 480}, 0),
        ({"encoding": "tensor", "dtype": "float32", "shape": [1, 3, 4]}, 48),
        ({"encoding": "tensor", "dtype": "uint8", "shape": [7]}, 7),
    ],
)
def test_payload_length_of_each_encoding(fields: dict[str, Any], length: int) -> None:
    header = wire.parse_header(json.dumps({"v": 1, "seq": 1, **fields}).encode())
    assert header.length == length
    wire.check_payload(header, length or 1, slot_bytes=max(length, 1))
    with pytest.raises(WireError) as caught:
        wire.check_payload(header, length + 1 if length else 0, slot_bytes=1 << 20)
    assert caught.value.reason == "payload_length" and caught.value.seq == 1
    with pytest.raises(WireError, match="slot holds") as caught:
        wire.check_payload(header, 100, slot_bytes=99)
    assert caught.value.reason == "frame_too_large"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", True), ("v", 2), ("v", "1"), ("v", None),
        ("seq", True), ("seq", -1), ("seq", 1 << 63), ("seq", 1.0), ("seq", "1"), ("seq", None), ("seq", 10**400),
        ("trigger", 5), ("trigger", ""), ("trigger", "x" * 129), ("trigger", "a\nb"), ("trigger", "\ud800"),
        ("trigger", []),
        ("ts_ns", -1), ("ts_ns", True), ("ts_ns", 1e9), ("ts_ns", 1 << 63), ("ts_ns", "now"),
        ("clock", "tai"), ("clock", None), ("clock", {}), ("clock", []),
        ("encoding", "BGR8"), ("encoding", None), ("encoding", ["bgr8"]), ("encoding", "yuv420"),
        ("width", 0), ("width", -4), ("width", True), ("width", 16_385), ("width", 4.0), ("width", None),
        ("height", 0), ("height", 10**30), ("height", "3"),
        ("stride", 11), ("stride", -1), ("stride", 1 << 40), ("stride", True), ("stride", None), ("stride", 4145),
        ("deadline_ms", 0), ("deadline_ms", -1), ("deadline_ms", True), ("deadline_ms", "5"), ("deadline_ms", 1e300),
        ("deadline_ms", 10**400), ("class", "urgent"), ("class", None), ("class", 1),
        ("shm", {"name": "x"}),
    ],
)
def test_refuses_a_wrong_field_by_its_name(name: str, value: Any) -> None:
    error = refusal(raw(**{name: value}))
    assert repr(name) in str(error) and len(str(error)) < 400
    assert error.reason == {"v": "bad_version", "shm": "unsupported"}.get(name, "bad_field")
    if name != "seq":
        assert error.seq == 7
    if name != "trigger":
        assert error.trigger == "T-7"
    if name != "ts_ns":
        assert error.ts_ns == 123


@pytest.mark.parametrize("name", ["v", "seq", "encoding", "width", "height"])
def test_names_a_missing_field(name: str) -> None:
    error = refusal(raw(**{name: ...}))
    assert error.reason == "missing_field" and repr(name) in str(error)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"dtype": "object", "shape": [1]}, "dtype"),
        ({"dtype": None, "shape": [1]}, "dtype"),
        ({"dtype": "uint8", "shape": []}, "shape"),
        ({"dtype": "uint8", "shape": [1] * 7}, "shape"),
        ({"dtype": "uint8", "shape": [0]}, "shape"),
        ({"dtype": "uint8", "shape": [-1, -1]}, "shape"),
        ({"dtype": "uint8", "shape": [True]}, "shape"),
        ({"dtype": "uint8", "shape": [2.0]}, "shape"),
        ({"dtype": "uint8", "shape": [1 << 20, 1 << 20]}, "shape"),
        ({"dtype": "uint8", "shape": "3"}, "shape"),
    ],
)
def test_refuses_an_impossible_tensor(fields: dict[str, Any], word: str) -> None:
    assert repr(word) in str(refusal(json.dumps({"v": 1, "seq": 1, "encoding": "tensor", **fields}).encode()))


def test_i420_planes_are_tight_and_pictures_are_bounded() -> None:
    assert "tight" in str(refusal(raw(encoding="i420", width=16, height=16, stride=32)))
    assert "pixels" in str(refusal(raw(encoding="mono8", width=16_384, height=16_384, stride=0)))


@pytest.mark.parametrize(
    ("data", "reason", "word"),
    [
        (b"", "header_not_json", "not JSON"),
        (b"\x80\x04K\x01.", "header_not_json", "UTF-8"),  # a pickle
        (b"[]", "header_not_json", "list"),
        (b"null", "header_not_json", "object"),
        (b'{"v":1,"v":1}', "header_not_json", "'v' twice"),
        (raw()[:-1] + b',"deadline_ms":NaN}', "header_not_json", "NaN"),
        (raw(deadline_ms=...)[:-1] + b',"deadline_ms":NaN}', "header_not_json", "NaN"),
        (raw(deadline_ms=...)[:-1] + b',"deadline_ms":-Infinity}', "header_not_json", "-Infinity"),
        (raw() + b"{}", "header_not_json", "goes on"),
        (raw()[:-5], "header_not_json", "not JSON"),
        (b'{"a":' * 800, "header_not_json", ""),
        (b"[" * 4096, "header_not_json", ""),
        (raw(note="x" * 4096), "header_too_large", "4096"),
        ("{}".encode("utf-16"), "header_not_json", ""),
    ],
)
def test_refuses_what_is_not_one_bounded_json_object(data: bytes, reason: str, word: str) -> None:
    error = refusal(data)
    assert error.reason == reason and word in str(error)


def test_deeply_nested_but_legal_value_is_named_not_recursed_into() -> None:
    assert "a JSON list" in str(refusal(raw(seq=...)[:-1] + b',"seq":' + b"[" * 700 + b"]" * 700 + b"}"))


@pytest.mark.parametrize("camera", [b"", b"x" * 65, b"\xff\xfe", b"a\nb", b"a\x00", "é".encode() * 33])
def test_refuses_a_bad_camera_name(camera: bytes) -> None:
    with pytest.raises(WireError) as caught:
        wire.parse_camera(camera)
    assert caught.value.reason == "bad_camera"


def test_reads_camera_names() -> None:
    assert wire.parse_camera("líne 1/überkopf".encode()) == "líne 1/überkopf"
    assert wire.parse_camera(b"x" * 64) == "x" * 64


def test_build_header_round_trip_and_refusals() -> None:
    data = wire.build_header(seq=9, encoding="tensor", dtype="int8", shape=(2, 3), ts_ns=5, cls="best_effort")
    header = wire.parse_header(data)
    assert (header.seq, header.shape, header.length, header.cls) == (9, (2, 3), 6, "best_effort")
    assert (header.ts_ns, header.clock) == (5, "monotonic")
    with pytest.raises(WireError, match="deadline_ms"):
        wire.build_header(seq=1, encoding="jpeg", deadline_ms=0)
    with pytest.raises(WireError, match="finite"):
        wire.build_header(seq=1, encoding="jpeg", deadline_ms=float("nan"))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_fuzz_bytes(data: bytes) -> None:
    for parse in (wire.parse_header, wire.parse_camera):
        try:
            parse(data)
        except WireError as error:
            assert error.reason in wire.REASONS


def test_a_header_without_class_leaves_the_priority_to_the_camera() -> None:
    assert wire.parse_header(wire.build_header(seq=1, encoding="mono8", width=1, height=1)).cls is None
    named = wire.build_header(seq=1, encoding="mono8", width=1, height=1, cls="normal")
    assert wire.parse_header(named).cls == "normal" and b'"class":"normal"' in named


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("tensor"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "dtype", "shape", "x"]), JSON, max_size=4))
def test_fuzz_fields_keep_their_promises(changes: dict[str, Any]) -> None:
    try:
        header = wire.parse_header(raw(**changes))
    except WireError as error:
        assert str(error) and error.reason in wire.REASONS
        return
    assert type(header.seq) is int and 0 <= header.seq < 1 << 63
    assert 0 <= header.length <= max(wire.TENSOR_BYTES_MAX, wire.STRIDE_MAX * wire.SIDE_MAX)
    assert header.deadline_ms is None or 0 < header.deadline_ms <= wire.DEADLINE_MS_MAX
    assert header.encoding in wire.ENCODINGS and header.cls in (None, *wire.CLASSES) and header.clock in wire.CLOCKS


def test_fuzz_flipped_bytes_of_a_good_header() -> None:
    rng = random.Random(20_240_607)
    good = raw()
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            wire.parse_header(bytes(data))
        except WireError as error:
            assert error.reason in wire.REASONS
