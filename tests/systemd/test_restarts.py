"""Restarts of the unit under load: every trigger is answered exactly once to the application. More of them, with
figures: scripts/bench_restarts."""

from __future__ import annotations

from collections import Counter

from installed import UNIT, Installed
from restarts import restart_under_load


def test_restarts_answer_every_trigger_exactly_once(orind: Installed) -> None:
    orind.systemctl("start", UNIT)
    result = restart_under_load(orind, ["graceful", "kill -9"] * 2)
    print(f"{len(result.load.sent)} triggers, {result.resent} sent again, {result.suppressed} suppressed")
    assert result.unanswered() == []
    assert result.answered_twice() == []
    assert Counter((a.result.outcome, a.result.reason) for a in result.load.not_ok()) == {}
