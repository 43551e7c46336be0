"""What the level of degradation in force means for a frame, and the results that are held for cameras that allow it.

Owned by `pipeline.py`. Invariant: a held result leaves only as `degraded`, with the age of its picture, and never above
the camera's bound; of a camera that is answered with held results one frame at a time still goes to the engine, so that
what is held is renewed as fast as the engine can.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import degradation
from .batcher import SINGLE, Rule, ServiceTimes
from .degradation import MEANINGS, Level, Rules, Standing
from .engine_handle import PlanView
from .overload import LoadWindow
from .queues import Queues
from .repeats import STORED_ANSWER_BYTES
from .trigger import RANKS, Trigger

log = logging.getLogger("orind")
JUDGE_NS = 50_000_000
Plans = Mapping[str, PlanView]
LOST = frozenset({"too_late", "late_answer", "no_slot", "held_for_late"})


@dataclass(frozen=True, slots=True)
class Policy:
    """Of one configuration. held_max_ns: how old a held result may be, by camera that allows any."""

    rules: Rules
    optional: frozenset[str]
    held_max_ns: Mapping[str, int]


class Instead(NamedTuple):
    """How a frame is answered without the engine."""

    outcome: str
    code: str
    text: str
    content: dict[str, Any] | None


class Held(NamedTuple):
    """A camera's last `ok` result: whose it was, when its picture was taken, what it said."""

    seq: int | None
    trigger: str | None
    capture_ns: int
    content: dict[str, Any]


class Relief:
    """The level, its measurements, and the held results. `configure` before the first frame, and at each reload."""

    def __init__(self, policy: Policy) -> None:
        self.standing: Standing = degradation.START
        self.asked = ""  # why the power governor wants something left out, or ''
        self._window = LoadWindow()
        self._facts = degradation.Facts(0.0, 0.0, 0.0, {}, False)
        self._next_ns = 0
        self._open: Counter[str] = Counter()  # by camera: frames that have a slot
        self.configure(policy)

    def configure(self, policy: Policy) -> None:
        """The level stays: a reload is no remedy for overload. Held results go: another model may say other things."""
        self._policy = policy
        self._per_frame_ns: dict[str, int] = {}
        self._held: dict[str, Held] = {}

    @property
    def level(self) -> Level:
        return self.standing.level

    # -- what it means for a frame -------------------------------------------------------------------------------

    def instead(self, frame: Trigger, now_ns: int) -> Instead | None:
        """How a frame that has just come is answered at once; None: it goes its usual way."""
        if frame.rank != RANKS["best_effort"]:
            self._window.arrived(frame.model, now_ns)
        if self.level >= Level.NO_OPTIONAL and frame.camera in self._policy.optional:
            text = f"left out under overload, the camera is optional (level {int(self.level)})"
            return Instead("dropped", "overload", text, None)
        if self._open[frame.camera]:
            return self._from_held(frame, "held", now_ns)
        return None

    def admitted(self, frame: Trigger) -> None:
        """It has a slot. Every one that has is told of by `ended`."""
        self._open[frame.camera] += 1

    def given_up(self, frame: Trigger, now_ns: int) -> Instead | None:
        """How a frame is answered that the engine cannot serve in time; None: it is not."""
        return self._from_held(frame, "held_for_late", now_ns)

    def _from_held(self, frame: Trigger, code: str, now_ns: int) -> Instead | None:
        held, most_ns = self._held.get(frame.camera), self._policy.held_max_ns.get(frame.camera)
        if self.level < Level.HELD or held is None or most_ns is None or now_ns - held.capture_ns > most_ns:
            return None
        age_ms = round((now_ns - held.capture_ns) / 1e6, 3)
        about = {"seq": held.seq, "trigger": held.trigger, "age_ms": age_ms}
        text = f"overload: not inspected; this is the result of seq {held.seq}, {age_ms:.0f} ms old"
        return Instead("degraded", code, text, {**held.content, "held": about})

    def answered(self, frame: Trigger, content: dict[str, Any]) -> None:
        """An `ok` result: the newest picture's is held for a camera that allows it."""
        last = self._held.get(frame.camera)
        if frame.camera not in self._policy.held_max_ns or (last is not None and last.capture_ns > frame.capture_ns):
            return
        rows = content.get("boxes", content.get("tensor"))
        if isinstance(rows, np.ndarray) and rows.nbytes > STORED_ANSWER_BYTES:
            content = {**content, "rows_kept": False}
        self._held[frame.camera] = Held(frame.seq, frame.trigger, frame.capture_ns, content)

    def ended(self, frame: Trigger, outcome: str, code: str, now_ns: int) -> None:
        """A frame has its outcome; its slot, if it had one, is still in it."""
        if frame.slot is not None:
            self._open[frame.camera] = max(0, self._open[frame.camera] - 1)
        if frame.rank == RANKS["best_effort"] or not (code in LOST or outcome in ("ok", "error")):
            return
        # one that could not have been in time on an idle engine either shows a camera's clock, not our load
        could = frame.deadline_ns - frame.received_ns > self._per_frame_ns.get(frame.model, 0)
        if could or code not in LOST:
            self._window.ended(code in LOST, now_ns)

    def rule(self, usual: Rule) -> Rule:
        """How batches are put together at this level."""
        return usual if self.level < Level.NO_BATCHING else SINGLE

    # -- the level -----------------------------------------------------------------------------------------------

    def judge(
        self, queues: Queues, plans: Plans, times: ServiceTimes, clock_hz: int, pace_ns: int, now_ns: int
    ) -> None:
        """Measure and decide, where that is due."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + JUDGE_NS
        self._per_frame_ns = {
            name: max(pace_ns, times.per_frame_ns(plan.sha256, plan.sizes, clock_hz)) for name, plan in plans.items()
        }
        self._facts = degradation.Facts(
            self._window.lost_share(now_ns), _oldest(queues, now_ns), self._window.load(self._per_frame_ns, now_ns),
            self._impossible(plans, times, clock_hz), pace_ns > 0, self.asked,
        )
        before = self.standing
        self.standing = degradation.decide(self._policy.rules, before, self._facts, now_ns)
        if self.level is not before.level:
            log.warning("degradation: level %d, %s: %s", self.level, MEANINGS[self.level], self.standing.reason)
        if bool(self.standing.exhausted) != bool(before.exhausted):
            if self.standing.exhausted:
                log.warning("overload, nothing more to leave out at level %d: %s", self.level, self.standing.exhausted)
            elif self.level is before.level:
                log.warning("overload at level %d has ended", self.level)

    def _impossible(self, plans: Plans, times: ServiceTimes, clock_hz: int) -> dict[Level, str]:
        found = {}
        if not self._policy.optional:
            found[Level.NO_OPTIONAL] = "no camera is optional"
        batched = [plan for plan in plans.values() if len(plan.sizes) > 1]
        if not batched:
            found[Level.NO_BATCHING] = "nothing is batched"
        elif all(times.batches_pay(plan.sha256, plan.sizes, clock_hz) for plan in batched):
            found[Level.NO_BATCHING] = "batches are measured to be faster"
        if not self._policy.held_max_ns:
            found[Level.HELD] = "no camera allows held results"
        return found

    def report(self) -> dict[str, Any]:
        """The status' `degradation`."""
        standing, facts = self.standing, self._facts
        return {
            "level": int(standing.level), "meaning": MEANINGS[standing.level], "reason": standing.reason,
            "exhausted": standing.exhausted, "lost": round(facts.lost, 4), "age": round(facts.age, 4),
            "load": round(facts.load, 4), "impossible": {str(int(n)): why for n, why in facts.impossible.items()},
        }

    @property
    def problem(self) -> str:
        """What health says of it, or ''."""
        if self.standing.exhausted:
            return f"overload, nothing more to leave out at level {int(self.level)}: {self.standing.exhausted}"
        if self.level is Level.FULL:
            return ""
        return f"overload, level {int(self.level)}, {MEANINGS[self.level]}: {self.standing.reason}"


def _oldest(queues: Queues, now_ns: int) -> float:
    """The largest share of its time that a waiting frame has used, from its arrival to its deadline."""
    waiting = [*queues.retry, *(frame for queue in queues.models.values() for frame in queue)]
    return max(
        ((now_ns - f.received_ns) / max(1, f.deadline_ns - f.received_ns) for f in waiting
         if f.rank != RANKS["best_effort"]),
        default=0.0,
    )
