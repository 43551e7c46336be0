"""Calibration pictures: found in a folder, split into calibration and held-back, preprocessed as serving does.

Caller: `build.py`. JPEG through `pre/jpeg.py`; PNG and PPM through `picture_file.py`, at build time only; .npy for
models that take tensors. Every fourth picture, sorted by name, is held back for the gate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.errors import ModelError
from ..picture import Picture, PictureError
from ..picture_file import decode
from ..pre import jpeg
from ..pre.preprocess import PreprocessError, Preprocessor, input_table
from ..regular_file import read_regular
from ..spec import ModelSpec
from .tensor_file import CalibrationError, read_tensor

__all__ = ["CalibrationError", "Source", "find_pictures", "load_picture", "split"]
Array = npt.NDArray[Any]
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".npy"})
HELD_BACK_EACH = 4
MAX_FILE_BYTES = 1 << 30


def find_pictures(given: Sequence[Path]) -> list[Path]:
    """Files and the files of folders, sorted by name, each once however often and by whatever link it is given.

    Raises CalibrationError for an unreadable or empty choice.
    """
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            try:
                inside = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES]
            except OSError as error:
                raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from error
            if wrong := next((p for p in sorted(inside) if not p.is_file()), None):
                raise CalibrationError(f"{wrong}: cannot be read as a calibration picture: it is no file")
            if not inside:
                raise CalibrationError(f"{path}: holds no pictures ({', '.join(sorted(SUFFIXES))})")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise CalibrationError(f"{path}: no such file or folder of calibration pictures")
    once: dict[str, Path] = {}
    for path in sorted(found, key=lambda p: (p.name, str(p))):
        once.setdefault(os.path.realpath(path), path)
    return list(once.values())


def split(pictures: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """(calibration, held back): every fourth by name is held back, from four pictures on."""
    held = [p for i, p in enumerate(pictures) if i % HELD_BACK_EACH == HELD_BACK_EACH - 1]
    return [p for i, p in enumerate(pictures) if i % HELD_BACK_EACH != HELD_BACK_EACH - 1], held


def load_picture(path: Path) -> Picture:
    """The picture of a file. Raises CalibrationError."""
    try:
        data = read_regular(path, MAX_FILE_BYTES)
        if path.suffix.lower() in (".jpg", ".jpeg"):
            width, height, _ = jpeg.header(data)
            return jpeg.decode_planes(data, np.empty(3 * (width + 1) * (height + 1), dtype=np.uint8))
        pixels = decode(data)
        return Picture("rgb8", pixels.shape[1], pixels.shape[0], 0, np.ascontiguousarray(pixels).reshape(-1))
    except (ValueError, jpeg.JpegLibraryMissing) as error:     # PictureError, JpegError, FileRefused are ValueErrors
        raise CalibrationError(f"{path}: cannot be read as a calibration picture: {error}") from error


class Source:
    """Writes preprocessed pictures into an input of the given type and scale."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...], dtype: str, scale: float, nchw: bool,
                 file: str) -> None:
        self.spec = spec
        self.shape = shape
        self.dtype = dtype
        self.nchw = nchw
        self.preprocessor: Preprocessor | None = None
        if spec.input is not None:
            if len(shape) != 3 or shape[2] != spec.input.channels:
                raise ModelError(f"{file}: the input has shape {shape} (H, W, C), but the spec's colour "
                                 f"'{spec.input.colour}' has {spec.input.channels} channels")
            h, w, c = shape
            self.preprocessor = Preprocessor(spec.input, (1, h, w, c), input_table(spec.input, dtype, scale))

    def writer(self, path: Path) -> Callable[[Array], object]:
        """A call that writes the picture into the (H, W, C) array that it is given."""
        def write(out: Array) -> None:
            if self.preprocessor is None:
                out[...] = self._tensor(path)
                return
            try:
                self.preprocessor.run(load_picture(path), out)
            except (PreprocessError, PictureError) as error:
                raise CalibrationError(f"{path}: {error}") from error
        return write

    def _tensor(self, path: Path) -> Array:
        value = read_tensor(path, self._file_shapes(), self.dtype)
        if self.nchw and len(self.shape) == 3:
            h, w, c = self.shape
            return value.reshape(c, h, w).transpose(1, 2, 0)
        return value.reshape(self.shape)

    def _file_shapes(self) -> list[tuple[int, ...]]:
        """Of one frame as the ONNX file orders it; with and without the batch axis."""
        shape = self.shape
        if self.nchw and len(shape) == 3:
            shape = (shape[2], *shape[:2])
        return [shape, (1, *shape), *([shape[1:]] if shape[:1] == (1,) else [])]
