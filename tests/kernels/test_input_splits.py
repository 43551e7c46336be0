"""Activations of the graph input in front of a Split: the input has no channel padding, its parts have some."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import fill, fp32, int8, onnxruntime_outputs
from judge import Judge
from models import Net

from orind.kernels.ir.steps import Copy

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
