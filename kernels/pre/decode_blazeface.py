"""BlazeFace-style heads: regressors relative to anchor centres, and logits, in one pair of outputs or one pair a level.

Made by make_decoder. What the numbers mean is written down, with sources, in configs/models/blazeface-back.md:
score = sigmoid(clip(logit, -100, 100)); centre = anchor centre + r[0:2]; size = r[2:4]; all in units of the input's
side divided by `box_scale`. Key points (r[4:]) are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..spec import DecoderSpec, ModelSpec
from .detections import ROW_WIDTH, corners, write_rows
from .geometry import Mapping
from .outputs import F32, DecoderError, Shape, one_frame
from .polynomial import sigmoid

LOGIT_LIMIT = np.float32(100.0)  # as upstream: logits far outside do occur


def anchor_centres(spec: DecoderSpec, height: int, width: int) -> list[F32]:
    """For each level (cells * anchors_per_cell, 2): x, y of the anchors in input pixels, row by row, cell by cell."""
    levels = []
    for stride, count in zip(spec.strides, spec.anchors_per_cell, strict=True):
        y, x = np.meshgrid(np.arange(-(-height // stride)), np.arange(-(-width // stride)), indexing="ij")
        centres = (np.stack([x, y], axis=-1).reshape(-1, 2) + 0.5) * stride
        levels.append(np.repeat(centres, count, axis=0).astype(np.float32))
    return levels


class BlazefaceDecoder:
    """Rows of x1, y1, x2, y2, score, class 0."""

    row_width = ROW_WIDTH

    def __init__(self, spec: ModelSpec, output_shapes: Sequence[Shape], input_size: tuple[int, int] | None) -> None:
        """`input_size`: (height, width) of the input; None: a square of `box_scale`."""
        side = round(spec.decoder.box_scale)
        height, width = input_size or (side, side)
        levels = anchor_centres(spec.decoder, height, width)
        counts = [len(level) for level in levels]
        self._spec, self._shapes = spec.decoder, output_shapes
        self._centres = np.concatenate(levels)
        self._unit = np.array([width, height], np.float32) / np.float32(spec.decoder.box_scale)
        self._logits = _match(output_shapes, counts, lambda last: last == 1)
        self._regressors = _match(output_shapes, counts, lambda last: last >= 4)
        if not self._logits or not self._regressors or len(self._logits) + len(self._regressors) != len(output_shapes):
            raise DecoderError(
                f"decoder blazeface with strides {spec.decoder.strides} on {width}x{height} needs logits (anchors, 1)"
                f" and regressors (anchors, 4 or more), anchors {sum(counts)} or by level {counts}; the model has"
                f" {list(output_shapes)}")
        self.rows_max = spec.decoder.max_detections

    def anchors(self, outputs: Sequence[F32]) -> tuple[F32, F32]:
        """Corners (anchors, 4) in input pixels and probabilities (anchors, 1), before any threshold."""
        taken = one_frame(outputs, self._shapes)
        logits = np.concatenate([taken[number] for number in self._logits])
        boxes = np.concatenate([taken[number][:, :4] for number in self._regressors])
        np.minimum(np.maximum(logits, -LOGIT_LIMIT, out=logits), LOGIT_LIMIT, out=logits)
        with np.errstate(over="ignore"):  # too far away is an error of write_rows, with a reason
            centres = boxes[:, :2] * self._unit + self._centres
            sizes = boxes[:, 2:] * self._unit
        return corners(centres[:, 0], centres[:, 1], sizes[:, 0], sizes[:, 1]), sigmoid(logits, out=logits)

    def decode(self, outputs: Sequence[F32], mapping: Mapping, width: int, height: int, out: F32) -> int:
        """Writes one frame's rows into `out` (rows_max, 6), source pixels; returns how many. Raises NonFinite."""
        boxes, probabilities = self.anchors(outputs)
        return write_rows(boxes, probabilities, self._spec, mapping, width, height, out)


def _match(shapes: Sequence[Shape], counts: list[int], fits: Callable[[int], bool]) -> list[int]:
    """Which outputs, in the order of the levels, are the ones whose last extent `fits`; empty if they do not add up."""
    numbers = [n for n, shape in enumerate(shapes) if len(shape) == 2 and fits(shape[1])]
    if len(numbers) == 1 and shapes[numbers[0]][0] == sum(counts):
        return numbers
    ordered = []
    for count in counts:
        number = next((n for n in numbers if shapes[n][0] == count and n not in ordered), None)
        if number is None:
            return []
        ordered.append(number)
    return ordered if len(ordered) == len(numbers) else []
