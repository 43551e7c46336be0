"""Passes that recognise what exporters write out of several nodes: the same numbers before and after, one node left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiled import imported
from models import Net
from test_passes import ops, same

from orind.kernels.passes.decompose import decompose
from orind.kernels.passes.focus_as_convolution import focus_as_convolution
from orind.kernels.passes.fold_scales import fold_scales
from orind.kernels.passes.pipeline import prepare
from orind.kernels.passes.recognise_activations import recognise_activations
from orind.kernels.passes.recognise_gelu import recognise_gelu
from orind.kernels.passes.recognise_layernorm import recognise_layernorm
from orind.kernels.passes.recognise_shuffles import recognise_shuffles
from orind.kernels.passes.rows_as_images import rows_as_images
from orind.kernels.passes.transposed_as_convolution import transposed_as_convolution


def number(net: Net, value: float) -> str:
    return net.constant(np.array(value, dtype=np.float32))


def clipped(net: Net, x: str, low: float = 0, high: float = 6) -> str:
    return str(net.op("Clip", x, number(net, low), number(net, high)))


def three(net: Net, x: str) -> str:
    return clipped(net, net.op("Add", x, number(net, 3)))


def hard_swish_constant_first(net: Net, x: str) -> str:
    gate = net.op("Min", net.op("Relu", net.op("Add", number(net, 3), x)), number(net, 6))
    return str(net.op("Mul", number(net, 1 / 6), net.op("Mul", gate, x)))


FORMS: list[tuple[str, Callable[[Net, str], Any], str]] = [
    ("silu", lambda n, x: n.op("Mul", n.op("Sigmoid", x), x), "SiLU"),
    ("mish", lambda n, x: n.op("Mul", x, n.op("Tanh", n.op("Softplus", x))), "Mish"),
    ("mish, gate first", lambda n, x: n.op("Mul", n.op("Tanh", n.op("Softplus", x)), x), "Mish"),
    ("add clip mul div", lambda n, x: n.op("Div", n.op("Mul", x, three(n, x)), number(n, 6)), "HardSwish"),
    ("add clip div mul", lambda n, x: n.op("Mul", x, n.op("Div", three(n, x), number(n, 6))), "HardSwish"),
    ("constants first, Min and Relu", hard_swish_constant_first, "HardSwish"),
    ("hard sigmoid node", lambda n, x: n.op("Mul", n.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), x), "HardSwish"),
    ("hard sigmoid", lambda n, x: n.op("Mul", three(n, x), number(n, 1 / 6)), "HardSigmoid"),
    ("relu6 of Relu and Min", lambda n, x: n.op("Min", n.op("Relu", x), number(n, 6)), "Clip"),
    ("relu6 of Max and Min", lambda n, x: n.op("Min", n.op("Max", x, number(n, 0)), number(n, 6)), "Clip"),
    ("relu6 of Relu and Clip", lambda n, x: clipped(n, n.op("Relu", x)), "Clip"),
    ("relu of Max", lambda n, x: n.op("Max", number(n, 0), x), "Relu"),
    ("leaky of Max", lambda n, x: n.op("Max", n.op("Mul", x, number(n, 0.1)), x), "LeakyRelu"),
    ("leaky of PRelu", lambda n, x: n.op("PRelu", x, number(n, 0.2)), "LeakyRelu")]


@pytest.mark.parametrize(("make", "op"), [f[1:] for f in FORMS], ids=[f[0] for f in FORMS])
def test_activation(make: Callable[[Net, str], str], op: str) -> None:
    net = Net((1, 3, 4, 4))
    x = net.op("Mul", net.input, number(net, 5))
    before = imported(net.model([(make(net, x), (1, 3, 4, 4))]))
    assert ops(same(before, recognise_activations(before))) == ["Mul", op]


def test_parts_that_others_read_and_other_numbers_stay() -> None:
    net = Net((1, 3, 4, 4))
    gate = three(net, net.input)
    y = net.op("Div", net.op("Mul", net.input, gate), number(net, 6))
    other = net.op("Div", net.op("Mul", net.input, clipped(net, net.op("Add", net.input, number(net, 2)))),
                   number(net, 6))
    before = imported(net.model([(y, (1, 3, 4, 4)), (gate, (1, 3, 4, 4)), (other, (1, 3, 4, 4))]))
    assert "HardSwish" not in ops(same(before, recognise_activations(before)))


def erf_gelu(net: Net, x: str, order: int) -> str:
    root = net.op("Div", x, number(net, np.sqrt(2))) if order else net.op("Mul", x, number(net, np.sqrt(0.5)))
    gate = net.op("Add", net.op("Erf", root), number(net, 1))
    if order:
        return str(net.op("Mul", net.op("Mul", x, gate), number(net, 0.5)))
    return str(net.op("Mul", net.op("Mul", x, number(net, 0.5)), gate))


def tanh_gelu(net: Net, x: str) -> str:
    cube = net.op("Pow", x, number(net, 3))
    inner = net.op("Add", x, net.op("Mul", cube, number(net, 0.044715)))
    gate = net.op("Add", net.op("Tanh", net.op("Mul", inner, number(net, np.sqrt(2 / np.pi)))), number(net, 1))
    return str(net.op("Mul", net.op("Mul", number(net, 0.5), x), gate))


@pytest.mark.parametrize("make", [lambda n, x: erf_gelu(n, x, 0), lambda n, x: erf_gelu(n, x, 1), tanh_gelu])
def test_gelu(make: Callable[[Net, str], str]) -> None:
    net = Net((1, 3, 4, 4))
    x = net.op("Mul", net.input, number(net, 2))
    before = imported(net.model([(make(net, x), (1, 3, 4, 4))]))
    assert ops(same(before, recognise_gelu(before))) == ["Mul", "GeluTanh" if make is tanh_gelu else "Gelu"]


def test_what_only_looks_like_gelu_stays() -> None:
    net = Net((1, 8))
    gate = net.op("Erf", net.op("Mul", net.input, number(net, 0.9)))
    y = net.op("Mul", net.input, net.op("Add", gate, number(net, 1)))
    before = imported(net.model([(y, (1, 8))]))
    assert "Erf" in ops(same(before, recognise_gelu(before)))


@pytest.mark.parametrize("square", ["Pow", "Mul", "twice"])
def test_layernorm(square: str) -> None:
    net = Net((1, 5, 16))

    def centred() -> str:
        mean = net.op("ReduceMean", net.input, axes=[-1])
        return str(net.op("Sub", net.input, mean))
    d = centred()
    e = centred() if square == "twice" else d
    power = net.op("Mul", e, e) if square == "Mul" else net.op("Pow", e, number(net, 2))
    root = net.op("Sqrt", net.op("Add", net.op("ReduceMean", power, axes=[-1]), number(net, 1e-5)))
    y = net.op("Mul", net.op("Div", d, root), net.constant(net.rng.normal(1, 0.1, 16).astype(np.float32)))
    before = imported(net.model([(y, (1, 5, 16))]))
    assert ops(same(before, recognise_layernorm(before))) == ["LayerNormalization", "Mul"]


def shuffled(net: Net, x: str, groups: int, shape: tuple[int, ...]) -> str:
    _, c, h, w = shape
    x = net.op("Reshape", x, net.constant(np.array([1, groups, c // groups, h, w])))
    x = net.op("Transpose", x, perm=[0, 2, 1, 3, 4])
    y = net.op("Reshape", x, net.constant(np.array([1, -1, h, w])))
    net.channels[y] = c
    return str(y)


def test_channel_shuffle() -> None:
    net = Net((1, 3, 6, 6))
    x = shuffled(net, net.conv(net.input, 12), 3, (1, 12, 6, 6))
    x = net.op("Gather", x, net.constant(np.array([1, -1, 5])), axis=1)
    net.channels[x] = 3
    before = imported(net.model([(net.conv(x, 5), (1, 5, 6, 6))]))
    assert ops(same(before, recognise_shuffles(before))) == ["Conv", "ChannelGather", "ChannelGather", "Conv"]


def focus(net: Net, x: str) -> str:
    """Eight Slices and a Concat, as YOLOv5 and YOLOX export it."""
    one, two, far = (net.constant(np.array([v])) for v in (1, 2, 1 << 30))
    zero, rows, columns = (net.constant(np.array([v])) for v in (0, 2, 3))
    parts = []
    for column in (zero, one):
        for row in (zero, one):
            cut = net.op("Slice", x, row, far, rows, two)
            parts.append(net.op("Slice", cut, column, far, columns, two))
    y = net.op("Concat", *parts, axis=1)
    net.channels[y] = 4 * net.channels[x]
    return str(y)


def space_to_depth(net: Net, x: str) -> str:
    y = net.op("SpaceToDepth", x, blocksize=2)
    net.channels[y] = 4 * net.channels[x]
    return str(y)


@pytest.mark.parametrize("make", [focus, space_to_depth])
def test_focus_stem(make: Callable[[Net, str], str]) -> None:
    net = Net((1, 3, 12, 16))
    before = imported(net.model([(net.conv(make(net, net.input), 8), (1, 8, 6, 8))]))
    after = same(before, focus_as_convolution(decompose(before)))
    assert ops(after) == ["Conv"]
    assert after.nodes[0].attrs["kernel_shape"] == (6, 6) and after.nodes[0].attrs["strides"] == (2, 2)


def test_scales_go_into_convolutions() -> None:
    net = Net((1, 3, 6, 6))
    side = [net.constant(net.rng.uniform(0.5, 2, (c, 1, 1)).astype(np.float32)) for c in (5, 5, 5)]
    x = net.op("Add", net.op("Mul", net.conv(net.input, 5), side[0]), side[1])
    x = net.op("PRelu", net.op("Sub", number(net, 1), net.op("Relu", x)), side[2])
    net.channels[x] = 5
    before = imported(net.model([(net.conv(x, 2), (1, 2, 6, 6))]))
    after = same(before, fold_scales(before))
    assert ops(after) == ["Conv", "Relu", "Conv", "Clip", "Conv", "Relu", "Add", "Conv"]


def test_transposed_convolutions_and_rows() -> None:
    net = Net((1, 4, 5, 6))
    w = net.constant(net.rng.normal(0, 0.3, (4, 3, 3, 2)).astype(np.float32))
    y = net.op("ConvTranspose", net.input, w, strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 0], group=2)
    before = imported(net.model([(y, [None] * 4)]))
    assert ops(same(before, transposed_as_convolution(before))) == ["ZeroStuff", "Conv"]
    rows = Net((1, 4, 9))
    w = rows.constant(rows.rng.normal(0, 0.3, (6, 4, 3)).astype(np.float32))
    x = rows.op("MaxPool", rows.op("Conv", rows.input, w, pads=[1, 1]), kernel_shape=[2], strides=[2])
    before = imported(rows.model([(x, (1, 6, 4))]))
    assert [n.op for n in same(before, rows_as_images(before)).nodes if n.op != "Reshape"] == ["Conv", "MaxPool"]


DECOMPOSED: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("Sum", [(1, 6, 4, 4), (1, 6, 1, 1)], {}), ("Mean", [(6, 1, 1), (1,)], {}), ("LRN", [], {"size": 3}),
    ("InstanceNormalization", [(6,), (6,)], {}), ("ReduceL2", [], {"axes": [1]}), ("ReduceMean", [], {"axes": [2, 3]}),
    ("ReduceLogSumExp", [], {"axes": [1, 2], "keepdims": 0}), ("LogSoftmax", [], {"axis": 1}),
    ("GlobalMaxPool", [], {}), ("LpNormalization", [], {"axis": 1}), ("DepthToSpace", [], {"blocksize": 1}),
    ("MeanVarianceNormalization", [], {})]


@pytest.mark.parametrize(("op", "shapes", "attrs"), DECOMPOSED, ids=[d[0] for d in DECOMPOSED])
def test_decompose(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]) -> None:
    net = Net((1, 6, 4, 4))
    others = [net.constant(net.rng.uniform(0.5, 1.5, s).astype(np.float32)) for s in shapes]
    shape = [None] * (2 if "keepdims" in attrs else 4)
    before = imported(net.model([(net.op(op, net.input, *others, **attrs), shape)]))
    assert op not in ops(same(before, decompose(before))) or op == "ReduceMean"


def test_the_whole_pipeline_on_a_net_of_forms() -> None:
    net = Net((1, 3, 16, 16))
    x = net.conv(focus(net, net.input), 8)
    x = net.op("Div", net.op("Mul", x, three(net, x)), number(net, 6))
    net.channels[x] = 8
    before = imported(net.model([(net.conv(shuffled(net, x, 2, (1, 8, 8, 8)), 4), (1, 4, 8, 8))]))
    assert ops(same(before, prepare(before))) == ["Conv", "HardSwish", "ChannelGather", "Conv"]
