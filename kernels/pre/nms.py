"""Greedy non-maximum suppression with one order and one arithmetic, so that every executor keeps the same boxes.

Called by pre/detections.py. Invariant: the result depends on the values only; equal scores keep the lower index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

MAX_CANDIDATES = 4_096  # of more, the best by score are looked at


def suppress(boxes: F32, scores: F32, classes: Index | None, iou_threshold: float, most: int) -> Index:
    """Indices of the boxes that stay, best first, at most `most`.

    boxes: (n, 4) x1, y1, x2, y2 with x1 <= x2, y1 <= y2. scores: (n,). classes: (n,); only boxes of one class suppress
    each other; None: all do. A box goes if `intersection > iou_threshold * union` with one that stays: all in float32,
    one rounding a step, union = (area + area) - intersection.
    """
    order = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
    x1, y1, x2, y2 = (np.ascontiguousarray(column) for column in boxes[order].T)
    areas = (x2 - x1) * (y2 - y1)
    kinds = None if classes is None else classes[order]
    threshold, zero = np.float32(iou_threshold), np.float32(0.0)
    kept: list[int] = []
    left = np.arange(len(order))
    while len(left) and len(kept) < most:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        wide = np.maximum(np.minimum(x2[left], x2[best]) - np.maximum(x1[left], x1[best]), zero)
        high = np.maximum(np.minimum(y2[left], y2[best]) - np.maximum(y1[left], y1[best]), zero)
        common = wide * high
        goes = common > threshold * ((areas[left] + areas[best]) - common)
        if kinds is not None:
            goes &= kinds[left] == kinds[best]
        left = left[~goes]
    return order[kept]
