"""Chooses the decoder that a spec names: the one place where kinds become classes.

Called by kernels/model.py and by the accuracy gate. A decoder belongs to one model; it keeps no state between frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..spec import ModelSpec
from .decode_blazeface import BlazefaceDecoder
from .decode_yolo import YoloDecoder
from .geometry import Mapping
from .heat_map import MapDecoder
from .outputs import F32, DecoderError, NonFinite, Shape
from .tensor import TensorDecoder
from .topk import TopkDecoder

__all__ = ["Decoder", "DecoderError", "NonFinite", "TensorDecoder", "make_decoder"]


class Decoder(Protocol):
    """rows_max x row_width float32 numbers are what one frame's answer can need (0 x 0: the outputs are the answer)."""

    rows_max: int
    row_width: int

    def decode(self, outputs: Sequence[F32], mapping: Mapping, width: int, height: int, out: F32) -> int:
        """Rows written to `out` (rows_max, row_width) for ONE frame.

        outputs: float32, in the model's order, each of its declared shape without the batch axis. mapping: from the
        Preprocessor's run; width, height: of the picture, pixels. Raises NonFinite.
        """
        ...


def make_decoder(
    spec: ModelSpec, output_shapes: Sequence[Shape], input_shape: Shape | None = None
) -> YoloDecoder | BlazefaceDecoder | TopkDecoder | MapDecoder | TensorDecoder:
    """The decoder of `spec` for outputs of these shapes, each without the batch axis; `input_shape` ends in H, W, C.

    Raises DecoderError where spec and shapes do not fit: at build and at load, never for a frame.
    """
    shapes = [tuple(shape) for shape in output_shapes]
    kind = spec.decoder.kind
    if kind == "yolo":
        return YoloDecoder(spec, shapes)
    if kind == "blazeface":
        size = None if input_shape is None else (input_shape[-3], input_shape[-2])
        return BlazefaceDecoder(spec, shapes, size)
    if kind == "map":
        return MapDecoder(spec, shapes)
    return TopkDecoder(spec, shapes) if kind == "topk" else TensorDecoder(shapes)
