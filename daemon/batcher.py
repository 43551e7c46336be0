"""When to start a batch, and how large: one pure function and the measured history that it predicts from.

Called by `pipeline.py` after every bounded drain of the sockets, so that the newest frame is known.
Invariant: a batch that must come too late for one of its frames is never started.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Mode adaptive: `min_size` frames are enough for an idle engine; above `long_queue` the window is `short_ns`."""

    min_size: int
    long_queue: int
    short_ns: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Up to `max_size` frames; what came within `window_ns` of the first, or, where it is None, always `max_size`."""

    max_size: int
    window_ns: int | None
    adaptive: Adaptive | None = None


SINGLE = Rule(1, 0)
"""The smallest batch that a plan has, at once."""


class Facts(NamedTuple):
    """What the decision depends on. `deadlines_ns`: of the queued frames, in the order in which they would be taken.

    `recent_ns`: how long the model's last batch took, 0 before there was one. `backlog_ns`: until the engine is through
    with what it has.
    """

    queued: int
    first_ns: int
    deadlines_ns: tuple[int, ...]
    sizes: tuple[int, ...]
    in_flight: int
    depth: int
    batch_max: int
    earliest_start_ns: int
    recent_ns: int = 0
    backlog_ns: int = 0


class Go(NamedTuple):
    """Start with `take` frames in a batch of `size`; the other size - take rows stay empty."""

    take: int
    size: int
    reason: str


class Wait(NamedTuple):
    """Nothing to start before `until_ns` (0: until something else happens)."""

    until_ns: int
    reason: str


BELIEVED_NS = 1_000_000_000
WAKE_NS = 2_000_000
"""A turn that is due comes up to a millisecond late, since the poller rounds up, and reads all sockets before it starts
anything: who waits up to the last moment has missed it."""
SLOWER = 2
"""Times the usual: enough to blame the engine where frames are late, and not their deadlines."""
FAR_SLOWER = 8
"""Times the usual: no clock, no load of the machine explains that for long."""
BATCH_GAIN = 0.9
"""Below this share of the smallest batch's time for a frame a larger batch counts as faster, not as noise."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Smoothed time of a batch in ns, its mean deviation, and when it was last measured."""

    mean: float
    deviation: float
    at_ns: int

    @property
    def bound(self) -> float:
        return self.mean + 3 * self.deviation


@dataclass(slots=True)
class ServiceTimes:
    """Measured time of a batch by (plan's SHA-256, size, GPU clock): smoothed mean plus three mean deviations.

    An unknown clock is predicted from the nearest known one, scaled by the ratio of the clocks; an unknown size from
    the nearest known one, a larger one in proportion. Times in ns, clocks in Hz (0 where the device has none).
    What was not measured for `BELIEVED_NS` is not smoothed into what is measured now, and refuses no frame any more:
    else one slow batch would refuse every frame that could show that it was an exception.
    """

    _known: dict[tuple[str, int, int], Measured] = field(default_factory=dict)
    _recent_ns: dict[str, int] = field(default_factory=dict)
    _usual: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def learn(self, plan: str, size: int, clock_hz: int, took_ns: int, now_ns: int) -> float:
        """-> times what it usually takes. What is usual changes slowly, what is predicted follows at once."""
        self._recent_ns[plan] = took_ns
        key = (plan, size, clock_hz)
        usual = self._usual.get(key, took_ns)
        self._usual[key] = usual + (took_ns - usual) / 64
        self._note(key, took_ns, now_ns)
        return took_ns / usual if usual else 1.0

    def _note(self, key: tuple[str, int, int], took_ns: int, now_ns: int) -> None:
        known = self._known.get(key)
        if known is None or now_ns - known.at_ns > BELIEVED_NS:
            self._known[key] = Measured(float(took_ns), took_ns / 8, now_ns)
            return
        error = took_ns - known.mean
        deviation = known.deviation + (abs(error) - known.deviation) / 8
        self._known[key] = Measured(known.mean + error / 8, deviation, now_ns)

    def keep(self, plans: Collection[str]) -> None:
        """Forget all others."""
        self._known = {key: known for key, known in self._known.items() if key[0] in plans}
        self._usual = {key: usual for key, usual in self._usual.items() if key[0] in plans}
        self._recent_ns = {plan: took_ns for plan, took_ns in self._recent_ns.items() if plan in plans}

    def predict(self, plan: str, size: int, clock_hz: int) -> int:
        """ns that a batch of `size` will probably take at most; 0 before anything was measured."""
        return self._nearest(plan, size, clock_hz)[0]

    def believed(self, plan: str, size: int, clock_hz: int, now_ns: int) -> int:
        """As `predict`, but 0 where the measurement is too old to refuse a frame by it."""
        bound_ns, at_ns = self._nearest(plan, size, clock_hz)
        return bound_ns if now_ns - at_ns <= BELIEVED_NS else 0

    def per_frame_ns(self, plan: str, sizes: tuple[int, ...], clock_hz: int) -> int:
        """A frame's share of the batch that is measured to be the most efficient; 0 before anything was measured."""
        measured = [known.mean / size for size in sizes if (known := self._known.get((plan, size, clock_hz)))]
        return int(min(measured)) if measured else self.predict(plan, sizes[0], clock_hz) // sizes[0]

    def batches_pay(self, plan: str, sizes: tuple[int, ...], clock_hz: int) -> bool:
        """Whether a frame is measured to take clearly less time in some larger batch than in the smallest."""
        single = self._known.get((plan, sizes[0], clock_hz))
        return single is not None and self.per_frame_ns(plan, sizes, clock_hz) < BATCH_GAIN * single.mean / sizes[0]

    def recent_ns(self, plan: str) -> int:
        """How long the plan's last batch took, of whatever size; 0 before there was one."""
        return self._recent_ns.get(plan, 0)

    def _nearest(self, plan: str, size: int, clock_hz: int) -> tuple[int, int]:
        """(ns, when measured) from the same plan at the nearest size, then the nearest clock."""
        exact = self._known.get((plan, size, clock_hz))
        if exact is not None:
            return int(exact.bound), exact.at_ns
        best, at_ns = 0.0, 0
        rank: tuple[int, int] | None = None
        for (name, known_size, known_hz), known in self._known.items():
            if name != plan:
                continue
            distance = (abs(known_size - size), abs(known_hz - clock_hz))
            if rank is None or distance < rank:
                scale = known_hz / clock_hz if clock_hz and known_hz else 1.0
                rank, best, at_ns = distance, known.bound * scale * max(1.0, size / known_size), known.at_ns
        return int(best), at_ns


EMPTY = Wait(0, "queue is empty")


def decide(rule: Rule, facts: Facts, predicted_ns: dict[int, int], now_ns: int) -> Go | Wait:
    """Start a batch now, or say until when to wait and for what.

    The frames' deadlines beat every wish for a fuller batch: waiting ends before it would cost one of them, and
    nothing waits for its deadline before it is known how long a batch takes.
    """
    if not facts.queued:
        return EMPTY
    if facts.in_flight >= facts.depth:
        return Wait(0, "engine has enough in flight")
    if now_ns < facts.earliest_start_ns:
        return Wait(facts.earliest_start_ns, "paced by the power limits")
    largest = max((s for s in facts.sizes if s <= min(rule.max_size, facts.batch_max)), default=facts.sizes[0])
    wanted = min(facts.queued, largest)
    enough = _enough(rule, facts)
    if wanted < largest and not enough:
        needed_ns, window_ns = facts.backlog_ns + predicted_ns[largest] + WAKE_NS, window_of(rule, facts)
        latest = min(facts.deadlines_ns[:wanted]) - needed_ns
        if window_ns is not None and facts.first_ns + window_ns <= latest:
            latest = facts.first_ns + window_ns
        elif not predicted_ns[largest]:
            latest = now_ns  # only a batch that is started can show how long one may wait for it
        if now_ns < latest:
            return Wait(latest, f"waiting for {largest - wanted} more frames")
    size = _fitting_size(facts, predicted_ns, wanted, now_ns)
    take = min(wanted, size)
    if take == largest:
        return Go(take, size, "batch is full")
    return Go(take, size, "enough for an idle engine" if enough else "window or deadline reached")


def window_of(rule: Rule, facts: Facts) -> int | None:
    """How long the first frame waits for others, in ns; None: as long as its deadline allows."""
    if rule.adaptive is None or rule.window_ns is None:
        return rule.window_ns
    window_ns = rule.adaptive.short_ns if facts.queued > rule.adaptive.long_queue else rule.window_ns
    return min(window_ns, 2 * facts.recent_ns) if facts.recent_ns else window_ns


def _enough(rule: Rule, facts: Facts) -> bool:
    """Whether an engine that has nothing to do would wait in vain: it takes what there is, and the next gets fuller."""
    return rule.adaptive is not None and not facts.in_flight and facts.queued >= rule.adaptive.min_size


def _fitting_size(facts: Facts, predicted_ns: dict[int, int], wanted: int, now_ns: int) -> int:
    """The smallest size that holds the wanted frames; a smaller one where it would be late for one of them."""
    holding = [s for s in facts.sizes if s >= wanted]
    size = min(holding) if holding else max(facts.sizes)
    while size > facts.sizes[0]:
        tightest = min(facts.deadlines_ns[: min(size, wanted)])
        if now_ns + facts.backlog_ns + predicted_ns[size] <= tightest:
            break
        size = max(s for s in facts.sizes if s < size)
    return size


def too_late(deadline_ns: int, predicted_ns: int, backlog_ns: int, now_ns: int) -> str:
    """Why a frame cannot be answered in time, or '' when it can. backlog_ns: what the engine has before it."""
    left = deadline_ns - now_ns
    if left <= 0:
        return f"deadline passed {-left / 1e6:.1f} ms before it could be started"
    if predicted_ns and backlog_ns + predicted_ns > left:
        behind = f" behind {backlog_ns / 1e6:.1f} ms of other frames" if backlog_ns else ""
        return f"needs about {predicted_ns / 1e6:.1f} ms{behind}, {left / 1e6:.1f} ms are left"
    return ""
