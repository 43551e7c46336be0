"""Every integer step that CONTRACT.md names, alone in a small net, against the int64 judge; extreme codes too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from compiled import fill, int8
from judge import INTEGER_STEPS, Judge
from models import Net

from orind.kernels.ir import steps as s
from orind.kernels.ir.grid_steps import ResampleI8, Stuff
from orind.kernels.ir.step import Step
from orind.kernels.quant.scales import InputCode

Make = Callable[[Net, str], str]
Holds = Callable[[Step], bool]
PIXELS = InputCode("uint8", float(np.float32(1 / 255)))


def relu(net: Net, x: str, c: int = 20, k: int = 3) -> str:
    return str(net.op("Relu", net.conv(x, c, k)))


def number(net: Net, value: float) -> str:
    return net.constant(np.array(value, dtype=np.float32))


def sized(net: Net, kind: str, x: str, c: int, *inputs: str, **attrs: object) -> str:
    y = str(net.op(kind, x, *inputs, **attrs))
    net.channels[y] = c
    return y


def average(net: Net, x: str, count: int) -> str:
    return sized(net, "AveragePool", relu(net, x), 20, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 0, 0],
                 count_include_pad=count)


def transposed(net: Net, x: str) -> str:
    w = net.constant(net.rng.normal(0, 0.2, (20, 12, 3, 3)).astype(np.float32))
    return sized(net, "ConvTranspose", relu(net, x), 12, w, strides=[2, 2], pads=[1, 0, 1, 1], output_padding=[1, 0])


def resize(net: Net, x: str, mode: str, transform: str, height: int, width: int) -> str:
    sizes = net.constant(np.array([1, 20, height, width]))
    return sized(net, "Resize", relu(net, x), 20, "", "", sizes, mode=mode, coordinate_transformation_mode=transform,
                 **({"nearest_mode": "floor"} if mode == "nearest" else {}))


def shuffle(net: Net, x: str) -> str:
    first = net.op("Reshape", relu(net, x), net.constant(np.array([1, 4, 5, 9, 11])))
    y = net.op("Transpose", first, perm=[0, 2, 1, 3, 4])
    return sized(net, "Reshape", y, 20, net.constant(np.array([1, 20, 9, 11])))


def quiet_member(net: Net, x: str) -> str:
    return net.concat(net.conv(x, 20, gain=40.0), net.conv(x, 20, gain=0.4))


def clip(net: Net, x: str) -> str:
    return sized(net, "Clip", net.conv(x, 20), 20, number(net, -0.3), number(net, 0.7))


def split(net: Net, x: str) -> str:
    a, b = net.op("Split", relu(net, x), net.constant(np.array([7, 13])), outputs=2, axis=1)
    net.channels[a], net.channels[b] = 7, 13
    return net.concat(b, net.conv(a, 5, 1), a)


def gate(net: Net, x: str, first: bool) -> str:
    x = relu(net, x)
    g = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 20, 1))
    return str(net.op("Mul", g, x) if first else net.op("Mul", x, g))


def pad(net: Net, x: str) -> str:
    wide = sized(net, "Pad", relu(net, x), 20, net.constant(np.array([0, 0, 2, 1, 0, 0, 0, 3])))
    return sized(net, "MaxPool", wide, 20, kernel_shape=[2, 2])


CASES: dict[str, tuple[Make, type[Step], Holds]] = {
    "plain": (lambda n, x: n.conv(x, 20), s.ConvI8, lambda t: t.low == -128),
    "relu": (relu, s.ConvI8, lambda t: t.low == 0 and t.high == 127),
    "clip": (clip, s.ConvI8, lambda t: -128 < t.low < 0),
    "residual": (lambda n, x: n.op("Add", relu(n, x), n.conv(x, 20)), s.ConvI8, lambda t: bool(t.residual)),
    "residual then relu": (lambda n, x: n.op("Relu", n.op("Add", n.conv(x, 20), relu(n, x))), s.ConvI8,
                           lambda t: bool(t.residual) and t.low == 0),
    "table": (lambda n, x: n.silu(n.conv(x, 20)), s.ConvI8, lambda t: bool(t.table) and not t.residual),
    "table then residual": (lambda n, x: n.op("Add", n.silu(n.conv(x, 20)), relu(n, x)), s.ConvI8,
                            lambda t: bool(t.table and t.residual)),
    "activation after the sum": (lambda n, x: n.silu(n.op("Add", n.conv(x, 20), relu(n, x))), s.TableI8,
                                 lambda t: True),
    "depthwise": (lambda n, x: n.conv(relu(n, x), 20, group=20, stride=2), s.DepthwiseI8, lambda t: True),
    "groups": (lambda n, x: n.conv(relu(n, x, 64), 64, group=4), s.ConvI8, lambda t: t.groups == 4),
    "dilated": (lambda n, x: n.conv(x, 20, dilation=2, pads=[2] * 4), s.ConvI8, lambda t: t.dilation == (2, 2)),
    "add": (lambda n, x: n.op("Add", relu(n, x), n.op("MaxPool", n.conv(x, 20), kernel_shape=[1, 1])), s.AddI8,
            lambda t: t.b_multiplier > 0),
    "subtract": (lambda n, x: n.op("Sub", relu(n, x), n.conv(x, 20)), s.AddI8, lambda t: t.b_multiplier < 0),
    "multiply": (lambda n, x: n.op("Mul", relu(n, x), n.conv(x, 20)), s.MulI8, lambda t: True),
    "gate": (lambda n, x: gate(n, x, False), s.MulI8, lambda t: True),
    "gate first": (lambda n, x: gate(n, x, True), s.MulI8, lambda t: True),
    "max pool": (lambda n, x: n.op("MaxPool", n.conv(x, 20), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
                 s.MaxPool, lambda t: t.pads == (1, 1, 1, 1)),
    "average of valid elements": (lambda n, x: average(n, x, 0), s.AveragePoolI8, lambda t: True),
    "average with the border": (lambda n, x: average(n, x, 1), s.AveragePoolI8, lambda t: True),
    "bilinear": (lambda n, x: resize(n, x, "linear", "half_pixel", 14, 17), ResampleI8, lambda t: True),
    "nearest upsample": (lambda n, x: resize(n, x, "nearest", "asymmetric", 18, 22), s.Upsample, lambda t: True),
    "transposed": (transposed, Stuff, lambda t: t.stride == (2, 2)),
    "shuffle": (shuffle, s.Copy, lambda t: not t.clear),
    "split and concat": (split, s.Copy, lambda t: True),
    "pad": (pad, s.Copy, lambda t: t.clear),
    "requantise": (quiet_member, s.RequantiseI8, lambda t: True),
}


@pytest.mark.parametrize("code", [None, PIXELS], ids=["int8", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_step(name: str, code: InputCode | None) -> None:
    make, kind, holds = CASES[name]
    net = Net((1, 3, 9, 11), sum(name.encode()))
    x = make(net, net.input)
    net.channels[x] = net.channels[x] or 20
    runner, constants = int8(net.model([(net.conv(x, 4, 1), [None] * 4)]), batch=2, code=code)
    assert any(type(step) is kind and holds(step) for step in runner.program.steps), \
        [type(step).__name__ for step in runner.program.steps]
    judge = Judge(runner, constants)
    limits = np.iinfo(runner.input.dtype)
    for value in (None, limits.min, limits.max):
        fill(runner, 3) if value is None else runner.input.fill(value)
        assert judge.run() > 0
    assert judge.checked[kind.__name__] > 0


def test_the_judge_knows_every_integer_step() -> None:
    """A step that is added has to be judged, and has to be among the cases."""
    integer = {kind for kind in s.STEPS.values() if kind.__name__.endswith("I8")}
    assert integer <= {*INTEGER_STEPS, s.DepthwiseI8} and {kind for _, kind, _ in CASES.values()} >= integer
