"""scripts/hil: figures of a run that is known, and limits that can fail."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import hil
import hil_report
import pytest
from hil_case import SAMPLE, write
from hil_figures import Frame, Run, figures
from hil_report import Outcome
from hil_scenario import read


def a_run(**changes: Any) -> Run:
    """20 s at 10 samples a second; budget 20 W, from 10 s to 14 s over it by 3 W; an alarm from 15 s to 17 s."""
    samples = [
        dataclasses.replace(
            SAMPLE, at_s=n / 10, board_w=23.0 if 100 <= n < 140 else 15.0, alarms=("x",) if 150 <= n < 170 else (),
            failovers=int(n >= 100), tj_c=None if n < 100 else 60.0 + n / 100,
        )
        for n in range(200)
    ]
    frames = [Frame("line1", n, n / 10, n / 10 + 0.02, "ok") for n in range(200)]
    return Run(**{"seconds": 20.0, "samples": samples, "frames": frames, "begins": [(10.0, "late")], **changes})


def test_figures_of_a_run_that_is_known() -> None:
    found = figures(a_run())
    # a mean over one second is above 21.5 W from 0.8 s after the step until 0.2 s after its end
    assert found[""]["over_budget_s"] == pytest.approx(3.3, abs=0.11) and found["late"]["board_w_max"] == 23.0
    assert found["late"]["alarm_after_s"] == 5.0 and found["late"]["calm_after_s"] == pytest.approx(6.9)
    assert found["late"]["alarm_s"] == pytest.approx(2.0) and found[""]["failovers"] == 1
    assert found["late"]["failovers"] == 1, "what happens as a phase begins is of that phase"
    assert found[""]["latency_p99_ms"] == pytest.approx(20) and found[""]["gap_max_ms"] == pytest.approx(20)
    assert found[""]["ok_hz"] == 10 and found[""]["tj_max_c"] == pytest.approx(61.99)


def test_a_gap_counts_while_a_frame_is_on_its_way() -> None:
    """The camera pauses from 1 s to 5 s; the frame of 5 s waits for 0.5 s, with two behind it."""
    frames = [Frame("line1", n, n / 10, n / 10 + 0.01, "ok") for n in range(10)]
    frames += [Frame("line1", 10 + n, 5 + n / 10, 5.5 + n / 100, "ok") for n in range(3)]
    assert figures(a_run(frames=frames))[""]["gap_max_ms"] == pytest.approx(500)


def test_what_was_not_seen_is_no_figure() -> None:
    found = figures(Run(seconds=1.0))[""]
    assert {found[name] for name in ("tj_max_c", "over_budget_s", "latency_p99_ms", "failovers", "alarm_s")} == {None}
    assert figures(a_run(samples=a_run().samples[:160]))["late"]["calm_after_s"] is None, "it never became calm"
    assert figures(a_run())["late"]["calm_after_s"] is not None


def outcome(tmp_path: Path, limit: str, run: Run | None = None, kind: str = "virtual") -> Outcome:
    case = read(write(tmp_path, "lost == 0", limit))
    found = Outcome("test", case.scenario, case.text, run=run or a_run())
    found.figures = figures(found.run)
    found.judged = [hil.judge(limit, found.figures, kind) for limit in case.scenario.parsed_limits()]
    return found


@pytest.mark.parametrize(
    ("limit", "kind", "verdict"),
    [
        ("late.tj_max_c <= 62", "virtual", "pass"), ("late.tj_max_c <= 61", "virtual", "fail"),
        ("failovers == 1", "virtual", "pass"), ("failovers == 2", "virtual", "fail"), ("sent > 199", "virtual", "pass"),
        ("sent >= 201", "virtual", "fail"), ("sent < 200", "virtual", "fail"),
        ("latency_p99_ms <= 15 on real", "virtual", "pass"), ("latency_p99_ms <= 15 on real", "real", "fail"),
    ],
)
def test_limits_can_fail(tmp_path: Path, limit: str, kind: str, verdict: str) -> None:
    assert outcome(tmp_path, limit, kind=kind).verdict == verdict


def test_no_limit_is_kept_by_what_was_not_seen(tmp_path: Path) -> None:
    found = outcome(tmp_path, "tj_max_c <= 85", Run(seconds=1.0))
    assert found.verdict == "fail" and found.reasons() == ["tj_max_c <= 85: nothing seen"]
    assert outcome(tmp_path, "late.lost == 0", a_run(begins=[])).verdict == "fail", "the phase never began"


def test_what_must_never_be_fails_whatever_the_limits_say(tmp_path: Path) -> None:
    assert outcome(tmp_path, "lost == 0", a_run(wrong=["1 frames are not accounted for"])).verdict == "fail"


def test_the_report_shows_what_was_not_run_as_such(tmp_path: Path) -> None:
    good = outcome(tmp_path, "latency_p99_ms <= 15 on real")
    left = Outcome("wired", good.scenario, good.text, not_run="needs wiring")
    (tmp_path / "test").mkdir()
    page = hil_report.write_report(tmp_path, {"time": "now", "<b>": "&"}, [good, left], "", 20.0).read_text()
    assert "1 passed, 0 failed, 1 not run" in page and "needs wiring" in page and "not judged" in page
    assert "data:image/png;base64," in page and "20 times as fast" in page and "&lt;b&gt;" in page
    assert (tmp_path / "test" / "run.png").read_bytes()[:4] == b"\x89PNG"
    lost = hil_report.write_report(tmp_path, {"time": "now"}, [good], "/max_freq: 1, not 2", 0.0).read_text()
    assert "hil: fail" in lost and "not put back: /max_freq" in lost and "times as fast" not in lost
