"""Where each pixel of the network's input comes from in the picture, in whole numbers, and the way back for boxes.

Called by the Preprocessor (once per size of picture) and, through Mapping, by the decoders. Invariant: indices and
weights are computed in integers only, so that every executor and every machine resamples alike (numerics contract,
"Preprocessing is integer": weights over 2^11 per axis, half-pixel centres, no antialias).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WEIGHT_BITS = 11
GREY = 114  # of a letterbox's border, as networks of this kind are trained


@dataclass(frozen=True, slots=True)
class Mapping:
    """From input pixels to source pixels: `source = (input - pad) * scale`, per axis.

    pad_x, pad_y: input pixels left of and above the picture. scale_x, scale_y: source pixels an input pixel.
    """

    scale_x: float
    scale_y: float
    pad_x: int
    pad_y: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The picture inside the input: its resized size and its upper left corner, pixels."""

    width: int
    height: int
    left: int
    top: int

    def mapping(self, source_width: int, source_height: int) -> Mapping:
        return Mapping(source_width / self.width, source_height / self.height, self.left, self.top)


@dataclass(frozen=True, slots=True)
class Axis:
    """Resampling along one axis: output i = low[i] * (2^11 - weight[i]) + high[i] * weight[i].

    low, high: intp source indices; weight: int32, 0..2^11; taps: 1 if every weight is 0 (no `high` needed), else 2.
    """

    low: npt.NDArray[np.intp]
    high: npt.NDArray[np.intp]
    weight: npt.NDArray[np.int32]
    taps: int

    @property
    def sources(self) -> npt.NDArray[np.intp]:
        """The source index of each gathered line: all `low`, then (two taps) all `high`."""
        return self.low if self.taps == 1 else np.concatenate([self.low, self.high])


def place(resize: str, source: tuple[int, int], target: tuple[int, int]) -> Placement:
    """Where a picture of `source` (width, height) comes to lie in an input of `target` (width, height).

    letterbox keeps the aspect ratio: the longer side fills the input, the other is rounded half up, at least 1; of an
    odd border the smaller half lies left or above.
    """
    (source_w, source_h), (target_w, target_h) = source, target
    if resize != "letterbox":
        return Placement(target_w, target_h, 0, 0)
    # target_w / source_w <= target_h / source_h: the width is what limits
    if target_w * source_h <= target_h * source_w:
        width, height = target_w, _divide_half_up(source_h * target_w, source_w)
    else:
        width, height = _divide_half_up(source_w * target_h, source_h), target_h
    width, height = max(width, 1), max(height, 1)
    return Placement(width, height, (target_w - width) // 2, (target_h - height) // 2)


def resample(source: int, target: int) -> Axis:
    """Bilinear indices and weights from `source` to `target` pixels: position (i + 1/2) * source / target - 1/2."""
    # the position is numerator / (2 * target), an exact fraction
    numerator = (2 * np.arange(target, dtype=np.int64) + 1) * source - target
    low, rest = np.divmod(numerator, 2 * target)
    # floor(rest / (2 target) * 2^11 + 1/2)
    weight = ((rest << (WEIGHT_BITS + 1)) + 2 * target) // (4 * target)
    # beyond the first or last centre there is nothing to mix with
    weight = np.where((low < 0) | (low >= source - 1), 0, weight)
    low = np.clip(low, 0, source - 1)
    high = np.minimum(low + 1, source - 1)
    taps = 2 if weight.any() else 1
    return Axis(low.astype(np.intp), high.astype(np.intp), weight.astype(np.int32), taps)


def _divide_half_up(above: int, below: int) -> int:
    return (2 * above + below) // (2 * below)
