"""How far two answers lie apart: KL divergence in nats, many of them, IoU of boxes, same detections. Caller: `gate.py`.

CONTRACT.md: D(p || q) with p of FP32, probabilities clipped to [1e-7, 1 - 1e-7].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CLIP = 1e-7
LEAST_LEVEL, MOST_LEVEL, LEVELS = 1e-9, 20.0, 2048


@dataclass
class Levels:
    """Many divergences in little memory: sum, number, and how many lie at each of LEVELS levels, 1.2 % apart."""

    total: float = 0.0
    count: int = 0
    levels: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(LEVELS, dtype=np.int64))

    def add(self, values: npt.NDArray[np.float64]) -> None:
        self.total += float(values.sum())
        self.count += values.size
        part = np.log(np.maximum(values, LEAST_LEVEL) / LEAST_LEVEL) / np.log(MOST_LEVEL / LEAST_LEVEL)
        self.levels += np.bincount(np.minimum(np.ceil(part * LEVELS), LEVELS - 1).astype(np.int64).reshape(-1),
                                   minlength=LEVELS)

    def above(self, part: float) -> float:
        """The level that at most this part of all values exceeds; 0 where that is the lowest."""
        over = np.cumsum(self.levels[::-1])[::-1] - self.levels             # values at higher levels
        level = int(np.flatnonzero(over <= part * self.count)[0])
        return 0.0 if level == 0 else float(LEAST_LEVEL * (MOST_LEVEL / LEAST_LEVEL) ** (level / LEVELS))


def clipped(p: Array) -> npt.NDArray[np.float64]:
    return np.clip(p.astype(np.float64), CLIP, 1 - CLIP)


def bernoulli_kl(p: Array, q: Array) -> npt.NDArray[np.float64]:
    """Element by element, nats."""
    a, b = clipped(p), clipped(q)
    return np.asarray(a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b)))


def categorical_kl(p: Array, q: Array) -> float:
    a, b = clipped(p), clipped(q)
    return float((a * np.log(a / b)).sum())


def box_iou(a: Array, b: Array) -> npt.NDArray[np.float64]:
    """Row by row, of corners (n, 4)."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    side = np.maximum(np.minimum(x[:, 2:], y[:, 2:]) - np.maximum(x[:, :2], y[:, :2]), 0)
    inner = side[:, 0] * side[:, 1]
    area_x, area_y = ((v[:, 2:] - v[:, :2]).clip(0).prod(1) for v in (x, y))
    return np.asarray(inner / np.maximum(area_x + area_y - inner, 1e-12))


def same_detections(a: Array, b: Array) -> bool:
    """Same count, and every row of `a` has its own row of `b` with the same class and IoU >= 0.9."""
    if len(a) != len(b):
        return False
    free = list(range(len(b)))
    for row in a:
        fits = [i for i in free if b[i, 5] == row[5] and box_iou(row[None, :4], b[i][None, :4])[0] >= 0.9]
        if not fits:
            return False
        free.remove(fits[0])
    return True
