"""Quantised (QDQ) models: symmetric ones to the bit, others within the stated loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from compiled import fp32, imported, onnxruntime_outputs
from models import detector_onnx
from qdq import QdqNet, as_int8, compare, opset, quantised, seen
from qdq_forms import every_form, residual_in_float

from orind.kernels.ir.errors import UnsupportedModel
from orind.kernels.ir.steps import Convert
from orind.kernels.passes.release_pairs import is_exact, release_pairs
from orind.kernels.quant.imported import loss_of_import

SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "models" / "part-inspect.onnx"


@pytest.mark.parametrize("seed", range(3))
def test_symmetric_models_are_whole_numbers_to_the_bit(seed: int) -> None:
    model = every_form(seed)
    runner, constants, scales, facts = as_int8(model)
    assert any((value == -128).any() for name, value in constants.items() if "weight" in name)
    codes = compare(model, runner, seed)
    assert len(codes) == 11 and {"relu_48_0", "relu_63_0"} <= set(codes)             # of rows and of tokens
    assert all(len(np.unique(c)) > 5 for c in codes.values())
    assert facts["weights_kept"] == 9 and not facts["weights_coded_again"] and not facts["scales_coded_again"]
    assert scales.input.dtype == "int8" and scales.input.scale == 1 / 64 and loss_of_import(facts) == ""


def test_the_end_is_float_of_the_last_sum() -> None:
    model = every_form()
    runner, *_ = as_int8(model)
    runner.input[0] = np.random.default_rng(3).integers(-128, 128, runner.input[0].shape)
    codes = seen(runner)
    mean = next(value for name, value in codes.items() if value.shape == (1, 1, 17)).astype(np.int64).reshape(-1)
    weight, bias = (onnx.numpy_helper.to_array(w).astype(np.int64) for w in model.graph.initializer
                    if list(w.dims) in ([5, 17], [5]) and w.data_type != 1)
    worth = np.float32(float(np.float32(0.02)) * float(np.float32(0.01)))
    want = (weight @ mean + bias).astype(np.float32) * worth
    assert np.array_equal(runner.outputs[0][0].reshape(-1), want)


@pytest.mark.parametrize("version", [13, 19, 21])
def test_every_opset_reads_the_same(version: int) -> None:
    a, b = (as_int8(m)[0] for m in (every_form(), opset(every_form(), version)))
    a.input[...] = b.input[...] = np.random.default_rng(0).integers(-128, 128, a.input.shape)
    assert all(np.array_equal(x, y) for x, y in zip(a.run(), b.run(), strict=True))


def test_opset_10_has_one_scale_a_tensor() -> None:
    net = QdqNet((1, 3, 6, 6))
    x = net.pair(net.input, 0.02)
    y = net.pair(net.coded_conv(x, 0.02, 4, per_channel=False), 0.3)
    model = net.model([(net.coded_conv(y, 0.3, 2, per_channel=False), (1, 2, 6, 6))], 10)
    assert len(compare(model, as_int8(model)[0])) == 1


def test_detector_of_onnxruntime_symmetric(tmp_path: Path) -> None:
    """The shipped detector, quantised by others: every code of the body is the file's own arithmetic."""
    rng = np.random.default_rng(0)
    frames = [rng.random((1, 3, 256, 256), dtype=np.float32)]
    model = quantised(SHIPPED, tmp_path, frames, symmetric=True, per_channel=True)
    runner, _, _, facts = as_int8(model)
    assert len(compare(model, runner)) > 85
    assert facts["weights_kept"] == 32 and loss_of_import(facts) == ""


def test_other_zero_points_are_coded_again(tmp_path: Path) -> None:
    """onnxruntime's defaults with uint8 weights: within the loss that is told, nearer to the file than 20 dB."""
    rng = np.random.default_rng(0)
    source = detector_onnx(64, (8, 16, 24, 32))
    frames = [rng.random((1, 3, 64, 64), dtype=np.float32) for _ in range(3)]
    tail = [n.name for n in source.graph.node if n.op_type in ("Reshape", "Slice", "Softplus", "Sub", "Add", "Div")]
    from onnxruntime.quantization import QuantType
    model = quantised(source, tmp_path, frames, False, tail, activation_type=QuantType.QUInt8,
                      weight_type=QuantType.QUInt8)
    runner, _, scales, facts = as_int8(model)
    assert scales.input.dtype == "uint8"                  # zero point 0: the file's own code
    want, _ = fp32(model)
    want.input[0] = runner.input[0] = rng.integers(0, 256, runner.input[0].shape)
    want.input[0] *= np.float32(scales.input.scale)
    a, b = want.run()[0].astype(np.float64), runner.run()[0].astype(np.float64)
    assert 10 * np.log10((a ** 2).sum() / ((a - b) ** 2).sum()) > 20
    told = loss_of_import(facts)
    assert facts["scales_kept"] == 0 and "in steps up to" in told and 1.9 < facts["coarsest_step"] < 8
    assert "layers are coded again (least SQNR" in told and facts["least_weight_sqnr_db"] > 35
    assert "SiLU" in [n.attrs.get("activation") for n in scales.graph.nodes]


def test_uint8_weights_that_int8_holds_are_kept() -> None:
    net = QdqNet((1, 3, 6, 6))
    x = net.pair(net.input, 0.02)
    codes = net.rng.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
    codes.flat[0] = 0
    y = net.op("Conv", x, net.weight(codes, np.array(0.01), np.array(128, dtype=np.uint8)), pads=[1] * 4)
    _, constants, _, facts = as_int8(net.model([(y, (1, 4, 6, 6))]))
    assert facts["weights_kept"] == 1 and constants["Conv_3/weight"].min() == -128


def test_weights_that_the_graph_quantises_and_weights_of_four_bits() -> None:
    """PyTorch leaves float weights in front of a pair; int4 codes come packed."""
    net = QdqNet((1, 3, 6, 6))
    x = net.pair(net.input, 0.02)
    weight = net.rng.normal(0, 0.4, (4, 3, 3, 3)).astype(np.float32)
    scale = np.array([0.004, 0.005, 0.006, 0.007], dtype=np.float32)
    names = [net.constant(v) for v in (scale, np.zeros(4, dtype=np.int8))]
    w = net.op("DequantizeLinear", net.op("QuantizeLinear", net.constant(weight), *names, axis=0), *names, axis=0)
    y = net.op("Relu", net.op("Conv", x, w, pads=[1] * 4))
    net.channels[y] = 4
    y = net.pair(y, 0.03)
    small = onnx.helper.make_tensor("small", onnx.TensorProto.INT4, [2, 4, 1, 1], [-8, 7, 0, 3, 1, -1, 5, -4])
    net.weights.append(small)
    y = net.op("Conv", y, net.op("DequantizeLinear", "small", net.constant(np.float32(0.1))))
    _, constants, _, facts = as_int8(net.model([(y, (1, 2, 6, 6))], 21))
    first, last = (constants[f"{node.name}/weight"] for node in net.nodes if node.op_type == "Conv")
    want = np.clip(np.rint(weight / scale[:, None, None, None]), -128, 127)
    assert facts["weights_kept"] == 2 and sorted(first[first != 0]) == sorted(want[want != 0].astype(np.int8))
    assert sorted(last[last != 0]) == [-8, -4, -1, 1, 3, 5, 7]


def test_a_relu_that_the_quantiser_dropped_stays() -> None:
    """uint8 with zero point 0 cuts off at 0: in INT8 too, and where FP16 leaves the rounding out."""
    net = QdqNet((1, 3, 6, 6))
    x = net.pair(net.input, 0.02)
    y = net.pair(net.coded_conv(x, 0.02, 4), 0.05, 0, np.uint8)
    model = net.model([(net.coded_conv(y, 0.05, 2), (1, 2, 6, 6))])
    runner, *_ = as_int8(model)
    runner.input[0] = np.random.default_rng(0).integers(-128, 128, runner.input[0].shape)
    low = [value.min() for name, value in seen(runner).items() if name != "images"]
    assert low == [0]
    for keep in (is_exact, lambda node: False):
        graph, ranges = release_pairs(imported(model), keep)
        assert [n.op for n in graph.nodes if n.op == "Clip"] == ["Clip"]
        assert (0.0, 255 * float(np.float32(0.05))) in ranges.values()


def test_fp32_is_what_the_file_says(tmp_path: Path) -> None:
    """Fake quantisation in float: equal to ONNX Runtime but where the last bit of a sum decides a rounding."""
    model = every_form()
    runner, _ = fp32(model)
    runner.input[0] = np.random.default_rng(1).uniform(-2, 2, runner.input[0].shape)
    x = runner.input[0].copy()
    got = runner.run()[0][0]
    want = onnxruntime_outputs(model, np.ascontiguousarray(x.transpose(2, 0, 1))[None])[0][0]
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()


def test_a_residual_that_the_file_keeps_in_float_is_read_as_codes() -> None:
    runner, _, scales, _ = as_int8(residual_in_float(False))
    assert [n.op for n in scales.graph.nodes] == ["Conv"] * 4
    assert not any(isinstance(step, Convert) for step in runner.program.steps)


def test_a_tensor_without_a_scale_needs_pictures() -> None:
    with pytest.raises(UnsupportedModel, match=r"leaves 1 tensors in float .*\(conv_\d+_0\): give --calibrate"):
        as_int8(residual_in_float(True))
