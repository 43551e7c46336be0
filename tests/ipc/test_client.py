"""The client library against a stub of a daemon, over real sockets."""

from __future__ import annotations

import inspect
import re
import socket
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from orind.ipc import client, pixels, wire
from orind.ipc.client import ClientError, Publisher, Result, Subscriber
from orind.ipc.errors import EndpointError, NobodyThere, WireError
from orind.ipc.sink import ResultSink

WAIT_S = 10.0
JPEG = b"\xff\xd8\xff\xe0" + bytes(500)
IMAGE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
Start = Callable[..., Any]


def test_the_example_of_the_docstring_runs(start_daemon: Start, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = start_daemon()
    doc = inspect.getdoc(client) or ""
    example = textwrap.dedent("\n".join(re.findall(r"^    .*$", doc, re.MULTILINE)))
    assert example.count("\n") == 4 and "ipc:///run/orind/frames" in example
    exec(example.replace("ipc:///run/orind/frames", daemon.frames), {"image": IMAGE})
    assert capsys.readouterr().out.startswith("part-0815 ok [{'label': 'hole'")


def test_every_kind_of_image_arrives_as_it_was(start_daemon: Start) -> None:
    daemon = start_daemon()
    mono = np.arange(12, dtype=np.uint8).reshape(3, 4)
    planes = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4)
    tensor = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    with Publisher(daemon.frames, "cam") as camera:
        for image, encoding in (
            (IMAGE, None), (IMAGE, "rgb8"), (mono, None), (planes, "nv12"), (planes, "i420"), (mono, "bayer_rggb8"),
            (tensor, "tensor"), (JPEG, None), (IMAGE[::2, ::2], None),
        ):
            camera.send(image, encoding)
        results = camera.wait_all(WAIT_S)
        assert camera.unanswered == () and camera.answered == camera.sent == 9 and camera.resent == 0
    assert [result.seq for result in results] == list(range(9)) and all(result.ok for result in results)
    seen = [(h.encoding, h.width, h.height, h.shape) for h in daemon.received]
    assert seen == [
        ("bgr8", 6, 4, ()), ("rgb8", 6, 4, ()), ("mono8", 4, 3, ()), ("nv12", 4, 4, ()), ("i420", 4, 4, ()),
        ("bayer_rggb8", 4, 3, ()), ("tensor", 0, 0, (1, 2, 3)), ("jpeg", 0, 0, ()), ("bgr8", 3, 2, ()),
    ]
    assert daemon.payloads[0] == IMAGE.tobytes() and daemon.payloads[6] == tensor.tobytes()
    assert daemon.payloads[7] == JPEG and daemon.payloads[8] == IMAGE[::2, ::2].tobytes()


def test_header_fields_and_the_stamp(start_daemon: Start) -> None:
    daemon = start_daemon()
    with Publisher(daemon.frames, "cam") as camera:
        assert camera.send(IMAGE, seq=41, trigger="T", ts_ns=5, clock="realtime", deadline_ms=7.5, cls="critical") == 41
        assert camera.send(IMAGE) == 42
        (first, second) = camera.wait_all(WAIT_S)
    assert (first.trigger, first.ts_ns, first.boxes.shape) == ("T", 5, (1, 6))
    header = daemon.received[0]
    assert (header.clock, header.deadline_ms, header.cls) == ("realtime", 7.5, "critical")
    assert second.ts_ns is not None and second.ts_ns > 5 and second.clock == "monotonic"


def test_the_unanswered_is_sent_again_the_same_and_not_inspected_twice(start_daemon: Start) -> None:
    daemon = start_daemon()
    daemon.mute = 3
    with Publisher(daemon.frames, "cam", resend_after_s=0.02) as camera:
        for _ in range(3):
            camera.send(IMAGE)
        results = camera.wait_all(WAIT_S)
        assert sorted(result.seq for result in results) == [0, 1, 2] and camera.resent >= 3
        assert all(result.repeated for result in results)
    first = [header for header in daemon.received if header.seq == 1]
    assert len(first) >= 2 and first[0] == first[1]


def test_a_second_answer_is_counted_not_returned(context: Any, endpoint: str) -> None:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(endpoint)
    with Publisher(endpoint, "cam", context=context) as camera:
        camera.send(IMAGE)
        camera.send(IMAGE)
        peer = router.recv_multipart()[0]
        for seq in (0, 0, 1):
            router.send_multipart([peer, *wire.build_result("cam", seq, None, None, None, "ok")])
        assert [result.seq for result in camera.wait_all(WAIT_S)] == [0, 1] and camera.duplicates == 1
    router.close()


def test_a_daemon_that_starts_late_gets_everything(start_daemon: Start, tmp_path: Path) -> None:
    started: list[Any] = []
    starter = threading.Timer(0.1, lambda: started.append(start_daemon()))
    starter.start()
    with Publisher(f"ipc://{tmp_path}/frames", "cam", send_timeout_s=WAIT_S) as camera:
        camera.send(IMAGE)
        assert [result.seq for result in camera.wait_all(WAIT_S)] == [0]
    starter.join()


def test_a_daemon_that_restarts_loses_nothing(start_daemon: Start) -> None:
    daemon = start_daemon()
    daemon.mute = 100
    with Publisher(daemon.frames, "cam", resend_after_s=0.05) as camera:
        for _ in range(5):
            camera.send(IMAGE)
        assert camera.poll(0.0) == []
        daemon.stop()
        start_daemon()
        assert sorted(result.seq for result in camera.wait_all(WAIT_S)) == list(range(5))
        assert not camera.unanswered


def test_results_as_they_come_and_poll(start_daemon: Start) -> None:
    daemon = start_daemon()
    with Publisher(daemon.frames, "cam") as camera:
        for _ in range(20):
            camera.send(IMAGE)
        assert sorted(result.seq for result in camera.results(WAIT_S)) == list(range(20))
        assert camera.poll() == [] and list(camera.results()) == []


def test_outstanding_is_bounded_and_the_unanswered_are_listed(start_daemon: Start) -> None:
    daemon = start_daemon()
    daemon.mute = 10**6
    with Publisher(daemon.frames, "cam", max_outstanding=2, send_timeout_s=0.1, resend_after_s=30) as camera:
        camera.send(IMAGE)
        with pytest.raises(ClientError, match="seq 0 is still unanswered"):
            camera.send(IMAGE, seq=0)
        camera.send(IMAGE, seq=1)
        with pytest.raises(ClientError, match="2 frames are unanswered"):
            camera.send(IMAGE)
        assert camera.wait_all(0.01) == [] and camera.unanswered == (0, 1) and camera.sent == 2


def test_strangers_at_a_bound_camera_do_not_drive_the_daemon_away(context: Any) -> None:
    """One who hangs up before he has said anything, one who speaks ZeroMQ and is refused; then the daemon leaves."""
    with Publisher(
        "tcp://127.0.0.1:*", "cam", bind=True, send_timeout_s=WAIT_S, resend_after_s=0.05, context=context
    ) as camera:
        endpoint = camera._socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        router.connect(endpoint)
        camera.send(IMAGE)
        assert router.recv_multipart()[1] == b"cam"
        for _ in range(3):
            socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2]))).close()
        stranger = context.socket(zmq.SUB)
        stranger.setsockopt(zmq.LINGER, 0)
        refused = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.connect(endpoint)
        assert refused.poll(int(WAIT_S * 1000)), "a camera does not take a subscriber"
        stranger.disable_monitor()
        refused.close(0)
        stranger.close()
        assert camera.send(IMAGE) == 1
        while camera.resent < 4:
            camera.poll(0.05)
        seqs = [wire.parse_header(router.recv_multipart()[2]).seq for _ in range(5)]
        assert seqs.count(0) >= 2 and seqs.count(1) >= 2, seqs
        router.close()
        end = time.monotonic() + WAIT_S
        while camera._socket.poll(0, zmq.POLLOUT) and time.monotonic() < end:
            time.sleep(0.005)  # until its end of file is here
        camera.send_timeout_s = 0.05
        with pytest.raises(NobodyThere):
            camera.send(IMAGE)


def test_what_is_given_up_is_listed(start_daemon: Start) -> None:
    daemon = start_daemon()
    daemon.mute = 10**6
    with Publisher(daemon.frames, "cam", resend_after_s=0.01, give_up_after_s=0.05) as camera:
        camera.send(IMAGE)
        assert camera.wait_all(WAIT_S) == [] and camera.outstanding == 0 and camera.unanswered == (0,)
        assert camera.resent >= 1 and camera.given_up == 1


def test_the_list_of_what_is_given_up_is_bounded_and_the_count_is_not(
    start_daemon: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "KEPT_MAX", 3)
    daemon = start_daemon()
    daemon.mute = 10**6
    with Publisher(daemon.frames, "cam", resend_after_s=0.01, give_up_after_s=0.01) as camera:
        for _ in range(5):
            camera.send(IMAGE)
        assert camera.wait_all(WAIT_S) == [] and (camera.given_up, camera.unanswered) == (5, (2, 3, 4))


def test_nobody_there_is_one_clear_sentence(tmp_path: Path, no_fd_leak: None) -> None:
    for pattern, words in (("dealer", "takes no frame"), ("push", "takes no frame"), ("pub", "no subscriber")):
        with Publisher(f"ipc://{tmp_path}/none", "cam", pattern, send_timeout_s=0.05) as camera:
            with pytest.raises(ClientError, match=words):
                camera.send(IMAGE)
            assert camera.sent == 0 and camera.unanswered == ()


@pytest.mark.parametrize(("pattern", "kind"), [("push", "pull"), ("pub", "sub")])
def test_push_and_pub_are_answered_on_pub_only(start_daemon: Start, pattern: str, kind: str) -> None:
    daemon = start_daemon(kind)
    with (
        Subscriber(daemon.results, ["cam"], timeout_s=WAIT_S) as results,
        Publisher(daemon.frames, "cam", pattern) as camera,
    ):
        heard: Result | None = None
        while heard is None:  # the subscription takes a moment
            camera.send(IMAGE)
            heard = results.receive(0.02)
        assert heard.camera == "cam" and heard.ok
        with pytest.raises(ClientError, match="read results with Subscriber"):
            camera.poll()
        for _ in range(10):
            camera.send(JPEG)
        last = camera.sent - 1
        seqs = [heard.seq]
        for result in results:
            seqs.append(result.seq)
            if result.seq == last:
                break
        assert sorted(set(seqs)) == list(range(heard.seq or 0, last + 1))


def test_subscriber_filters_exactly_and_survives_rubbish(context: Any, endpoint: str) -> None:
    sink = ResultSink(context, endpoint)
    with Subscriber(endpoint, ["cam1"], timeout_s=0.2, context=context) as results:
        heard = None
        while heard is None:
            sink.publish([b"res/cam1", b"rubbish"])
            sink.publish(wire.build_result("cam10", 1, None, None, None, "ok"))
            sink.publish(wire.build_result("cam1", 2, None, None, None, "expired", "late"))
            heard = results.receive(0.05)
        assert (heard.camera, heard.outcome) == ("cam1", "expired") and results.malformed >= 1
        assert all(result.camera == "cam1" for result in results)  # ends by its time-out
        assert results.receive(0.0) is None
    sink.close()


def test_foreign_answers_are_counted(context: Any, endpoint: str) -> None:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(endpoint)
    with Publisher(endpoint, "cam", context=context) as camera:
        camera.send(IMAGE)
        peer = router.recv_multipart()[0]
        stamp = camera._outstanding[0].ts_ns
        router.send_multipart([peer, b"res/cam", b"rubbish"])
        router.send_multipart([peer, *wire.build_result("cam", None, None, None, None, "rejected", "?")])
        router.send_multipart([peer, *wire.build_result("cam", 0, None, stamp - 1, "monotonic", "ok")])
        router.send_multipart([peer, b"", *wire.build_result("cam", 0, None, stamp + 7, "arrival", "ok")])
        (result,) = camera.wait_all(WAIT_S)
        assert (camera.malformed, camera.duplicates, result.clock) == (2, 1, "arrival")
    router.close()


@pytest.mark.parametrize(
    ("image", "encoding", "word"),
    [
        (IMAGE, "png", "use one of"), (b"PNG", None, "not a JPEG"), (JPEG, "bgr8", "numpy array"),
        ([1, 2], None, "list"),
        (IMAGE.astype(np.float32), None, "float32"), (IMAGE, "mono8", "height, width"), (IMAGE[:, :, 0], "bgr8", "3"),
        (IMAGE, "jpeg", "file's bytes"), (IMAGE, "nv12", "even"), (IMAGE[:, :, 0], "nv12", "even"),
        (np.zeros(3, complex), "tensor", "complex"), (np.zeros(3, ">f4"), "tensor", "native"),
        (np.zeros(3, np.uint8), None, "mono8"),
    ],
)
def test_a_wrong_image_is_named(image: Any, encoding: str | None, word: str) -> None:
    with pytest.raises(ClientError, match=word):
        pixels.describe(image, encoding)


def test_wrong_settings(tmp_path: Path, no_fd_leak: None) -> None:
    endpoint = f"ipc://{tmp_path}/x"
    with pytest.raises(ClientError, match="pattern"):
        Publisher(endpoint, "cam", "req")
    with pytest.raises(ClientError, match="max_outstanding"):
        Publisher(endpoint, "cam", max_outstanding=0)
    with pytest.raises(WireError, match="camera"):
        Publisher(endpoint, "")
    for make in (lambda: Publisher("/run/x", "cam"), lambda: Subscriber("/run/x")):
        with pytest.raises(EndpointError, match="use ipc://"):
            make()
    with Publisher(endpoint, "cam") as camera, pytest.raises(WireError, match="deadline_ms"):
        camera.send(IMAGE, deadline_ms=-1)
