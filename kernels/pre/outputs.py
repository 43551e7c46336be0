"""The network's outputs as the decoders take them: of one frame, of the declared shape, and finite.

Called by every decoder. Invariant: a number that is not finite never becomes an answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Shape = tuple[int, ...]


class DecoderError(ValueError):
    """The spec's decoder does not fit the model's outputs; the text says which shapes it needs."""


class NonFinite(ArithmeticError):
    """An output holds a NaN or an infinity: the frame's outcome is `error`."""


def one_frame(outputs: Sequence[F32], shapes: Sequence[Shape]) -> list[F32]:
    """The outputs in their declared shapes (a leading batch axis of 1 falls away), without a copy where possible.

    Raises DecoderError for another number or size of outputs, NonFinite naming the output.
    """
    if len(outputs) != len(shapes):
        raise DecoderError(f"{len(outputs)} outputs given, the model has {len(shapes)}")
    taken = []
    for number, (output, shape) in enumerate(zip(outputs, shapes, strict=True)):
        if output.size != math.prod(shape) or output.dtype != np.float32:
            raise DecoderError(f"output {number} is {output.dtype} of shape {output.shape}, not float32 of {shape}")
        # minimum and maximum carry a NaN on, and need no array for their answers
        with np.errstate(invalid="ignore"):
            if not (math.isfinite(output.min()) and math.isfinite(output.max())):
                raise NonFinite(f"output {number} has a value that is not finite")
        taken.append(output.reshape(shape))
    return taken
