"""Heat maps: which output is the map, and its numbers as probabilities.

Made by make_decoder for kind `map`. A served answer is the outputs themselves, as for task `tensor`; the accuracy gate
looks at the map. Invariant: what is called a probability lies between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..spec import ModelSpec
from .outputs import F32, DecoderError, Shape, one_frame
from .polynomial import sigmoid
from .tensor import TensorDecoder

SLACK = 1e-3
"""A map may leave 0..1 by this much: rounding of a graph that ends in Clip or HardSigmoid."""


class MapDecoder(TensorDecoder):
    """`output` of the spec's decoder is the number of the output that holds the map."""

    def __init__(self, spec: ModelSpec, output_shapes: Sequence[Shape]) -> None:
        """Raises DecoderError where the model does not have that output."""
        super().__init__(output_shapes)
        self.output = spec.decoder.output
        self.score_threshold = spec.decoder.score_threshold
        self._activation = spec.decoder.activation
        if self.output >= len(output_shapes):
            raise DecoderError(f"decoder map reads output {self.output}, the model has outputs 0 to "
                               f"{len(output_shapes) - 1}: {list(output_shapes)}")

    def probabilities(self, outputs: Sequence[F32], checked: bool = True) -> F32:
        """The map after the activation, in its own shape. Raises NonFinite; DecoderError for values outside 0..1 that
        no rounding explains, where `checked`."""
        values = one_frame(outputs, self._shapes)[self.output]
        if self._activation == "sigmoid":
            return sigmoid(values)
        if checked and not (values.min() >= -SLACK and values.max() <= 1 + SLACK):
            raise DecoderError(f"output {self.output} is no map of probabilities: its values go from "
                               f"{float(values.min()):.3g} to {float(values.max()):.3g}; give decoder.activation: "
                               "sigmoid, or name another output in decoder.output")
        return np.asarray(values)
