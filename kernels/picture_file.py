"""Pixels of a picture file of any kind that Pillow reads (extra `build`), with 8 bits a channel.

Callers: the calibration pictures, and `orind publish` through `daemon/publish_command.py`: what calibrates a model and
what is sent to it become pixels by one rule. Invariant: what 8 bits cannot say is scaled or refused, never clipped.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
import numpy.typing as npt

from .picture import MAX_PIXELS, PictureError

GREY_MAX = 65535


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """uint8 (H, W, 3), red first. 16 bits of grey are rounded to 8; of colour Pillow itself keeps the upper 8.

    Raises PictureError, without the file's name, and ImportError where Pillow is absent.
    """
    from PIL import Image, UnidentifiedImageError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)       # MAX_PIXELS is the limit here
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise PictureError(f"{image.width}x{image.height} is more than {MAX_PIXELS} pixels")
                if image.mode.startswith("I"):                                # convert() would clip to 255
                    return _of_grey(np.asarray(image).astype(np.int64))
                if image.mode == "F":
                    raise PictureError("it holds floating-point numbers: save it with 8 bits a channel")
                return np.asarray(image.convert("RGB"))
        except Image.DecompressionBombError as error:
            raise PictureError(f"it has more than {MAX_PIXELS} pixels") from error
        except UnidentifiedImageError as error:
            raise PictureError("it is no picture that Pillow knows") from error
        except (OSError, SyntaxError, ValueError) as error:                   # what Pillow raises for damaged ones
            raise PictureError(str(error)) from error


def _of_grey(wide: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    if wide.size and (wide.min() < 0 or wide.max() > GREY_MAX):
        raise PictureError(f"it holds grey values of {wide.min()} to {wide.max()}: save it with 8 or 16 bits")
    return np.repeat(((wide + 128) // 257)[..., None], 3, 2).astype(np.uint8)
