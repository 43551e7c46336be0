"""Lets the tests of this folder import its helpers (models, judge, compiled) by name; what several build from."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def part_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector and twelve pictures: smooth random colours, one JPEG, one PPM."""
    import onnx
    from models import detector_onnx
    from PIL import Image
    path = tmp_path_factory.mktemp("parts")
    onnx.save(detector_onnx(64), path / "net.onnx")
    (path / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        suffix = {3: "jpg", 5: "ppm"}.get(i, "png")
        small = Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8))
        small.resize((90, 70), Image.Resampling.BICUBIC).save(path / "pictures" / f"{i:02d}.{suffix}")
    return path


@pytest.fixture(scope="session")
def part_plan(part_folder: Path) -> Path:
    """The detector in INT8."""
    from part_builds import build
    build(part_folder, part_folder / "int8.plan", "int8")
    return part_folder / "int8.plan"
