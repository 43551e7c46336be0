"""Answers that are the outputs themselves: no rows, but every number must be finite. Made by make_decoder."""

from __future__ import annotations

from collections.abc import Sequence

from .geometry import Mapping
from .outputs import F32, Shape, one_frame


class TensorDecoder:
    """Tasks `tensor` and `regress`: the outputs are the answer, so there are no rows; they must still be finite."""

    rows_max = 0
    row_width = 0

    def __init__(self, output_shapes: Sequence[Shape]) -> None:
        self._shapes = output_shapes

    def decode(self, outputs: Sequence[F32], mapping: Mapping, width: int, height: int, out: F32) -> int:
        one_frame(outputs, self._shapes)
        return 0
