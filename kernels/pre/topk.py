"""Classification: the k best classes of one vector, by an order that is the same everywhere.

Made by make_decoder. Invariant: softmax sums in whole numbers, so the sum has no order, and equal scores go to the
lower class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..spec import ModelSpec
from .geometry import Mapping
from .outputs import F32, DecoderError, Shape, one_frame
from .polynomial import exp, sigmoid

SUM_BITS = 40  # 2^16 classes of at most 1.0 each: below 2^57


def softmax(x: F32) -> F32:
    """e^(x - max) / sum: our exp, the sum exact over terms rounded to 2^-40, one IEEE division. x: (n,), finite."""
    terms = exp(x - x.max())
    total = int(np.rint(terms.astype(np.float64) * 2.0**SUM_BITS).astype(np.int64).sum())
    return terms / np.float32(math.ldexp(total, -SUM_BITS))


class TopkDecoder:
    """Rows of class, score, best first."""

    row_width = 2

    def __init__(self, spec: ModelSpec, output_shapes: Sequence[Shape]) -> None:
        classes = len(spec.labels)
        if len(output_shapes) != 1 or math.prod(output_shapes[0]) != classes:
            raise DecoderError(f"decoder topk with {classes} labels needs one output of {classes} values, the model has"
                               f" {list(output_shapes)}")
        self._shapes, self._activation = output_shapes, spec.decoder.activation
        self.rows_max = min(spec.decoder.top_k, classes)

    def probabilities(self, outputs: Sequence[F32]) -> F32:
        """(classes,): after the activation, before the choice. Raises NonFinite."""
        values = one_frame(outputs, self._shapes)[0].reshape(-1)
        if self._activation == "softmax":
            return softmax(values)
        return sigmoid(values) if self._activation == "sigmoid" else values

    def decode(self, outputs: Sequence[F32], mapping: Mapping, width: int, height: int, out: F32) -> int:
        """Writes one frame's rows into `out` (rows_max, 2); returns how many. Raises NonFinite."""
        scores = self.probabilities(outputs)
        best = np.argsort(-scores, kind="stable")[: self.rows_max]
        out[: len(best), 0] = best
        out[: len(best), 1] = scores[best]
        return len(best)
