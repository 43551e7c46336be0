"""From what a camera program holds (numpy array or JPEG bytes) to what goes on the wire: header fields and payload.

Called by the client library. Invariant: the payload is a copy that nobody else can change (sending a reused buffer
corrupts frames in flight, and a re-send must send the same pixels), and its length agrees with the fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ImageError
from .wire import DTYPE_BYTES, ENCODINGS

JPEG_START = b"\xff\xd8\xff"
Image = NDArray[Any] | bytes | bytearray | memoryview


def describe(image: Image, encoding: str | None) -> tuple[dict[str, Any], bytes]:
    """(fields for wire.build_header, payload). Raises ImageError.

    Without `encoding`: bytes are JPEG, uint8 (H, W, 3) is bgr8, uint8 (H, W) is mono8. nv12 and i420 are uint8
    (H * 3 / 2, W) as OpenCV has them; a tensor is any array of one of DTYPE_BYTES.
    """
    if encoding is not None and encoding not in ENCODINGS:
        raise ImageError(f"encoding {encoding!r}: use one of {', '.join(ENCODINGS)}")
    if isinstance(image, bytes | bytearray | memoryview):
        if encoding not in (None, "jpeg"):
            raise ImageError(f"{encoding} needs a numpy array, whose shape says width and height; bytes are JPEG")
        data = bytes(image)
        if not data.startswith(JPEG_START):
            raise ImageError("these bytes are not a JPEG (they do not start with ff d8 ff): give a numpy array")
        return {"encoding": "jpeg"}, data
    if not isinstance(image, np.ndarray):
        raise ImageError(f"an image is a numpy array or JPEG bytes, not {type(image).__name__}")
    if encoding == "tensor":
        if image.dtype.name not in DTYPE_BYTES or not image.dtype.isnative:
            raise ImageError(f"a tensor of {image.dtype}: use one of {', '.join(DTYPE_BYTES)} in native byte order")
        return {"encoding": "tensor", "dtype": image.dtype.name, "shape": image.shape}, image.tobytes()
    if image.dtype != np.uint8:
        raise ImageError(f"pixels are uint8, this array is {image.dtype}: convert it, or send it as a tensor")
    fields = _size(image.shape, encoding)
    return fields, image.tobytes()


def _size(shape: tuple[int, ...], encoding: str | None) -> dict[str, Any]:
    if encoding is None:
        encoding = "bgr8" if len(shape) == 3 else "mono8"
    if encoding in ("bgr8", "rgb8"):
        if len(shape) != 3 or shape[2] != 3:
            raise ImageError(f"{encoding} is an array (height, width, 3), this one is {shape}")
        height, width = shape[:2]
    elif encoding in ("mono8", "bayer_rggb8"):
        if len(shape) != 2:
            raise ImageError(f"{encoding} is an array (height, width), this one is {shape}")
        height, width = shape
    elif encoding in ("nv12", "i420"):
        if len(shape) != 2 or shape[0] % 3 or shape[1] % 2 or shape[0] * 2 // 3 % 2:
            raise ImageError(f"{encoding} is an array (height * 3 / 2, width) of even height and width, not {shape}")
        height, width = shape[0] * 2 // 3, shape[1]
    else:
        raise ImageError("jpeg needs the file's bytes, this is an array: encode it, or send it raw")
    return {"encoding": encoding, "width": width, "height": height}
