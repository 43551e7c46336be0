"""How long a picture is, and what is refused before a byte of it is touched."""

import numpy as np
import pytest

from orind.kernels.picture import MAX_SIDE, Picture, PictureError, frame_bytes


@pytest.mark.parametrize(("args", "length"), [
    (("bgr8", 5, 3, 0), 45), (("rgb8", 5, 3, 16), 48), (("mono8", 5, 3, 8), 24), (("mono8", 1, 1, 1), 1),
    (("nv12", 4, 4, 4), 24), (("nv12", 5, 3, 0), 30), (("nv12", 5, 3, 8), 40), (("nv12", 1, 1, 0), 4),
    (("yuv420", 5, 3, 0), 15 + 2 * 6), (("yuv422", 5, 3, 5), 15 + 2 * 9), (("yuv444", 5, 3, 0), 45),
    (("gray", 5, 3, 5), 15), (("i420", 5, 3, 5), 27),
    (("tensor", 0, 0, 0, "float32", (1, 3, 2)), 24), (("tensor", 0, 0, 0, "uint8", (7,)), 7),
])
def test_length(args, length):
    assert frame_bytes(*args) == length


@pytest.mark.parametrize(("args", "words"), [
    (("rgba8", 5, 3, 0), "encoding 'rgba8' is not one of"),
    (("bgr8", 0, 3, 0), "width 0 is not between"),
    (("bgr8", 5, -3, 0), "height -3 is not between"),
    (("bgr8", MAX_SIDE + 1, 3, 0), "width 16385"),
    (("mono8", MAX_SIDE, MAX_SIDE, 0), "more than 67108864 pixels"),
    (("bgr8", 5, 3, 14), "stride 14 is not between 15 and"),
    (("nv12", 5, 4, 5), "stride 5 is not between 6 and"),
    (("mono8", 5, 3, 1 << 20), "stride 1048576 is not between"),
    (("bgr8", 5, 3, -15), "stride -15"),
    (("yuv420", 4, 4, 8), "planes of yuv420 are tight"),
    (("gray", 4, 4, 8), "planes of gray are tight"),
    (("tensor", 0, 0, 0, "object", (1,)), "dtype 'object' is not one of"),
    (("tensor", 0, 0, 0, "uint8", ()), "is not 1 to 6 positive numbers"),
    (("tensor", 0, 0, 0, "uint8", (1,) * 7), "is not 1 to 6 positive numbers"),
    (("tensor", 0, 0, 0, "uint8", (1, 0)), "is not 1 to 6 positive numbers"),
    (("tensor", 0, 0, 0, "float32", (1 << 20, 1 << 20)), "more than"),
])
def test_refused(args, words):
    with pytest.raises(PictureError) as caught:
        frame_bytes(*args)
    assert words in str(caught.value)


def test_lying_length():
    with pytest.raises(PictureError, match="payload has 11 bytes, mono8 4x3 stride tight has 12"):
        Picture("mono8", 4, 3, 0, np.zeros(11, np.uint8)).check()
    with pytest.raises(PictureError, match="tensor float32 2x2 has 16"):
        Picture("tensor", 0, 0, 0, memoryview(b"12345"), "float32", (2, 2)).check()


def test_bytes_are_seen_not_copied():
    data = np.arange(12, dtype=np.uint8)
    seen = Picture("mono8", 4, 3, 4, memoryview(data)).bytes_array()
    assert np.shares_memory(seen, data)
    assert not Picture("mono8", 4, 3, 0, memoryview(bytes(12))).bytes_array().flags.writeable
