"""Numbers and pictures that cannot be used: each is refused by its name, with what to do, or is harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import calibrated, fill, int8
from judge import Judge
from models import Net
from numpy.typing import NDArray
from PIL import Image

from orind.kernels.build import build_plan
from orind.kernels.ir.errors import ModelError, UnsupportedModel
from orind.kernels.quant.pictures import CalibrationError
from orind.kernels.spec import InputSpec, ModelSpec

Weights = NDArray[np.float32]
SPEC = ModelSpec("n", "regress", (), (1,), InputSpec(resize="none"))


def net(change: Callable[[Weights], None], where: int = 0, bias: bool = True) -> onnx.ModelProto:
    """Two convolutions; `change` is made to the weights of one of them."""
    made = Net((1, 3, 8, 8), 1)
    x = made.op("Relu", made.conv(made.input, 6, bias=bias))
    model = made.model([(made.conv(x, 4), (1, 4, 8, 8))])
    tensor = [t for t in model.graph.initializer if len(t.dims) == 4][where]
    value = onnx.numpy_helper.to_array(tensor).copy()
    change(value)
    tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model


def channel(index: int, value: float) -> Callable[[Weights], None]:
    def change(weight: Weights) -> None:
        weight[index] = value
    return change


def pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(tmp_path: Path, value: float) -> None:
    onnx.save(net(channel(2, value), 1), tmp_path / "n.onnx")
    for precision in ("fp32", "int8"):
        with pytest.raises(ModelError, match=r"n\.onnx: node 'Conv_2' \(Conv\): its weights .* hold NaN or infinity; "
                                             "train or export the model again"):
            build_plan(tmp_path / "n.onnx", SPEC, [pictures(tmp_path / precision, 1)], tmp_path / "n.plan", precision)


@pytest.mark.parametrize("where", [0, 1])
def test_an_all_zero_channel_is_harmless(where: int) -> None:
    """Its scale is 2^-20 or what its bias needs; its output is the bias, and the judge agrees."""
    runner, constants = int8(net(channel(2, 0.0), where))
    fill(runner)
    judge = Judge(runner, constants)
    assert judge.run() > 0
    step = [s for s in runner.program.steps if type(s).__name__ == "ConvI8"][where]
    place = judge.channels(step.writes()[0])[2]
    assert not constants[step.weight][..., place].any()  # type: ignore[attr-defined]
    made = judge.read(step.writes()[0], 0, whole=False)[..., 2]
    assert np.unique(made).size == 1 and constants[step.multiplier][place] > 0  # type: ignore[attr-defined]


def test_a_weight_scale_that_underflows() -> None:
    with pytest.raises(UnsupportedModel, match=r"'Conv_2' \(Conv\): the weights of channel 3 are at most 1e-40: their "
                                               "scale underflows float32; set them to 0, or build with"):
        int8(net(channel(3, 1e-40), 1))


def test_a_multiplier_that_underflows() -> None:
    def change(weight: Weights) -> None:
        weight *= np.float32(1e-34)
        weight[0] = 1e3
    with pytest.raises(UnsupportedModel, match=r"the multiplier of channel 1 underflows float32: its weights or its "
                                               "input are too small"):
        int8(net(change, bias=False))
    assert int8(net(change))                       # with a bias its weights have no code left: the bias alone counts


def test_an_activation_scale_that_underflows() -> None:
    made = Net((1, 3, 8, 8))
    x = made.op("Conv", made.input, made.constant(np.full((6, 3, 1, 1), 1e-38, dtype=np.float32)), kernel_shape=[1, 1])
    made.channels[x] = 6
    with pytest.raises(ModelError, match=r"tensor 'relu_1_0' has values of at most .*: its scale underflows float32; "
                                         "scale the weights in front of it up"):
        calibrated(made.model([(made.conv(made.op("Relu", x), 4), (1, 4, 8, 8))]))


def test_folders_of_pictures(tmp_path: Path) -> None:
    onnx.save(net(lambda weight: None), tmp_path / "n.onnx")

    def build(folder: Path, precision: str = "int8") -> list[str]:
        return list(build_plan(tmp_path / "n.onnx", SPEC, [folder], tmp_path / "n.plan", precision).warnings)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("none here")
    for precision in ("int8", "mixed", "fp32"):
        with pytest.raises(CalibrationError, match=r"empty: holds no pictures \(\.jpeg, \.jpg, \.npy"):
            build(tmp_path / "empty", precision)
    broken = pictures(tmp_path / "broken", 3)
    (broken / "01.png").write_bytes((broken / "01.png").read_bytes()[:40])
    with pytest.raises(CalibrationError, match=r"01\.png: cannot be read as a calibration picture"):
        build(broken)
    (broken / "01.png").unlink()
    (broken / "01.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    with pytest.raises(CalibrationError, match=r"01\.jpg: cannot be read as a calibration picture"):
        build(broken)
    assert any("no pictures are held back" in w for w in build(pictures(tmp_path / "one", 1)))
    assert any("only 2 pictures are held back: the figures are not a gate" in w
               for w in build(pictures(tmp_path / "few", 8)))
