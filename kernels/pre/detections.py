"""From boxes and probabilities of all anchors to the rows of a result: threshold, suppression, back to the picture.

Called by the detecting decoders. Invariant: rows are x1, y1, x2, y2, score, class in source pixels, inside the picture
and with an area, best score first; every step is an element-wise float32 step, so the rows are the same everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..spec import DecoderSpec
from .geometry import Mapping
from .nms import suppress
from .outputs import NonFinite

F32 = npt.NDArray[np.float32]

ROW_WIDTH = 6
FARTHEST = np.float32(1e6)  # a corner's distance in input pixels; inputs have a hundredth of that


def corners(cx: F32, cy: F32, width: F32, height: F32) -> F32:
    """(n, 4) x1, y1, x2, y2 of boxes given by centre and size."""
    half_width, half_height = width * np.float32(0.5), height * np.float32(0.5)
    with np.errstate(over="ignore", invalid="ignore"):  # write_rows refuses what is too far away
        return np.stack([cx - half_width, cy - half_height, cx + half_width, cy + half_height], axis=-1)


def write_rows(
    boxes: F32, probabilities: F32, spec: DecoderSpec, mapping: Mapping, width: int, height: int, out: F32
) -> int:
    """Writes the detections of one frame into `out` (max_detections or more, 6) and returns how many.

    boxes: (anchors, 4) corners in input pixels. probabilities: (anchors, classes). An anchor counts with its best class
    (of equals the first) if that reaches the threshold; a box without a positive size is no detection.
    Raises NonFinite if a box that counts lies so far away that float32 cannot hold its area.
    """
    best = probabilities.max(axis=1)
    candidates = np.flatnonzero(best >= np.float32(spec.score_threshold))
    counted = boxes[candidates]
    if not (np.abs(counted) <= FARTHEST).all():
        raise NonFinite(f"a box reaches beyond {FARTHEST:.0f} pixels")
    candidates = candidates[(counted[:, 2] > counted[:, 0]) & (counted[:, 3] > counted[:, 1])]
    if not len(candidates):
        return 0
    classes = probabilities[candidates].argmax(axis=1)
    found = suppress(boxes[candidates], best[candidates], None if spec.class_agnostic else classes,
                     spec.iou_threshold, spec.max_detections)
    rows = _into_picture(boxes[candidates[found]], mapping, width, height)
    inside = (rows[:, 2] > rows[:, 0]) & (rows[:, 3] > rows[:, 1])
    count = int(inside.sum())
    out[:count, :4] = rows[inside]
    out[:count, 4] = best[candidates[found]][inside]
    out[:count, 5] = classes[found][inside]
    return count


def _into_picture(boxes: F32, mapping: Mapping, width: int, height: int) -> F32:
    """Input pixels to source pixels, clipped to the picture: what lies in a letterbox's border loses its area."""
    pad = np.array([mapping.pad_x, mapping.pad_y] * 2, np.float32)
    scale = np.array([mapping.scale_x, mapping.scale_y] * 2, np.float32)
    most = np.array([width, height] * 2, np.float32)
    moved: F32 = np.minimum(np.maximum((boxes - pad) * scale, np.float32(0.0)), most)
    return moved
