"""The range of a pair's codes as the clip that it is: kept at every precision and in the gate's reference; no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import bound, imported, onnxruntime_outputs
from numpy.typing import NDArray
from qdq import QdqNet, as_int8

from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.intervals import Intervals
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.passes.release_pairs import release_pairs, release_tail
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.coding import without_codes
from orind.kernels.quant.half import mixed_numbers

Array = NDArray[Any]
RANGES = {(-1.0, 0.1): (1.1 / 255, 104), (-0.5, 0.5): (1 / 255, 0), (0.05, 0.3): (0.3 / 255, -128)}
"""The Clip that was removed: (scale, zero point) that quantisers give its output."""


def maxpool(net: QdqNet, x: str, y: str) -> str:
    return str(net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))


def resize(net: QdqNet, x: str, y: str) -> str:
    return str(net.op("Resize", y, "", net.constant(np.float32([1, 1, 2, 2])), mode="nearest",
                      coordinate_transformation_mode="asymmetric", nearest_mode="floor"))


def concat(net: QdqNet, x: str, y: str) -> str:
    return str(net.concat(y, net.pair(net.coded_conv(x, 0.02, 4), 0.03, 5)))


def add(net: QdqNet, x: str, y: str) -> str:
    return str(net.op("Add", y, net.pair(net.coded_conv(x, 0.02, 4), 0.03, 5)))


def silu(net: QdqNet, x: str, y: str) -> str:
    return str(net.op("Mul", y, net.pair(net.op("Sigmoid", y), 1 / 256, -128)))


def nothing(net: QdqNet, x: str, y: str) -> str:
    return y


def reference(model: onnx.ModelProto) -> Any:
    """As the gate has it."""
    fused = fuse(release_tail(prepare(imported(model))))
    return bound(lower(fused, [1], FloatNumbers(fused)))[0]


def half(model: onnx.ModelProto) -> Any:
    graph, _ = release_pairs(imported(model), lambda node: False)
    scales = without_codes(fuse(float_ends(prepare(graph))))
    graph, numbers = mixed_numbers(scales, layers_of(scales.graph))
    return bound(lower(graph, [1], numbers))[0]


MAKERS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "reference": reference, "int8": lambda model: as_int8(model)[0], "fp16": half}


def saturated(op: Callable[[QdqNet, str, str], str], ends: tuple[float, float], middle: bool) -> onnx.ModelProto:
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, 0.02)
    y = net.pair(net.coded_conv(x, 0.02, 4), 0.03, 5)
    y = op(net, x, y)
    channels = 8 if op is concat else 4
    net.channels[y] = channels
    scale, zero = RANGES[ends]
    y = net.pair(y, scale, zero)
    if middle:
        channels = 4
        y = net.coded_conv(y, scale, 4)
    side = {maxpool: 4, resize: 16}.get(op, 8)
    return net.model([(y, (1, channels, side, side))])


def noise_db(model: onnx.ModelProto, runner: Any) -> float:
    """SQNR against ONNX Runtime, over inputs that leave the range by far."""
    codes = np.random.default_rng(3).integers(-127, 128, runner.input[0].shape)
    frame = codes * np.float32(0.02)
    runner.input[0] = codes if runner.input.dtype == np.int8 else frame
    got = runner.run()[0]
    want = onnxruntime_outputs(model, np.ascontiguousarray(frame.transpose(2, 0, 1), dtype=np.float32)[None])[0]
    assert got.shape == want.shape
    return float(10 * np.log10((want ** 2).sum() / max(((got - want) ** 2).sum(), 1e-30)))


@pytest.mark.parametrize("precision", MAKERS)
@pytest.mark.parametrize("middle", [False, True], ids=["end", "middle"])
def test_a_clip_that_the_quantiser_removed_stays(precision: str, middle: bool) -> None:
    """Without it the error is larger than the signal."""
    for op in (nothing, maxpool, resize, concat, add, silu):
        for ends in RANGES:
            model = saturated(op, ends, middle)
            assert (db := noise_db(model, MAKERS[precision](model))) > 22, f"{op.__name__} {ends}: {db:.1f} dB"


@pytest.mark.parametrize("scale", [0.01, 0.05])
def test_a_symmetric_pair_at_the_end_saturates_too(scale: float) -> None:
    """No code is made of a float32 end; what its codes cut off is cut off all the same."""
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, 0.02)
    model = net.model([(net.pair(net.coded_conv(x, 0.02, 4), scale), (1, 4, 8, 8))])
    for maker in MAKERS.values():
        assert noise_db(model, maker(model)) > 30


def test_tables_take_the_clips_in() -> None:
    """Convolution, SiLU and three pairs are one step; its codes are those of the clipped function."""
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, 0.02)
    y = net.pair(net.coded_conv(x, 0.02, 4), 0.01, -28)                 # -1 .. 1.55
    y = net.pair(silu(net, x, y), 0.004, -61)                           # -0.268 .. 0.752
    net.channels[y] = 4
    model = net.model([(net.coded_conv(y, 0.004, 4), (1, 4, 8, 8))])
    runner, _, scales, _ = as_int8(model)
    assert [n.op for n in scales.graph.nodes] == ["Conv", "Conv"]
    assert noise_db(model, runner) > 28


def test_a_table_does_not_saturate_before_its_sum() -> None:
    """The sum is cut to -0.5 .. 0.5, what is added reaches far beyond."""
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, 0.02)
    y = net.op("LeakyRelu", net.pair(net.coded_conv(x, 0.02, 4), 0.03, 5), alpha=0.5)
    y = net.pair(y, 0.02, 17)
    y = net.pair(net.op("Add", y, net.pair(net.coded_conv(x, 0.02, 4), 0.03, 5)), 1 / 255, 3)
    net.channels[y] = 4
    model = net.model([(net.coded_conv(y, 1 / 255, 4), (1, 4, 8, 8))])
    assert noise_db(model, as_int8(model)[0]) > 18


@pytest.mark.parametrize(("zero", "kind"), [(-128, np.int8), (127, np.int8), (0, np.uint8), (255, np.uint8)])
def test_what_is_cut_at_0_needs_no_pictures(zero: int, kind: type[np.generic]) -> None:
    """The pair's range is that of the tensor in front of its Clip too."""
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, 0.02)
    y = net.pair(silu(net, x, net.pair(net.coded_conv(x, 0.02, 4), 0.03, 3)), 0.02, zero, kind)
    net.channels[y] = 4
    model = net.model([(net.coded_conv(y, 0.02, 4), (1, 4, 8, 8))])
    runner, _, _, facts = as_int8(model)
    assert facts["scales_calibrated"] == 0 and noise_db(model, runner) > 20


def test_no_clip_where_values_stay_inside() -> None:
    """Behind a sigmoid, a SiLU of bounded x, and what only moves values, no range of codes binds."""
    net = QdqNet((1, 3, 8, 8))
    x = net.pair(net.input, 0.02)
    y = net.pair(net.coded_conv(x, 0.02, 4), 0.03, 5)
    low, high = (-128 - 5) * 0.03, (127 - 5) * 0.03
    gate = net.pair(net.op("Sigmoid", y), 1 / (1 + np.exp(-high)) / 255, -128)
    least, most = -0.2785, high / (1 + np.exp(-high))
    scale = (most - least) / 255
    y = net.pair(net.op("Mul", y, gate), scale, round(-128 - least / scale))
    y = net.pair(net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), scale, round(-128 - least / scale))
    net.channels[y] = 4
    graph, _ = release_pairs(imported(net.model([(net.coded_conv(y, 0.02, 4), (1, 4, 4, 4))])))
    clips = [n for n in graph.nodes if n.op == "Clip"]
    assert [[round(float(graph.constants[c]), 2) for c in n.inputs[1:]] for n in clips] == [[round(low, 2), 3.66]]


def test_bounds_of_tensors() -> None:
    """Each against the values of the function over many inputs."""
    net = QdqNet((1, 4, 6, 6))
    x = net.op("Clip", net.op("Conv", net.input, net.constant(np.ones((4, 4, 1, 1), dtype=np.float32))),
               net.constant(np.float32(-3)), net.constant(np.float32(2)))
    made = {"silu": net.op("Mul", x, net.op("Sigmoid", x)), "product": net.op("Mul", x, net.op("Abs", net.input)),
            "sum": net.op("Add", x, net.op("Sigmoid", net.input)), "relu": net.op("Relu", net.input),
            "pool": net.op("AveragePool", net.op("Add", x, net.constant(np.float32(10))), kernel_shape=[2, 2],
                           pads=[1] * 4, count_include_pad=1)}
    graph = imported(net.model([(name, (1, 4, *((7, 7) if key == "pool" else (6, 6)))) for key, name in made.items()]))
    seen = Intervals(graph)
    for node in graph.nodes:
        seen.see(node)
    inf = np.inf
    for (key, name), ends in zip(made.items(), ((-0.27846, 1.76159), (-inf, inf), (-3, 3), (0, inf), (0, 12)),
                                 strict=True):
        assert seen.of(name) == pytest.approx(ends, abs=1e-3), key
    assert seen.stays(made["silu"], -0.27, 1.8, 0.01) and not seen.stays(made["silu"], -0.27, 1.8, 0.005)
