"""scripts/hil: a wired board, from the trigger's line to its result."""

from __future__ import annotations

import dataclasses
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hil
import pytest
from harness import ServiceError
from hil_case import write
from hil_scenario import read
from hil_trigger import Line, Pulses

from orind.daemon.config_file import ConfigError


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("camera: line1", "camera: line2", "trigger.camera: no such camera (known: line1)"),
        ("period_s: 0.5", "period_s: 0.3", "trigger.period_s: a result must be here before the next pulse: at least"),
        ("deadline_ms: 200", "deadline_ms: 200, rate_hz: 5", "give it no rate_hz and no load"),
        ("tcp://", "udp://", "should be ipc:///path, tcp://host:port"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = (hil.SCENARIOS / "trigger.yaml").read_text().replace("../power/orin-nx-20w.yaml", "POLICY")
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, old, new, text))
    assert len(caught.value.problems) == 1 and said in caught.value.problems[0]


def test_what_needs_wiring_is_not_run_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hil.SCENARIOS / "trigger.yaml"
    assert hil.main([str(path), "--output", str(tmp_path / "out")]) == hil.NOTHING_RUN
    assert "not run  trigger" in (told := capsys.readouterr().out) and "needs wiring" in told
    assert "0 passed, 0 failed, 1 not run" in (tmp_path / "out" / "report.html").read_text()
    real = hil.Place("real", "cpu", 0)
    assert "needs wiring" in hil.why_not(read(path), real)
    assert hil.why_not(read(path), dataclasses.replace(real, wiring="/dev/gpiochip0:5")) == ""
    with pytest.raises(SystemExit):
        hil.main([str(path), "--board", "real", "--wiring", "pin 5"])


class Gpio:
    """Stands in for the package gpiod; `done`: what was asked of the line."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.line = SimpleNamespace(Value=SimpleNamespace(ACTIVE=1, INACTIVE=0), Direction=SimpleNamespace(OUTPUT=3))

    def LineSettings(self, **settings: int) -> dict[str, int]:
        return settings

    def request_lines(self, path: str, config: dict[int, Any], consumer: str) -> Gpio:
        if path != "/dev/gpiochip0":
            raise FileNotFoundError(2, "No such file or directory")
        self.done.append((config, consumer))
        return self

    def set_value(self, line: int, value: int) -> None:
        self.done.append((line, value))

    def release(self) -> None:
        self.done.append("released")


def test_a_line_is_left_inactive(monkeypatch: pytest.MonkeyPatch) -> None:
    gpio = Gpio()
    monkeypatch.setitem(sys.modules, "gpiod", gpio)
    with pytest.raises(ServiceError, match=r"cannot be driven: .*No such file"):
        Line("/dev/gpiochip9:5", 0.001)
    with pytest.raises(RuntimeError), Line("/dev/gpiochip0:5", 0.001) as line:
        begun_ns = time.monotonic_ns()
        assert begun_ns <= line.pulse() <= time.monotonic_ns() - 1_000_000
        raise RuntimeError
    asked = ({5: {"direction": 3, "output_value": 0}}, "orind-hil")
    assert gpio.done == [asked, (5, 1), (5, 0), (5, 0), "released"]
    monkeypatch.setitem(sys.modules, "gpiod", None)
    with pytest.raises(ServiceError, match="pip install"):
        Line("/dev/gpiochip0:5", 0.001)


def test_each_result_belongs_to_its_pulse() -> None:
    """Of four pulses the second has no result, the third two; two results came before the first."""
    waiting: list[Any] = ["early", "early"]
    counts = iter([1, 0, 2, 1])

    def pulse() -> int:
        waiting.extend([SimpleNamespace(outcome="ok", reason=None)] * next(counts, 0))
        return time.monotonic_ns()

    def receive(timeout_s: float) -> Any:
        if waiting:
            return waiting.pop(0)
        time.sleep(min(timeout_s, 0.01))
        return None

    pulses = Pulses("line1", pulse, receive, 0.1, time.monotonic())
    pulses.start()
    while len(pulses.frames) < 3:
        time.sleep(0.005)
    pulses.stop()
    assert [frame.outcome for frame in pulses.frames[:4]] == ["ok", "", "ok", "ok"] and pulses.surplus == 3
    assert pulses.frames[1].answered_s is None and pulses.error == ""
    assert all(a.sent_s < b.sent_s for a, b in pairwise(pulses.frames))
    broken = Pulses("line1", lambda: 1 // 0, lambda _: None, 0.1, 0.0)
    broken.start()
    broken.stop()
    assert broken.error == "the pulses ended: ZeroDivisionError: integer division or modulo by zero"
