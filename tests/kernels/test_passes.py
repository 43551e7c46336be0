"""Each pass alone: the graph gives the same numbers before and after, and the nodes it is for are gone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fp32, imported, onnxruntime_outputs
from models import Net, detector_onnx

from orind.kernels.ir.graph import Graph
from orind.kernels.ir.reference import run_graph
from orind.kernels.passes.absorb_input_cast import absorb_input_cast
from orind.kernels.passes.absorb_input_transpose import absorb_input_transpose
from orind.kernels.passes.absorb_pads import absorb_pads
from orind.kernels.passes.dense_as_convolution import dense_as_convolution
from orind.kernels.passes.fold_batchnorm import fold_batchnorm
from orind.kernels.passes.fold_constants import fold_constants
from orind.kernels.passes.fold_input_scales import fold_input_scales
from orind.kernels.passes.fuse_convolutions import fuse_convolutions
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.passes.recognise_activations import recognise_activations
from orind.kernels.passes.remove_dead import remove_dead
from orind.kernels.passes.rows_as_images import rows_as_images


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def same(before: Graph, after: Graph, limit: float = 1e-5) -> Graph:
    x = np.random.default_rng(1).normal(0, 1, before.inputs[0].shape).astype(np.float32)
    y = x if before.inputs[0].shape == after.inputs[0].shape else x.transpose(0, 3, 1, 2)
    want, got = run_graph(before, {before.inputs[0].name: x}), run_graph(after, {after.inputs[0].name: y})
    for name in before.outputs:
        assert np.abs(want[name] - got[name]).max() <= limit * max(np.abs(want[name]).max(), 1e-3)
    return after


def test_fold_batchnorm_behind_a_convolution_and_alone() -> None:
    net = Net((1, 3, 6, 6))
    x = net.norm(net.op("Relu", net.norm(net.conv(net.input, 5))))
    before = imported(net.model([(x, (1, 5, 6, 6))]))
    after = same(before, fold_batchnorm(before))
    assert ops(after) == ["Conv", "Relu", "Conv"]
    assert after.nodes[2].attrs["group"] == 5


def test_fold_batchnorm_twice() -> None:
    net = Net((1, 3, 6, 6))
    before = imported(net.model([(net.norm(net.norm(net.norm(net.conv(net.input, 5, bias=False)))), (1, 5, 6, 6))]))
    assert ops(same(before, remove_dead(fold_batchnorm(before)))) == ["Conv"]


def test_fold_input_scales() -> None:
    """x / 255 / std in front of two convolutions, one with groups; not behind one, nor where factors differ much."""
    net = Net((1, 4, 6, 6))
    deviation = net.constant(np.array([0.2, 0.25, 0.3, 0.22], dtype=np.float32).reshape(1, 4, 1, 1))
    x = net.op("Div", net.op("Div", net.input, net.constant(np.float32(255))), deviation)
    net.channels[x] = 4
    first, second = net.conv(x, 6, 3), net.conv(x, 6, 3, group=2)
    y = net.op("Add", first, net.op("Mul", second, net.constant(np.float32(3))))
    net.channels[y] = 6
    odd = net.op("Mul", net.op("Relu", y), net.constant(np.array([1, 9, 1, 1, 1, 1], "f4").reshape(1, 6, 1, 1)))
    net.channels[odd] = 6
    before = imported(net.model([(net.conv(odd, 2), (1, 2, 6, 6))]))
    assert ops(same(before, fold_input_scales(before))) == ["Conv", "Conv", "Mul", "Add", "Relu", "Mul", "Conv"]


def test_recognise_activations_keeps_a_sigmoid_that_others_read() -> None:
    net = Net((1, 3, 4, 4))
    gate = net.op("Sigmoid", net.input)
    before = imported(net.model([(net.op("Mul", gate, net.input), (1, 3, 4, 4)), (net.silu(gate), (1, 3, 4, 4))]))
    after = same(before, recognise_activations(before))
    assert ops(after) == ["Sigmoid", "SiLU", "SiLU"]


def test_absorb_pads_but_not_in_front_of_a_pool() -> None:
    net = Net((1, 3, 6, 6))
    padded = net.op("Pad", net.input, net.constant(np.array([0, 0, 1, 2, 0, 0, 0, 1])))
    net.channels[padded] = 3
    pool = net.op("MaxPool", padded, kernel_shape=[2, 2], strides=[1, 1])
    zeros = net.constant(np.zeros((1, 2, 6, 8), dtype=np.float32))
    wide = net.op("Concat", pool, zeros, axis=1)
    before = imported(net.model([(net.conv(padded, 4, 3, pads=[0] * 4), (1, 4, 5, 7)), (wide, (1, 5, 6, 8))]))
    after = same(before, remove_dead(absorb_pads(before)))
    assert sorted(ops(after)) == ["Conv", "MaxPool", "Pad", "Pad"]
    conv = next(n for n in after.nodes if n.op == "Conv")
    assert conv.inputs[0] == "images" and conv.attrs["pads"] == (1, 2, 0, 1)


def test_dense_as_convolution() -> None:
    net = Net((1, 3, 4, 5))
    w = [net.constant(net.rng.normal(0, 1, s).astype(np.float32)) for s in ((7, 60), (7, 6), (6,))]
    x = net.op("Relu", net.op("Gemm", net.op("Flatten", net.input), w[0], transB=1, alpha=0.5))
    before = imported(net.model([(net.op("Gemm", x, w[1], w[2], beta=2.0), (1, 6))]))
    after = same(before, remove_dead(dense_as_convolution(before)), 1e-4)
    assert ops(after) == ["Conv", "Relu", "Conv", "Reshape"]
    assert after.constants[after.nodes[0].inputs[1]].shape == (7, 3, 4, 5)


def test_fuse_makes_only_the_forms_of_the_contract() -> None:
    net = Net((1, 6, 5, 5))
    a = net.op("Relu", net.op("Add", net.input, net.conv(net.input, 6)))       # plain + residual + bound
    b = net.op("Add", net.silu(net.conv(a, 6)), a)                             # table + residual
    c = net.op("Add", net.op("Relu", net.conv(b, 6)), b)                       # not a form: the bound comes first
    d = net.silu(net.op("Add", c, net.conv(c, 6)))                             # activation after the sum stays apart
    before = prepare(imported(net.model([(net.op("Relu", net.conv(d, 2)), (1, 2, 5, 5))])))
    after = same(before, fuse_convolutions(before))
    assert ops(after) == ["Conv", "Conv", "Conv", "Add", "Conv", "SiLU", "Conv", "Relu"]
    first, second, third, _, fourth, *_ = after.nodes
    assert len(first.inputs) == 4 and first.attrs["bounds"] == (0.0, None)
    assert len(second.inputs) == 4 and second.attrs["activation"] == "SiLU" and "bounds" not in second.attrs
    assert len(third.inputs) == 3 and third.attrs["bounds"] == (0.0, None)
    assert len(fourth.inputs) == 4 and "bounds" not in fourth.attrs


def test_fusion_takes_the_later_of_two_convolutions() -> None:
    net = Net((1, 4, 5, 5))
    early, late = net.conv(net.input, 4), net.conv(net.input, 4, 1)
    before = prepare(imported(net.model([(net.conv(net.op("Add", late, early), 3), (1, 3, 5, 5))])))
    after = same(before, fuse_convolutions(before))
    assert ops(after) == ["Conv", "Conv", "Conv"] and after.nodes[1].inputs[3] == early


def test_absorb_input_transpose() -> None:
    net = Net((1, 5, 6, 3))
    x = net.op("Transpose", net.input, perm=[0, 3, 1, 2])
    before = imported(net.model([(net.op("Relu", x), (1, 3, 5, 6))]))
    after = same(before, absorb_input_transpose(before))
    assert ops(after) == ["Relu"] and after.inputs[0].shape == (1, 3, 5, 6) and after.input_layout == "nhwc"


def test_absorb_input_transpose_behind_arithmetic() -> None:
    """TensorFlow's exporters normalise in NHWC, in front of the Transpose; what is not constant stays as it is."""
    net = Net((1, 5, 6, 3))
    by_channel = net.constant(np.array([[[[0.5, 1.5, -2.0]]]], dtype=np.float32))
    half = net.constant(np.array(0.5, dtype=np.float32))
    x = net.op("Clip", net.op("Sub", half, net.op("Mul", net.input, by_channel)), "", half)
    before = imported(net.model([(net.op("Relu", net.op("Transpose", x, perm=[0, 3, 1, 2])), (1, 3, 5, 6))]))
    after = same(before, absorb_input_transpose(before))
    assert ops(after) == ["Mul", "Sub", "Clip", "Relu"] and after.input_layout == "nhwc"
    net = Net((1, 5, 6, 3))
    by_column = net.constant(np.ones((6, 1), dtype=np.float32))
    x = net.op("Mul", net.input, by_column)
    before = imported(net.model([(net.op("Transpose", x, perm=[0, 3, 1, 2]), (1, 3, 5, 6))]))
    assert absorb_input_transpose(before) is before


def test_a_constant_that_widens_the_input_keeps_its_shape() -> None:
    """One grey channel less three means: the input stays (1, 8, 8, 1), and the program computes what the model says."""
    net = Net((1, 8, 8, 1))
    means = net.constant(np.array([0.1, -0.4, 2.0], dtype=np.float32))
    x = net.op("Transpose", net.op("Sub", net.input, means), perm=[0, 3, 1, 2])
    net.channels[x] = 3
    model = net.model([(net.conv(x, 4), (1, 4, 8, 8))])
    before = imported(model)
    assert absorb_input_transpose(before) is before
    runner, _ = fp32(model)
    x = np.random.default_rng(0).normal(0, 1, (1, 8, 8, 1)).astype(np.float32)
    runner.input[0] = x[0].transpose(1, 2, 0)                     # (H, W, C) of what the file calls (C, H, W)
    want = onnxruntime_outputs(model, x)[0]
    assert np.abs(runner.run()[0].reshape(want.shape) - want).max() <= 1e-5 * np.abs(want).max()


def test_absorb_input_cast() -> None:
    net = Net((1, 3, 5, 6), dtype=onnx.TensorProto.UINT8)
    x = net.op("Cast", net.input, to=onnx.TensorProto.FLOAT)
    net.channels[x] = 3
    before = imported(net.model([(net.conv(x, 4), (1, 4, 5, 6))]))
    after = absorb_input_cast(before)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 5, 6), dtype=np.uint8)
    want, got = (run_graph(g, {"images": pixels})[before.outputs[0]] for g in (before, after))
    assert ops(after) == ["Conv"] and np.array_equal(want, got)


def test_fold_constants_and_remove_dead() -> None:
    net = Net((1, 3, 4, 4))
    net.op("Relu", net.input)                                                   # nobody reads it
    x = net.op("Identity", net.op("Dropout", net.input))
    before = imported(net.model([(net.op("Neg", x), (1, 3, 4, 4))]))
    extra = before.rebuilt([before.nodes[0].__class__("sum", "Add", ("c", "c"), ("d",)), *before.nodes],
                           constants={"c": np.ones(2, dtype=np.float32)})
    folded = fold_constants(extra)
    assert np.array_equal(folded.constants["d"], [2, 2])
    assert ops(same(before, remove_dead(folded))) == ["Neg"] and not remove_dead(folded).constants


@pytest.mark.parametrize("make", [lambda: detector_onnx(32), lambda: detector_onnx(64, (8, 16, 32, 64), 3, 5)])
def test_whole_pipeline(make: Callable[[], Any]) -> None:
    model: onnx.ModelProto = make()
    before = imported(model)
    prepared = same(before, prepare(before), 1e-4)
    same(before, fuse(prepared), 1e-4)
    assert len(before.nodes) > len(prepared.nodes) > len(fuse(prepared).nodes)


def test_a_chain_of_rows_stays_one_image() -> None:
    """Normalisation, activation and sum between 1-D convolutions are those of images: no rows in between."""
    net = Net((1, 6, 40), 2)

    def conv(x: str, k: int) -> str:
        weight = net.constant(net.rng.normal(0, 0.3, (6, 6, k)).astype(np.float32))
        y = net.op("Conv", x, weight, net.constant(net.rng.normal(0, 0.3, 6).astype(np.float32)), pads=[k // 2] * 2)
        return str(y)
    x = net.op("Relu", net.norm(conv(net.input, 3)))
    y = net.op("Add", net.op("Clip", net.norm(conv(x, 5)), net.constant(np.float32(-1))), x)
    before = imported(net.model([(conv(net.op("Relu", y), 1), (1, 6, 40))]))
    after = same(before, rows_as_images(before))
    assert [n.op for n in after.nodes if n.op != "Reshape"] == [n.op for n in before.nodes]
    assert ops(after)[0] == ops(after)[-1] == "Reshape" and ops(after).count("Reshape") == 2
    assert ops(same(before, fuse(prepare(before)))) == ["Reshape", "Conv", "Conv", "Add", "Relu", "Conv", "Reshape"]
