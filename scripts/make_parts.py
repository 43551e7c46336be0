#!/usr/bin/env python3
"""Makes pictures of brushed-metal parts with labelled defects: what the shipped detector is trained and tested on.

Called by scripts/train_parts.py, scripts/evaluate_parts.py, the demo, the benchmarks and the tests (loaded by path).
Invariant: the pixels depend on seed and size alone. Random numbers are raw PCG64 output, and everything after them is
integer arithmetic or single IEEE operations (+ - * / sqrt), one array operation each, so that no library's `exp`,
no fused multiply-add and no drawing routine of an image library can change a pixel from one machine to the next.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

LABELS: tuple[str, ...] = ("scratch", "pit", "stain", "chip")
SIZE_MIN = 160  # the longest scratch (110 pixels) must still find a place beside other things
CLEARANCE = 3.0  # pixels between any two things on a plate
PLACE_TRIES = 20
NOISE_SIGMA = math.sqrt(4 * (256 * 256 - 1) / 12)  # standard deviation of a sum of four bytes
DEFECT_COUNTS = (0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4)  # 15 %, 30 %, 30 %, 15 %, 10 %
STAIN_COLOURS = ((90.0, 55.0, 30.0), (60.0, 70.0, 90.0), (120.0, 90.0, 40.0))  # rust, oil, resin
# 5 x 7 glyphs of the hexadecimal digits, one row a number, the leftmost column in bit 4
GLYPHS: tuple[tuple[int, ...], ...] = (
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12), (14, 17, 17, 31, 17, 17, 17), (30, 17, 17, 30, 17, 17, 30),
    (14, 17, 16, 16, 16, 17, 14), (28, 18, 17, 17, 17, 18, 28), (31, 16, 16, 30, 16, 16, 31),
    (31, 16, 16, 30, 16, 16, 16),
)

Canvas = NDArray[np.float32]
Box = tuple[float, float, float, float]
Colour = tuple[float, float, float]
Painter = Callable[[Canvas], None]


class Dice:
    """Random numbers that NumPy promises to keep: raw output of PCG64, and plain arithmetic on it."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, low: float, high: float) -> float:
        """A float64 in [low, high)."""
        return low + (high - low) * ((int(self._bits.random_raw()) >> 11) * 2.0**-53)

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high)."""
        return low + int(self.uniform(0.0, float(high - low)))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.uniform(0.0, 1.0) < probability

    def direction(self) -> tuple[float, float]:
        """A vector of length 1 in any direction (by rejection: no sine, no cosine)."""
        while True:
            x, y = self.uniform(-1.0, 1.0), self.uniform(-1.0, 1.0)
            length = math.sqrt(x * x + y * y)
            if 0.1 < length <= 1.0:
                return x / length, y / length

    def noise(self, size: int) -> NDArray[np.int32]:
        """(size, size) int32, close to normal: the sum of four bytes less its mean, sigma NOISE_SIGMA."""
        raw: NDArray[np.uint64] = self._bits.random_raw(size * size // 2)
        words = raw.astype("<u8").view(np.dtype("<u4")).reshape(size, size)
        total = (words & 255) + ((words >> 8) & 255) + ((words >> 16) & 255) + (words >> 24)
        centred: NDArray[np.int32] = total.astype(np.int32) - 510
        return centred


def sample(seed: int, size: int = 256) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """One part: (size, size, 3) uint8 RGB, and (n, 5) float32 rows class, x1, y1, x2, y2 in pixels, n from 0 to 4.

    Classes index LABELS. Boxes lie inside the picture and do not overlap. ValueError: a size that is not a multiple
    of 32 or below SIZE_MIN, a negative seed.
    """
    if size < SIZE_MIN or size % 32:
        raise ValueError(f"size {size}: a part picture needs a multiple of 32, at least {SIZE_MIN}")
    dice = Dice(seed)
    canvas = plate(dice, size)
    taken: list[Box] = []
    put_distractors(dice, canvas, taken)
    objects: list[tuple[float, ...]] = []
    for _ in range(DEFECT_COUNTS[dice.integer(0, len(DEFECT_COUNTS))]):
        kind = dice.integer(0, len(LABELS))
        box = place(dice, canvas, taken, (scratch, pit, stain, chip)[kind])
        if box is not None:
            objects.append((float(kind), *box))
    if dice.chance(0.5):
        soften(canvas, dice.uniform(0.3, 1.0))
    pixels = np.floor(np.clip(canvas, 0.0, 255.0) + np.float32(0.5)).astype(np.uint8)
    return pixels, np.array(objects, np.float32).reshape(-1, 5)


def plate(dice: Dice, size: int) -> Canvas:
    """The bare metal: brushing along one axis, a lighting gradient, sensor noise, a slight tint."""
    reach = dice.integer(9, 41)
    white = dice.noise(size)
    running = np.cumsum(np.concatenate((white[:, -reach:], white), axis=1), axis=1, dtype=np.int32)
    grain = (running[:, reach:] - running[:, :-reach]).astype(np.float32)
    if dice.chance(0.5):
        grain = np.ascontiguousarray(grain.T)
    ramp = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size) - np.float32(0.5)
    grey = grain * np.float32(dice.uniform(3.0, 10.0) / (NOISE_SIGMA * math.sqrt(reach)))
    grey = grey + np.float32(dice.uniform(90.0, 170.0))
    grey = grey + ramp[None, :] * np.float32(dice.uniform(-60.0, 60.0))
    grey = grey + ramp[:, None] * np.float32(dice.uniform(-60.0, 60.0))
    grey = grey + dice.noise(size).astype(np.float32) * np.float32(dice.uniform(1.0, 4.0) / NOISE_SIGMA)
    tint = np.array([dice.uniform(0.92, 1.08) for _ in range(3)], np.float32)
    metal: Canvas = np.clip(grey[..., None] * tint, 0.0, 255.0).astype(np.float32)
    return metal


def put_distractors(dice: Dice, canvas: Canvas, taken: list[Box]) -> None:
    """What belongs on a good part and must not be reported: up to three drilled holes, and now and then a print."""
    for _ in range(dice.integer(0, 4)):
        place(dice, canvas, taken, hole)
    if dice.chance(0.3):
        place(dice, canvas, taken, stamp)


def place(dice: Dice, canvas: Canvas, taken: list[Box], kind: Callable[[Dice, int], tuple[Box, Painter]]) -> Box | None:
    """Proposes the thing until it touches nothing else, paints it and returns its box; None after PLACE_TRIES."""
    for _ in range(PLACE_TRIES):
        box, paint = kind(dice, canvas.shape[0])
        if all(apart(box, other) for other in taken):
            paint(canvas)
            taken.append(box)
            return box
    return None


def apart(first: Box, second: Box) -> bool:
    """Whether CLEARANCE pixels or more lie between two boxes, on one axis at least."""
    across = max(first[0], second[0]) - min(first[2], second[2])
    down = max(first[1], second[1]) - min(first[3], second[3])
    return max(across, down) >= CLEARANCE


def hole(dice: Dice, size: int) -> tuple[Box, Painter]:
    """A drilled hole: dark, with a bright rim all the way round."""
    radius = dice.uniform(8.0, 22.0)
    x, y = (dice.uniform(radius + 3.0, size - radius - 3.0) for _ in range(2))
    box = (x - radius - 1.5, y - radius - 1.5, x + radius + 1.5, y + radius + 1.5)

    def paint(canvas: Canvas) -> None:
        patch, xs, ys = window(canvas, box)
        beyond = distance(xs, ys, x, y) - np.float32(radius)
        blend(patch, np.clip(0.5 - beyond, 0.0, 1.0), (25.0, 25.0, 28.0))
        blend(patch, np.clip(1.5 - np.abs(beyond), 0.0, 1.0), (210.0, 210.0, 215.0))

    return box, paint


def stamp(dice: Dice, size: int) -> tuple[Box, Painter]:
    """A printed part number: six hexadecimal digits, one or two pixels a dot."""
    dot = dice.integer(1, 3)
    digits = [dice.integer(0, 16) for _ in range(6)]
    x, y = dice.integer(4, size - 36 * dot - 4), dice.integer(4, size - 7 * dot - 4)
    rows = [[(GLYPHS[digit][row] << 1 >> bit) & 1 for digit in digits for bit in range(5, -1, -1)] for row in range(7)]
    ink = np.repeat(np.repeat(np.array(rows, np.float32), dot, axis=0), dot, axis=1)
    box = (float(x), float(y), float(x + ink.shape[1]), float(y + ink.shape[0]))

    def paint(canvas: Canvas) -> None:
        blend(canvas[y : y + ink.shape[0], x : x + ink.shape[1]], ink * np.float32(0.8), (40.0, 40.0, 60.0))

    return box, paint


def scratch(dice: Dice, size: int) -> tuple[Box, Painter]:
    """A thin line with a slight bend, brighter or darker than the metal; the box leaves two pixels around it."""
    length = dice.uniform(35.0, 110.0)
    along, across = dice.direction()
    half = (abs(along) * length / 2 + 8.0, abs(across) * length / 2 + 8.0)
    x, y = dice.uniform(half[0], size - half[0]), dice.uniform(half[1], size - half[1])
    start = (x - along * length / 2, y - across * length / 2)
    bend = (x + dice.uniform(-4.0, 4.0), y + dice.uniform(-4.0, 4.0))
    end = (x + along * length / 2, y + across * length / 2)
    width, grey, strength = dice.uniform(1.0, 3.0), (30.0, 235.0)[dice.integer(0, 2)], dice.uniform(0.7, 1.0)
    columns, rows = zip(start, bend, end, strict=True)
    box = (min(columns) - 2.0, min(rows) - 2.0, max(columns) + 2.0, max(rows) + 2.0)

    def paint(canvas: Canvas) -> None:
        patch, xs, ys = window(canvas, box)
        beyond = np.minimum(to_segment(xs, ys, start, bend), to_segment(xs, ys, bend, end)) - np.float32(width / 2)
        blend(patch, np.clip(0.5 - beyond, 0.0, 1.0) * np.float32(strength), (grey, grey, grey))

    return box, paint


def pit(dice: Dice, size: int) -> tuple[Box, Painter]:
    """A small dark crater, lit on one side only (a drilled hole has a rim all the way round)."""
    radius = dice.uniform(4.0, 9.0)
    x, y = (dice.uniform(radius + 2.0, size - radius - 2.0) for _ in range(2))
    grey = dice.uniform(15.0, 60.0)
    box = (x - radius, y - radius, x + radius, y + radius)

    def paint(canvas: Canvas) -> None:
        patch, xs, ys = window(canvas, box)
        beyond = distance(xs, ys, x, y) - np.float32(radius)
        lit = distance(xs, ys, x - 1.2, y - 1.2) - np.float32(radius - 0.8)
        blend(patch, np.clip(0.5 - beyond, 0.0, 1.0), (grey, grey, grey))
        blend(patch, np.clip(0.5 - beyond, 0.0, 1.0) * np.clip(0.5 + lit, 0.0, 1.0), (200.0, 200.0, 200.0))

    return box, paint


def stain(dice: Dice, size: int) -> tuple[Box, Painter]:
    """A translucent, soft-edged ellipse of rust, oil or resin with a stronger core off its centre."""
    width, height = dice.uniform(28.0, 70.0), dice.uniform(28.0, 70.0)
    left, top = dice.uniform(2.0, size - width - 2.0), dice.uniform(2.0, size - height - 2.0)
    colour = STAIN_COLOURS[dice.integer(0, len(STAIN_COLOURS))]
    strength = dice.uniform(0.35, 0.65)
    core_x, core_y = dice.uniform(-0.2, 0.2), dice.uniform(-0.2, 0.2)
    box = (left, top, left + width, top + height)

    def paint(canvas: Canvas) -> None:
        patch, xs, ys = window(canvas, box)
        across = (xs - np.float32(left + width / 2)) * np.float32(2.0 / width)
        down = (ys - np.float32(top + height / 2)) * np.float32(2.0 / height)
        edge = np.clip((1.04 - distance(across, down, 0.0, 0.0)) * np.float32(6.0), 0.0, 1.0)
        core = np.clip((0.7 - distance(across, down, core_x, core_y)) * np.float32(3.0), 0.0, 1.0)
        blend(patch, edge * np.float32(strength), colour)
        blend(patch, core * np.float32(strength * 0.4), colour)

    return box, paint


def chip(dice: Dice, size: int) -> tuple[Box, Painter]:
    """Material broken off one border: dark background with a jagged, bright edge."""
    length, depth = dice.uniform(18.0, 40.0), dice.uniform(18.0, 40.0)
    start = dice.uniform(0.0, size - length)
    side = dice.integer(0, 4)  # top, bottom, left, right
    knots = np.array([0.0, *(dice.uniform(0.65, 1.0) for _ in range(5)), 0.0], np.float32)
    knots[dice.integer(1, 6)] = 1.0
    profile = knots * np.float32(depth)
    near, far = (0.0, depth) if side in (0, 2) else (size - depth, float(size))
    box = (start, near, start + length, far) if side < 2 else (near, start, far, start + length)

    def paint(canvas: Canvas) -> None:
        turned = canvas if side < 2 else canvas.transpose(1, 0, 2)
        upright = turned[::-1] if side in (1, 3) else turned
        patch, xs, ys = window(upright, (start, 0.0, start + length, depth))
        inside = heights(xs, start, length, profile) - ys
        blend(patch, np.clip(inside + 0.5, 0.0, 1.0), (8.0, 8.0, 10.0))
        blend(patch, np.clip(1.0 - np.abs(inside - 0.5), 0.0, 1.0) * np.float32(0.6), (215.0, 215.0, 215.0))

    return box, paint


def window(canvas: Canvas, box: Box) -> tuple[Canvas, Canvas, Canvas]:
    """The part of the canvas that a box touches (a view), with the x (1, w) and y (h, 1) of its pixel centres."""
    size = canvas.shape[0]
    left, top = max(0, int(box[0]) - 2), max(0, int(box[1]) - 2)
    right, bottom = min(size, int(box[2]) + 3), min(size, int(box[3]) + 3)
    xs = np.arange(left, right, dtype=np.float32) + np.float32(0.5)
    ys = np.arange(top, bottom, dtype=np.float32) + np.float32(0.5)
    return canvas[top:bottom, left:right], xs[None, :], ys[:, None]


def distance(xs: Canvas, ys: Canvas, x: float, y: float) -> Canvas:
    """How far each point lies from (x, y)."""
    across, down = xs - np.float32(x), ys - np.float32(y)
    away: Canvas = np.sqrt(across * across + down * down)
    return away


def to_segment(xs: Canvas, ys: Canvas, start: tuple[float, float], end: tuple[float, float]) -> Canvas:
    """How far each point lies from the straight line between two points."""
    across, down = end[0] - start[0], end[1] - start[1]
    squared = max(across * across + down * down, 1e-6)
    ahead = (xs - np.float32(start[0])) * np.float32(across) + (ys - np.float32(start[1])) * np.float32(down)
    part: Canvas = np.clip(ahead / np.float32(squared), 0.0, 1.0).astype(np.float32)
    return distance(xs - part * np.float32(across), ys - part * np.float32(down), start[0], start[1])


def heights(xs: Canvas, start: float, length: float, profile: Canvas) -> Canvas:
    """The profile's knots joined by straight lines from start to start + length; far below 0 outside."""
    last = len(profile) - 1
    position = (xs - np.float32(start)) * np.float32(last / length)
    knot = np.clip(np.floor(position), 0, last - 1).astype(np.int64)
    left, right = profile[knot], profile[knot + 1]
    joined = left + (right - left) * (position - knot.astype(np.float32))
    return np.where((position >= 0) & (position <= last), joined, np.float32(-9.0)).astype(np.float32)


def blend(patch: Canvas, coverage: Canvas, colour: Colour) -> None:
    """Moves the patch (h, w, 3) towards the colour by the coverage (h, w), 0 to 1, in place."""
    patch += (np.array(colour, np.float32) - patch) * coverage.astype(np.float32)[..., None]


def soften(canvas: Canvas, amount: float) -> None:
    """Mixes in a 3 x 3 binomial blur (1 2 1): an optic slightly out of focus. In place."""
    padded = np.pad(canvas, ((1, 1), (1, 1), (0, 0)), mode="edge")
    down = (padded[:-2] + padded[2:] + padded[1:-1] * np.float32(2.0)) * np.float32(0.25)
    blurred = (down[:, :-2] + down[:, 2:] + down[:, 1:-1] * np.float32(2.0)) * np.float32(0.25)
    canvas += (blurred - canvas) * np.float32(amount)


def write_parts(count: int, seed: int, out: Path, suffix: str = "png", size: int = 256) -> Path:
    """Writes part-<seed>.<suffix> for `count` seeds from `seed` on, and labels.json, whose path it returns.

    labels.json: {"labels": [...], "images": [{"file", "seed", "objects": [{"label", "box": [x1, y1, x2, y2]}]}]}.
    Needs pillow (extra `build`), for the files alone. A JPEG (quality 92, 4:2:0) depends on the library's encoder.
    """
    from PIL import Image

    out.mkdir(parents=True, exist_ok=True)
    images = []
    for number in range(seed, seed + count):
        pixels, objects = sample(number, size)
        name = f"part-{number:07d}.{suffix}"
        options: dict[str, Any] = {"quality": 92, "subsampling": 2} if suffix == "jpg" else {}
        Image.fromarray(pixels).save(out / name, **options)
        found = [{"label": LABELS[int(row[0])], "box": [round(float(v), 2) for v in row[1:]]} for row in objects]
        images.append({"file": name, "seed": number, "objects": found})
    index = out / "labels.json"
    index.write_text(json.dumps({"labels": list(LABELS), "images": images}, indent=1) + "\n", encoding="utf-8")
    return index


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Makes pictures of brushed-metal parts with labelled defects.")
    parser.add_argument("--count", type=int, required=True, help="how many pictures")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first, the others follow (default 0)")
    parser.add_argument("--out", type=Path, required=True, help="folder for pictures and labels.json")
    parser.add_argument("--format", choices=("png", "jpg"), default="png", help="default png")
    parser.add_argument("--size", type=int, default=256, help="pixels a side, a multiple of 32 (default 256)")
    options = parser.parse_args(arguments)
    if options.count < 1 or options.seed < 0:
        parser.error("--count must be at least 1 and --seed at least 0")
    if options.size < SIZE_MIN or options.size % 32:
        parser.error(f"--size must be a multiple of 32, at least {SIZE_MIN}")
    index = write_parts(options.count, options.seed, options.out, options.format, options.size)
    print(f"wrote {options.count} pictures and {index}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
