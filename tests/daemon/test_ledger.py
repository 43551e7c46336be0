"""The books: one outcome a trigger, sums that hold at any moment, reasons that are bounded."""

from __future__ import annotations

import pytest

from orind.daemon.ledger import REASONS_MAX, STAGES, Ledger
from orind.daemon.trigger import Trigger
from orind.ipc.outcomes import OUTCOMES


def trigger(seq: int = 1) -> Trigger:
    return Trigger("cam", seq, None, None, "arrival", 0)


def test_the_sums_hold_for_every_outcome() -> None:
    ledger = Ledger()
    frames = [trigger(n) for n in range(3 * len(OUTCOMES))]
    for _ in frames:
        ledger.opened()
    for n, frame in enumerate(frames):
        ledger.closed(frame, OUTCOMES[n % len(OUTCOMES)], "")
        assert ledger.received == sum(ledger.outcomes.values()) + ledger.in_flight
    assert ledger.frames(5) == {"received": 21, **dict.fromkeys(OUTCOMES, 3), "in_flight": 5, "repeated": 0}


def test_outcomes_are_counted_by_model_for_those_that_are_served() -> None:
    ledger = Ledger()
    for n, (model, outcome) in enumerate([("v1", "ok"), ("v2", "ok"), ("v1", "error"), ("v1", "ok"), ("", "rejected")]):
        ledger.opened()
        frame = trigger(n)
        frame.model = model
        ledger.closed(frame, outcome, "")
    assert ledger.by_model == {"v1": {"ok": 2, "error": 1}, "v2": {"ok": 1}}
    ledger.keep_models(["v1", "v3"])
    assert ledger.by_model == {"v1": {"ok": 2, "error": 1}, "v3": {}}


def test_a_second_outcome_is_refused() -> None:
    ledger = Ledger()
    frame = trigger(7)
    ledger.opened()
    ledger.closed(frame, "ok", "")
    with pytest.raises(RuntimeError, match="cam/7 was answered ok, now error"):
        ledger.closed(frame, "error", "engine")
    assert ledger.in_flight == 0 and ledger.outcomes["error"] == 0


def test_reasons_are_counted_and_bounded() -> None:
    ledger = Ledger()
    for n in range(REASONS_MAX + 50):
        ledger.opened()
        ledger.closed(trigger(n), "rejected", f"reason {n}")
    ledger.opened()
    ledger.closed(trigger(), "rejected", "reason 0")
    assert len(ledger.reasons) == REASONS_MAX and ledger.reasons["reason 0"] == 2
    assert ledger.outcomes["rejected"] == REASONS_MAX + 51


def test_every_stage_has_a_histogram() -> None:
    assert set(Ledger().stages) == set(STAGES)
