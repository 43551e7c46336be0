"""What a rule of the validator sees of one step: its tensors and constants, and the words in which it refuses.

Callers: `validate.py`, `validate_images.py`, `validate_flat.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ProgramError
from .program import Program, Tensor
from .step import Step

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
LARGEST_KERNEL = 1 << 16
LARGEST_PADDED = 1 << 28


class Look:
    """One step of `program` with the plan's `constants`."""

    def __init__(self, program: Program, constants: Mapping[str, Array], step: Step) -> None:
        self.program = program
        self.constants = constants
        self.step = step

    def need(self, sound: bool, why: str) -> None:
        """Raises ProgramError with `why` unless `sound`."""
        if not sound:
            raise ProgramError(f"step '{self.step.name}' ({type(self.step).__name__}) {why}: the plan is damaged, "
                               "build it again")

    def image(self, name: str, *dtypes: str) -> Tensor:
        return self._tensor(name, "nhwc", "an image", dtypes)

    def flat(self, name: str, *dtypes: str) -> Tensor:
        return self._tensor(name, "flat", "a flat tensor", dtypes or ("float32",))

    def _tensor(self, name: str, layout: str, what: str, dtypes: tuple[str, ...]) -> Tensor:
        self.need(name != "", f"lacks {what}")
        t = self.program.tensors[name]
        self.need(t.layout == layout, f"needs {what}, and '{name}' is {t.layout}")
        self.need(not dtypes or t.dtype in dtypes, f"does not take '{name}' in {t.dtype}, only {' or '.join(dtypes)}")
        return t

    def constant(self, name: str, dtype: str, shape: Shape | None = None) -> Array:
        """The plan's tensor `name`."""
        value = self.constants.get(name)
        if value is None:
            raise ProgramError(f"step '{self.step.name}': the plan lacks the tensor '{name}' that its program needs: "
                               "build it again")
        self.need(value.dtype == np.dtype(dtype) and (shape is None or value.shape == shape),
                  f"needs '{name}' as {dtype}{'' if shape is None else f' of shape {shape}'}, and the plan has "
                  f"{value.dtype.name} of shape {value.shape}")
        return value

    def same_shape(self, a: Tensor, b: Tensor) -> None:
        self.need(a.shape == b.shape, f"takes '{a.name}' of shape {a.shape} to '{b.name}' of shape {b.shape}")

    def window(self, size: Shape, out: Shape, kernel: Shape, stride: Shape, pads: Shape, dilation: Shape) -> None:
        """A window over the spatial axes `size` gives `out`. Pads: begins, then ends."""
        n = len(size)
        self.need(len(out) == len(kernel) == len(stride) == len(dilation) == n and len(pads) == 2 * n
                  and min((*kernel, *stride, *dilation, 1)) >= 1 and min((*pads, 0)) >= 0
                  and max((*kernel, 0)) <= LARGEST_KERNEL
                  and prod(size[i] + pads[i] + pads[n + i] for i in range(n)) <= LARGEST_PADDED,
                  f"has a window of {kernel}, stride {stride}, dilation {dilation}, pads {pads}")
        for i in range(n):
            room = size[i] + pads[i] + pads[n + i] - ((kernel[i] - 1) * dilation[i] + 1)
            self.need(room >= 0 and room // stride[i] + 1 == out[i],
                      f"takes {size} to {out}, which a window of {kernel}, stride {stride}, dilation {dilation} and "
                      f"pads {pads} does not")

    def codes(self, low: int, high: int) -> None:
        self.need(min(low, high) >= -128 and max(low, high) <= 127, f"has the bounds {low} and {high} for int8 codes")

    def gain(self, *values: float) -> None:
        for value in values:
            self.need(abs(value) < float("inf"), f"multiplies by {value}")
