"""Ranges of tensors over calibration images, and scales from a 2,048-bin histogram of |x| by a named method.

Caller: `coding.py`, with the FP32 program of the unfused graph, so that pre-activations exist. One pass over the
images: a histogram doubles its range by joining pairs of bins when a larger value comes. Which method a tensor gets in
the end is decided by `choice.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..cpu.executor import ProgramRunner
from .contract import LEAST_SCALE, SMALLEST_SCALE, single

BINS = 2048
CANDIDATES = 160
PERCENTILE = 0.9999
LEVELS = 128
LEAST_RANGE = 127 * SMALLEST_SCALE
"""Smaller values are in the first bin: no scale fits them."""
LIFT = 1 << 16
"""A power of two by which values are multiplied whose number of bins a unit float32 does not hold."""
METHODS = ("mse", "minmax", "percentile", "entropy")

Doubles = npt.NDArray[np.float64]


@dataclass
class Histogram:
    """|x| in BINS bins of equal width from 0 to `top`, and the range of x; `finite` False: NaN or infinity was seen.

    `sums` and `peaks` are the sum and the largest |x| of each channel (last axis), `pixels` the numbers in each sum.
    """

    top: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    finite: bool = True
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    sums: Doubles = field(default_factory=lambda: np.zeros(0))
    peaks: Doubles = field(default_factory=lambda: np.zeros(0))
    pixels: int = 0

    def widen(self, values: npt.NDArray[np.float32]) -> None:
        """Takes the range only: what a pre-activation needs."""
        low, high = float(values.min()), float(values.max())
        self.finite = self.finite and bool(np.isfinite([low, high]).all())
        self.low, self.high = min(self.low, low), max(self.high, high)

    def add(self, values: npt.NDArray[np.float32]) -> None:
        """Values (..., channels)."""
        channels = values.shape[-1]
        lines = values.reshape(len(values), -1)               # long rows first: NumPy is slow along short axes
        low, high = (np.min(lines, 0).reshape(-1, channels).min(0), np.max(lines, 0).reshape(-1, channels).max(0))
        self.widen(np.concatenate([low, high]))
        if not self.finite:
            return
        peaks = np.maximum(high, -low).astype(np.float64)
        if self.pixels == 0:
            self.sums, self.peaks = np.zeros(len(peaks)), np.zeros(len(peaks))
        self.sums += lines.sum(0, dtype=np.float64).reshape(-1, channels).sum(0)
        self.peaks = np.maximum(self.peaks, peaks)
        self.pixels += values.size // channels
        if self.largest < LEAST_RANGE:
            self.counts[0] += values.size
            return
        if self.top == 0:
            self.top = self.largest
        while self.top < self.largest:
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(1), np.zeros(BINS // 2, dtype=np.int64)])
            self.top *= 2
        places = np.abs(values).ravel()
        per_unit = BINS / self.top
        if per_unit > float(np.finfo(np.float32).max):
            np.multiply(places, np.float32(LIFT), out=places)
            per_unit /= LIFT
        np.multiply(places, np.float32(per_unit), out=places)
        found = np.bincount(places.astype(np.intp), minlength=BINS + 1)      # the largest value lies on the last edge
        self.counts += found[:BINS]
        self.counts[-1] += found[BINS]

    @property
    def largest(self) -> float:
        return max(abs(self.low), abs(self.high))

    def means(self) -> Doubles:
        """The mean of each channel."""
        return self.sums / max(self.pixels, 1)

    def spread(self) -> float:
        """How far the ranges of the channels differ: the largest over the lower quartile of those that live."""
        live = self.peaks[self.peaks > 0]
        return float(live.max() / np.quantile(live, 0.25)) if live.size else 1.0

    def centres(self) -> Doubles:
        return (np.arange(BINS, dtype=np.float64) + 0.5) * (self.top / BINS)

    def squared_error(self, scale: float) -> float:
        """Expected error^2, summed over all values, of int8 codes with this scale."""
        x = self.centres()
        return float((self.counts * (x - np.minimum(np.rint(x / scale), 127) * scale) ** 2).sum())


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """One histogram of all values, over the largest range; without the figures by channel."""
    parts = list(histograms)
    top = max(h.top for h in parts)
    out = Histogram(top, min(h.low for h in parts), max(h.high for h in parts), all(h.finite for h in parts))
    for h in parts:
        index = np.minimum(h.centres() * (BINS / top), BINS - 1).astype(np.int64) if top else np.zeros(BINS, np.int64)
        out.counts += np.bincount(index, weights=h.counts, minlength=BINS).astype(np.int64)
    return out


def best_scale(histogram: Histogram, method: str = "mse") -> float:
    """The float32 scale that `method` (one of METHODS) gives; LEAST_SCALE for a tensor that is always 0.

    mse: least expected error^2. minmax: nothing is clipped. percentile: 99.99 % of |x| are not clipped. entropy: least
    divergence of the clipped histogram from its 128 levels (TensorRT's method).
    """
    if not histogram.finite:
        raise ValueError("the calibration run gave NaN or infinity")
    largest = histogram.largest
    if largest == 0:
        return LEAST_SCALE
    if method == "mse":
        candidates = largest / 127 * np.linspace(0.2, 1.0, CANDIDATES)
        best = min(candidates.tolist(), key=histogram.squared_error)
    elif method == "minmax":
        best = largest / 127
    elif method == "percentile":
        part = np.cumsum(histogram.counts) / histogram.counts.sum()
        best = min((int(np.searchsorted(part, PERCENTILE)) + 1) * histogram.top / BINS, largest) / 127
    elif method == "entropy":
        best = min(_least_divergence(histogram.counts) * histogram.top / BINS, largest) / 127
    else:
        raise ValueError(f"calibration method '{method}' is not one of {', '.join(METHODS)}")
    return max(single(best), SMALLEST_SCALE)


def _least_divergence(counts: npt.NDArray[np.int64]) -> int:
    """Bins to keep: D(P || Q) of the histogram clipped there against the same in LEVELS levels is least."""
    last = int(np.flatnonzero(counts)[-1]) + 1
    best, least = last, np.inf
    for kept in range(min(LEVELS, last), last + 1, 8):
        inside = counts[:kept].astype(np.float64)
        p = inside.copy()
        p[-1] += counts[kept:].sum()
        level = np.arange(kept) * LEVELS // kept
        live = inside > 0
        share = np.bincount(level, inside, LEVELS) / np.maximum(np.bincount(level, live, LEVELS), 1)
        q = np.where(live, share[level], 0.0)
        p, q = p / p.sum(), q / max(q.sum(), 1e-300)
        both = (p > 0) & (q > 0)
        missing = float(p[(p > 0) & (q == 0)].sum())      # mass that Q cannot have: an empty last bin
        divergence = float((p[both] * np.log(p[both] / q[both])).sum()) + missing * 30
        if divergence < least:
            best, least = kept, divergence
    return best


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
            found.setdefault(name, Histogram()).add(runner.logical(name, 0).astype(np.float32))
        for step in runner.walk():
            for name in step.writes():
                if program.tensors[name].layout == "nhwc" and program.tensors[name].dtype == "float32":
                    histogram = found.setdefault(name, Histogram())
                    (histogram.add if coded is None or name in coded else histogram.widen)(runner.logical(name, 0))
        progress(index + 1)
    return found


def given_range(low: float, high: float) -> Histogram:
    """A tensor of which only the range is known: as if all magnitudes up to it were as frequent."""
    top = max(-low, high)
    return Histogram(top, low, high, counts=np.ones(BINS, dtype=np.int64))
