"""Quantised (QDQ) models: symmetric ones to the bit, others within the stated loss, every odd form refused by name."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fp32, imported, onnxruntime_outputs
from models import Net, detector_onnx
from PIL import Image
from qdq import QdqNet, as_int8, compare, opset, quantised, seen
from test_mutations import mutate

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.explain import explain
from orind.kernels.ir.errors import ModelError, UnsupportedModel
from orind.kernels.ir.steps import Convert
from orind.kernels.passes.release_pairs import is_exact, release_pairs
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.imported import loss_of_import
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify

SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "models" / "part-inspect.onnx"


def every_form(seed: int = 0) -> onnx.ModelProto:
    """Convolutions (by channel, by tensor, depthwise, with -128), sums, products, poolings, a dense end; symmetric."""
    net = QdqNet((1, 3, 12, 10), seed)
    x = net.pair(net.input, 1 / 64)
    a = net.pair(net.op("Relu", net.coded_conv(x, 1 / 64, 20)), 0.015)
    b = net.pair(net.coded_conv(a, 0.015, 20, group=20), 0.01)
    c = net.pair(net.op("Relu", net.pair(net.coded_conv(a, 0.015, 20, 1, per_channel=False), 0.015)), 0.012)
    total = net.pair(net.op("Add", b, c), 0.016)
    gate = net.pair(net.op("Sigmoid", total), 1 / 127)
    product = net.pair(net.op("Mul", total, gate), 0.014)
    pooled = net.pair(net.op("MaxPool", product, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4), 0.014)
    joined = net.op("Concat", pooled, b, axis=1)
    net.channels[joined] = 40
    joined = net.pair(joined, 0.013)
    last = net.pair(net.op("Relu", net.coded_conv(joined, 0.013, 17, strides=[2, 2])), 0.03)
    mean = net.pair(net.op("GlobalAveragePool", last), 0.02)
    flat = net.op("Flatten", mean)
    w = net.weight(net.rng.integers(-128, 128, (5, 17)).astype(np.int8), np.full(5, 0.01))
    bias = net.weight(net.rng.integers(-999, 999, 5).astype(np.int32), np.full(5, np.float32(0.02) * np.float32(0.01)))
    return net.model([(net.op("Gemm", flat, w, bias, transB=1), (1, 5))], 13)


@pytest.mark.parametrize("seed", range(3))
def test_symmetric_models_are_whole_numbers_to_the_bit(seed: int) -> None:
    model = every_form(seed)
    runner, constants, scales, facts = as_int8(model)
    assert any((value == -128).any() for name, value in constants.items() if "weight" in name)
    codes = compare(model, runner, seed)
    assert len(codes) == 10 and all(len(np.unique(c)) > 5 for c in codes.values())
    assert facts["weights_kept"] == 5 and not facts["weights_coded_again"] and not facts["scales_coded_again"]
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


def residual_in_float(shortcut: bool) -> onnx.ModelProto:
    """As tools for TensorRT write it: pairs in front of convolutions only."""
    net = QdqNet((1, 3, 8, 8))
    x = net.op("Relu", net.coded_conv(net.pair(net.input, 0.02), 0.02, 6))
    coded = net.pair(x, 0.2)
    y = net.op("Relu", net.coded_conv(coded, 0.2, 6))
    y = net.coded_conv(net.pair(y, 0.3), 0.3, 6)
    if shortcut:
        y = net.op("Add", y, net.op("MaxPool", net.coded_conv(coded, 0.2, 6, 1), kernel_shape=[1, 1]))
        net.channels[y] = 6
    else:
        y = net.op("Add", y, x)
        net.channels[y] = 6
    return net.model([(net.coded_conv(net.pair(net.op("Relu", y), 0.5), 0.5, 2), (1, 2, 8, 8))])


def test_a_residual_that_the_file_keeps_in_float_is_read_as_codes() -> None:
    runner, _, scales, _ = as_int8(residual_in_float(False))
    assert [n.op for n in scales.graph.nodes] == ["Conv"] * 4
    assert not any(isinstance(step, Convert) for step in runner.program.steps)


def test_a_tensor_without_a_scale_needs_pictures() -> None:
    with pytest.raises(UnsupportedModel, match=r"leaves 1 tensors in float .*\(conv_\d+_0\): give --calibrate"):
        as_int8(residual_in_float(True))


def pair(net: Net, *values: Any, **attrs: Any) -> onnx.ModelProto:
    names = [net.constant(np.asarray(v)) for v in values]
    y = net.op("DequantizeLinear", net.op("QuantizeLinear", net.input, *names, **attrs), *names, **attrs)
    return unchecked(net, net.op("Relu", y))


def unchecked(net: Net, y: str, opset_version: int = 21) -> onnx.ModelProto:
    ends = [[onnx.helper.make_tensor_value_info(name, 1, shape)] for name, shape in ((net.input, net.shape), (y, None))]
    graph = onnx.helper.make_graph(net.nodes, "g", *ends, net.weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset_version)], ir_version=10)


def computed(net: Net) -> onnx.ModelProto:
    scale = net.op("ReduceMax", net.op("Abs", net.input))
    return unchecked(net, net.op("DequantizeLinear", net.op("QuantizeLinear", net.input, scale), scale))


def between(net: Net, op: str, **attrs: Any) -> onnx.ModelProto:
    s = net.constant(np.float32(0.1))
    q = net.op("QuantizeLinear", net.input, s)
    return unchecked(net, net.op("DequantizeLinear", net.op(op, q, **attrs), s))


def lone(net: Net, op: str) -> onnx.ModelProto:
    return unchecked(net, net.op(op, net.input, net.constant(np.float32(0.1))))


def two(net: Net) -> onnx.ModelProto:
    a, b = (net.constant(np.float32(v)) for v in (0.1, 0.2))
    return unchecked(net, net.op("DequantizeLinear", net.op("QuantizeLinear", net.input, a), b))


F4 = np.float32
REFUSED: list[tuple[Any, str]] = [
    (lambda n: pair(n, F4(0.1), np.int16(0)), r"\(QuantizeLinear\): makes codes of the type int16; quantise it with"),
    (lambda n: pair(n, np.full(3, 0.1, F4), np.zeros(3, np.int8), axis=1), "has 3 scales on a computed tensor"),
    (lambda n: pair(n, np.full(5, 0.1, F4), axis=1), r"\(5,\) scales do not fit axis 1"),
    (lambda n: pair(n, np.full((1, 3, 3, 6), 0.1, F4), axis=2, block_size=2), "has scales for blocks of 2"),
    (lambda n: pair(n, F4(0)), "must be float32, finite and above 0"),
    (lambda n: pair(n, F4(np.nan)), "must be float32, finite and above 0"),
    (lambda n: pair(n, F4(1e-42)), "underflows"),
    (lambda n: pair(n, F4(0.1), np.zeros(2, np.int8)), "2 zero points for 1 scales"),
    (computed, "scale is computed at run time; quantise it with static"),
    (lambda n: between(n, "Relu"), r"\(Relu\): computes with integer codes; quantise the model statically in the QDQ"),
    (two, r"its scale 0.2 and zero point 0 differ from those of the QuantizeLinear before it \(0.1, 0\)"),
    (lambda n: lone(n, "QuantizeLinear"), "graph output '.*' is integer codes; end the model with a DequantizeLinear"),
    (lambda n: lone(n, "DequantizeLinear"), r"its codes 'x' \(float32\) come from no QuantizeLinear"),
    (lambda n: unchecked(n, n.op("QLinearConv", *[n.input] * 8)), r"\(QLinearConv\): this .* QDQ format"),
    (lambda n: unchecked(n, n.op("QLinearAdd", *[n.input] * 8, domain="com.microsoft")),
     r"domain 'com.microsoft'; export with standard operators only; quantise the model statically in the QDQ format"),
    (lambda n: unchecked(n, n.op("DynamicQuantizeLinear", n.input)), r"\(DynamicQuantizeLinear\): this .* QDQ format"),
]


@pytest.mark.parametrize(("make", "text"), REFUSED, ids=[text[:24] for _, text in REFUSED])
def test_refused(make: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        fp32(make(QdqNet((1, 3, 6, 6), name="x")))
    assert str(caught.value).startswith("test.onnx")


def test_a_pair_that_cuts_off_above_zero() -> None:
    net = QdqNet((1, 3, 6, 6))
    y = net.pair(net.coded_conv(net.pair(net.input, 0.02), 0.02, 4), 0.05, 255, np.uint8)
    graph, ranges = release_pairs(imported(net.model([(net.coded_conv(y, 0.05, 2), (1, 2, 6, 6))])))
    clip = next(n for n in graph.nodes if n.op == "Clip")
    assert [float(graph.constants[name]) for name in clip.inputs[1:]] == [-12.75, 0.0]
    assert ranges[clip.output] == (-255 * float(np.float32(0.05)), 0.0)


def test_scales_that_contradict_each_other() -> None:
    """A tensor and its pooled form share memory; the Concats that they go into have other scales."""
    net = QdqNet((1, 3, 6, 6))
    x = net.pair(net.input, 0.02)
    soft = net.pair(net.coded_conv(x, 0.02, 4), 0.05, 3)
    other = net.pair(net.coded_conv(x, 0.02, 4), 0.05)
    pooled = net.op("MaxPool", soft, kernel_shape=[1, 1])
    ends = []
    for part, scale in ((pooled, 0.056), (soft, 0.058)):
        joined = net.pair(net.concat(part, other), scale)
        ends.append((net.coded_conv(joined, scale, 2), (1, 2, 6, 6)))
    with pytest.raises(UnsupportedModel, match=r"in the file, but shares memory with one of scale .*: quantise all"):
        as_int8(net.model(ends))


def test_mutated_quantised_models_are_refused_or_built() -> None:
    built = 0
    for seed in range(20):
        rng = random.Random(seed)
        model = every_form()
        for _ in range(rng.choice((1, 1, 2))):
            mutate(model, rng)
        try:
            as_int8(model)
            built += 1
        except ModelError as error:
            assert str(error).startswith("test.onnx") and len(str(error)) > 30
    assert 0 < built < 20


def test_codes_may_be_moved_between_the_nodes_of_a_pair() -> None:
    net = QdqNet((1, 3, 6, 6), name="x")
    s = net.constant(np.float32(0.1))
    q = net.op("Transpose", net.op("MaxPool", net.op("QuantizeLinear", net.input, s, net.constant(np.int8(0))),
                                   kernel_shape=[2, 2]), perm=[0, 1, 3, 2])
    y = net.op("DequantizeLinear", q, s, net.constant(np.int8(0)))
    graph = imported(unchecked(net, y))
    assert [n.op for n in graph.nodes] == ["FakeQuantise", "MaxPool", "Transpose", "Identity"]


def test_every_problem_of_a_quantised_model_is_listed(tmp_path: Path) -> None:
    net = QdqNet((1, 3, 6, 6), name="x")
    scale, odd = net.constant(np.float32(0.1)), net.constant(np.int16(0))
    codes = net.op("Relu", net.op("QuantizeLinear", net.input, scale))
    wide = net.op("QuantizeLinear", net.input, scale, odd)
    onnx.save(unchecked(net, net.op("Add", net.op("QLinearMatMul", codes, wide), net.input)), tmp_path / "m.onnx")
    found = explain(tmp_path / "m.onnx")
    assert [p.split("(")[1].split(")")[0] for p in found.problems] == ["Relu", "QuantizeLinear", "QLinearMatMul"]


def test_a_sound_quantised_model_is_explained(tmp_path: Path) -> None:
    for name, model, text in (("a", every_form(), "12 scales kept, 0 coded again; INT8 needs no pictures"),
                              ("b", residual_in_float(True), "quantised already; the file leaves 1 tensors in float")):
        onnx.save(model, tmp_path / f"{name}.onnx")
        found = explain(tmp_path / f"{name}.onnx")
        assert found.problems == () and re.search(text, found.summary), found.summary


SPEC = ModelSpec("quantised", "regress", (), (1, 2), InputSpec(), DecoderSpec("none"))


def test_builds_of_a_quantised_model(tmp_path: Path) -> None:
    """No pictures are needed; given, they judge, and calibrate only what the file leaves in float."""
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for i in range(8):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "pictures" / f"{i}.png")
    for name, model in (("whole", every_form()), ("parts", residual_in_float(True))):
        onnx.save(model, tmp_path / f"{name}.onnx")
    lines: list[str] = []
    out = tmp_path / "a.plan"
    result = build_plan(tmp_path / "whole.onnx", SPEC, [], out, "int8", lines.append)
    assert result.report["calibration"]["scales_kept"] == 12 and result.report["quantised_by_file"]
    assert "scales are those of the quantised model" in lines and verify(out, tmp_path / "whole.onnx").ok
    judged = build_plan(tmp_path / "whole.onnx", SPEC, [tmp_path / "pictures"], out, "mixed", lines.append)
    assert judged.report["gate"]["sqnr_db"] > 30 and judged.report["mixed"]["layers"] == []
    assert "scales are those of the quantised model: pictures only judge them" in lines
    half = build_plan(tmp_path / "whole.onnx", SPEC, [], out, "fp16")
    assert any("rounding of activations is left out" in warning for warning in half.warnings)
    parts = build_plan(tmp_path / "parts.onnx", SPEC, [tmp_path / "pictures"], out, "int8", accept_loss=True)
    assert parts.report["calibration"]["scales_calibrated"] == 1
    assert any("1 tensors that the file leaves in float were calibrated" in warning for warning in parts.warnings)
    whole = build_plan(tmp_path / "whole.onnx", None, [], out, "fp32")
    assert "calibration" not in whole.report and verify(out, tmp_path / "whole.onnx").ok


def test_a_quantised_model_needs_no_spec(tmp_path: Path) -> None:
    """Its input is then the model's own float tensor, coded behind the input under the file's scale."""
    model = every_form()
    onnx.save(model, tmp_path / "m.onnx")
    result = build_plan(tmp_path / "m.onnx", None, [], tmp_path / "m.plan", "int8")
    assert result.report["calibration"]["input"]["dtype"] == "float32"
    runner, *_ = as_int8(model)
    with PlanFile.open_path(tmp_path / "m.plan") as plan, CpuExecutor(plan, 1) as executor:
        assert all(tensor.exact for tensor in executor.program.tensors.values())
        values = np.random.default_rng(0).normal(0, 1, executor.input[0].shape).astype(np.float32)
        runner.input[0] = np.clip(np.rint(values * 64), -128, 127)
        executor.input[0] = values
        assert np.array_equal(executor.run()[0], runner.run()[0])
