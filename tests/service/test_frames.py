"""Frames through the real daemon: every received trigger answered once, with the right answer or the right reason."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import built_plans
import harness
import numpy as np
import pytest
import zmq

from orind.ipc.answer import OUTCOMES, Result, parse_result
from orind.ipc.client import Subscriber

TENSOR = {"v": 1, "encoding": "tensor", "dtype": "uint8", "shape": [1, 4, 4096, 1]}
PIXELS = built_plans.identity_tensor(4)


def first_bytes(tensor: Any) -> list[int]:
    return [int(row[0, 0]) for row in tensor[0]]


class Wire:
    """A raw DEALER, for messages that the client library would refuse to send."""

    def __init__(self, service: harness.Service) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(service.endpoint)

    def ask(self, *parts: bytes, timeout_s: float = 10.0) -> Result:
        self.socket.send_multipart(parts)
        return self.next(timeout_s)

    def next(self, timeout_s: float = 10.0) -> Result:
        assert self.socket.poll(int(timeout_s * 1000)), "no answer"
        return parse_result(self.socket.recv_multipart())

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.context.term()


def wait_subscribed(service: harness.Service, results: Subscriber) -> None:
    """Until a subscription has arrived PUB drops what is published: publish something harmless until it comes through.

    A message without a legible camera is answered under `res/?` and counted as `rejected`.
    """
    with Wire(service) as wire:
        tries = 1
        wire.ask(b"?", b"", b"")
        while results.receive(0.1) is None:
            tries += 1
            assert tries < 100, "no subscription after 100 tries"
            wire.ask(b"?", b"", b"")
        while results.receive(0.1) is not None:
            pass


def header(**fields: Any) -> bytes:
    return json.dumps({**TENSOR, **fields}).encode()


def service_of(folder: Path, plan: Path, **config: Any) -> harness.Service:
    return harness.Service(
        folder, {"models": {"m": {"plan": str(plan)}}, "cameras": {"line1": {"model": "m"}}, **config}
    )


def test_a_frame_is_answered_with_what_its_pixels_say(folder: Path, identity: Path) -> None:
    with service_of(folder, identity) as service, service.client() as camera, service.subscriber() as results:
        wait_subscribed(service, results)
        camera.send(PIXELS, "tensor", trigger="part-1", seq=7)
        [answer] = camera.wait_all(10)
        assert (answer.outcome, answer.seq, answer.trigger, answer.model) == ("ok", 7, "part-1", "m")
        assert answer.tensor is not None
        assert answer.tensor.reshape(-1).tolist() == first_bytes(PIXELS)
        published = results.receive(10)
        assert published is not None
        assert published.raw == answer.raw


def test_two_thousand_frames_over_three_patterns(folder: Path, identity: Path) -> None:
    """DEALER and PUSH: sent == answered. PUB: promised from the moment of receipt, so received == answered."""
    names = {"dealer": "router", "push": "pull", "pub": "sub"}
    sources = [
        {"name": kind, "endpoint": f"ipc://{{run_dir}}/{kind}", "pattern": pattern} for kind, pattern in names.items()
    ]
    cameras = {kind: {"model": "m", "deadline_ms": 60_000} for kind in names}
    total, share = 2000, {"dealer": 800, "push": 700, "pub": 500}
    service = harness.Service(
        folder,
        {"models": {"m": {"plan": str(identity)}}, "cameras": cameras, "sources": sources, "slots": {"count": 128}},
    )
    sent: Counter[str] = Counter()

    def publish(kind: str) -> None:
        with harness.Publisher(f"ipc://{service.run_dir}/{kind}", kind, kind, max_outstanding=32) as camera:
            for _ in range(share[kind]):
                camera.send(PIXELS, "tensor")
                sent[kind] += 1
                if kind != "dealer":
                    room.acquire(timeout=1)  # what a PUB socket drops under load gives no permit back
            if kind == "dealer":
                camera.wait_all(60)
                unanswered.extend(camera.unanswered)

    unanswered: list[int] = []
    # PUSH and PUB have no answers to wait for: keep them from running ahead of the slots
    room = threading.Semaphore(48)
    with service, service.subscriber() as results:
        service.endpoint = f"ipc://{service.run_dir}/dealer"
        wait_subscribed(service, results)
        threads = [threading.Thread(target=publish, args=(kind,)) for kind in names]
        for thread in threads:
            thread.start()
        seen: Counter[tuple[str | None, int | None]] = Counter()
        outcomes: Counter[str] = Counter()
        while sum(seen.values()) < total:
            result = results.receive(10)
            if result is None:
                if any(thread.is_alive() for thread in threads):
                    continue
                break
            seen[(result.camera, result.seq)] += 1
            outcomes[result.outcome] += 1
            if result.camera != "dealer":
                room.release()
        for thread in threads:
            thread.join()
        status = service.status()
    everything = {(kind, n) for kind in names for n in range(share[kind])}
    assert set(seen.values()) == {1}
    assert set(seen) <= everything and {kind for kind, _ in everything - set(seen)} <= {"pub"}
    assert dict(outcomes) == {"ok": len(seen)}
    assert unanswered == []
    assert sum(sent.values()) == total
    assert status["frames"]["ok"] == len(seen)
    assert status["frames"]["received"] == len(seen) + status["frames"]["rejected"]
    assert harness.account_gap(status) == 0
    assert status["frames"]["in_flight"] == 0


@pytest.mark.parametrize(
    ("parts", "code", "words"),
    [
        ((b"line1", header(seq=1)), "parts", "3 parts"),
        ((b"line1", b"{not json", b"x"), "header_not_json", "not JSON"),
        ((b"line1", b"[1]", b"x"), "header_not_json", "object"),
        ((b"line1", header(seq=1, filler="x" * 5000), b"x"), "header_too_large", "4096"),
        ((b"line1", header(), b"x"), "missing_field", "seq"),
        ((b"line1", header(seq=1, v=2), b"x"), "bad_version", "version 1"),
        ((b"line1", header(seq=1, encoding="bgr9"), b"x"), "bad_field", "encoding"),
        ((b"line1", header(seq=1, shape=[1, 4, 4096, 2]), bytes(32768)), "encoding", "takes uint8 [1, 4, 4096, 1]"),
        ((b"line1", header(seq=1), b"x" * 9), "payload_length", "needs 16384"),
        ((b"line1", header(seq=1, shape=[1, 600, 4096, 1]), bytes(600 * 4096)), "frame_too_large", "slot"),
        ((b"line1", header(seq=1, encoding="bgr8", width=8, height=8), bytes(192)), "encoding", "takes tensors"),
        ((b"line1", header(seq=1, encoding="jpeg"), b"\xff\xd8\xff"), "encoding", "takes tensors"),
        ((b"door", header(seq=1), PIXELS.tobytes()), "unknown_camera", "line1"),
        ((b"\xff\xfe", header(seq=1), PIXELS.tobytes()), "bad_camera", "UTF-8"),
        ((b"c" * 65, header(seq=1), PIXELS.tobytes()), "bad_camera", "64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_messages_are_rejected_with_the_reason(
    rejecting: harness.Service, parts: tuple[bytes, ...], code: str, words: str
) -> None:
    before = rejecting.status()
    with Wire(rejecting) as wire:
        answer = wire.ask(*parts)
        assert answer.outcome == "rejected"
        assert answer.reason is not None
        assert words in answer.reason
        good = wire.ask(b"line1", header(seq=99), PIXELS.tobytes())
        assert good.outcome == "ok", "the daemon goes on"
    after = rejecting.status()
    assert after["reasons"][code] == before["reasons"].get(code, 0) + 1
    assert harness.account_gap(after) == 0


@pytest.fixture(scope="module")
def rejecting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="orind-"))
    with service_of(path, built_plans.identity_plan(4)) as service:
        yield service
    shutil.rmtree(path)


def test_a_repeated_trigger_gets_its_outcome_again(rejecting: harness.Service) -> None:
    before = rejecting.status()["frames"]
    stamp = time.monotonic_ns()
    message = (b"line1", header(seq=5, trigger="t-5", ts_ns=stamp), PIXELS.tobytes())
    with Wire(rejecting) as wire:
        first, again = wire.ask(*message), wire.ask(*message)
    after = rejecting.status()["frames"]
    assert first.outcome == again.outcome == "ok"
    assert not first.repeated
    assert again.repeated
    assert again.tensor is not None
    assert first.tensor is not None
    assert again.tensor.tolist() == first.tensor.tolist()
    assert after["received"] == before["received"] + 1
    assert after["repeated"] == before["repeated"] + 1


def test_without_a_stamp_nothing_is_deduplicated(rejecting: harness.Service) -> None:
    with Wire(rejecting) as wire:
        answers = [wire.ask(b"line1", header(seq=5), PIXELS.tobytes()) for _ in range(2)]
    assert [a.repeated for a in answers] == [False, False]


@pytest.mark.parametrize("offset_s", [3600, -3600])
def test_an_unbelievable_stamp_is_replaced_and_counted(rejecting: harness.Service, offset_s: int) -> None:
    before = rejecting.status()["clock_replaced"]
    with Wire(rejecting) as wire:
        stamp = max(1, time.monotonic_ns() + offset_s * 10**9)
        answer = wire.ask(b"line1", header(seq=1, ts_ns=stamp), PIXELS.tobytes())
    assert (answer.outcome, answer.clock, answer.ts_ns) == ("ok", "arrival", stamp)
    assert rejecting.status()["clock_replaced"] == before + 1


def test_a_frame_that_cannot_be_in_time_is_expired(rejecting: harness.Service) -> None:
    with Wire(rejecting) as wire:
        answer = wire.ask(b"line1", header(seq=1, ts_ns=time.monotonic_ns() - 10**9, deadline_ms=500), PIXELS.tobytes())
    assert answer.outcome == "expired"
    assert answer.reason is not None
    assert "deadline passed" in answer.reason


def test_a_rate_limit_rejects_what_is_above_it(folder: Path, identity: Path) -> None:
    cameras = {"line1": {"model": "m", "rate_limit_hz": 0.001, "rate_burst": 3}}
    with service_of(folder, identity, cameras=cameras) as service, service.client() as camera:
        for _ in range(5):
            camera.send(PIXELS, "tensor")
        outcomes = Counter(a.outcome for a in camera.wait_all(10))
    assert outcomes == {"ok": 3, "rejected": 2}


def test_the_newest_best_effort_frame_wins_and_the_older_are_stale(folder: Path, identity: Path) -> None:
    cameras = {"line1": {"model": "m", "priority": "best_effort", "deadline_ms": 30_000}}
    config = {"cameras": cameras, "engine": {"queue_depth": 1}}
    with service_of(folder, identity, **config) as service, service.client() as camera:
        active = service.active_pid()
        os.kill(active, signal.SIGSTOP)
        try:
            for _ in range(6):
                camera.send(PIXELS, "tensor")
            answers: list[Result] = []
            while len(answers) < 4:
                answers += camera.poll(1.0)
            assert {a.outcome for a in answers} == {"stale"}
        finally:
            os.kill(active, signal.SIGCONT)
        answers += camera.wait_all(10)
    stale = [a.seq for a in answers if a.outcome == "stale"]
    served = [a.seq for a in answers if a.outcome == "ok"]
    # the engine has one frame of an earlier turn before it is stopped, or none where one turn read all six
    assert len(served) in (1, 2)
    assert served[-1] == 5, "the newest is never stale"
    assert stale == sorted(set(range(5)) - set(served))


def test_photographs_as_jpeg_and_parts_as_pixels(folder: Path, faces: Path, parts: Path) -> None:
    """The main job: faces where they are, defects where they were painted; hostile JPEG rejected meanwhile."""
    frames = built_plans.ROOT / "configs" / "frames"
    expected = json.loads((frames / "expected.json").read_text())["frames"]
    make_parts = built_plans.load_by_path(built_plans.ROOT / "scripts" / "make_parts.py")
    config = {
        "models": {"faces": {"plan": str(faces)}, "parts": {"plan": str(parts)}},
        "cameras": {"door": {"model": "faces"}, "line1": {"model": "parts"}},
        "decode": {"workers": 1},
    }
    with harness.Service(folder, config) as service:
        with service.client("door") as door:
            for name in expected:
                door.send((frames / name).read_bytes(), trigger=name)
            answers = {a.trigger: a for a in door.wait_all(30)}
            for name, about in expected.items():
                clear = [f["box"] for f in about["faces"] if f["clear"]]
                found = [o["box"] for o in answers[name].objects]
                assert answers[name].outcome == "ok"
                assert all(any(iou(box, f) >= 0.5 for f in found) for box in clear), name
            whole = (frames / "astronaut.jpg").read_bytes()
            for hostile in (whole[: len(whole) // 2], b"\xff\xd8\xff" + bytes(100)):
                door.send(hostile, "jpeg")
            assert [a.outcome for a in door.wait_all(30)] == ["rejected"] * 2
        with service.client("line1") as line:
            labels = 0
            hits = 0
            for seed in range(built_plans.SHOWN_SEED, built_plans.SHOWN_SEED + 12):
                pixels, truth = make_parts.sample(seed)
                line.send(pixels[:, :, ::-1].copy(), "bgr8")
                [answer] = line.wait_all(30)
                for kind, *box in truth.tolist():
                    labels += 1
                    name = make_parts.LABELS[int(kind)]
                    hits += any(o["label"] == name and iou(o["box"], box) >= 0.5 for o in answer.objects)
            assert labels >= 12
            assert hits >= 0.9 * labels
        assert harness.account_gap(service.status()) == 0


def test_raw_encodings_of_one_picture_agree(folder: Path, parts: Path) -> None:
    """rgb8 and bgr8 give the same bits; mono8 and nv12 are taken; a padded stride changes nothing."""
    [picture] = built_plans.part_pictures(1)
    with service_of(folder, parts) as service, service.client() as camera:
        camera.send(picture, "rgb8")
        camera.send(picture[:, :, ::-1].copy(), "bgr8")
        rgb, bgr = sorted(camera.wait_all(30), key=lambda a: a.seq or 0)
        assert rgb.boxes.tobytes() == bgr.boxes.tobytes()
        assert len(rgb.boxes) > 0
        padded = np.zeros((256, 800), np.uint8)
        padded[:, :768] = picture.reshape(256, 768)
        with Wire(service) as wire:
            fields = {"v": 1, "seq": 1, "encoding": "rgb8", "width": 256, "height": 256, "stride": 800}
            strided = wire.ask(b"line1", json.dumps(fields).encode(), padded.tobytes())
            assert strided.boxes.tobytes() == rgb.boxes.tobytes()
            fields = {"v": 1, "seq": 2, "encoding": "nv12", "width": 256, "height": 256}
            assert wire.ask(b"line1", json.dumps(fields).encode(), bytes(256 * 384)).outcome == "ok"
        camera.send(picture[:, :, 0].copy(), "mono8")
        assert [a.outcome for a in camera.wait_all(30)] == ["ok"]


def iou(a: Any, b: Any) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(shared / (area - shared))


def test_outcomes_are_the_seven_of_the_design() -> None:
    assert OUTCOMES == ("ok", "degraded", "stale", "rejected", "expired", "error", "dropped")
