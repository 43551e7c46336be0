"""The daemon's line of frames in simulated time: cameras, queue, batches and one engine, frame by frame.

Run by `power/simulation.py` as the board's work. When a batch starts, and which frame is too late, is decided by
`batcher.py`, under the limits that the governor sent, as in `pipeline.py`; what is predicted there from measured times
is here the very time that a batch takes at the clock of the moment. All cameras count as of one priority. Invariant:
offered = answered + expired + dropped + waiting, at every moment.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple, Protocol

from ..power.limits import Limits
from . import batcher
from .trace_file import Series


class ServiceTimes(Protocol):
    """How long a batch takes."""

    sizes: tuple[int, ...]
    what: str

    def at(self, clock_hz: float) -> dict[int, int]:
        """ns by batch size at a clock above 0."""
        ...


class Waiting(NamedTuple):
    """A frame without an outcome."""

    arrived_ns: int
    deadline_ns: int


@dataclass(slots=True)
class Counts:
    """Frames by outcome. `paced`: of the expired, those that ended while the limits paced the line."""

    offered: int = 0
    answered: int = 0
    expired: int = 0
    dropped: int = 0
    paced: int = 0

    def since(self, before: Counts) -> Counts:
        return Counts(self.offered - before.offered, self.answered - before.answered, self.expired - before.expired,
                      self.dropped - before.dropped, self.paced - before.paced)


@dataclass(frozen=True, slots=True)
class LineRules:
    """What the configuration says: how batches are put together, batches that the engine has, frames held at once."""

    batch: batcher.Rule
    depth: int
    slots: int


@dataclass(slots=True)
class _Batch:
    """In the engine. `left`: the share of its work that is still to be done."""

    size: int
    frames: list[Waiting]
    left: float = 1.0


def arrivals(series: Series, phase: float, begin_ns: int) -> Iterator[int]:
    """When the frames of a camera come, evenly at the rate of the moment; `phase`: which share of the first interval
    has passed at the beginning."""
    steps = series.steps()
    (at_s, rate), due = next(steps), 1.0 - phase
    while True:
        following = next(steps, None)
        end_s = math.inf if following is None else following[0]
        if rate > 0.0:
            while at_s + due / rate < end_s:
                at_s += due / rate
                due = 1.0
                yield begin_ns + round(at_s * 1e9)
            due -= (end_s - at_s) * rate
        if following is None:
            return
        at_s, rate = following


class SimulatedLine:
    """State of the line. `load` and `deadline_ns` by camera; `seed` shifts the cameras against each other."""

    def __init__(self, load: Mapping[str, Series], deadline_ns: Mapping[str, int], times: ServiceTimes,
                 rules: LineRules, begin_ns: int, seed: int = 0) -> None:
        self.counts = Counts()
        self._times = times
        self._rules = rules
        self._queue: deque[Waiting] = deque()
        self._engine: deque[_Batch] = deque()
        self._held = 0  # slots in use
        self._recent_ns = 0
        self._one_deadline = len(set(deadline_ns.values())) < 2
        self._batch_max, self._pace_ns, self._earliest_ns, self._wake_ns = 64, 0, 0, 0
        phases = Random(seed)
        self._cameras = [(arrivals(load[name], phases.random(), begin_ns), deadline_ns[name]) for name in sorted(load)]
        self._coming = [(at_ns, n) for n, (times_ns, _) in enumerate(self._cameras)
                        if (at_ns := next(times_ns, None)) is not None]
        heapq.heapify(self._coming)

    @property
    def waiting(self) -> int:
        """Frames that have come and have no outcome yet."""
        return self._held

    def obey(self, limits: Limits) -> None:
        """As main obeys them."""
        self._batch_max = limits.batch_max
        self._pace_ns = 0 if limits.pace_hz is None else int(1e9 / limits.pace_hz)
        if self._queue:
            self._wake_ns = 1  # look again at once

    def run(self, now_ns: int, step_ns: int, clock_hz: float, cap_hz: int) -> tuple[float, float]:
        """(share of the step that the engine works, share that the GPU's work would take at the cap)."""
        end_ns = now_ns + step_ns
        if clock_hz <= 0.0:
            self._run_dead(end_ns)
            return 0.0, 0.0
        took, at_cap = self._times.at(clock_hz), self._times.at(cap_hz)
        engine, coming, busy_ns, capped_ns = self._engine, self._coming, 0, 0.0
        while True:
            next_ns = end_ns
            if coming and coming[0][0] < next_ns:
                next_ns = coming[0][0]
            if 0 < self._wake_ns < next_ns:
                next_ns = max(self._wake_ns, now_ns)
            done = False
            if engine:
                running = engine[0]
                takes_ns = took[running.size]
                done_ns = now_ns + max(1, round(running.left * takes_ns))
                if done := done_ns <= next_ns and done_ns < end_ns:
                    next_ns = done_ns
                share = min((next_ns - now_ns) / takes_ns, running.left)
                running.left -= share
                busy_ns += next_ns - now_ns
                capped_ns += share * at_cap[running.size]
            now_ns = next_ns
            if now_ns >= end_ns:
                break
            if done:
                self._finish(engine.popleft(), took, now_ns)
            while coming and coming[0][0] <= now_ns:
                self._arrive()
            self._wake_ns = 0
            if self._queue:
                self._dispatch(took, now_ns)
        for batch in engine:
            capped_ns += batch.left * at_cap[batch.size]
        return busy_ns / step_ns, min(capped_ns / step_ns, 1.0)

    def _run_dead(self, end_ns: int) -> None:
        """A board that has switched itself off takes frames no more; those that wait expire."""
        while self._coming and self._coming[0][0] < end_ns:
            self._arrive()
        if self._queue:
            self._expire(0, 0, end_ns)

    def _arrive(self) -> None:
        at_ns, camera = self._coming[0]
        times_ns, deadline_ns = self._cameras[camera]
        following = next(times_ns, None)
        if following is None:
            heapq.heappop(self._coming)
        else:
            heapq.heapreplace(self._coming, (following, camera))
        self.counts.offered += 1
        if self._held >= self._rules.slots:
            self.counts.dropped += 1
            return
        self._held += 1
        self._queue.append(Waiting(at_ns, at_ns + deadline_ns))

    def _finish(self, batch: _Batch, took: dict[int, int], now_ns: int) -> None:
        late = 0
        for frame in batch.frames:
            late += frame.deadline_ns < now_ns
        self.counts.expired += late
        self.counts.answered += len(batch.frames) - late
        self._held -= len(batch.frames)
        self._recent_ns = took[batch.size]

    def _expire(self, least_ns: int, backlog_ns: int, now_ns: int) -> None:
        """Frames that can no longer be served in time end before anything is started for them."""
        queue = self._queue
        # who has the earliest deadline is the first to be too late
        soonest_ns = queue[0].deadline_ns if self._one_deadline else min(frame.deadline_ns for frame in queue)
        if not batcher.too_late(soonest_ns, least_ns, backlog_ns, now_ns):
            return
        kept = deque(f for f in queue if not batcher.too_late(f.deadline_ns, least_ns, backlog_ns, now_ns))
        late = len(queue) - len(kept)
        self._queue = kept
        self._held -= late
        self.counts.expired += late
        if self._pace_ns:
            self.counts.paced += late

    def _dispatch(self, took: dict[int, int], now_ns: int) -> None:
        """Start every batch of what waits that should start now; when to look again is in `_wake_ns`."""
        sizes, engine, rules = self._times.sizes, self._engine, self._rules
        backlog_ns = 0
        for batch in engine:
            backlog_ns += round(batch.left * took[batch.size])
        self._expire(took[sizes[0]], backlog_ns, now_ns)
        while (queue := self._queue) and len(engine) < rules.depth:
            few = islice(queue, sizes[-1]) if len(queue) > sizes[-1] else queue
            first = tuple([frame.deadline_ns for frame in few])
            facts = batcher.Facts(len(queue), queue[0].arrived_ns, first, sizes, len(engine), rules.depth,
                                  self._batch_max, self._earliest_ns, self._recent_ns, backlog_ns)
            decision = batcher.decide(rules.batch, facts, took, now_ns)
            if not isinstance(decision, batcher.Go):
                self._wake_ns = decision.until_ns
                return
            engine.append(_Batch(decision.size, [queue.popleft() for _ in range(decision.take)]))
            backlog_ns += took[decision.size]
            if self._pace_ns:
                self._earliest_ns = max(now_ns, self._earliest_ns) + self._pace_ns * decision.take
