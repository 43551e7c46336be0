"""Generations that were replaced and still answer what they have.

Owned by `daemon.py`. Invariant: one is closed only when nothing is in flight on it.
"""

from __future__ import annotations

from .engine_handle import Batch
from .generation import Generation


class Retired:
    """`failovers` counts those of all that ever retired."""

    def __init__(self) -> None:
        self._generations: list[Generation] = []
        self.failovers = 0

    def add(self, generation: Generation) -> None:
        self.failovers += generation.machine.failovers
        generation.retire()
        self._generations.append(generation)

    def tick(self, now_ns: int) -> None:
        for generation in list(self._generations):
            generation.tick(now_ns)
            if generation.idle():
                generation.close()
                self._generations.remove(generation)

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
