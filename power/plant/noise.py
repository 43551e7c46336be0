"""Seeded normal noise, of which the plant needs fourteen values for each tenth of a second: in pairs they cost half.

Used by model.py. The same numbers as random.Random.gauss gives (Box and Muller), in the same order however they are
asked for.
"""

from __future__ import annotations

from math import cos, log, pi, sin, sqrt
from random import Random

_TURN = 2.0 * pi


class Noise:
    """State: the seeded source, and the second value of a pair of which one was given."""

    def __init__(self, seed: int) -> None:
        self.uniform = Random(seed).random  # in 0 to 1
        self._spare: float | None = None

    def many(self, count: int) -> list[float]:
        """The next ones, of mean 0 and deviation 1."""
        if self._spare is not None or count % 2:
            return [self.one() for _ in range(count)]
        uniform, found = self.uniform, []
        for _ in range(count // 2):
            angle = uniform() * _TURN
            radius = sqrt(-2.0 * log(1.0 - uniform()))
            found += [cos(angle) * radius, sin(angle) * radius]
        return found

    def one(self) -> float:
        """The next one."""
        if self._spare is None:
            first, self._spare = self.many(2)
            return first
        spare, self._spare = self._spare, None
        return spare
