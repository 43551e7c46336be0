"""Plans that benches and tests serve, each built once, and the pictures and tensors that they take."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
PLANS = ROOT / "build" / "plans"
MODELS = ROOT / "configs" / "models"
CALIBRATION_SEED, CALIBRATION_PARTS, SHOWN_SEED = 500_000, 256, 700_000
PAGE_BYTES = 4096
TINY_SHAPE = (1, 16, 8, 8)  # as ONNX has it


def part_plan(precision: str = "int8", variant: int = 0) -> Path:
    """The part detector. INT8 plans of another `variant` are calibrated on other pictures, so that they differ."""
    return _shipped("part-inspect", precision, variant)


def face_plan(precision: str = "fp32") -> Path:
    """The face detector, FP32 unless asked otherwise."""
    return _shipped("blazeface-back", precision, 0)


def identity_plan(rows: int) -> Path:
    """Takes a uint8 tensor (1, rows, 4096, 1), gives one byte of each row as float32: every page is read."""
    import onnx

    model = load_by_path(ROOT / "tests" / "kernels" / "models.py").identity_onnx(rows, PAGE_BYTES)
    data: bytes = model.SerializeToString()

    def build(out: Path) -> None:
        from orind.kernels.build import build_plan

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "identity.onnx"
            onnx.save(model, str(path))
            build_plan(path, None, [], out, "fp32")

    return cached_plan(f"identity-{rows}", data, build)


def identity_tensor(rows: int, seed: int = 0) -> NDArray[np.uint8]:
    """A payload for `identity_plan(rows)`."""
    return np.random.default_rng(seed).integers(0, 256, (1, rows, PAGE_BYTES, 1), np.uint8)


def tiny_plan() -> Path:
    """One float16 convolution of a float32 tensor (1, 8, 8, 16): the virtual GPU takes a few milliseconds for it."""
    import onnx

    net = load_by_path(ROOT / "tests" / "kernels" / "models.py").Net((1, 16, 8, 8), seed=1)
    model = net.model([(net.conv("images", 16), TINY_SHAPE)])

    def build(out: Path) -> None:
        from orind.kernels.build import build_plan

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.onnx"
            onnx.save(model, path)
            build_plan(path, None, [], out, "fp16")

    return cached_plan("tiny", model.SerializeToString(), build)


def tiny_tensors(count: int) -> list[NDArray[np.float32]]:
    """Payloads for `tiny_plan()`, whose images are served with channels last."""
    n, c, h, w = TINY_SHAPE
    return list(np.random.default_rng(0).standard_normal((count, n, h, w, c), np.float32))


def part_pictures(count: int, seed: int = SHOWN_SEED) -> list[NDArray[np.uint8]]:
    """Generated parts, uint8 (256, 256, 3) rgb8, never among those of a calibration."""
    make_parts = load_by_path(ROOT / "scripts" / "make_parts.py")
    return [np.ascontiguousarray(make_parts.sample(seed + i)[0]) for i in range(count)]


def _shipped(name: str, precision: str, variant: int) -> Path:
    onnx_path, spec_path = MODELS / f"{name}.onnx", MODELS / f"{name}.yaml"

    def build(out: Path) -> None:
        from orind.kernels.build import build_plan
        from orind.kernels.spec_yaml import read_spec

        with tempfile.TemporaryDirectory() as folder:
            pictures = Path(folder) / "parts"
            seed = CALIBRATION_SEED + variant * CALIBRATION_PARTS
            load_by_path(ROOT / "scripts" / "make_parts.py").write_parts(CALIBRATION_PARTS, seed, pictures)
            build_plan(onnx_path, read_spec(spec_path), [pictures], out, precision)

    told = onnx_path.read_bytes() + spec_path.read_bytes() + f"{precision} {variant}".encode()
    return cached_plan(f"{name}-{precision}-{variant}", told, build)


def cached_plan(name: str, told: bytes, build: Callable[[Path], None]) -> Path:
    """build/plans/NAME-HASH.plan; the hash covers what the plan is made of and every source of the compiler."""
    digest = hashlib.sha256(told)
    for source in sorted((ROOT / "kernels").rglob("*.py")):
        digest.update(source.read_bytes())
    path = PLANS / f"{name}-{digest.hexdigest()[:12]}.plan"
    if not path.exists():
        print(f"== building {name}.plan (once)", file=sys.stderr, flush=True)
        PLANS.mkdir(parents=True, exist_ok=True)
        build(path)
    return path


def load_by_path(path: Path) -> ModuleType:
    """A file of this repository as a module, without its folder on sys.path."""
    name = f"orind_file_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
