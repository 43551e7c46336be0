"""JPEG: planes to the bit against another decoder's reading, and a table of what strangers may send."""

import io
import random
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orind.kernels.picture import frame_bytes
from orind.kernels.pre import jpeg
from orind.kernels.pre.jpeg import JpegError, JpegHeader, JpegLibraryMissing, decode_planes, header
from orind.kernels.pre.preprocess import Preprocessor, input_table
from orind.kernels.spec import InputSpec

FRAMES = Path(__file__).parents[2] / "configs" / "frames"


def smooth(width, height, mode="RGB"):
    """A picture without hard edges, so that coding keeps it nearly as it is."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [127 + 100 * np.sin(x / 9 + phase) * np.cos(y / 11 - phase) for phase in (0, 1, 2, 3)]
    pixels = np.stack(channels, axis=-1).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels[..., : len(mode)], mode=mode)


def encode(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


with warnings.catch_warnings():  # some versions of Pillow deprecate the mode argument
    warnings.simplefilter("ignore")
    RGB, GREY, CMYK = smooth(75, 53), smooth(75, 53, "L"), smooth(75, 53, "CMYK")
GOOD = encode(RGB, subsampling=2)


def sof(data):
    """Where the frame header's precision byte lies."""
    at = 2
    while data[at + 1] not in (0xC0, 0xC2):
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return at + 4


def patched(offset, replacement, data=GOOD):
    at = sof(data) + offset
    return data[:at] + replacement + data[at + len(replacement) :]


def decode(data, room=1 << 20):
    return decode_planes(data, np.empty(room, np.uint8))


def luma_of(data):
    with Image.open(io.BytesIO(data)) as image:
        image.draft("YCbCr", None)
        read = np.asarray(image)
    return read if read.ndim == 2 else read[..., 0]


@pytest.mark.parametrize(("data", "encoding"), [
    (encode(RGB, subsampling=0), "yuv444"), (encode(RGB, subsampling=1), "yuv422"), (GOOD, "yuv420"),
    (encode(GREY), "gray"), (encode(RGB, subsampling=2, progressive=True), "yuv420"),
    (encode(RGB, subsampling=0, restart_marker_blocks=2), "yuv444"),
], ids=["444", "422", "420", "grey", "progressive", "restart"])
def test_planes_equal_another_reading(data, encoding):
    assert header(data) == JpegHeader(75, 53, encoding)
    out = np.full(40_000, 77, np.uint8)
    picture = decode_planes(memoryview(data), out)
    assert (picture.encoding, picture.width, picture.height) == (encoding, 75, 53)
    length = picture.check()
    assert length == frame_bytes(encoding, 75, 53, 0) and np.shares_memory(picture.data, out)
    assert (out[length:] == 77).all()
    np.testing.assert_array_equal(out[: 75 * 53].reshape(53, 75), luma_of(data))
    if encoding == "yuv444":
        with Image.open(io.BytesIO(data)) as image:
            image.draft("YCbCr", None)
            np.testing.assert_array_equal(out[:length].reshape(3, 53, 75), np.asarray(image).transpose(2, 0, 1))


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 2), (3, 3), (8, 8), (16, 17), (33, 5)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_odd_sizes_are_tight(size, subsampling):
    data = encode(Image.new("RGB", size, (200, 40, 90)), subsampling=subsampling, quality=100)
    picture = decode(data)
    length = picture.check()
    luma = size[0] * size[1]
    y, cb, cr = (round(value) for value in (
        0.299 * 200 + 0.587 * 40 + 0.114 * 90, 128 + (90 - 93.5) / 1.772, 128 + (200 - 93.5) / 1.402))
    chroma = (length - luma) // 2
    for part, value in ((slice(0, luma), y), (slice(luma, luma + chroma), cb), (slice(luma + chroma, length), cr)):
        assert np.abs(picture.data[part].astype(int) - value).max() <= 1


def test_whole_way_agrees_with_pillow():
    """JPEG to RGB by our colour arithmetic: at most 1 away from libjpeg's own (4:4:4: no upsampling)."""
    data = encode(RGB, subsampling=0)
    spec = InputSpec(resize="none", scale=(1.0,))
    out = np.empty((53, 75, 3), np.uint8)
    Preprocessor(spec, (1, 53, 75, 3), input_table(spec, "uint8", 1.0)).run(decode(data), out)
    with Image.open(io.BytesIO(data)) as image:
        assert np.abs(out.astype(int) - np.asarray(image.convert("RGB")).astype(int)).max() <= 1


def test_shipped_photographs_decode():
    names = sorted(FRAMES.glob("*.jpg"))
    assert len(names) >= 5
    for name in names:
        data = name.read_bytes()
        picture = decode(data, 4 << 20)
        np.testing.assert_array_equal(
            picture.data[: picture.width * picture.height].reshape(picture.height, picture.width), luma_of(data))


def test_padding_after_the_end_is_ignored():
    """Cameras append padding to a fixed buffer length."""
    np.testing.assert_array_equal(decode(GOOD + bytes(1000)).data, decode(GOOD).data)
    np.testing.assert_array_equal(decode(GOOD + b"\xff\xd8\xff garbage").data, decode(GOOD).data)


HOSTILE = {
    "empty": (b"", "this is no JPEG: it starts with nothing"),
    "two bytes": (b"\xff\xd8", "this is no JPEG: it starts with ff d8"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "this is no JPEG: it starts with 89 50 4e"),
    "only magic": (b"\xff\xd8\xff", "the JPEG is damaged or unsupported"),
    "no frame header": (b"\xff\xd8\xff\xd9", "the JPEG is damaged or unsupported"),
    "cut in the header": (GOOD[:100], "the JPEG is damaged or unsupported"),
    "cut in the pixels": (GOOD[: len(GOOD) // 2], "remature end"),
    "last bytes missing": (GOOD[:-2], "remature end"),
    "largest number": (patched(1, b"\xff\xff\xff\xff"), "Maximum supported image dimension is 65500 pixels"),
    "huge": (patched(1, struct.pack(">HH", 65500, 65500)), "the JPEG says 65500x65500: a side may have 16384 pixels"),
    "too many pixels": (patched(1, struct.pack(">HH", 16384, 16384)), "the JPEG says 16384x16384"),
    "large enough to hurt": (patched(1, struct.pack(">HH", 8000, 8000)),
                             "the JPEG is 8000x8000 yuv420 and needs 96000000 bytes, there are 1048576"),
    "taller than its data": (patched(1, struct.pack(">HH", 200, 75)), "remature end"),
    "no height": (patched(1, b"\x00\x00"), "the JPEG is damaged or unsupported"),
    "no width": (patched(3, b"\x00\x00"), "the JPEG is damaged or unsupported"),
    "12 bit": (patched(0, b"\x0c"), "the JPEG is damaged or unsupported: Unsupported JPEG data precision 12"),
    "no components": (patched(5, b"\x00"), "the JPEG is damaged or unsupported"),
    "CMYK": (encode(CMYK), "the JPEG is CMYK: only YCbCr and grey"),
    "RGB": (encode(RGB, subsampling=0, keep_rgb=True), "the JPEG is RGB: only YCbCr and grey"),
    "4:4:0": (patched(7, b"\x12"), "the JPEG has 4:4:0 chroma subsampling"),
    "4:1:1": (patched(7, b"\x41"), "the JPEG has 4:1:1 chroma subsampling"),
    "wild subsampling": (patched(7, b"\x33"), "Could not determine subsampling type"),
    "marker in the pixels": (GOOD[:-200] + b"\xff\xd5" + GOOD[-198:], "the JPEG is damaged or unsupported"),
    "lossless frame": (GOOD[: sof(GOOD) - 3] + b"\xc3" + GOOD[sof(GOOD) - 2 :], "the JPEG is damaged or unsupported"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refused_with_a_reason(case):
    data, words = HOSTILE[case]
    with pytest.raises(JpegError) as caught:
        decode(data)
    assert words in str(caught.value)


def test_out_too_small():
    with pytest.raises(JpegError, match="the JPEG is 75x53 yuv420 and needs 6027 bytes, there are 6026"):
        decode(GOOD, 6026)
    assert decode(GOOD, 6027).check() == 6027


def test_seeded_fuzz_gives_a_whole_picture_or_a_reason():
    random_ = random.Random(2024)
    outcomes = {"picture": 0, "refused": 0}
    sources = [GOOD, encode(GREY), encode(RGB, subsampling=0, progressive=True)]
    for turn in range(600):
        if turn % 6 == 0:
            data = bytearray(b"\xff\xd8\xff" + random_.randbytes(random_.randrange(400)))
        else:
            data = bytearray(random_.choice(sources))
            for _ in range(random_.choice((1, 1, 3, 20))):
                data[random_.randrange(3, len(data))] = random_.randrange(256)
            if turn % 5 == 0:
                del data[random_.randrange(3, len(data)) :]
        try:
            picture = decode(bytes(data))
        except JpegError as error:
            assert len(str(error)) < 300
            outcomes["refused"] += 1
        else:
            picture.check()
            outcomes["picture"] += 1
    assert outcomes["picture"] > 50 and outcomes["refused"] > 200


def test_good_data_decode_after_bad():
    with pytest.raises(JpegError):
        decode(GOOD[:-50])
    decode(GOOD).check()


def test_missing_library_names_the_package(monkeypatch):
    monkeypatch.setattr(jpeg, "LIBRARY", "libturbojpeg.so.missing")
    jpeg._library.cache_clear()
    try:
        with pytest.raises(JpegLibraryMissing, match="apt install libturbojpeg0"):
            header(GOOD)
    finally:
        jpeg._library.cache_clear()


def test_an_engine_does_not_import_it():
    code = ("import sys, orind.kernels.pre.preprocess, orind.kernels.pre.polynomial\n"
            "print([m for m in ('turbojpeg', 'zmq', 'yaml', 'pydantic', 'onnx', 'PIL') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
