"""Calibration files: each counts once, 16 bits keep their brightness, tensors have the model's shape and type."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from orind.kernels.picture import PictureError
from orind.kernels.picture_file import decode
from orind.kernels.quant.pictures import CalibrationError, Source, find_pictures, load_picture, split
from orind.kernels.spec import ModelSpec


def test_a_picture_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    paths = [folder / f"{i}.png" for i in range(8)]
    for path in paths:
        path.touch()
    (folder / "9.png").symlink_to("0.png")
    (tmp_path / "other").symlink_to("pictures")
    found = find_pictures([folder, folder, paths[3], tmp_path / "other", Path(os.path.relpath(folder))])
    assert [path.name for path in found] == [path.name for path in paths]
    used, held = ({path.resolve() for path in part} for part in split(found))
    assert len(used) == 6 and len(held) == 2 and not used & held


def test_sixteen_bits_of_grey_keep_their_brightness(tmp_path: Path) -> None:
    wide = np.array([[0, 257, 128 * 257, 32768, 65535, 100]], np.uint16)
    Image.fromarray(wide).save(tmp_path / "a.png")
    (tmp_path / "b.ppm").write_bytes(b"P5 6 1 65535\n" + wide.astype(">u2").tobytes())
    for name in ("a.png", "b.ppm"):
        pixels = np.asarray(load_picture(tmp_path / name).data).reshape(6, 3)
        assert pixels.tolist() == [[v] * 3 for v in (0, 1, 128, 128, 255, 0)]
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "c.tiff")
    with pytest.raises(CalibrationError, match=r"c\.tiff: cannot be read .* floating-point numbers"):
        load_picture(tmp_path / "c.tiff")


def png(colour_type: int, samples: Any) -> bytes:
    """A PNG of 16 bits a sample, one row of (W, channels): Pillow cannot write those of colour."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", len(samples), 1, 16, colour_type, 0, 0, 0)
    row = b"\0" + np.array(samples, ">u2").tobytes()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")


def test_sixteen_bits_of_colour_keep_their_brightness() -> None:
    pixels = [[0, 257, 65535], [0x80FF, 0x8000, 0x0100], [0xFF00, 0x00FF, 128 * 257]]
    upper = [[value >> 8 for value in pixel] for pixel in pixels]
    assert decode(png(2, pixels)).tolist() == [upper]
    assert decode(png(6, [[*pixel, 65535] for pixel in pixels])).tolist() == [upper]
    assert decode(png(4, [[0x80FF, 65535], [65535, 65535]])).tolist() == [[[128] * 3, [255] * 3]]
    assert decode(png(0, [[0x80FF], [65535]])).tolist() == [[[128] * 3, [255] * 3]]


@pytest.mark.parametrize("value", [-1, 65536])
def test_grey_of_more_than_sixteen_bits_is_not_clipped(value: int) -> None:
    file = io.BytesIO()
    Image.fromarray(np.array([[7, value]], np.int32)).save(file, "tiff")
    with pytest.raises(PictureError, match=rf"grey values of {min(7, value)} to {max(7, value)}: save it with 8 or 16"):
        decode(file.getvalue())


def test_damaged_pictures_are_refused() -> None:
    whole = png(2, np.random.default_rng(3).integers(0, 65536, (50, 3)))
    for data in (b"", whole[:30], whole[: len(whole) // 2], whole.replace(b"IDAT", b"IDOT"), b"P5 6 1 65535\n\0"):
        with pytest.raises(PictureError):
            decode(data)


def test_large_pictures_are_refused_in_our_words(tmp_path: Path) -> None:
    for side in (10_000, 20_000):
        Image.new("1", (side, side)).save(tmp_path / f"{side}.png")
        said = r"is more than|has more"
        with warnings.catch_warnings(record=True) as seen, pytest.raises(CalibrationError, match=said):
            load_picture(tmp_path / f"{side}.png")
        assert not seen


def source(dtype: str, nchw: bool = True) -> Source:
    return Source(ModelSpec.for_tensor("t"), (2, 4, 3), dtype, 1.0, nchw, "m.onnx")


def test_tensors_are_taken_in_the_models_order(tmp_path: Path) -> None:
    frame = np.arange(24, dtype=np.float64).reshape(3, 2, 4)
    out = np.zeros((2, 4, 3), np.float32)
    for value in (frame, frame[None], np.asfortranarray(frame), frame.astype(np.int16), frame.astype(">f4")):
        np.save(tmp_path / "a.npy", value)
        out[...] = -1
        source("float32").writer(tmp_path / "a.npy")(out)
        assert (out == frame.transpose(1, 2, 0)).all()
    np.save(tmp_path / "a.npy", frame.transpose(1, 2, 0))
    source("float32", False).writer(tmp_path / "a.npy")(out)
    assert (out == frame.transpose(1, 2, 0)).all()


@pytest.mark.parametrize(("value", "dtype", "words"), [
    (np.zeros((2, 4, 3)), "float32", r"holds the shape \(2, 4, 3\), the model takes \(3, 2, 4\)"),
    (np.zeros(24), "float32", r"holds the shape \(24,\)"), (np.zeros((2, 3, 2, 4)), "float32", "save one frame a file"),
    (np.zeros((3, 2, 4), np.complex64), "float32", "holds complex64: save it as float32"),
    (np.full((3, 2, 4), "x"), "float32", "holds <U1: save it as"),
    (np.full((3, 2, 4), None), "float32", r"holds object: save it as"),
    (np.full((3, 2, 4), np.nan), "float32", "holds NaN or infinity"),
    (np.full((3, 2, 4), 1e300), "float32", "above the largest of float32"),
    (np.full((3, 2, 4), 0.5), "uint8", "other numbers than 0 to 255"),
    (np.full((3, 2, 4), 256), "uint8", "other numbers than 0 to 255"),
])
def test_tensors_that_do_not_fit(tmp_path: Path, value: Any, dtype: str, words: str) -> None:
    np.save(tmp_path / "a.npy", value)
    with pytest.raises(CalibrationError, match=rf"a\.npy: .*{words}"):
        source(dtype).writer(tmp_path / "a.npy")(np.zeros((2, 4, 3), dtype))


@pytest.mark.filterwarnings("error")
def test_damaged_tensor_files(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((3, 2, 4), np.float32))
    whole = file.getvalue()
    for data, words in ((whole[:-1], "cut short"), (whole + b"x", "bytes behind"), (b"", "files are needed"),
                        (whole[:60], "files are needed"), (b"PK\3\4" + whole, "files are needed"),
                        (whole.replace(b"(3, 2, 4)", b"(3, 2, -)"), "files are needed"),
                        (b"\x93NUMPY\x03\x00" + whole[8:], "files are needed")):
        (tmp_path / "a.npy").write_bytes(data)
        with pytest.raises(CalibrationError, match=rf"a\.npy: .*{words}"):
            source("float32").writer(tmp_path / "a.npy")(np.zeros((2, 4, 3), np.float32))
