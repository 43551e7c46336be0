"""scripts/bench_reload in small: five good and five bad reloads. What it counts is judged, no time is."""

from __future__ import annotations

import bench_reload
import bench_reload_cases
import pytest
from bench_reload import Course, Held, Window
from camera_load import Answered, Load, Sent

from orind.ipc.answer import Result

LAST_KINDS = "31"  # those for which engines or the checker are started, and fail


def test_no_trigger_is_lost_and_nothing_bad_is_let_in(capsys: pytest.CaptureFixture[str]) -> None:
    code = bench_reload.main(
        ["--reloads", "5", "--bad", "5", "--first", LAST_KINDS, "--quiet", "0.1", "--deadline", "20000"]
    )
    said = capsys.readouterr()
    assert code == 0, said.err
    kinds = [case.name for case in bench_reload_cases.BAD[int(LAST_KINDS) :]]
    assert len(kinds) == 5 and all(kind in said.out for kind in kinds)
    assert "lost 0, twice 0, unaccounted 0" in said.out


def test_a_kind_is_refused_for_its_own_reason() -> None:
    names = [case.name for case in bench_reload_cases.BAD]
    assert len(set(names)) == len(names) >= 35
    assert len({case.says for case in bench_reload_cases.BAD}) >= 30


class Seen(Load):
    """A load that was, with one frame a second; `late` of them answered late, `lost` not at all."""

    def __init__(self, frames: int, late: int = 0, lost: int = 0) -> None:
        self.sent = [Sent(n, n * 10**9) for n in range(frames)]
        self.answers = [Answered(n * 10**9 + 10**6, answer(n, "expired" if n < late else "ok"))
                        for n in range(frames - lost)]
        self.duplicates, self.period_ns = 0, 10**9


def answer(seq: int, outcome: str) -> Result:
    return Result("line1", seq, None, None, None, outcome, None)


def status(frames: int) -> dict[str, object]:
    outcomes = dict.fromkeys(("degraded", "stale", "rejected", "expired", "error", "dropped"), 0)
    return {"frames": {"received": frames, "ok": frames, **outcomes, "in_flight": 0}, "reload": {"done": 1}}


def course(reload_s: int, quiet_s: int, held: list[Held] | None = None) -> Course:
    made = Course([Window(0, reload_s * 10**9)], [Window(reload_s * 10**9, (reload_s + quiet_s) * 10**9)], [10**8])
    made.held = held or []
    return made


def test_each_kind_of_trouble_ends_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    options = bench_reload._options([])
    assert bench_reload.report(course(4000, 4000), Seen(8000, late=3), status(8000), options) == 0
    assert bench_reload.report(course(4000, 4000), Seen(8000, late=5), status(8000), options) == 1
    assert "late answers: (4000, 5) in reload seconds, (4000, 0) in quiet ones" in capsys.readouterr().err
    assert bench_reload.report(course(5, 5), Seen(10, lost=1), status(10), options) == 1
    assert "1 frames lost" in capsys.readouterr().err
    steady = [Held((100, 50), (40, 50), (30 + n % 2, 6)) for n in range(40)]
    assert bench_reload.report(course(5, 5, steady), Seen(10), status(10), options) == 0
    growing = [Held((1000 + n, 50), (900, 50), (30, 6)) for n in range(40)]
    hidden = [Held((10_000 + n, 50), (1000 + n, 50), (30, 6)) for n in range(40)]
    leaking = [Held((100, 50), (40, 50), (30, 6 + n // 20)) for n in range(40)]
    for held, says in (
        (growing, "main: RSS changed by +1.98 %"),
        (hidden, "main: RSS that is not shared changed by +1.98 %"),
        (leaking, "nursery: descriptors changed over the reloads: 20 x 6, then 20 x 7"),
    ):
        assert bench_reload.report(course(5, 5, held), Seen(10), status(10), options) == 1
        said = [line for line in capsys.readouterr().err.splitlines() if "FAILED" in line]
        assert len(said) == 1 and says in said[0]
    refused = course(5, 5)
    refused.wrong.append("a good reload was refused")
    assert bench_reload.report(refused, Seen(10), status(10), options) == 1
