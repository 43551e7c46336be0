"""From message parts to a trigger: every refusal with its reason and whatever identity could be read."""

from __future__ import annotations

import pytest
from stand_ins import MS, S, config, frame

from orind.daemon.intake import Intake
from orind.daemon.trigger import RANKS
from orind.ipc.clock import StampPolicy
from orind.ipc.errors import WireError
from orind.ipc.source import RawFrame

NOW = 5_000 * S
CAMERAS = {
    "cam": {"model": "m", "deadline_ms": 500},
    "safety": {"model": "m", "deadline_ms": 50, "priority": "critical"},
    "live": {"model": "m", "deadline_ms": 500, "priority": "best_effort"},
    "raw": {"model": "t", "deadline_ms": 500},
    "slow": {"model": "m", "deadline_ms": 500, "rate_limit_hz": 1, "rate_burst": 2},
}
MODELS = {"m": {"plan": "m"}, "t": {"plan": "t"}}


def intake(**changes: object) -> Intake:
    made = config(**{"models": MODELS, "cameras": CAMERAS, **changes})
    return Intake(made, {"t": ("uint8", (1, 2, 4, 1))}, StampPolicy())


def refusal(raw: RawFrame, rules: Intake | None = None) -> WireError:
    with pytest.raises(WireError) as caught:
        (rules or intake()).parse(raw, NOW, True)
    return caught.value


def test_a_good_frame_becomes_a_trigger() -> None:
    got = intake().parse(frame(7, trigger="T7", ts_ns=NOW - 10 * MS, deadline_ms=20), NOW, True)
    assert (got.camera, got.seq, got.trigger, got.ts_ns, got.clock) == ("cam", 7, "T7", NOW - 10 * MS, "monotonic")
    assert (got.received_ns, got.capture_ns, got.deadline_ns) == (NOW, NOW - 10 * MS, NOW + 10 * MS)
    assert (got.model, got.encoding, got.width, got.height, got.stride, got.length) == ("m", "mono8", 4, 2, 4, 8)
    assert got.slot is None and got.outcome == ""


def test_a_header_may_only_tighten_the_deadline() -> None:
    assert intake().parse(frame(deadline_ms=100), NOW, True).deadline_ns == NOW + 100 * MS
    assert intake().parse(frame(deadline_ms=9000), NOW, True).deadline_ns == NOW + 500 * MS


@pytest.mark.parametrize(
    ("camera", "named", "rank"),
    [("safety", None, "critical"), ("safety", "best_effort", "best_effort"), ("safety", "critical", "critical"),
     ("cam", None, "normal"), ("cam", "critical", "normal"), ("live", "critical", "best_effort"),
     ("live", None, "best_effort")],
)
def test_a_class_only_lowers_the_cameras_priority(camera: str, named: str | None, rank: str) -> None:
    header = {} if named is None else {"class": named}
    assert intake().parse(frame(camera=camera, **header), NOW, True).rank == RANKS[rank]


def test_a_stamp_from_the_future_is_replaced_and_counted() -> None:
    rules = intake()
    got = rules.parse(frame(ts_ns=NOW + 10 * S), NOW, True)
    assert (got.clock, got.capture_ns, got.ts_ns) == ("arrival", NOW, NOW + 10 * S)
    got = rules.parse(frame(ts_ns=NOW - MS), NOW, False)
    assert (got.clock, got.capture_ns) == ("arrival", NOW)
    assert (rules.stamps.future, rules.stamps.foreign, rules.stamps.replaced) == (1, 1, 2)


@pytest.mark.parametrize(
    ("raw", "reason", "text"),
    [
        (frame(parts=2), "parts", "this message has 2"),
        (frame(parts=4), "parts", "this message has 4"),
        (frame(camera=""), "bad_camera", "0 bytes"),
        (frame(camera="x" * 65), "bad_camera", "65 bytes"),
        (RawFrame((), b"\xff", b"{}", memoryview(b""), 3), "bad_camera", "not UTF-8"),
        (RawFrame((), b"cam", b"{", memoryview(b"1"), 3), "header_not_json", "not JSON"),
        (RawFrame((), b"cam", b" " * 4097, memoryview(b"1"), 3), "header_too_large", "4096"),
        (frame(v=2), "bad_version", "version 1"),
        (frame(encoding="webp"), "bad_field", "encoding"),
        (frame(width="4"), "bad_field", "width"),
        (frame(payload=b"1234567"), "payload_length", "7 bytes"),
        (frame(width=5), "payload_length", "needs 10"),
        (frame(height=3), "payload_length", "needs 12"),
        (frame(payload=bytes(8193), width=8193, height=1), "frame_too_large", "a frame slot holds 8192"),
        (frame(payload=b"", encoding="jpeg"), "payload_length", "empty"),
        (frame(camera="nobody"), "unknown_camera", "'nobody' is not in the configuration"),
        (frame(encoding="bayer_rggb8"), "encoding", "takes pictures as bgr8"),
        (frame(encoding="i420", payload=bytes(12)), "encoding", "not i420"),
        (frame(encoding="tensor", dtype="uint8", shape=[8]), "encoding", "not tensor"),
        (frame(camera="raw"), "encoding", "takes tensors, not mono8"),
        (frame(camera="raw", encoding="tensor", dtype="uint8", shape=[8]), "encoding", "takes uint8 [1, 2, 4, 1]"),
        (frame(camera="raw", encoding="tensor", dtype="int8", shape=[1, 2, 4, 1]), "encoding", "got int8"),
    ],
)
def test_each_refusal_has_its_reason(raw: RawFrame, reason: str, text: str) -> None:
    error = refusal(raw)
    assert error.reason == reason and text in str(error), str(error)


def test_jpeg_without_workers_is_refused() -> None:
    error = refusal(frame(encoding="jpeg"), intake(decode={"workers": 0}))
    assert error.reason == "encoding" and "decode.workers is 0" in str(error)


@pytest.mark.parametrize("raw", [
    frame(9, "nobody", trigger="T", ts_ns=5),
    frame(9, "raw", trigger="T", ts_ns=5),
    frame(9, "cam", trigger="T", ts_ns=5, payload=b"x"),
])
def test_a_refusal_echoes_the_identity(raw: RawFrame) -> None:
    error = refusal(raw)
    assert (error.camera, error.seq, error.trigger, error.ts_ns) == (raw.camera.decode(), 9, "T", 5)


def test_a_tensor_of_the_right_form_is_taken() -> None:
    got = intake().parse(frame(camera="raw", encoding="tensor", dtype="uint8", shape=[1, 2, 4, 1]), NOW, True)
    assert (got.model, got.dtype, got.shape, got.length) == ("t", "uint8", (1, 2, 4, 1), 8)


def test_rate_limit_is_the_cameras_own() -> None:
    rules = intake()
    refused = ("rate_limit", "camera triggers above its rate_limit_hz")
    assert [rules.refusal("slow", NOW) for _ in range(3)] == [None, None, refused]
    assert all(rules.refusal("cam", NOW) is None for _ in range(100))
    assert rules.refusal("slow", NOW + S) is None


def test_readmit_routes_anew_and_never_loosens() -> None:
    waiting = intake().parse(frame(deadline_ms=100), NOW, True)
    cameras = {"cam": {"model": "other", "deadline_ms": 80}}
    after = intake(models={"other": {"plan": "o"}}, cameras=cameras)
    assert after.readmit(waiting, NOW) is None and waiting.model == "other" and waiting.deadline_ns == NOW + 80 * MS
    assert intake().readmit(waiting, NOW) is None and waiting.deadline_ns == NOW + 80 * MS and waiting.model == "m"


def test_readmit_says_why_a_frame_cannot_be_served_any_more() -> None:
    waiting = intake().parse(frame(), NOW, True)
    gone = intake(cameras={"new": {"model": "m", "deadline_ms": 5}})
    assert gone.readmit(waiting, NOW) == ("reconfigured", "camera 'cam' is not in the new configuration")
    changed = intake(cameras={"cam": {"model": "t", "deadline_ms": 5}})
    assert changed.readmit(waiting, NOW) == ("reconfigured", "model 't' takes tensors, not mono8")


def test_decoded_planes_are_readmitted_as_pictures() -> None:
    waiting = intake().parse(frame(encoding="jpeg"), NOW, True)
    for planes in ("yuv420", "yuv422", "yuv444", "gray"):
        waiting.encoding = planes
        assert intake(decode={"workers": 0}).readmit(waiting, NOW) is None
