"""The books: every received trigger ends in exactly one outcome; repeats are counted on their own. In all, by model,
and by camera: which one is silent, and which loses frames for what reason.

Called by `pipeline.py` only. What they hold open is a sum like any other; status.py counts the frames themselves, where
they are, so that one that is nowhere shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..ipc.bounded_text import bound_text
from ..ipc.histogram import Histogram
from ..ipc.outcomes import OUTCOMES
from .trigger import Trigger

STAGES = ("decode", "queue", "preprocess", "engine", "answer", "total")
REASONS_MAX = 256


@dataclass(slots=True)
class CameraBook:
    """A configured camera's triggers. `last_ns`: when one came last; `not_ok`: of the last that was not answered ok the
    outcome, why, and when it was answered."""

    outcomes: Counter[str] = field(default_factory=Counter)
    last_ns: int | None = None
    not_ok: tuple[str, str, int] | None = None

    def table(self) -> dict[str, Any]:
        """For the status; texts are bounded here, not for every frame."""
        table: dict[str, Any] = {"frames": dict(self.outcomes), "last_ns": self.last_ns, "not_ok": None}
        if self.not_ok is not None:
            outcome, reason, at_ns = self.not_ok
            table["not_ok"] = {"outcome": outcome, "reason": bound_text(reason), "at_ns": at_ns}
        return table


class Ledger:
    """Counters, reasons and latency histograms of one daemon's life; a reload keeps them."""

    def __init__(self) -> None:
        self.received = 0
        self.in_flight = 0
        self.repeated = 0
        self.repeats_unanswered = 0
        self.unroutable = 0
        self.outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.reasons: Counter[str] = Counter()
        self.by_model: dict[str, Counter[str]] = {}  # of what is served now, as by_camera
        self.by_camera: dict[str, CameraBook] = {}
        self.stages: dict[str, Histogram] = {name: Histogram() for name in STAGES}

    def opened(self, frame: Trigger) -> None:
        """A trigger was received."""
        self.received += 1
        self.in_flight += 1
        if (book := self.by_camera.get(frame.camera)) is not None:
            book.last_ns = frame.received_ns

    def closed(self, frame: Trigger, outcome: str, reason_code: str, text: str | None, now_ns: int) -> None:
        """A trigger got its outcome. Raises RuntimeError for a second one: that is a bug, and a PLC must not see it."""
        if frame.outcome:
            raise RuntimeError(f"trigger {frame.camera}/{frame.seq} was answered {frame.outcome}, now {outcome}")
        frame.outcome = outcome
        self.in_flight -= 1
        self.outcomes[outcome] += 1
        if frame.model:
            self.by_model.setdefault(frame.model, Counter())[outcome] += 1
        if (book := self.by_camera.get(frame.camera)) is not None:
            book.outcomes[outcome] += 1
            if outcome != "ok":
                book.not_ok = outcome, text or reason_code, now_ns
        if reason_code and (reason_code in self.reasons or len(self.reasons) < REASONS_MAX):
            self.reasons[reason_code] += 1

    def serve(self, models: Iterable[str], cameras: Iterable[str]) -> None:
        """The configuration names these: what others counted is forgotten, so that it stays bounded."""
        self.by_model = {name: self.by_model.get(name, Counter()) for name in models}
        self.by_camera = {name: self.by_camera.get(name, CameraBook()) for name in sorted(cameras)}

    def in_words(self) -> str:
        """How all ended, for the log's last line."""
        ended = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items() if count) or "no frames"
        return f"{ended}; {self.unroutable} undeliverable answers"

    def frames(self, held: int) -> dict[str, int]:
        """The table of `orind status --json`; `held`: frames counted where they are."""
        return {"received": self.received, **self.outcomes, "in_flight": held, "repeated": self.repeated}
