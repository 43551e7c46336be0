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
    for frame in frames:
        ledger.opened(frame)
    for n, frame in enumerate(frames):
        ledger.closed(frame, OUTCOMES[n % len(OUTCOMES)], "", None, 0)
        assert ledger.received == sum(ledger.outcomes.values()) + ledger.in_flight
    assert ledger.frames(5) == {"received": 21, **dict.fromkeys(OUTCOMES, 3), "in_flight": 5, "repeated": 0}


def test_outcomes_are_counted_by_model_for_those_that_are_served() -> None:
    ledger = Ledger()
    for n, (model, outcome) in enumerate([("v1", "ok"), ("v2", "ok"), ("v1", "error"), ("v1", "ok"), ("", "rejected")]):
        frame = trigger(n)
        ledger.opened(frame)
        frame.model = model
        ledger.closed(frame, outcome, "", None, 0)
    assert ledger.by_model == {"v1": {"ok": 2, "error": 1}, "v2": {"ok": 1}}
    ledger.serve(["v1", "v3"], [])
    assert ledger.by_model == {"v1": {"ok": 2, "error": 1}, "v3": {}}


def test_a_configured_camera_has_a_book_of_its_own() -> None:
    ledger = Ledger()
    ledger.serve([], {"line2", "line1"})
    for n, (camera, outcome, code, text) in enumerate([
        ("line1", "ok", "", None),
        ("line1", "rejected", "frame_too_large", "payload\nis 9 bytes"),
        ("line1", "expired", "too_late", None),
        ("line1", "degraded", "held", "held for 3 s"),
        ("line1", "ok", "", None),
        ("stranger", "rejected", "unknown_camera", "camera stranger"),
    ]):
        frame = Trigger(camera, n, None, None, "arrival", received_ns=100 + n)
        ledger.opened(frame)
        ledger.closed(frame, outcome, code, text, 200 + n)
    assert {name: book.table() for name, book in ledger.by_camera.items()} == {
        "line1": {
            "frames": {"ok": 2, "rejected": 1, "expired": 1, "degraded": 1},
            "last_ns": 104,
            "not_ok": {"outcome": "degraded", "reason": "held for 3 s", "at_ns": 203},
        },
        "line2": {"frames": {}, "last_ns": None, "not_ok": None},
    }
    ledger.opened(Trigger("line1", 7, None, None, "arrival", received_ns=500))
    assert ledger.by_camera["line1"].last_ns == 500, "it is not silent, though an engine takes its time"
    ledger.closed(Trigger("line1", 8, None, None, "arrival", 0), "rejected", "parts", "a\nb" * 1000, 300)
    reason = ledger.by_camera["line1"].table()["not_ok"]["reason"]
    assert reason.startswith("a b") and len(reason) == 500
    ledger.serve([], ["line2", "line3"])
    assert list(ledger.by_camera) == ["line2", "line3"], "a reload's cameras"


def test_the_last_line_of_the_log_says_how_all_ended() -> None:
    ledger = Ledger()
    assert ledger.in_words() == "no frames; 0 undeliverable answers"
    for n, outcome in enumerate(["ok", "ok", "stale"]):
        ledger.opened(trigger(n))
        ledger.closed(trigger(n), outcome, "", None, 0)
    ledger.unroutable = 1
    assert ledger.in_words() == "2 ok, 1 stale; 1 undeliverable answers"


def test_a_second_outcome_is_refused() -> None:
    ledger = Ledger()
    frame = trigger(7)
    ledger.opened(frame)
    ledger.closed(frame, "ok", "", None, 0)
    with pytest.raises(RuntimeError, match="cam/7 was answered ok, now error"):
        ledger.closed(frame, "error", "engine", None, 0)
    assert ledger.in_flight == 0 and ledger.outcomes["error"] == 0


def test_reasons_are_counted_and_bounded() -> None:
    ledger = Ledger()
    for n in range(REASONS_MAX + 50):
        ledger.opened(trigger(n))
        ledger.closed(trigger(n), "rejected", f"reason {n}", None, 0)
    ledger.opened(trigger())
    ledger.closed(trigger(), "rejected", "reason 0", None, 0)
    assert len(ledger.reasons) == REASONS_MAX and ledger.reasons["reason 0"] == 2
    assert ledger.outcomes["rejected"] == REASONS_MAX + 51


def test_every_stage_has_a_histogram() -> None:
    assert set(Ledger().stages) == set(STAGES)
