"""Image files for `orind publish`: found in folders, JPEG passed on as it is, others decoded by what the caller gives.

Invariant: nothing is guessed: what a file is, its first bytes say; a file that cannot be read is named with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import IpcError
from .pixels import JPEG_START, Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".npy")
DECODED = ("bgr8", "rgb8", "mono8")  # what pillow's pixels become here; the other raw ones come from .npy files
ENCODINGS = (*DECODED, "nv12", "jpeg", "tensor")  # of the wire format's those that a daemon serves
FILE_BYTES_MAX = 1 << 28
LUMA = (19595, 38470, 7471)  # of red, green, blue, in 65536ths: ITU-R BT.601, as pillow's mode L
Decode = Callable[[bytes], NDArray[np.uint8]]


class MissingFile(IpcError):
    """No such file, or a folder without images: exit code 66."""


class UnreadableFile(IpcError):
    """The file is there and is no image, or pillow is needed and absent: exit code 65."""


def find_files(paths: list[Path]) -> list[Path]:
    """Files as given, folders as their images in order of name. Raises MissingFile."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
            if not inside:
                raise MissingFile(f"{path}: the folder holds no image ({' '.join(SUFFIXES)})")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise MissingFile(f"{path}: no such file or folder")
    return found


def load(path: Path, encoding: str | None, decode: Decode) -> tuple[Image, str]:
    """(what Publisher.send takes, encoding). JPEG stays JPEG unless a raw encoding is asked for; others are bgr8.

    .npy: an array, sent as a tensor unless an encoding is given. decode: of a file's bytes uint8 (H, W, 3), red first;
    it raises ValueError, or ImportError where pillow is missing. Raises UnreadableFile.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UnreadableFile(f"{path}: larger than {FILE_BYTES_MAX} bytes, which no frame is")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path}: {error.strerror}") from None
    if path.suffix.lower() == ".npy":
        return _load_array(path), encoding or "tensor"
    if data.startswith(JPEG_START) and encoding in (None, "jpeg"):
        return data, "jpeg"
    if encoding not in (None, *DECODED):
        kind = "JPEG" if encoding == "jpeg" else ".npy file"
        raise UnreadableFile(f"{path}: not a {kind}, so it cannot go as {encoding}")
    return _decode(path, data, encoding or "bgr8", decode), encoding or "bgr8"


def _load_array(path: Path) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UnreadableFile(f"{path}: not an array file ({error})") from None
    if not isinstance(array, np.ndarray):
        raise UnreadableFile(f"{path}: not one array")
    return array


def _decode(path: Path, data: bytes, encoding: str, decode: Decode) -> NDArray[np.uint8]:
    try:
        pixels = decode(data)
    except ImportError:
        raise UnreadableFile(
            f"{path}: decoding needs pillow: pip install 'orind[build]', or publish JPEG files as they are"
        ) from None
    except ValueError as error:
        raise UnreadableFile(f"{path}: cannot be read as an image: {error}") from None
    if encoding == "mono8":
        weighted = pixels.astype(np.uint32) @ np.array(LUMA, np.uint32)
        return ((weighted + (1 << 15)) >> 16).astype(np.uint8)
    return pixels[:, :, ::-1] if encoding == "bgr8" else pixels
