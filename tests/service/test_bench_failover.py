"""scripts/bench_failover in small: five faults of each class that needs no GPU. It judges the account, no time."""

from __future__ import annotations

import bench_failover
import pytest

FAULTS = "5"
CLASSES = ("sigkill", "sigsegv", "sigstop", "golden", "spawn")


def test_every_trigger_is_answered_once_whatever_befalls_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    code = bench_failover.main(["--faults", FAULTS, "--classes", ",".join(CLASSES)])
    said = capsys.readouterr()
    assert code == 0, said.err
    rows = [line.split() for line in said.out.splitlines()]
    found = {row[0]: row for row in rows if row and row[0] in CLASSES}
    assert set(found) == set(CLASSES)
    assert all(row[1] == FAULTS and row[-2:] == ["0", "0"] for row in found.values()), "none lost, none twice"


def test_a_class_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_failover.main(["--classes", "sigkill,lightning"])
    assert "no class lightning" in capsys.readouterr().err


def test_each_kind_of_trouble_ends_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    struck = bench_failover.Struck(detection=1, take_over=1, gap=1, quiet_gap=1)
    good = bench_failover.Outcome(bench_failover.CASES[0], struck=[struck, struck])
    assert bench_failover.report([good], 25.0) == 0
    good.wrong.append("2 frames lost, 0 answers too many")
    assert bench_failover.report([good], 25.0) == 1
    assert "FAILED: sigkill: 2 frames lost" in capsys.readouterr().err
