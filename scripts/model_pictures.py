"""The sets of pictures that scripts/bench_models calibrates with and judges by: fixed crops, the same on every machine.

Caller: bench_models.py. A set is COUNT pictures; every fourth is held back by the build, so that 64 judge. Invariant: a
set depends on the fetched photographs, on SEED and on this file only. The crops of one photograph are alike: what is
claimed on them says how well a plan keeps the model's answers, not how good the model is.

Where the truth is known (pages and lines are turned here) a picture's name ends in its label, -0, -90, -180 or -270.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from built_plans import CALIBRATION_SEED, load_by_path
from numpy.typing import NDArray
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
COUNT = 256
SEED = 20_261
FACE = (168, 62, 280, 200)
"""x0, y0, x1, y1 around the face of astronaut.png, in pixels."""
PHOTOGRAPHS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg", "coins.png", "china.jpg", "flower.jpg")
LINES = ((0, 6, 215, 36), (0, 44, 384, 66), (0, 60, 384, 84), (0, 80, 384, 102), (0, 98, 384, 121), (0, 118, 180, 140))
"""x0, y0, x1, y1 of the lines of text of page.png, in pixels."""

Made = Iterator[tuple[str, Image.Image]]


def parts(folder: Path, count: int) -> Made:
    """Our generated parts, 256 x 256, seeds as in built_plans.py."""
    make_parts = load_by_path(ROOT / "scripts" / "make_parts.py")
    for i in range(count):
        yield "", Image.fromarray(make_parts.sample(CALIBRATION_SEED + i)[0])


def faces(folder: Path, count: int) -> Made:
    """Square crops of the astronaut with her whole face in them, half of them mirrored, lighter or darker."""
    rng = np.random.default_rng(SEED)
    photograph = _open(folder / "astronaut.png")
    for _ in range(count):
        side = int(rng.integers(200, 513))
        x = int(rng.integers(max(0, FACE[2] - side), min(FACE[0], 512 - side) + 1))
        y = int(rng.integers(max(0, FACE[3] - side), min(FACE[1], 512 - side) + 1))
        yield "", _varied(photograph.crop((x, y, x + side, y + side)), rng)


def photographs(folder: Path, count: int) -> Made:
    """Crops of seven photographs in turn, half of them mirrored, lighter or darker."""
    rng = np.random.default_rng(SEED)
    opened = [_open(folder / name) for name in PHOTOGRAPHS]
    for i in range(count):
        photograph = opened[i % len(opened)]
        side = int(rng.integers(160, min(photograph.size) + 1))
        x, y = (int(rng.integers(0, size - side + 1)) for size in photograph.size)
        yield "", _varied(photograph.crop((x, y, x + side, y + side)), rng)


def pages(folder: Path, count: int) -> Made:
    """Crops of a scanned page, lighter or darker, turned clockwise by their labels: 0, 90, 180, 270 in turn."""
    rng = np.random.default_rng(SEED)
    page = _open(folder / "page.png")
    for i in range(count):
        side = int(rng.integers(120, page.height + 1))
        x, y = int(rng.integers(0, page.width - side + 1)), int(rng.integers(0, page.height - side + 1))
        label = TURNS[i // 4 % 4]
        yield f"-{label}", _lit(page.crop((x, y, x + side, y + side)), rng).rotate(-label)


def lines(folder: Path, count: int) -> Made:
    """Pieces of lines of the page four times as wide as high, every second four turned upside down."""
    rng = np.random.default_rng(SEED)
    page = _open(folder / "page.png")
    for i in range(count):
        x0, y0, x1, y1 = LINES[int(rng.integers(0, len(LINES)))]
        wide = 4 * (y1 - y0)
        x = int(rng.integers(x0, x1 - wide + 1))
        y = max(0, y0 + int(rng.integers(-2, 3)))
        label = 180 * (i // 4 % 2)
        yield f"-{label}", _lit(page.crop((x, y, x + wide, y + y1 - y0)), rng).rotate(-label)


TURNS = (0, 90, 180, 270)
SETS: dict[str, Callable[[Path, int], Made]] = {
    "parts": parts, "faces": faces, "photographs": photographs, "pages": pages, "lines": lines}


def pictures_of(name: str, fetched: Path, folder: Path, count: int = COUNT) -> list[Path]:
    """The set's files, PNG, made on the first call. FileNotFoundError: a photograph is not fetched."""
    wanted = folder / f"{name}-{count}-{_version()}"
    if not wanted.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as scratch:
            draft = Path(scratch) / "set"
            draft.mkdir()
            for i, (label, picture) in enumerate(SETS[name](fetched, count)):
                picture.save(draft / f"{i:04d}{label}.png")
            if not wanted.exists():                       # another run may have made it meanwhile
                draft.rename(wanted)
    return sorted(wanted.glob("*.png"))


def tensors_of(pictures: list[Path], shape: tuple[int, ...], folder: Path) -> list[Path]:
    """For task `tensor`: RGB and a fourth channel of ones, float32 (H, W, 4), pixels 0..255; .npy beside each other."""
    height, width, channels = shape
    if channels != 4:
        raise ValueError(f"an input of shape {shape} is none that a picture with an alpha channel fills")
    wanted = folder / f"{pictures[0].parent.name}-{height}x{width}"
    wanted.mkdir(parents=True, exist_ok=True)
    found = []
    for picture in pictures:
        path = wanted / f"{picture.stem}.npy"
        if not path.exists():
            pixels = np.asarray(_open(picture).resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)
            np.save(path, np.concatenate([pixels, np.ones((height, width, 1), np.float32)], 2))
        found.append(path)
    return found


def label_of(path: Path) -> int | None:
    """The truth in a picture's name, in degrees."""
    head, _, label = path.stem.partition("-")
    return int(label) if head.isdigit() and label.isdigit() else None


def _version() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]


def _open(path: Path) -> Image.Image:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run scripts/fetch_models first")
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _varied(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    mirrored = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else picture
    return _lit(mirrored, rng)


def _lit(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    gain = float(rng.uniform(0.6, 1.2))
    pixels: NDArray[np.uint8] = np.clip(np.asarray(picture, np.float32) * gain + 0.5, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)
