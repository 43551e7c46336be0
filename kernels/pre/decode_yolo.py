"""YOLO-style heads (v8 and later): one output of cx, cy, w, h in input pixels and a probability a class, per anchor.

Made by make_decoder. Accepts (4 + classes, anchors), as the exporters write it, and its transpose (a square
one is taken as the former).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..spec import ModelSpec
from .detections import ROW_WIDTH, corners, write_rows
from .geometry import Mapping
from .outputs import F32, DecoderError, Shape, one_frame


class YoloDecoder:
    """Rows of x1, y1, x2, y2, score, class."""

    row_width = ROW_WIDTH

    def __init__(self, spec: ModelSpec, output_shapes: Sequence[Shape]) -> None:
        rows = 4 + len(spec.labels)
        fits = len(output_shapes) == 1 and len(output_shapes[0]) == 2 and rows in output_shapes[0]
        if not fits:
            raise DecoderError(
                f"decoder yolo with {len(spec.labels)} labels needs one output of {rows} x anchors (or the transpose),"
                f" the model has {list(output_shapes)}: are all labels given?")
        self._spec, self._shapes = spec.decoder, output_shapes
        self._rows_first = output_shapes[0][0] == rows
        self.rows_max = spec.decoder.max_detections

    def anchors(self, outputs: Sequence[F32]) -> tuple[F32, F32]:
        """Corners (anchors, 4) in input pixels and probabilities (anchors, classes), before any threshold."""
        output = one_frame(outputs, self._shapes)[0]
        columns = output if self._rows_first else output.T
        return corners(columns[0], columns[1], columns[2], columns[3]), columns[4:].T

    def decode(self, outputs: Sequence[F32], mapping: Mapping, width: int, height: int, out: F32) -> int:
        """Writes one frame's rows into `out` (rows_max, 6), source pixels; returns how many. Raises NonFinite."""
        boxes, probabilities = self.anchors(outputs)
        return write_rows(boxes, probabilities, self._spec, mapping, width, height, out)
