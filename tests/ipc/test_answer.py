"""Results: built by the daemon, read by a client, and hostile bytes in between."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orind.ipc import wire
from orind.ipc.answer import mark_repeated
from orind.ipc.result_text import result_line
from orind.ipc.wire import WireError, build_result, parse_result

BOXES = np.array([[1, 2, 3.5, 4.5, 0.93, 1]], np.float32)
OBJECT = {"label": "scratch", "score": 0.93, "box": [1.0, 2.0, 3.5, 4.5]}


def built() -> list[bytes]:
    return build_result(
        "cam", 5, "T5", 99, "arrival", "degraded", "held result", model="parts", generation=3, objects=[OBJECT],
        latency_ms={"queue": 0.5}, boxes=BOXES,
    )


def test_round_trip() -> None:
    parts = built()
    assert parts[0] == b"res/cam" and len(parts[2]) == 24
    result = parse_result(parts)
    assert (result.camera, result.seq, result.trigger, result.ts_ns, result.clock) == ("cam", 5, "T5", 99, "arrival")
    assert (result.outcome, result.reason, result.model, result.generation) == ("degraded", "held result", "parts", 3)
    assert result.objects == [OBJECT] and result.latency_ms == {"queue": 0.5} and not result.repeated and not result.ok
    np.testing.assert_array_equal(result.boxes, BOXES)
    assert result.raw == json.loads(parts[1]) and result.tensor is None


def test_tensor_and_top_k_and_nothing() -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    result = parse_result(build_result("cam", 1, None, None, "arrival", "ok", tensor=tensor))
    assert result.tensor is not None and result.boxes.shape == (0, 6) and result.ok
    np.testing.assert_array_equal(result.tensor, tensor)
    top = parse_result(build_result("cam", 1, None, None, "arrival", "ok", classes=[{"label": "a", "score": 0.5}]))
    assert top.classes == [{"label": "a", "score": 0.5}]
    unknown = build_result(None, None, None, None, None, "rejected", "bad_camera: no name")
    assert unknown[0] == b"res/?" and parse_result(unknown).camera is None


def test_repeated_marks_once() -> None:
    once = mark_repeated(built())
    assert parse_result(once).repeated and mark_repeated(once) == once
    assert parse_result(once).objects == parse_result(built()).objects
    marked = build_result("cam", 1, None, None, None, "ok", repeated=True, model="m", latency_ms={})
    assert mark_repeated(marked) == marked and parse_result(marked).repeated


def test_refuses_to_build_what_must_not_leave() -> None:
    with pytest.raises(ValueError, match="outcome"):
        build_result("cam", 1, None, None, None, "fine")
    with pytest.raises(ValueError, match="JSON"):
        build_result("cam", 1, None, None, None, "ok", objects=[{"score": float("nan")}])


def changed(**fields: Any) -> list[bytes]:
    return [b"res/cam", json.dumps({"v": 1, "outcome": "ok", "camera": "cam", "seq": 1, **fields}).encode()]


@pytest.mark.parametrize(
    "parts",
    [
        [], [b"res/cam"], [b"res/cam", b"{}", b"", b""], [b"other", b"{}"], [b"res/cam", b"{}"], [b"res/cam", b"\xff"],
        changed(v=2), changed(outcome="no"), changed(outcome=[]), changed(seq="1"), changed(seq=True),
        changed(camera=1), changed(reason=[]),
        changed(objects={}), changed(objects=[1]), changed(classes="x"), changed(latency_ms=[]),
        changed(latency_ms={"a": "b"}),
        [*changed(), b"123"], [*changed(), b"1234"], [*changed(shape=[2]), b"1234"], [*changed(shape="x"), b"1234"],
        [*changed(shape=[-1]), b"1234"], [*changed(shape=[1 << 40, 1 << 40]), b"1234"], [*changed(shape=[[]]), b"1234"],
    ],
)
def test_refuses_a_foreign_result(parts: list[bytes]) -> None:
    with pytest.raises(WireError):
        parse_result(parts)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"res/cam", b'{"v":1,"outcome":"ok"}', b"{}"]), max_size=4))
def test_fuzz_parts(parts: list[bytes]) -> None:
    try:
        assert parse_result(parts).outcome in wire.OUTCOMES
    except WireError as error:
        assert error.reason in wire.REASONS


def test_an_answer_without_its_rows_says_so_and_names_no_shape() -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    parts = build_result("cam", 1, None, 5, "monotonic", "ok", tensor=tensor, rows_kept=False)
    assert len(parts) == 2 and b"shape" not in parts[1]
    result = parse_result(mark_repeated(parts))
    assert (result.rows_kept, result.tensor, result.repeated) == (False, None, True)
    assert "its rows came with the first answer only" in result_line(result) and "nothing" not in result_line(result)
    whole = parse_result(build_result("cam", 1, None, 5, "monotonic", "ok", tensor=tensor))
    assert whole.rows_kept and whole.tensor is not None and whole.tensor.shape == (2, 3)
    assert parse_result(build_result("cam", 1, None, 5, None, "stale", rows_kept=False)).rows_kept, "there were none"
