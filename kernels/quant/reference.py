"""FP32's outputs on a set of pictures, and what the measure of a task makes of coded programs beside them.

Callers: `build.py`, `mixed.py`, `ranking.py`, `verify_model.py`. FP32 runs once a set; a further program costs its own
runs only. Invariant: all that is kept of FP32 is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..ir.errors import ModelError
from .gate import OVERFLOWED, Tally, Task, compare, cost_of, strict
from .pictures import Source

Array = npt.NDArray[Any]
Criterion = Callable[[Mapping[str, Any]], float]
"""Of figures how far they are from the limits, 1.0 being just met: `excess` or `strict`."""


class Runner(Protocol):
    """A program of batch 1: the caller writes `input[0]`, `run` gives outputs whose first axis is 1."""

    @property
    def input(self) -> Array: ...
    def run(self) -> list[Array]: ...


class CodedRunner(Runner, Protocol):
    @property
    def overflows(self) -> Mapping[int, str]:
        """Frames of the last run without an answer, and why."""
        ...


class Reference:
    """FP32's outputs on some pictures, kept. `source` writes a picture into the input of FP32."""

    def __init__(self, task: Task, floats: Runner, source: Source, pictures: Sequence[Path]) -> None:
        """Raises ModelError naming the picture on which FP32 itself has no finite answer."""
        self.task = task
        self.source = source
        self.pictures = list(pictures)
        self.wanted: list[list[Array]] = []
        self._order = list(range(len(self.pictures)))
        self._perfect: Tally | None = None
        for path in pictures:
            source.writer(path)(floats.input[0])
            self.wanted.append([o[0].copy() for o in floats.run()])
            if not all(np.isfinite(output).all() for output in self.wanted[-1]):
                raise ModelError(f"{path}: the model gives NaN or infinity on this picture in FP32: train or export it "
                                 "again, or leave the picture out")

    def tally(self, coded: CodedRunner, source: Source, give_up: Criterion | None = None) -> Tally:
        """Of all pictures, those that cost most in the last whole run first; only of so many until there is no answer
        or, with `give_up`, until that must be above 1."""
        tally = Tally()
        lost: list[tuple[float, int]] = []
        for index in self._order:
            source.writer(self.pictures[index])(coded.input[0])
            before = tally.lost()
            got = [o[0] for o in coded.run()]
            tally.overflow = tally.overflow or coded.overflows.get(0, "")
            compare(self.task, tally, self.wanted[index], got)
            lost.append((before - tally.lost(), index))
            if tally.overflow or (give_up is not None and give_up(self.least(tally)) > 1):
                return tally
        self._order = [index for _, index in sorted(lost)]
        return tally

    def least(self, tally: Tally) -> dict[str, Any]:
        """Figures of all pictures if those still to come were without loss."""
        if self._perfect is None:
            self._perfect = Tally()
            for want in self.wanted:
                self.task.add(self._perfect, want, want)
        return self.task.figures(tally.completed(self._perfect))

    def cost(self, coded: CodedRunner, source: Source) -> float:
        """`cost_of` a program of batch 1."""
        return cost_of(self.task, self.tally(coded, source))

    def measure(self, coded: CodedRunner, source: Source, give_up: Criterion | None = None) -> dict[str, Any]:
        """Figures of the task for a program of batch 1; `excess` <= 1 is within the limits.

        `give_up`: where that must be above 1, what it is at least, and `given_up`, the pictures looked at.
        """
        tally = self.tally(coded, source, give_up)
        if tally.overflow:
            return {"overflow": tally.overflow, "excess": OVERFLOWED}
        if tally.pictures < len(self.pictures):
            least = self.least(tally)
            return {"excess": least["excess"], "strict": strict(least), "given_up": tally.pictures}
        figures = self.task.figures(tally)
        return figures if np.isfinite(figures["excess"]) else figures | {"overflow": "", "excess": OVERFLOWED}
