"""Pixels that lie somewhere in memory, and how many bytes a picture of each encoding has.

Made by whoever holds the bytes (a frame slot, a decoded JPEG, a calibration file), read by the Preprocessor. Invariant:
after `check()` every address that the Preprocessor will read lies inside `data`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_SIDE = 16_384
MAX_PIXELS = 1 << 26
MAX_DIMENSIONS = 6
MAX_TENSOR_BYTES = 1 << 30

PACKED = {"bgr8": 3, "rgb8": 3, "mono8": 1}
# horizontal and vertical subsampling of the chroma planes
SUBSAMPLING = {"yuv420": (2, 2), "yuv422": (2, 1), "yuv444": (1, 1), "i420": (2, 2)}
ENCODINGS = (*PACKED, "nv12", *SUBSAMPLING, "gray", "tensor")
TENSOR_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


class PictureError(ValueError):
    """The description of a picture is impossible, or its bytes are not as many as it says."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Pixels that someone else owns.

    encoding: bgr8, rgb8, mono8: rows of `stride` bytes. nv12: rows of `stride` bytes, `height` of luma, then
    ceil(height / 2) of interleaved U V. yuv420, yuv422, yuv444, gray: tight full-range BT.601 planes as JPEG holds
    them, Y, then U, then V. i420: planes as yuv420, but from a camera, coded as the model's spec says.
    tensor: `shape` and `dtype` say it all.
    stride: bytes from row to row of the first plane; 0 means tight.
    data: uint8, flat, read-only is fine.
    """

    encoding: str
    width: int
    height: int
    stride: int
    data: memoryview | npt.NDArray[np.uint8]
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()

    def check(self) -> int:
        """The exact length in bytes. Raises PictureError if the description is impossible or `data` differs from it."""
        expected = frame_bytes(self.encoding, self.width, self.height, self.stride, self.dtype, self.shape)
        held = self.data.nbytes
        if held != expected:
            raise PictureError(f"payload has {held} bytes, {self._words()} has {expected}")
        return expected

    def bytes_array(self) -> npt.NDArray[np.uint8]:
        """The checked bytes as a flat uint8 array, without a copy."""
        self.check()
        return np.frombuffer(self.data, dtype=np.uint8)

    def _words(self) -> str:
        if self.encoding == "tensor":
            return f"tensor {self.dtype} {'x'.join(map(str, self.shape))}"
        return f"{self.encoding} {self.width}x{self.height} stride {self.stride or 'tight'}"


def row_bytes(encoding: str, width: int) -> int:
    """Bytes of one tight row of the first plane; the least stride that is possible."""
    if encoding in PACKED:
        return PACKED[encoding] * width
    return width + width % 2 if encoding == "nv12" else width


def frame_bytes(
    encoding: str, width: int, height: int, stride: int, dtype: str = "uint8", shape: tuple[int, ...] = ()
) -> int:
    """The exact number of bytes of such a picture; `stride` 0 means tight. Raises PictureError naming the field."""
    if encoding not in ENCODINGS:
        raise PictureError(f"encoding {encoding!r} is not one of {', '.join(ENCODINGS)}")
    if encoding == "tensor":
        return _tensor_bytes(dtype, shape)
    for name, value in (("width", width), ("height", height)):
        if not 1 <= value <= MAX_SIDE:
            raise PictureError(f"{name} {value} is not between 1 and {MAX_SIDE}")
    if width * height > MAX_PIXELS:
        raise PictureError(f"{width}x{height} is more than {MAX_PIXELS} pixels")
    least = row_bytes(encoding, width)
    pitch = stride or least
    if encoding in SUBSAMPLING or encoding == "gray":
        if pitch != width:
            raise PictureError(f"stride {stride} is not the width {width}: planes of {encoding} are tight")
        if encoding == "gray":
            return width * height
        across, down = SUBSAMPLING[encoding]
        return width * height + 2 * -(-width // across) * -(-height // down)
    most = 4 * least + 4096
    if not least <= pitch <= most:
        raise PictureError(f"stride {stride} is not between {least} and {most} for {encoding} of width {width}")
    return pitch * (height + (height + 1) // 2 if encoding == "nv12" else height)


def _tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    if dtype not in TENSOR_DTYPES:
        raise PictureError(f"dtype {dtype!r} is not one of {', '.join(TENSOR_DTYPES)}")
    if not 1 <= len(shape) <= MAX_DIMENSIONS or any(n < 1 for n in shape):
        raise PictureError(f"shape {shape} is not 1 to {MAX_DIMENSIONS} positive numbers")
    length = math.prod(shape) * np.dtype(dtype).itemsize
    if length > MAX_TENSOR_BYTES:
        raise PictureError(f"shape {shape} of {dtype} has more than {MAX_TENSOR_BYTES} bytes")
    return length
