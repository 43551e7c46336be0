"""Ranges of tensors over calibration images, and the scale that loses least on a 2,048-bin histogram of |x|.

Caller: `build.py`, with the FP32 program of the unfused graph, so that pre-activations exist. One pass over the images:
a histogram doubles its range by joining pairs of bins when a larger value comes.

Loss is |error|^2.4, not the square: clipped outliers weigh a little more, and outliers are the objects. Measured on the
part detector against the square: KL 0.0046 -> 0.0015, IoU of boxes 0.964 -> 0.972 (64 held-back pictures, 815 anchors).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from .contract import LEAST_SCALE, single

BINS = 2048
CANDIDATES = 160
EXPONENT = 2.4


@dataclass
class Histogram:
    """|x| in BINS bins of equal width from 0 to `top`, and the range of x; `finite` False: NaN or infinity was seen."""

    top: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    finite: bool = True
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def widen(self, values: npt.NDArray[np.float32]) -> None:
        """Takes the range only: what a pre-activation needs."""
        low, high = float(values.min()), float(values.max())
        self.finite = self.finite and bool(np.isfinite([low, high]).all())
        self.low, self.high = min(self.low, low), max(self.high, high)

    def add(self, values: npt.NDArray[np.float32]) -> None:
        self.widen(values)
        if not self.finite:
            return
        largest = max(abs(self.low), abs(self.high))
        if largest == 0:
            self.counts[0] += values.size
            return
        if self.top == 0:
            self.top = largest
        while self.top < largest:
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(1), np.zeros(BINS // 2, dtype=np.int64)])
            self.top *= 2
        index = np.minimum(np.abs(values).ravel() * np.float32(BINS / self.top), BINS - 1).astype(np.int64)
        self.counts += np.bincount(index, minlength=BINS)

    def centres(self) -> npt.NDArray[np.float64]:
        return (np.arange(BINS, dtype=np.float64) + 0.5) * (self.top / BINS)

    def error(self, scale: float) -> float:
        """Expected |error|^EXPONENT, summed over all values, of int8 codes with this scale."""
        return float((self.counts * self._errors(scale) ** EXPONENT).sum())

    def squared_error(self, scale: float) -> float:
        return float((self.counts * self._errors(scale) ** 2).sum())

    def _errors(self, scale: float) -> npt.NDArray[np.float64]:
        x = self.centres()
        return np.asarray(np.abs(x - np.minimum(np.rint(x / scale), 127) * scale))


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """One histogram of all values, over the largest range."""
    parts = list(histograms)
    top = max(h.top for h in parts)
    out = Histogram(top, min(h.low for h in parts), max(h.high for h in parts))
    for h in parts:
        index = np.minimum(h.centres() * (BINS / top), BINS - 1).astype(np.int64) if top else np.zeros(BINS, np.int64)
        out.counts += np.bincount(index, weights=h.counts, minlength=BINS).astype(np.int64)
    return out


def best_scale(histogram: Histogram) -> float:
    """The float32 scale with the least expected error; LEAST_SCALE for a tensor that is always 0."""
    largest = max(abs(histogram.low), abs(histogram.high))
    if not histogram.finite:
        raise ValueError("the calibration run gave NaN or infinity")
    if largest == 0:
        return LEAST_SCALE
    candidates = largest / 127 * np.linspace(0.2, 1.0, CANDIDATES)
    best = min(candidates.tolist(), key=histogram.error)
    return max(single(best), float(np.finfo(np.float32).tiny))


def collect(runner: ProgramRunner, images: Iterable[Callable[[npt.NDArray[np.float32]], object]],
            progress: Callable[[int], None], coded: Collection[str] | None = None) -> dict[str, Histogram]:
    """A histogram of every image tensor that a step writes, and of the graph input.

    Each of `images` writes one preprocessed frame into the (H, W, C) array that it is given. Tensors that are not among
    `coded` (None: all are) get a range only.
    """
    program = runner.program
    found: dict[str, Histogram] = {}
    for index, write in enumerate(images):
        write(runner.input[0])
        for name in program.inputs:
            if program.tensors[name].dtype == "float32":
                found.setdefault(name, Histogram()).add(runner.logical(name, 0))
        for step in runner.walk():
            for name in step.writes():
                if program.tensors[name].layout == "nhwc" and program.tensors[name].dtype == "float32":
                    histogram = found.setdefault(name, Histogram())
                    (histogram.add if coded is None or name in coded else histogram.widen)(runner.logical(name, 0))
        progress(index + 1)
    return found
