"""Calibration pictures: found in a folder, split into calibration and held-back, preprocessed as serving does.

Caller: `build.py`. JPEG through `pre/jpeg.py`; PNG and PPM through Pillow (extra `build`), at build time only; .npy for
models that take tensors. Every fourth picture, sorted by name, is held back for the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.errors import ModelError
from ..picture import MAX_PIXELS, Picture, PictureError
from ..pre import jpeg
from ..pre.preprocess import PreprocessError, Preprocessor, input_table
from ..spec import ModelSpec

Array = npt.NDArray[Any]
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".npy"})
HELD_BACK_EACH = 4


class CalibrationError(ValueError):
    """The calibration pictures cannot be used; the text names the file."""


def find_pictures(given: Sequence[Path]) -> list[Path]:
    """Files and the files of folders, sorted by name. Raises CalibrationError for an unreadable or empty choice."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES]
            if not inside:
                raise CalibrationError(f"{path}: holds no pictures ({', '.join(sorted(SUFFIXES))})")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise CalibrationError(f"{path}: no such file or folder of calibration pictures")
    return sorted(found, key=lambda p: (p.name, str(p)))


def split(pictures: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """(calibration, held back): every fourth by name is held back, from four pictures on."""
    held = [p for i, p in enumerate(pictures) if i % HELD_BACK_EACH == HELD_BACK_EACH - 1]
    return [p for i, p in enumerate(pictures) if i % HELD_BACK_EACH != HELD_BACK_EACH - 1], held


def load_picture(path: Path) -> Picture:
    """The picture of a file. Raises CalibrationError."""
    try:
        data = path.read_bytes()
        if path.suffix.lower() in (".jpg", ".jpeg"):
            width, height, _ = jpeg.header(data)
            return jpeg.decode_planes(data, np.empty(3 * (width + 1) * (height + 1), dtype=np.uint8))
        from PIL import Image
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width}x{image.height} is more than {MAX_PIXELS} pixels")
            pixels = np.asarray(image.convert("RGB"))
        return Picture("rgb8", pixels.shape[1], pixels.shape[0], 0, np.ascontiguousarray(pixels).reshape(-1))
    except (OSError, ValueError, jpeg.JpegLibraryMissing, SyntaxError) as error:   # JpegError is a ValueError
        raise CalibrationError(f"{path}: cannot be read as a calibration picture: {error}") from error


class Source:
    """Writes preprocessed pictures into an input of the given type and scale."""

    def __init__(self, spec: ModelSpec, shape: tuple[int, ...], dtype: str, scale: float, nchw: bool,
                 file: str) -> None:
        self.spec = spec
        self.shape = shape
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
        try:
            value = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CalibrationError(f"{path}: this model takes tensors: .npy files are needed ({error})") from error
        if value.size != int(np.prod(self.shape)):
            raise CalibrationError(f"{path}: holds {value.shape}, the model takes {self.shape}")
        if self.nchw and len(self.shape) == 3:
            h, w, c = self.shape
            return np.asarray(value.reshape(c, h, w).transpose(1, 2, 0))
        return np.asarray(value.reshape(self.shape))
