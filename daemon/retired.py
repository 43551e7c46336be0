"""Generations that were replaced and still answer what they have.

Owned by `daemon.py`. Invariant: one is closed only when nothing is in flight on it.
"""

from __future__ import annotations

from collections import Counter

from .engine_handle import Batch
from .faults import Fault
from .generation import Generation


class Retired:
    """What closed ones counted is kept in `_failovers` and `_losses`."""

    def __init__(self) -> None:
        self._generations: list[Generation] = []
        self._failovers = 0
        self._losses: Counter[Fault] = Counter()

    @property
    def failovers(self) -> int:
        """Of all that ever retired."""
        return self._failovers + sum(g.machine.failovers for g in self._generations)

    @property
    def losses(self) -> Counter[Fault]:
        """Engines lost, of all that ever retired."""
        return sum((g.machine.losses for g in self._generations), self._losses)

    def add(self, generation: Generation) -> None:
        generation.retire()
        self._generations.append(generation)

    def tick(self, now_ns: int) -> None:
        for generation in list(self._generations):
            generation.tick(now_ns)
            if generation.idle():
                generation.close()
                self._generations.remove(generation)
                self._failovers += generation.machine.failovers
                self._losses += generation.machine.losses

    def running_ns(self, now_ns: int) -> int:
        return sum(generation.running_ns(now_ns) for generation in self._generations)

    def take_in_flight(self) -> list[Batch]:
        return [batch for generation in self._generations for batch in generation.take_in_flight()]

    def close(self) -> None:
        for generation in self._generations:
            generation.close()
        self._generations.clear()

    def __len__(self) -> int:
        return len(self._generations)
