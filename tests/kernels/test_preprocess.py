"""Preprocessing to the bit: a slow re-computation, pixel by pixel in exact fractions, is the judge."""

import itertools
import random
import tracemalloc
from fractions import Fraction
from math import floor

import numpy as np
import pytest

from orind.kernels.picture import Picture, PictureError, frame_bytes, row_bytes
from orind.kernels.pre import preprocess
from orind.kernels.pre.colour import yuv_to_rgb
from orind.kernels.pre.geometry import Mapping, place, resample
from orind.kernels.pre.preprocess import PreprocessError, Preprocessor, input_table
from orind.kernels.spec import InputSpec

ENCODINGS = ("bgr8", "rgb8", "mono8", "nv12", "yuv420", "yuv422", "yuv444", "gray", "i420")
KR_KB = {"bt601": (Fraction("0.299"), Fraction("0.114")), "bt709": (Fraction("0.2126"), Fraction("0.0722"))}


# ---- the judge ------------------------------------------------------------------------------------------------------

def half_up(value):
    return floor(value + Fraction(1, 2))


def clamp(value, low, high):
    return max(low, min(high, value))


def judge_yuv(y, u, v, matrix, range_):
    """R, G, B from the definition of the matrix, coefficients rounded to 2^-14."""
    kr, kb = KR_KB[matrix]
    kg = 1 - kr - kb
    limited = range_ == "limited"
    luma, chroma = (Fraction(255, 219), Fraction(255, 224)) if limited else (Fraction(1), Fraction(1))
    y -= 16 if limited else 0
    u, v = u - 128, v - 128

    def fixed(factor):
        return half_up(factor * 2**14)

    red = fixed(luma) * y + fixed(2 * (1 - kr) * chroma) * v
    green = (fixed(luma) * y + fixed(-2 * (1 - kb) * kb / kg * chroma) * u
             + fixed(-2 * (1 - kr) * kr / kg * chroma) * v)
    blue = fixed(luma) * y + fixed(2 * (1 - kb) * chroma) * u
    return tuple(clamp(half_up(Fraction(value, 2**14)), 0, 255) for value in (red, green, blue))


def judge_pixel(picture, x, y, spec):
    """The pixel of the picture in the model's colours, a tuple."""
    data, w, h, encoding = picture.data, picture.width, picture.height, picture.encoding
    stride = picture.stride or row_bytes(encoding, w)
    kr, kb = KR_KB[spec.matrix]
    if encoding in ("mono8", "gray"):
        value = int(data[y * stride + x])
        return (value,) if spec.colour == "mono" else (value,) * 3
    if encoding in ("bgr8", "rgb8"):
        pixel = [int(value) for value in data[y * stride + 3 * x : y * stride + 3 * x + 3]]
        red, green, blue = pixel if encoding == "rgb8" else pixel[::-1]
        if spec.colour == "mono":
            r, b = half_up(kr * 2**14), half_up(kb * 2**14)
            return (half_up(Fraction(r * red + (2**14 - r - b) * green + b * blue, 2**14)),)
    else:
        luma = int(data[y * stride + x])
        if encoding == "nv12":
            at = h * stride + y // 2 * stride + x // 2 * 2
            u, v, matrix, range_ = int(data[at]), int(data[at + 1]), spec.matrix, spec.range
        else:
            across, down = {"yuv420": (2, 2), "yuv422": (2, 1), "yuv444": (1, 1), "i420": (2, 2)}[encoding]
            cw, ch = -(-w // across), -(-h // down)
            at = w * h + y // down * cw + x // across
            u, v = int(data[at]), int(data[at + cw * ch])
            matrix, range_ = (spec.matrix, spec.range) if encoding == "i420" else ("bt601", "full")
        red, green, blue = judge_yuv(luma, u, v, matrix, range_)
        if spec.colour == "mono":
            return (judge_yuv(luma, 128, 128, matrix, range_)[1],)
    return (red, green, blue) if spec.colour == "rgb" else (blue, green, red)


def judge_taps(i, source, target):
    position = Fraction((2 * i + 1) * source, 2 * target) - Fraction(1, 2)
    low = floor(position)
    weight = half_up((position - low) * 2**11)
    return [(clamp(low, 0, source - 1), 2**11 - weight), (clamp(low + 1, 0, source - 1), weight)]


def judge(picture, spec, width, height, table):
    scale = min(Fraction(width, picture.width), Fraction(height, picture.height))
    w, h = width, height
    if spec.resize == "letterbox":
        w = width if scale * picture.width == width else max(1, half_up(scale * picture.width))
        h = height if scale * picture.height == height else max(1, half_up(scale * picture.height))
    left, top = (width - w) // 2, (height - h) // 2
    pixels = {(x, y): judge_pixel(picture, x, y, spec) for x in range(picture.width) for y in range(picture.height)}
    out = np.empty((height, width, spec.channels), table.dtype)
    for y, x, c in itertools.product(range(height), range(width), range(spec.channels)):
        value = 114
        if 0 <= x - left < w and 0 <= y - top < h:
            total = sum(wy * wx * pixels[sx, sy][c] for sy, wy in judge_taps(y - top, picture.height, h)
                        for sx, wx in judge_taps(x - left, picture.width, w))
            value = (total + 2**21) >> 22
        out[y, x, c] = table[c, value]
    return out, Mapping(picture.width / w, picture.height / h, left, top)


def a_picture(encoding, width, height, random_, extreme=False):
    tight = encoding not in ("bgr8", "rgb8", "mono8", "nv12")
    stride = 0 if tight else row_bytes(encoding, width) + random_.choice((0, 5))
    values = (0, 255) if extreme else range(256)
    data = [random_.choice(values) for _ in range(frame_bytes(encoding, width, height, stride))]
    return Picture(encoding, width, height, stride, np.array(data, np.uint8))


# ---- against the judge ----------------------------------------------------------------------------------------------

def _agree(picture, spec, width, height, dtype="int8", extra=0):
    table = input_table(spec, dtype, 0.007)
    out = np.full((height, width, spec.channels + extra), 99, dtype)
    mapping = Preprocessor(spec, (1, height, width, spec.channels), table).run(picture, out)
    expected, expected_mapping = judge(picture, spec, width, height, table)
    np.testing.assert_array_equal(out[..., : spec.channels], expected)
    assert not out[..., spec.channels :].any()
    assert mapping == expected_mapping


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("colour", ["rgb", "bgr", "mono"])
def test_every_encoding_to_every_colour(encoding, colour):
    random_ = random.Random(f"{encoding}{colour}")
    for matrix, range_ in itertools.product(("bt601", "bt709"), ("limited", "full")):
        size = random_.randint(1, 13), random_.randint(1, 13)
        spec = InputSpec(colour=colour, matrix=matrix, range=range_, mean=(random_.random() * 90,))
        _agree(a_picture(encoding, *size, random_), spec, 8, 6, extra=5)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("size", "target"), [
    ((1, 1), (5, 4)), ((1, 9), (6, 6)), ((9, 1), (6, 6)), ((64, 2), (5, 5)), ((3, 70), (7, 4)), ((2, 2), (1, 1)),
    ((7, 5), (7, 5)), ((14, 10), (7, 5)), ((21, 15), (7, 5)), ((5, 5), (11, 11)), ((13, 6), (12, 7)),
    ((2, 300), (4, 4)),
])
def test_every_shape(encoding, size, target):
    random_ = random.Random(f"{encoding}{size}")
    for resize in ("letterbox", "stretch"):
        _agree(a_picture(encoding, *size, random_), InputSpec(resize=resize), *target)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_extreme_values_clamp_and_do_not_overflow(encoding):
    random_ = random.Random(encoding)
    for range_ in ("limited", "full"):
        _agree(a_picture(encoding, 11, 9, random_, extreme=True), InputSpec(range=range_, matrix="bt709"), 7, 7)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float32"])
def test_every_type_of_input(dtype):
    random_ = random.Random(dtype)
    spec = InputSpec(mean=(1.0, 20.5, 3.0), scale=(0.01, -0.02, 0.004))
    _agree(a_picture("bgr8", 10, 7, random_), spec, 9, 9, dtype=dtype, extra=1)


def test_resize_none_takes_the_exact_size():
    picture = a_picture("rgb8", 6, 5, random.Random(3))
    _agree(picture, InputSpec(resize="none"), 6, 5)
    with pytest.raises(PreprocessError, match="picture is 6x5, this model takes 7x5 only"):
        _agree(picture, InputSpec(resize="none"), 7, 5)


def test_every_colour_triple_of_the_coefficients_edges():
    """All of Y, U, V in steps, as one yuv444 and one nv12 picture, against the judge."""
    steps = [0, 1, 15, 16, 17, 100, 127, 128, 129, 234, 235, 236, 240, 241, 254, 255]
    triples = np.array(list(itertools.product(steps, steps, steps)), np.uint8)
    spec = InputSpec(resize="none", scale=(1.0,))
    height, width = 64, 64
    table = input_table(spec, "uint8", 1.0)
    out = np.empty((height, width, 3), np.uint8)
    Preprocessor(spec, (1, height, width, 3), table).run(
        Picture("yuv444", width, height, 0, np.ascontiguousarray(triples.T).reshape(-1)), out)
    assert [tuple(map(int, rgb)) for rgb in out.reshape(-1, 3)] == [
        judge_yuv(*map(int, yuv), "bt601", "full") for yuv in triples]
    for matrix in ("bt601", "bt709"):
        nv12 = np.repeat(triples[:, 0], 4).reshape(64, 64, 2, 2).transpose(0, 2, 1, 3).reshape(-1)
        data = np.concatenate([nv12, triples[:, 1:].reshape(-1)])
        limited = InputSpec(resize="none", scale=(1.0,), matrix=matrix)
        out = np.empty((128, 128, 3), np.uint8)
        Preprocessor(limited, (1, 128, 128, 3), table).run(Picture("nv12", 128, 128, 0, data), out)
        assert [tuple(map(int, rgb)) for rgb in out[::2, ::2].reshape(-1, 3)] == [
            judge_yuv(*map(int, yuv), matrix, "limited") for yuv in triples]


# ---- hand-made values -----------------------------------------------------------------------------------------------

def test_known_coefficients():
    """BT.601 limited range in 2^14: 1.1644, 1.5960, 0.3918, 0.8130, 2.0172, as every text book prints them."""
    known = yuv_to_rgb("bt601", "limited")
    assert (known.luma, known.v[0], known.u[1], known.v[1], known.u[2]) == (19077, 26149, -6419, -13320, 33050)
    assert yuv_to_rgb("bt601", "full").luma == 1 << 14


def test_hand_made_resize():
    row = resample(4, 2)
    assert row.low.tolist() == [0, 2] and row.high.tolist() == [1, 3] and row.weight.tolist() == [1024, 1024]
    up = resample(2, 4)
    assert up.low.tolist() == [0, 0, 0, 1] and up.weight.tolist() == [0, 512, 1536, 0]
    assert resample(9, 3).taps == 1 and resample(9, 3).low.tolist() == [1, 4, 7]
    assert resample(1, 5).taps == 1


def test_hand_made_letterbox():
    assert place("letterbox", (1920, 1080), (256, 256)) == preprocess.Placement(256, 144, 0, 56)
    assert place("letterbox", (1080, 1920), (256, 256)) == preprocess.Placement(144, 256, 56, 0)
    assert place("letterbox", (16384, 1), (256, 256)) == preprocess.Placement(256, 1, 0, 127)
    assert place("letterbox", (3, 2), (4, 4)) == preprocess.Placement(4, 3, 0, 0)
    assert place("stretch", (3, 2), (4, 4)) == preprocess.Placement(4, 4, 0, 0)


def test_table_is_rounded_once_half_to_even_and_clamped():
    table = input_table(InputSpec(mean=(0.0,), scale=(1.0,)), "int8", 2.0)
    assert table.shape == (3, 256) and table.dtype == np.int8
    assert table[0, :8].tolist() == [0, 0, 1, 2, 2, 2, 3, 4] and table[0, 255] == 127
    values = input_table(InputSpec(colour="mono", mean=(127.5,), scale=(1 / 127.5,)), "float32")
    assert values.shape == (1, 256) and values[0, 0] == -1.0 and values[0, 255] == 1.0
    assert values[0, 128] == np.float32(0.5 * (1 / 127.5))
    assert input_table(InputSpec(mean=(0.0,), scale=(-1.0,)), "uint8", 1.0).max() == 0


# ---- refusals, cache, memory ----------------------------------------------------------------------------------------

def _preprocessor(spec=None, side=8):
    spec = spec or InputSpec()
    return Preprocessor(spec, (1, side, side, 3), input_table(spec, "int8", 0.01))


def test_refusals():
    spec, good = InputSpec(), np.zeros((8, 8, 3), np.int8)
    picture = a_picture("rgb8", 4, 4, random.Random(1))
    with pytest.raises(PreprocessError, match="the input has 1 channels, colour rgb needs 3"):
        Preprocessor(spec, (1, 8, 8, 1), input_table(spec, "int8", 1.0))
    with pytest.raises(PreprocessError, match=r"the table has shape \(2, 256\)"):
        Preprocessor(spec, (1, 8, 8, 3), np.zeros((2, 256), np.int8))
    with pytest.raises(PreprocessError, match="an input of type int16 has no table"):
        input_table(spec, "int16", 1.0)
    for bad in (good[:7], good[..., :2], good.reshape(-1)):
        with pytest.raises(PreprocessError, match="out has shape"):
            _preprocessor().run(picture, bad)
    with pytest.raises(PreprocessError, match="out is of type uint8, the table of int8"):
        _preprocessor().run(picture, good.astype(np.uint8))
    with pytest.raises(PreprocessError, match="a tensor has no colours"):
        _preprocessor().run(Picture("tensor", 0, 0, 0, np.zeros(4, np.uint8), "uint8", (4,)), good)
    with pytest.raises(PictureError, match="payload has 47 bytes, rgb8 4x4 stride tight has 48"):
        _preprocessor().run(Picture("rgb8", 4, 4, 0, np.zeros(47, np.uint8)), good)


def test_sizes_may_alternate_and_the_cache_is_bounded():
    processor, random_ = _preprocessor(), random.Random(9)
    table = input_table(InputSpec(), "int8", 0.01)
    pictures = [a_picture(encoding, w, 9, random_) for encoding in ("rgb8", "yuv420", "nv12") for w in range(3, 13)]
    expected = [judge(picture, InputSpec(), 8, 8, table)[0] for picture in pictures]
    out = np.zeros((8, 8, 3), np.int8)
    for _ in range(2):
        for picture, right in zip(pictures, expected, strict=True):
            processor.run(picture, out)
            np.testing.assert_array_equal(out, right)
    assert len(processor._recipes) == preprocess.CACHED_SIZES


def test_a_read_only_slot_and_a_view_of_a_batch_are_enough():
    data = bytes(range(48))
    out = np.zeros((4, 8, 8, 16), np.int8)
    _preprocessor().run(Picture("rgb8", 4, 4, 12, memoryview(data)), out[2])
    assert out[2].any() and not out[[0, 1, 3]].any()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_steady_state_allocates_nothing_large(encoding):
    size = 700, 600
    spec = InputSpec()
    processor = Preprocessor(spec, (1, 512, 512, 3), input_table(spec, "int8", 0.01))
    pixels = np.zeros(frame_bytes(encoding, *size, 0), np.uint8)
    out = np.zeros((512, 512, 16), np.int8)
    processor.run(Picture(encoding, *size, 0, pixels), out)
    tracemalloc.start()
    try:
        processor.run(Picture(encoding, *size, 0, pixels), out)
        assert tracemalloc.get_traced_memory()[1] < 128 << 10  # casting buffers; a plane has 220 KiB or more
    finally:
        tracemalloc.stop()
