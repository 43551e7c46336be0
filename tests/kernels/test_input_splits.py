"""The graph input, which has no channel padding, in front of a Split; its codes in front of the float32 tail."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import fill, fp32, int8, onnxruntime_outputs
from judge import Judge
from models import Net

from orind.kernels.ir.steps import Copy
from orind.kernels.quant.scales import InputCode

OPERATORS = ("Relu", "Sigmoid", "LeakyRelu")
PARTS = ((2, 4), (3, 17), (8, 24), (16, 24), (32, 16), (16, 5))


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_split_behind_an_activation_of_the_input(parts: tuple[int, int]) -> None:
    """Segments that lie together in the input and apart in the copy, and some that lie together in both."""
    for op in OPERATORS:
        net = Net((1, sum(parts), 6, 6))
        whole = net.op(op, net.input)
        ends = net.op("Split", whole, net.constant(np.array(parts)), outputs=2, axis=1)
        net.channels |= dict(zip(ends, parts, strict=True))
        model = net.model([(net.conv(part, 8), (1, 8, 6, 6)) for part in ends])
        runner, _ = fp32(model)
        fill(runner)
        frame = np.ascontiguousarray(runner.input[0].transpose(2, 0, 1))[None]
        for got, want in zip(runner.run(), onnxruntime_outputs(model, frame), strict=True):
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        coded, constants = int8(model)
        fill(coded)
        assert Judge(coded, constants).run() > 0
        for program in (runner.program, coded.program):
            for step in program.steps:
                starts = [start for start, _ in program.tensors[step.y].segments] if isinstance(step, Copy) else []
                assert set(starts) <= {to for _, to, _ in getattr(step, "runs", ())}


def moved(net: Net, op: str, x: str) -> tuple[str, tuple[int, ...]]:
    if op == "Resize":
        return net.op(op, x, "", net.constant(np.float32([1, 1, 2, 2])), mode="nearest", nearest_mode="floor",
                      coordinate_transformation_mode="asymmetric"), (1, 3, 12, 12)
    if op == "GlobalAveragePool":
        return net.op(op, x), (1, 3, 1, 1)
    return net.op(op, x, kernel_shape=[2, 2], strides=[2, 2]), (1, 3, 3, 3)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalAveragePool", "Resize"])
def test_tail_pools_of_a_coded_input(op: str, dtype: str) -> None:
    """The float32 tail reads the input's codes as the numbers that they are worth."""
    net = Net((1, 3, 6, 6))
    y, shape = moved(net, op, net.input)
    model = net.model([(net.conv(net.input, 8), (1, 8, 6, 6)), (y, shape)])
    scale = float(np.float32(1 / 127))
    runner, _ = int8(model, code=InputCode(dtype, scale))
    fill(runner)
    frame = np.ascontiguousarray(runner.input[0].transpose(2, 0, 1), dtype=np.float32)[None] * np.float32(scale)
    assert np.allclose(runner.run()[1], onnxruntime_outputs(model, frame)[1], rtol=0, atol=1e-6)
