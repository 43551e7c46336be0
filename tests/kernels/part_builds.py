"""Builds of an untrained part detector, for tests that start from files; conftest.py has its folder and its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from orind.kernels.build import build_plan
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

SPEC = ModelSpec("parts", "detect", ("a", "b", "c", "d"), (1, 2), InputSpec(), DecoderSpec("yolo"))


def build(folder: Path, out: Path, precision: str, spec: ModelSpec | None = SPEC, **options: Any) -> Any:
    return build_plan(options.pop("model", folder / "net.onnx"), spec, options.pop("pictures", [folder / "pictures"]),
                      out, precision, **options)


def changed(plan: Path, out: Path, **tensors: Any) -> Path:
    """A sound plan file with other tensors: what a wrong executor looks like to its golden check."""
    with PlanFile.open_path(plan) as opened:
        every = {name: tensors.get(name, np.array(value)) for name, value in opened.tensors.items()}
        metadata = {k: tensors.get(k, v) for k, v in opened.metadata.items() if k not in ("format", "crc32")}
    write_plan(out, every, metadata)
    return out


def pictures(folder: Path, count: int, side: int = 64, seed: int = 1) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(folder / f"{i:03d}.png")
    return folder
