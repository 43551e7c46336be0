"""Element-wise operators on the graph input itself, whose channels come from outside without padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import fill, fp32, int8, onnxruntime_outputs
from judge import Judge
from models import Net
from PIL import Image
from test_half import fp16

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.ir.steps import Copy, RequantiseI8
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.scales import InputCode
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify

SIZE = (10, 9)


def against_mean(net: Net, x: str) -> str:
    mean = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    return str(net.op("Sub", x, mean))


def gated(net: Net, x: str) -> str:
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", net.conv(x, 8)), 3, 1))
    return str(net.op("Mul", gate, x))


def added(net: Net, x: str) -> str:
    return str(net.op("Add", x, net.conv(x, 3)))


def behind_an_activation(net: Net, x: str) -> str:
    return str(net.op("Add", net.silu(net.conv(x, 3)), x))


def doubled(net: Net, x: str) -> str:
    return str(net.op("Add", x, x))


def split(net: Net, x: str) -> str:
    """The input's channels are cut, and pooled as a whole."""
    a, b = net.op("Split", x, net.constant(np.array([1, 2])), outputs=2, axis=1)
    net.channels[a], net.channels[b] = 1, 2
    pooled = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    net.channels[pooled] = 3
    joined = net.concat(net.op("Mul", a, net.conv(x, 1)), net.op("Sub", b, net.conv(x, 2)))
    net.channels[joined] = 3
    return str(net.op("Add", joined, net.conv(pooled, 3)))


def pooled_and_cut(net: Net, x: str) -> str:
    """Nothing but the pooled form is cut: the cut reaches the input through it."""
    pooled = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    a, b = net.op("Split", pooled, net.constant(np.array([2, 1])), outputs=2, axis=1)
    net.channels[a], net.channels[b] = 2, 1
    return net.concat(net.conv(b, 5), net.op("Relu", a))


def beside_features(net: Net, x: str) -> str:
    """As U-Nets end: the picture beside features of a far larger range, which its scale would cut off."""
    pooled = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    net.channels[pooled] = 3
    wide = net.op("Relu", net.conv(x, 6, gain=20))
    net.channels[wide] = 6
    return net.concat(pooled, wide, x)


FORMS = [against_mean, gated, added, behind_an_activation, doubled, split, pooled_and_cut, beside_features]
Form = Callable[[Net, str], str]


def model_of(form: Form) -> onnx.ModelProto:
    net = Net((1, 3, *SIZE), 5)
    x = form(net, net.input)
    net.channels[x] = net.channels[x] or 3
    return net.model([(net.conv(x, 5), (1, 5, *SIZE))])


@pytest.mark.parametrize("form", FORMS)
def test_float_programs(form: Form) -> None:
    model = model_of(form)
    runner, _ = fp32(model)
    fill(runner)
    x = np.ascontiguousarray(runner.input[0].transpose(2, 0, 1))[None]
    want, got = onnxruntime_outputs(model, x)[0], runner.run()[0]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    half, _ = fp16(model)
    fill(half)
    assert np.abs(half.run()[0] - want).max() <= 0.02 * np.abs(want).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integer_programs(form: Form, dtype: str) -> None:
    """To the bit what the judge says, and near what the model says."""
    model = model_of(form)
    code = InputCode(dtype, float(np.float32(1 / (127 if dtype == "int8" else 255))))
    runner, constants = int8(model, code=code, frames=4)
    fill(runner)
    x = np.ascontiguousarray(runner.input[0].transpose(2, 0, 1))[None] * np.float32(code.scale)
    assert Judge(runner, constants).run() > 500
    want, got = onnxruntime_outputs(model, x)[0], runner.outputs[0]
    assert 10 * np.log10((want ** 2).sum() / ((got - want) ** 2).sum()) > 25
    kinds = {type(step) for step in runner.program.steps}
    signed = any(name.endswith("@signed") for name in runner.program.tensors)
    assert signed is (dtype == "uint8" and form not in (pooled_and_cut, beside_features))
    assert RequantiseI8 in kinds if signed or form is beside_features else Copy in kinds


@pytest.mark.parametrize("pixels", [False, True])
def test_from_file_to_plan(pixels: bool, tmp_path: Path) -> None:
    """Tensors that come in float32, and pixels that INT8 reads as uint8."""
    rng = np.random.default_rng(0)
    (tmp_path / "frames").mkdir()
    for i in range(8):
        if pixels:
            Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(tmp_path / "frames" / f"{i}.png")
        else:
            np.save(tmp_path / "frames" / f"{i}.npy", rng.random((3, *SIZE), dtype=np.float32))
    onnx.save(model_of(against_mean), tmp_path / "m.onnx")
    spec = ModelSpec("m", "regress", (), (1,), InputSpec(), DecoderSpec("none")) if pixels else \
        ModelSpec.for_tensor("m")
    for precision in ("fp32", "int8", "mixed", "fp16"):
        build_plan(tmp_path / "m.onnx", spec, [tmp_path / "frames"], tmp_path / "m.plan", precision, accept_loss=True)
        assert verify(tmp_path / "m.plan", tmp_path / "m.onnx", "onnxruntime").ok
        with PlanFile.open_path(tmp_path / "m.plan") as plan, CpuExecutor(plan) as executor:
            signed = any(name.endswith("@signed") for name in executor.program.tensors)
            assert signed is (pixels and precision in ("int8", "mixed"))
