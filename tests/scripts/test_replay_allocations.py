"""The replay of a week's allocations: days of it here, what it asserts, and that its record can show fragmentation."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "replay_allocations.py"


@pytest.fixture(scope="module")
def replay() -> ModuleType:
    spec = importlib.util.spec_from_file_location("replay_allocations", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay_allocations"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [2, 5, 10])
def test_four_days_stay_below_the_limit_and_leave_nothing_behind(replay: ModuleType, seed: int) -> None:
    week = replay.Week(seed, 96)
    week.run()
    assert week.sound and week.worst < replay.LIMIT_PERCENT and len(week.samples) == 96 * 120
    counts = week.counts
    assert counts["generations"] > 10 and counts["pictures of another size"] > 100
    assert min(counts[kind] for kind in ("small", "medium", "large", "refused", "with two versions")) > 0
    current = week._current
    assert {block.group for block in week.pool.blocks} >= {f"generation {current.number}"}
    memory = replay.Memory(week.pool, 0, week._bytes, lambda block: None)
    for block in week.pool.blocks:
        memory.give_back(block)
    assert week.pool.largest_free == week.pool.size - week.pool.reserve


def test_the_same_record_fragments_an_allocator_that_does_not_keep_generations_together(
    replay: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(memory: Any, nbytes: int, owner: str) -> Any:
        block = memory.pool.allocate(nbytes, owner)
        memory._on_change(block)
        return block

    monkeypatch.setattr(replay.Memory, "take", take)
    week = replay.Week(1, 48)
    week.run()
    assert not week.sound and week.worst > 20
    assert f"max {week.worst:.2f} %" in week.lines(48, 1)[-1]


@pytest.mark.parametrize(("limit", "code", "verdict"), [(5.0, 0, "pass"), (0.0, 1, "FAIL")])
def test_the_verdict_is_the_exit_code(
    replay: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: float, code: int,
    verdict: str,
) -> None:
    monkeypatch.setattr(replay, "LIMIT_PERCENT", limit)
    monkeypatch.setattr(sys, "argv", ["replay_allocations", "--hours", "6"])
    assert replay.main() == code
    *_, fragmentation, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"{verdict}, in ") and fragmentation.startswith("fragmentation: P50 ")
