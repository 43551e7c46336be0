"""JPEG bytes to YUV planes, through libturbojpeg and nothing else; colour and size are the Preprocessor's work.

Called by the decode workers, by calibration and by `orind publish`; never by main or an engine. Invariant: data from
a stranger is either decoded whole and without a warning, or refused with a reason before more than its bound is used.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import turbojpeg

from ..picture import MAX_PIXELS, MAX_SIDE, SUBSAMPLING, Picture, frame_bytes

Data = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

LIBRARY = "libturbojpeg.so.0"
REMEDY = f"{LIBRARY} is not installed: apt install libturbojpeg0 (Ubuntu: libturbojpeg)"
_START = b"\xff\xd8\xff"
_ENCODINGS = {
    turbojpeg.TJSAMP_444: "yuv444", turbojpeg.TJSAMP_422: "yuv422", turbojpeg.TJSAMP_420: "yuv420",
    turbojpeg.TJSAMP_GRAY: "gray",
}
_OTHER_SAMPLING = {turbojpeg.TJSAMP_440: "4:4:0", turbojpeg.TJSAMP_411: "4:1:1"}
_COLOURS = {turbojpeg.TJCS_RGB: "RGB", turbojpeg.TJCS_CMYK: "CMYK", turbojpeg.TJCS_YCCK: "YCCK"}
# a progressive file may have thousands of scans over one small picture: the library stops after 500
_FLAGS = turbojpeg.TJFLAG_STOPONWARNING | turbojpeg.TJFLAG_LIMITSCANS


class JpegError(ValueError):
    """The data are no JPEG that can be used; the text says why."""


class JpegTooLarge(JpegError):
    """Sound, but its planes need more bytes than there are."""


class JpegLibraryMissing(RuntimeError):
    """libturbojpeg is not installed."""


class JpegHeader(NamedTuple):
    """Size in pixels, and the encoding of the planes: yuv420, yuv422, yuv444 or gray."""

    width: int
    height: int
    encoding: str


def header(data: Data) -> JpegHeader:
    """What the JPEG says that it is; nothing is decoded. Raises JpegError, JpegLibraryMissing."""
    start = np.frombuffer(data, np.uint8)[:3].tobytes() if len(data) else b""
    if start != _START:
        raise JpegError(f"this is no JPEG: it starts with {start.hex(' ') or 'nothing'}, not ff d8 ff")
    width, height, sampling, colour = _checked(_library().decode_header, data)
    if width == 0 or height == 0:  # as the library answers for tables without a picture
        raise JpegError("the JPEG is damaged or unsupported: no picture in it")
    if colour in _COLOURS:
        raise JpegError(f"the JPEG is {_COLOURS[colour]}: only YCbCr and grey are supported")
    if sampling not in _ENCODINGS:
        name = _OTHER_SAMPLING.get(sampling, "unusual")
        raise JpegError(f"the JPEG has {name} chroma subsampling: only 4:2:0, 4:2:2, 4:4:4 and grey are supported")
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width * height <= MAX_PIXELS):
        raise JpegError(f"the JPEG says {width}x{height}: a side may have {MAX_SIDE} pixels, a picture {MAX_PIXELS}")
    return JpegHeader(width, height, _ENCODINGS[sampling])


def decode_planes(data: Data, out: memoryview | npt.NDArray[np.uint8]) -> Picture:
    """Decodes into the beginning of the writable buffer `out` and returns the Picture that lies there.

    Planes are tight, Y, U, V. Raises JpegError: damaged, truncated (any warning of the library counts), unsupported;
    JpegTooLarge: larger than `out`. What `out` holds after an error is undefined.
    """
    found = header(data)
    length = frame_bytes(found.encoding, found.width, found.height, 0)
    room = np.frombuffer(out, np.uint8)
    if length > room.size:
        what = f"{found.width}x{found.height} {found.encoding}"
        raise JpegTooLarge(f"the JPEG is {what} and needs {length} bytes, there are {room.size}")
    picture = Picture(found.encoding, found.width, found.height, 0, room[:length])
    if found.encoding == "gray":
        # PyTurboJPEG 1.x asks for three planes of a grey JPEG and fails; its luma is the grey pixel as it is
        grey = room[:length].reshape(found.height, found.width, 1)
        _checked(_library().decode, data, pixel_format=turbojpeg.TJPF_GRAY, flags=_FLAGS, dst=grey)
        return picture
    planes = _checked(_library().decode_to_yuv_planes, data, flags=_FLAGS)
    across, down = SUBSAMPLING[found.encoding]
    at = 0
    for number, plane in enumerate(planes):
        wide, high = (across, down) if number else (1, 1)
        width, height = -(-found.width // wide), -(-found.height // high)
        target = room[at : at + width * height].reshape(height, width)
        # the library pads luma to whole chroma pixels
        np.copyto(target, plane[:height, :width])
        at += width * height
    return picture


def _checked(call: Callable[..., Any], data: Data, **options: Any) -> Any:
    """A call of the library; its errors and, as the data came from a stranger, its warnings become JpegError."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return call(np.frombuffer(data, np.uint8), **options)
        except (OSError, UserWarning, ValueError) as error:
            raise JpegError(f"the JPEG is damaged or unsupported: {error}") from error


def available() -> bool:
    """Whether JPEG can be decoded on this machine."""
    try:
        _library()
    except JpegLibraryMissing:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _library() -> turbojpeg.TurboJPEG:
    try:
        # by its name: without one PyTurboJPEG starts a compiler to look for the file
        return turbojpeg.TurboJPEG(LIBRARY)
    except OSError as error:
        raise JpegLibraryMissing(f"{REMEDY} ({error})") from error
