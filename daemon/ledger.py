"""The books: every received trigger ends in exactly one outcome; repeats are counted on their own.

Called by `pipeline.py` only. What they hold open is a sum like any other; status.py counts the frames themselves, where
they are, so that one that is nowhere shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..ipc.histogram import Histogram
from ..ipc.outcomes import OUTCOMES
from .trigger import Trigger

STAGES = ("decode", "queue", "preprocess", "engine", "answer", "total")
REASONS_MAX = 256


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
        self.by_model: dict[str, Counter[str]] = {}  # outcomes of the models that are served now
        self.stages: dict[str, Histogram] = {name: Histogram() for name in STAGES}

    def opened(self) -> None:
        """A trigger was received."""
        self.received += 1
        self.in_flight += 1

    def closed(self, frame: Trigger, outcome: str, reason_code: str) -> None:
        """A trigger got its outcome. Raises RuntimeError for a second one: that is a bug, and a PLC must not see it."""
        if frame.outcome:
            raise RuntimeError(f"trigger {frame.camera}/{frame.seq} was answered {frame.outcome}, now {outcome}")
        frame.outcome = outcome
        self.in_flight -= 1
        self.outcomes[outcome] += 1
        if frame.model:
            self.by_model.setdefault(frame.model, Counter())[outcome] += 1
        if reason_code and (reason_code in self.reasons or len(self.reasons) < REASONS_MAX):
            self.reasons[reason_code] += 1

    def keep_models(self, names: Iterable[str]) -> None:
        """A new configuration serves these: what others counted is forgotten, so that it stays bounded."""
        self.by_model = {name: self.by_model.get(name, Counter()) for name in names}

    def frames(self, held: int) -> dict[str, int]:
        """The table of `orind status --json`; `held`: frames counted where they are."""
        return {"received": self.received, **self.outcomes, "in_flight": held, "repeated": self.repeated}
