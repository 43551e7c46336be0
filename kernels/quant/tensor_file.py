"""One frame of a model that takes tensors, from a .npy file; its shape and type must be the model's.

Caller: `pictures.py`. Invariant: the header is judged before anything is allocated, and no number is bent to fit.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..regular_file import FileRefused, read_regular

MAX_FILE_BYTES = 1 << 30


class CalibrationError(ValueError):
    """The calibration pictures cannot be used; the text names the file."""


def read_tensor(path: Path, shapes: Sequence[tuple[int, ...]], dtype: str) -> npt.NDArray[Any]:
    """The array of a file in one of `shapes`, for an input of `dtype`. Raises CalibrationError."""
    try:
        data = read_regular(path, MAX_FILE_BYTES)
    except FileRefused as error:
        raise CalibrationError(f"{path}: {error}") from error
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, by_column, held = read_header[version](file)
    except (ValueError, KeyError, SyntaxError, TypeError) as error:
        raise CalibrationError(f"{path}: this model takes tensors: .npy files are needed, and this is none") from error
    if held.kind not in "iufb":
        raise CalibrationError(f"{path}: holds {held}: save it as {dtype}")
    if tuple(shape) not in shapes:
        raise CalibrationError(f"{path}: holds the shape {tuple(shape)}, the model takes {shapes[0]}: save one frame a "
                               "file, ordered as the model's input")
    if len(data) - file.tell() != held.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise CalibrationError(f"{path}: is cut short or has bytes behind its end: save it again")
    value = np.frombuffer(data, dtype=held, offset=file.tell()).reshape(shape, order="F" if by_column else "C")
    if not np.isfinite(value).all():
        raise CalibrationError(f"{path}: holds NaN or infinity: every number must be finite")
    if dtype == "uint8" and value.size and not ((value >= 0) & (value <= 255) & (value == np.rint(value))).all():
        raise CalibrationError(f"{path}: holds other numbers than 0 to 255, the model takes uint8")
    with np.errstate(over="ignore"):
        narrowed = value.astype(np.float32) if held.kind == "f" else value
    if not np.isfinite(narrowed).all():
        raise CalibrationError(f"{path}: holds numbers above the largest of float32")
    return value
