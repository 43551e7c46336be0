"""Progress: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

import pytest

from orind.daemon.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_elsewhere() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.say("reading")
        progress.say("writing")
    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[1] for line in lines] == ["reading", "writing"] and lines[0].startswith("[")


def test_a_log_gets_the_end_of_a_count_and_what_is_said_between(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Progress(stream) as progress:
        for done in range(1, 65):
            now[0] += 1.0
            progress.say(f"calibrated on {done} of 64 pictures")
        progress.say("3 of 30 layers in FP16")
    said = [line.split("] ")[1] for line in stream.getvalue().splitlines()]
    assert said == [*(f"calibrated on {n} of 64 pictures" for n in (30, 60, 64)), "3 of 30 layers in FP16"]


def test_one_line_on_a_terminal_cut_to_its_width_and_wiped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    size = os.terminal_size((20, 5))
    monkeypatch.setattr("shutil.get_terminal_size", lambda: size)
    stream = Terminal()
    with Progress(stream) as progress:
        progress.say("x" * 100)
    shown = stream.getvalue().split("\r\x1b[K")
    assert len(shown) == 3 and len(shown[1]) == 19 and shown[2] == "" and "\n" not in stream.getvalue()


def test_standard_error_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    Progress().say("hello")
    captured: Mapping[str, str] = capsys.readouterr()._asdict()
    assert captured["out"] == "" and "hello" in captured["err"]
