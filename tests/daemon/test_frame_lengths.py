"""ipc and kernels may not know each other, and both know how long a frame must be: here they are held equal."""

from __future__ import annotations

import json
import random
from typing import Any, get_args

import pytest

from orind.daemon.sections import Camera
from orind.daemon.trigger import RANKS
from orind.ipc import wire
from orind.kernels.picture import PictureError, frame_bytes

PICTURES = ("bgr8", "rgb8", "mono8", "nv12")
CASES = 4000


def wire_bytes(fields: dict[str, Any]) -> int | None:
    """The exact length that the wire demands; None where it refuses."""
    try:
        return wire.parse_header(json.dumps({"v": 1, "seq": 1, **fields}).encode()).length
    except wire.WireError:
        return None


def picture_bytes(*layout: Any) -> int | None:
    try:
        return frame_bytes(*layout)
    except PictureError:
        return None


@pytest.mark.parametrize("encoding", PICTURES)
def test_pictures(encoding: str) -> None:
    rng = random.Random(7)
    accepted = 0
    for _ in range(CASES):
        scale = rng.choice((8, 300, 5000, 17_000))
        width, height = rng.randint(1, scale), rng.randint(1, scale)
        least = width * wire.PACKED_BYTES.get(encoding, 1)
        stride = rng.choice((0, 0, least, least + rng.randint(-2, 64), rng.randint(1, 5 * least + 4200)))
        fields = {"encoding": encoding, "width": width, "height": height, "stride": max(0, stride)}
        expected = picture_bytes(encoding, width, height, max(0, stride))
        assert wire_bytes(fields) == expected, fields
        accepted += expected is not None
    assert CASES // 4 < accepted < CASES


def test_tensors() -> None:
    rng = random.Random(8)
    accepted = 0
    for _ in range(CASES):
        shape = [rng.randint(1, rng.choice((4, 40, 4000))) for _ in range(rng.randint(1, 7))]
        dtype = rng.choice(list(wire.DTYPE_BYTES))
        expected = picture_bytes("tensor", 0, 0, 0, dtype, tuple(shape))
        assert wire_bytes({"encoding": "tensor", "dtype": dtype, "shape": shape}) == expected, (dtype, shape)
        accepted += expected is not None
    assert CASES // 4 < accepted < CASES


def test_priorities_of_a_camera_are_the_classes_of_the_wire() -> None:
    assert get_args(Camera.model_fields["priority"].annotation) == wire.CLASSES == tuple(RANKS)
    assert list(RANKS.values()) == [0, 1, 2]
