"""From a picture to the network's input, in integers: the one preprocessing of calibration and of serving.

Made once for each plan and batch size; `run` is called for every frame. The steps, in this order (contract,
"Preprocessing is integer"): colour at source pixels, bilinear resize with one rounding, letterbox on grey 114, a table
of 256 entries a channel that normalises and quantises. Invariant: the result depends on the picture, the spec and the
table only; and once a size has been seen, a frame allocates nothing large.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..picture import Picture, PictureError, row_bytes
from ..spec import InputSpec
from .geometry import GREY, WEIGHT_BITS, Axis, Mapping, Placement, place, resample
from .sample import Plane, Sampler, make_sampler
from .scratch import Scratch

__all__ = ["Mapping", "PreprocessError", "Preprocessor", "input_table"]

Array = npt.NDArray[np.generic]
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
CACHED_SIZES = 16


class PreprocessError(PictureError):
    """This picture cannot become this input; the text says why."""


def input_table(spec: InputSpec, dtype: str, scale: float = 1.0) -> Array:
    """(C, 256): what each pixel value becomes in each channel, `(pixel - mean) * scale`, all in float64, rounded once.

    dtype float32 gives the value; int8 and uint8 give `RNE(clamp(value / scale))` with the input tensor's `scale`.
    """
    pixels = np.arange(256, dtype=np.float64)
    means, factors = (np.array(spec_values, np.float64) for spec_values in (spec.mean, spec.scale))
    values = np.broadcast_to((pixels - means[:, None]) * factors[:, None], (spec.channels, 256))
    if dtype == "float32":
        return values.astype(np.float32)
    if dtype not in RANGES:
        raise PreprocessError(f"an input of type {dtype} has no table: float32, int8 or uint8")
    low, high = RANGES[dtype]
    return np.rint(np.clip(values / np.float64(np.float32(scale)), low, high)).astype(dtype)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that is known once encoding and size are: where the pixels come from and where they go."""

    sampler: Sampler
    rows: Axis
    columns: Axis
    placement: Placement
    mapping: Mapping


class Preprocessor:
    """Turns pictures into inputs of one model.

    spec: what the model expects. input_shape: the program's, ending in H, W, C. table: (C, 256) or (1, 256) of the
    input's dtype, from `input_table`. scratch: where several share one. Not for two threads at once.
    """

    def __init__(
        self, spec: InputSpec, input_shape: tuple[int, ...], table: Array, scratch: Scratch | None = None
    ) -> None:
        self._height, self._width, channels = input_shape[-3:]
        if channels < spec.channels:
            raise PreprocessError(f"the input has {channels} channels, colour {spec.colour} needs {spec.channels}")
        if table.shape not in ((1, 256), (spec.channels, 256)):
            raise PreprocessError(f"the table has shape {table.shape}, not ({spec.channels}, 256)")
        self._spec = spec
        self._table = np.ascontiguousarray(np.broadcast_to(table, (spec.channels, 256)))
        self._recipes: OrderedDict[tuple[str, int, int, int], _Recipe] = OrderedDict()
        self._scratch = Scratch() if scratch is None else scratch

    def run(self, picture: Picture, out: Array) -> Mapping:
        """Writes the input of one frame into `out` (H, W, C or more channels; the additional ones become 0).

        Returns how boxes go back to the picture. Raises PictureError for a picture that is not as it says, and
        PreprocessError for one that cannot be used here.
        """
        channels = self._spec.channels
        if out.ndim != 3 or out.shape[:2] != (self._height, self._width) or out.shape[2] < channels:
            raise PreprocessError(f"out has shape {out.shape}, not ({self._height}, {self._width}, {channels} or more)")
        if out.dtype != self._table.dtype:
            raise PreprocessError(f"out is of type {out.dtype}, the table of {self._table.dtype}")
        data = picture.bytes_array()
        recipe = self._recipe(picture)
        place_ = recipe.placement
        if out.shape[2] > channels:
            out[..., channels:] = 0
        self._fill_border(out, place_)
        inner = out[place_.top : place_.top + place_.height, place_.left : place_.left + place_.width]
        recipe.sampler.load(data, self._scratch)
        looked_up = self._scratch.array("looked up", inner.shape[:2], self._table.dtype.type)
        pixels: npt.NDArray[np.intp] | None = None
        for channel in range(channels):
            if pixels is None or recipe.sampler.planes > 1:
                plane = recipe.sampler.plane(channel, self._scratch)
                pixels = _resize(plane, recipe.rows, recipe.columns, self._scratch)
            np.take(self._table[channel], pixels, out=looked_up, mode="clip")
            inner[..., channel] = looked_up
        self._scratch.tidy()
        return recipe.mapping

    def _recipe(self, picture: Picture) -> _Recipe:
        stride = picture.stride or row_bytes(picture.encoding, picture.width)
        key = (picture.encoding, picture.width, picture.height, stride)
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = self._recipes[key] = self._make_recipe(picture, stride)
            if len(self._recipes) > CACHED_SIZES:
                self._recipes.popitem(last=False)
        else:
            self._recipes.move_to_end(key)
        return recipe

    def _make_recipe(self, picture: Picture, stride: int) -> _Recipe:
        spec, size = self._spec, (picture.width, picture.height)
        if picture.encoding == "tensor":
            raise PreprocessError("a tensor has no colours or size: this model needs a picture")
        if spec.resize == "none" and size != (self._width, self._height):
            raise PreprocessError(f"picture is {size[0]}x{size[1]}, this model takes {self._width}x{self._height} only")
        placement = place(spec.resize, size, (self._width, self._height))
        rows, columns = resample(size[1], placement.height), resample(size[0], placement.width)
        sampler = make_sampler(
            picture.encoding, size, stride, rows.sources, columns.sources, spec.colour, spec.matrix, spec.range)
        return _Recipe(sampler, rows, columns, placement, placement.mapping(*size))

    def _fill_border(self, out: Array, inner: Placement) -> None:
        channels = self._spec.channels
        grey = self._table[:, GREY]
        bottom, right = inner.top + inner.height, inner.left + inner.width
        for border in (out[: inner.top], out[bottom:], out[inner.top : bottom, : inner.left],
                       out[inner.top : bottom, right:]):
            border[..., :channels] = grey


def _resize(plane: Plane, rows: Axis, columns: Axis, scratch: Scratch) -> npt.NDArray[np.intp]:
    """Bilinear: the gathered `plane` (rows.sources, columns.sources) to pixel values 0..255, ready to index a table.

    Both axes are mixed in int32 without loss (255 * 2^22 < 2^31) and rounded once, half up. An axis of one tap has the
    factor 2^11 everywhere, so leaving it out of sum and shift changes nothing.
    """
    mixed, bits = plane, 0
    if columns.taps == 2:
        width = len(columns.weight)
        mixed = _mix(mixed[:, :width], mixed[:, width:], columns.weight, scratch, "across")
        bits += WEIGHT_BITS
    if rows.taps == 2:
        height = len(rows.weight)
        mixed = _mix(mixed[:height], mixed[height:], rows.weight[:, None], scratch, "down")
        bits += WEIGHT_BITS
    pixels = scratch.array("pixels", mixed.shape, np.intp)
    if bits == 0:
        np.copyto(pixels, mixed)
        return pixels
    np.add(mixed, np.int32(1 << (bits - 1)), out=mixed)
    return np.right_shift(mixed, bits, out=pixels)


def _mix(low: Plane, high: Plane, weight: npt.NDArray[np.int32], scratch: Scratch, name: str) -> npt.NDArray[np.int32]:
    """low * (2^11 - weight) + high * weight."""
    total = scratch.array(name, low.shape, np.int32)
    part = scratch.array("part", low.shape, np.int32)
    np.multiply(low, np.int32(1 << WEIGHT_BITS) - weight, out=total)
    np.multiply(high, weight, out=part)
    return np.add(total, part, out=total)
