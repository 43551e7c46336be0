"""`orind publish` and `orind listen` against a stub of a daemon."""

from __future__ import annotations

import argparse
import builtins
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from orind.daemon import cli, publish_command
from orind.ipc import listen, picture_files, publish, wire
from orind.ipc.client import Publisher
from orind.ipc.result_text import result_line
from orind.ipc.tally import REASONS_MAX, REASONS_SHOWN, Tally
from orind.ipc.wire import Result
from orind.kernels.picture_file import decode

Start = Callable[..., Any]
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3


def told(text: str) -> str:
    """How often a frame is sent again depends on how busy the machine is."""
    return re.sub(r"\d+ sent again", "N sent again", text)


def arguments(module: Any, *words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "photos"
    made.mkdir()
    Image.fromarray(PIXELS).save(made / "a.jpg")
    Image.fromarray(PIXELS).save(made / "b.png")
    Image.fromarray(PIXELS).save(made / "c.ppm")
    (made / "notes.txt").write_text("cannot be read as an image: it is no picture that Pillow knows")
    np.save(made / "d.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    return made


def test_a_folder_is_published_and_every_answer_printed(
    start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = start_daemon()
    args = arguments(
        publish, folder, "--camera", "cam", "--endpoint", daemon.frames, "--rate", 500, "--count", 9, "--trigger", "T"
    )
    assert publish_command.run(args) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 9 and lines[3] == "d.npy: cam trigger T3: ok hole 0.50 at 1,2,3,4"
    assert "sent 9, answered 9: 9 ok; N sent again" in told(err)
    assert [header.encoding for header in daemon.received[:5]] == ["jpeg", "bgr8", "bgr8", "tensor", "jpeg"]
    assert daemon.payloads[0] == (folder / "a.jpg").read_bytes()
    assert daemon.payloads[1] == daemon.payloads[2] == PIXELS[:, :, ::-1].tobytes()


def test_encodings_on_request(folder: Path) -> None:
    rgb, name = picture_files.load(folder / "b.png", "rgb8", decode)
    assert name == "rgb8" and isinstance(rgb, np.ndarray)
    np.testing.assert_array_equal(rgb, PIXELS)
    mono, name = picture_files.load(folder / "a.jpg", "mono8", decode)
    assert name == "mono8" and isinstance(mono, np.ndarray) and mono.shape == (4, 6)
    array, name = picture_files.load(folder / "d.npy", None, decode)
    assert name == "tensor" and isinstance(array, np.ndarray) and array.shape == (2, 3)
    np.save(folder / "planes.npy", np.zeros((6, 4), np.uint8))
    planes, name = picture_files.load(folder / "planes.npy", "nv12", decode)
    assert name == "nv12" and isinstance(planes, np.ndarray) and planes.shape == (6, 4)


def test_sixteen_bits_are_sent_as_the_compiler_reads_them(
    start_daemon: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = np.array([[0, 257, 128 * 257, 32768, 65535, 100]], np.uint16)
    Image.fromarray(wide).save(tmp_path / "a.png")
    (tmp_path / "b.ppm").write_bytes(b"P5 6 1 65535\n" + wide.astype(">u2").tobytes())
    daemon = start_daemon()
    words = (tmp_path, "--camera", "cam", "--endpoint", daemon.frames, "--rate", 500)
    grey = [0, 1, 128, 128, 255, 0]
    assert publish_command.run(arguments(publish, *words)) == 0
    assert daemon.payloads == [bytes(np.repeat(grey, 3).tolist())] * 2
    assert publish_command.run(arguments(publish, *words, "--encoding", "mono8")) == 0
    assert daemon.payloads[2:] == [bytes(grey)] * 2
    Image.fromarray(np.full((1, 2), 0.5, np.float32)).save(tmp_path / "c.tiff")
    capsys.readouterr()
    assert publish_command.run(arguments(publish, tmp_path / "c.tiff", *words[1:])) == 65
    assert "c.tiff: cannot be read as an image: it holds floating-point numbers" in capsys.readouterr().err


def test_mono8_of_colours_is_what_pillow_makes_of_them(tmp_path: Path) -> None:
    colours = np.random.default_rng(5).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    mono, _ = picture_files.load(tmp_path / "a.png", "mono8", decode)
    np.testing.assert_array_equal(mono, np.asarray(Image.fromarray(colours).convert("L")))


@pytest.mark.parametrize(("pattern", "kind"), [("push", "pull"), ("pub", "sub")])
def test_push_and_pub_show_progress(
    start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str], pattern: str, kind: str
) -> None:
    daemon = start_daemon(kind)
    args = arguments(
        publish, folder / "a.jpg", "--camera", "cam", "--endpoint", daemon.frames, "--pattern", pattern, "--rate", 500,
        "--count", 3,
    )
    assert publish_command.run(args) == 0
    assert capsys.readouterr() == ("", "sent 3 of 3\n")


def test_an_unanswered_frame_fails(start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = start_daemon()
    daemon.mute = 10**6
    args = arguments(
        publish, folder / "a.jpg", "--camera", "cam", "--endpoint", daemon.frames, "--timeout", 0.2, "--count", 2
    )
    assert publish_command.run(args) == 1
    err = capsys.readouterr().err
    assert "sent 2, answered 0: none" in err and "not answered within 0.2 s: seq 0 (a.jpg), 1 (a.jpg)" in err


def test_answers_that_are_neither_ok_nor_degraded_fail(
    start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = start_daemon()
    args = arguments(publish, folder / "a.jpg", "--camera", "cam", "--endpoint", daemon.frames, "--count", 2)
    for outcome, code in (("rejected", 1), ("stale", 1), ("degraded", 0)):
        daemon.outcome = outcome
        assert publish_command.run(args) == code
        err = capsys.readouterr().err
        assert f"sent 2, answered 2: 2 {outcome}; " in err
        poor = "orind publish: 2 of 2 answers are neither ok nor degraded\n"
        poor += f"  2 {outcome}: without a reason (a.jpg, ...)\n"
        assert (poor in err) == bool(code)


def test_quiet_says_the_sums_only(start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = start_daemon()
    words = (folder, "--camera", "cam", "--endpoint", daemon.frames, "--rate", 500, "--quiet")
    assert publish_command.run(arguments(publish, *words)) == 0
    said = capsys.readouterr()
    assert (said.out, told(said.err)) == ("", "sent 4, answered 4: 4 ok; N sent again\n")


def test_a_file_that_ends_the_run_leaves_the_sums_of_what_was_sent(
    start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.png").write_bytes(b"no picture")
    daemon = start_daemon()
    words = (folder, "--camera", "cam", "--endpoint", daemon.frames, "--rate", 500)
    assert publish_command.run(arguments(publish, *words)) == 65
    err = capsys.readouterr().err.splitlines()
    assert told(err[0]) == "sent 1, answered 1: 1 ok; N sent again; 3 of 4 not sent"
    assert err[-1].startswith(f"orind publish: {folder}/b.png: cannot be read as an image")


def test_reasons_are_grouped_with_their_files_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    def result(seq: int, outcome: str, reason: str | None) -> Result:
        return wire.parse_result(wire.build_result("cam", seq, None, None, None, outcome=outcome, reason=reason))

    tally = Tally(quiet=True)
    for seq in range(6):
        tally.sent(seq, f"{seq}.jpg")
    tally.take([result(0, "ok", None), result(1, "rejected", "cut"), result(2, "expired", "late")])
    tally.take(result(seq, "rejected", "cut") for seq in (3, 4, 5))
    assert tally.outcomes_in_words() == "1 expired, 1 ok, 4 rejected"
    assert tally.poor == 5
    assert tally.reasons() == ["4 rejected: cut (1.jpg, 3.jpg, 4.jpg, ...)", "1 expired: late (2.jpg)"]
    tally.take(result(100 + n, "rejected", f"reason {n}") for n in range(REASONS_MAX + 50))
    lines = tally.reasons()
    assert len(lines) == REASONS_SHOWN + 1 and lines[-1] == f"{REASONS_MAX + 50 - REASONS_SHOWN + 2} for other reasons"
    assert capsys.readouterr().out == ""


def test_refusals_and_their_exit_codes(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    (tmp_path / "bad.npy").write_bytes(b"\x80\x04K\x01.")
    np.savez(tmp_path / "two.npz", a=np.zeros(1))
    (tmp_path / "two.npz").rename(tmp_path / "two.npy")
    nobody = ("--endpoint", f"ipc://{tmp_path}/none", "--camera", "cam", "--timeout", 0.05)
    for code, word, words in (
        (66, "no such file", (tmp_path / "missing.jpg",)),
        (66, "holds no image", (tmp_path / "empty",)),
        (69, "is orind serving", (folder / "a.jpg",)),
        (69, "(--endpoint names another place)", (folder / "a.jpg",)),
        (69, "(--endpoint names another place)", (folder / "a.jpg", "--pattern", "pub")),
        (65, "cannot be read as an image: it is no picture that Pillow knows", (tmp_path / "bad.png",)),
        (65, "not an array file", (tmp_path / "bad.npy",)),
        (65, "not one array", (tmp_path / "two.npy",)),
        (65, "cannot go as jpeg", (folder / "b.png", "--encoding", "jpeg")),
        (65, "not a .npy file, so it cannot go as nv12", (folder / "b.png", "--encoding", "nv12")),
        (65, "cannot go as tensor", (folder / "b.png", "--encoding", "tensor")),
        (65, "pixels are uint8", (folder / "d.npy", "--encoding", "bgr8")),
        (2, "camera", (folder / "a.jpg", "--camera", "x" * 70)),
        (2, "use ipc://", (folder / "a.jpg", "--endpoint", "nowhere")),
    ):
        assert publish_command.run(arguments(publish, *nobody, *words)) == code, words
        assert word in capsys.readouterr().err
    for words in (
        ("--rate", 0), ("--rate", "nan"), ("--count", 0), ("--timeout", -1),
        ("--encoding", "png"), ("--encoding", "i420"), ("--encoding", "bayer_rggb8"),
    ):
        with pytest.raises(SystemExit) as caught:
            arguments(publish, "x.jpg", "--camera", "cam", *words)
        assert caught.value.code == 2


def test_without_pillow_png_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pillow(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(picture_files.UnreadableFile, match=r"orind\[build\]"):
        picture_files.load(folder / "b.png", None, decode)
    assert picture_files.load(folder / "a.jpg", None, decode)[1] == "jpeg"


def test_listen_prints_json_lines_and_counts(start_daemon: Start, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = start_daemon()
    done = threading.Event()

    def camera() -> None:
        with Publisher(daemon.frames, "cam") as publisher:
            while not done.is_set():
                publisher.send(PIXELS)
                publisher.wait_all(0.02)

    thread = threading.Thread(target=camera)
    thread.start()
    try:
        assert listen.run(arguments(listen, "--endpoint", daemon.results, "--json", "--count", 3, "--timeout", 10)) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(lines) == 3 and all(line["outcome"] == "ok" and line["camera"] == "cam" for line in lines)
        assert listen.run(arguments(listen, "--endpoint", daemon.results, "--count", 1, "--camera", "cam")) == 0
        said = capsys.readouterr()
        assert ": ok hole 0.50 at 1,2,3,4" in said.out and "nobody publishes" not in said.err
    finally:
        done.set()
        thread.join()


def test_listen_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listen.run(arguments(listen, "--endpoint", f"ipc://{tmp_path}/none", "--timeout", 0.02)) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"orind listen: nobody publishes at ipc://{tmp_path}/none so far; is orind serving with results there? "
        "(--endpoint names another place)",
        "orind listen: 0 results came, then none for 0.02 s",
    ]
    assert listen.run(arguments(listen, "--endpoint", "nonsense")) == 2
    assert listen.run(arguments(listen, "--camera", "x" * 70)) == 2


ORIND = """
import signal, sys
from orind.daemon.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background of a shell ignores it
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("how", "code", "said"), [("interrupt", 130, b"orind listen: ended by Ctrl-C\n"), ("closed pipe", 0, b"")]
)
def test_listen_ends_when_the_reader_has_enough(start_daemon: Start, how: str, code: int, said: bytes) -> None:
    daemon = start_daemon()
    with (
        Publisher(daemon.frames, "cam") as camera,
        subprocess.Popen(
            [sys.executable, "-c", ORIND, "listen", "--endpoint", daemon.results],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout is not None and process.stderr is not None
        heard = threading.Event()
        reader = threading.Thread(target=lambda: (process.stdout.readline(), heard.set()))  # type: ignore[union-attr]
        reader.start()
        while not heard.is_set():
            camera.send(PIXELS)
            camera.wait_all(0.02)
        reader.join()
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
            while process.poll() is None:
                camera.send(PIXELS)
                camera.wait_all(0.02)
        try:
            assert (process.wait(10), process.stderr.read()) == (code, said)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("pattern", "kind", "summary"),
    [("dealer", "router", "sent 1, answered 1: 1 ok; N sent again; 3 of 4 not sent\n"),
     ("push", "pull", "sent 1; 3 of 4 not sent\n")],
)
def test_publish_ended_by_ctrl_c_says_what_it_sent_and_is_130(
    start_daemon: Start,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    kind: str,
    summary: str,
) -> None:
    daemon = start_daemon(kind)

    def wait_for_the_second(due_s: float, camera: Publisher, tally: Tally | None) -> None:
        if camera.sent:
            if tally is not None:
                tally.take(camera.wait_all(5))
            raise KeyboardInterrupt

    monkeypatch.setattr(publish, "_wait_until", wait_for_the_second)
    words = ["publish", str(folder), "--camera", "cam", "--endpoint", daemon.frames, "--pattern", pattern]
    assert cli.main(words) == 130
    assert told(capsys.readouterr().err) == f"{summary}orind publish: ended by Ctrl-C\n"


def test_publish_whose_daemon_has_gone_says_what_it_sent_before(
    start_daemon: Start, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()

    def wait_until_it_has_gone(due_s: float, camera: Publisher, tally: Tally) -> None:
        if camera.sent == 1:
            tally.take(camera.wait_all(5))
            daemon.mute = 10**6
        if camera.sent == 2:
            while not daemon.mute < 10**6:
                time.sleep(0.01)
            daemon.stop()

    monkeypatch.setattr(publish, "_wait_until", wait_until_it_has_gone)
    words = ["publish", str(folder), "--camera", "cam", "--endpoint", daemon.frames, "--timeout", "0.3"]
    assert cli.main(words) == 69
    err = told(capsys.readouterr().err).splitlines()
    assert err[:2] == [
        "sent 2, answered 1: 1 ok; N sent again; 2 of 4 not sent",
        "orind publish: not answered any more: seq 1 (b.png)",
    ]
    assert "takes no frame" in err[2]


def test_one_line_for_a_person() -> None:
    def line(**fields: Any) -> str:
        return result_line(wire.parse_result(wire.build_result("cam", 4, None, None, None, **fields)))

    assert line(outcome="ok") == "cam seq 4: ok nothing found"
    assert line(outcome="expired", reason="deadline passed") == "cam seq 4: expired (deadline passed)"
    found = [{"label": "hole", "score": 0.5}] * 6
    assert line(outcome="ok", objects=found).endswith("hole 0.50, hole 0.50, hole 0.50, hole 0.50 and 2 more")
    good = [{"label": "good", "score": 0.9}]
    assert line(outcome="ok", classes=good, latency_ms={"total": 7.25}).endswith("good 0.90 [7.2 ms]")
    assert line(outcome="ok", tensor=np.zeros((1, 2), np.float32)).endswith("float32 [1, 2]")
    assert "(repeated)" in line(outcome="ok", repeated=True)
