"""The generator of part pictures: the same pixels from a seed everywhere, and labels that fit what is painted."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
# of the pixels and labels of seeds 0 to 7; the same under NumPy 1.24 and 2.4, with and without SIMD
RECORDED = "413f81c239e250cf61383fa6ebaa99d481ea84fd1ee85253d1542bf545cc8b6f"


def load(name: str) -> ModuleType:
    """A script of this repository as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


make_parts = load("make_parts")
SEEDS = range(120)


@pytest.fixture(scope="module")
def parts() -> list[tuple[np.ndarray, np.ndarray]]:
    return [make_parts.sample(seed) for seed in SEEDS]


def test_pixels_and_labels_are_those_recorded(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    digest = hashlib.sha256()
    for pixels, objects in parts[:8]:
        digest.update(pixels.tobytes())
        digest.update(objects.astype("<f4").tobytes())
    assert digest.hexdigest() == RECORDED


def test_a_seed_gives_the_same_part_again_and_another_seed_another(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    pixels, objects = make_parts.sample(5)
    assert np.array_equal(pixels, parts[5][0]) and np.array_equal(objects, parts[5][1])
    assert len({part[0].tobytes() for part in parts}) == len(parts)


def test_shapes_and_types(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for pixels, objects in parts:
        assert pixels.shape == (256, 256, 3) and pixels.dtype == np.uint8
        assert objects.ndim == 2 and objects.shape[1] == 5 and objects.dtype == np.float32
        assert len(objects) <= 4


def test_boxes_lie_inside_and_apart(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for _, objects in parts:
        boxes = objects[:, 1:]
        assert (boxes >= 0).all() and (boxes <= 256).all()
        assert (boxes[:, 2] - boxes[:, 0] >= 4).all() and (boxes[:, 3] - boxes[:, 1] >= 4).all()
        for first in range(len(boxes)):
            for second in range(first):
                low = np.maximum(boxes[first, :2], boxes[second, :2])
                high = np.minimum(boxes[first, 2:], boxes[second, 2:])
                assert (high <= low).any()


def test_every_class_occurs_and_so_do_clean_parts(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    kinds = np.concatenate([objects[:, 0] for _, objects in parts])
    assert set(kinds.tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert make_parts.LABELS == ("scratch", "pit", "stain", "chip")
    assert sum(len(objects) == 0 for _, objects in parts) >= 5


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_the_box_holds_all_that_a_defect_changes_and_no_more(kind: int) -> None:
    """Independent judge: paint on even grey and look which pixels changed."""
    shape = (make_parts.scratch, make_parts.pit, make_parts.stain, make_parts.chip)[kind]
    for seed in range(40):
        canvas = np.full((256, 256, 3), 128.0, np.float32)
        box, paint = shape(make_parts.Dice(seed), 256)
        paint(canvas)
        changed = (np.abs(canvas - 128.0) > 6.0).any(axis=2)
        rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
        seen = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert np.abs(np.subtract(seen, box)).max() <= 4.0, (seed, seen, box)


def test_a_chip_lies_on_a_border(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    chips = [row[1:] for _, objects in parts for row in objects if row[0] == 3]
    assert len(chips) > 20
    assert all(min(box[0], box[1], 256 - box[2], 256 - box[3]) == 0 for box in chips)


def test_noise_has_the_sigma_that_the_texture_is_scaled_by() -> None:
    noise = make_parts.Dice(1).noise(256)
    assert abs(noise.mean()) < 3.0
    assert noise.std() == pytest.approx(make_parts.NOISE_SIGMA, rel=0.02)


def test_another_size_is_another_picture() -> None:
    pixels, objects = make_parts.sample(3, 320)
    assert pixels.shape == (320, 320, 3)
    assert (objects[:, 1:] <= 320).all()


@pytest.mark.parametrize("size", [0, 128, 250])
def test_an_unusable_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size {size}: a part picture needs a multiple of 32, at least 160"):
        make_parts.sample(0, size)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_the_command_writes_pictures_and_labels(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "parts"
    assert make_parts.main(["--count", "3", "--seed", "7", "--out", str(out), "--format", suffix]) == 0
    assert capsys.readouterr().out == f"wrote 3 pictures and {out / 'labels.json'}\n"
    index = json.loads((out / "labels.json").read_text())
    assert index["labels"] == list(make_parts.LABELS)
    names = [f"part-000000{number}.{suffix}" for number in (7, 8, 9)]
    assert [entry["file"] for entry in index["images"]] == names
    assert sorted(path.name for path in out.iterdir()) == ["labels.json", *names]
    for number, entry in zip((7, 8, 9), index["images"], strict=True):
        pixels, objects = make_parts.sample(number)
        assert entry["seed"] == number
        assert [found["label"] for found in entry["objects"]] == [make_parts.LABELS[int(row[0])] for row in objects]
        boxes = np.array([found["box"] for found in entry["objects"]]).reshape(-1, 4)
        assert np.allclose(boxes, objects[:, 1:], atol=0.006)
        with Image.open(out / entry["file"]) as picture:
            read = np.asarray(picture)
        assert read.shape == pixels.shape
        if suffix == "png":
            assert np.array_equal(read, pixels)
        else:
            assert np.abs(read.astype(int) - pixels).mean() < 4.0


@pytest.mark.parametrize("wrong", [["--count", "0"], ["--count", "1", "--seed=-1"], ["--count", "1", "--size", "100"]])
def test_the_command_refuses_what_makes_no_sense(tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        make_parts.main([*wrong, "--out", str(tmp_path / "parts")])
    assert stop.value.code == 2
    assert not (tmp_path / "parts").exists()
