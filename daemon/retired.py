"""Generations that were replaced and still answer what they have.

Owned by `daemon.py`. Invariant: one is closed only when nothing is in flight on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..ipc.errors import IpcError
from .engine_handle import Batch
from .failover import Failover
from .faults import Fault
from .generation import Generation

RETIRED_MAX = 2


@dataclass(frozen=True, slots=True)
class Tally:
    """What failover machines counted: take-overs after a loss, engines renewed without one, engines lost by fault."""

    failovers: int = 0
    renewals: int = 0
    losses: Counter[Fault] = field(default_factory=Counter)

    def with_machine(self, machine: Failover) -> Tally:
        return Tally(
            self.failovers + machine.failovers, self.renewals + machine.renewals, self.losses + machine.losses
        )


class Retired:
    """What closed ones counted is kept in `_closed`."""

    def __init__(self) -> None:
        self._generations: list[Generation] = []
        self._closed = Tally()

    @property
    def tally(self) -> Tally:
        """Of all that ever retired."""
        tally = self._closed
        for generation in self._generations:
            tally = tally.with_machine(generation.machine)
        return tally

    def check_room(self) -> None:
        """Raises IpcError where as many are left as may be: those whose engines hang would pile up."""
        if len(self._generations) >= RETIRED_MAX:
            numbers = " and ".join(str(generation.number) for generation in self._generations)
            raise IpcError(f"generations {numbers} still answer what they have: ask again when they have ended")

    def add(self, generation: Generation) -> None:
        generation.retire()
        self._generations.append(generation)

    def tick(self, now_ns: int) -> None:
        for generation in list(self._generations):
            generation.tick(now_ns)
            if not generation.frames_in_flight():
                generation.close()
                self._generations.remove(generation)
                self._closed = self._closed.with_machine(generation.machine)

    def running_ns(self, now_ns: int) -> int:
        return sum(generation.running_ns(now_ns) for generation in self._generations)

    def frames_in_flight(self) -> int:
        return sum(generation.frames_in_flight() for generation in self._generations)

    def take_in_flight(self) -> list[Batch]:
        return [batch for generation in self._generations for batch in generation.take_in_flight()]

    def close(self) -> None:
        for generation in self._generations:
            generation.close()
        self._generations.clear()

    def __len__(self) -> int:
        return len(self._generations)
