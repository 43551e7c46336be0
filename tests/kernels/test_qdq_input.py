"""Several pairs on a quantised model's input, one behind the other or side by side: the narrower ones cut, and no
reader gets codes that end before its own pair does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from compiled import bound, imported, onnxruntime_outputs
from qdq import QdqNet

from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.passes.release_pairs import release_pairs
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.imported import scales_of_file
from orind.kernels.quant.scales import InputCode

GOOD_DB = 30.0
"""The file's own rounding is 33 dB away where its input is rounded twice; a range that was lost, less than 17 dB."""
KINDS = {"int8": (0, np.int8), "uint8": (128, np.uint8)}


def with_two_pairs(scales: tuple[float, float], kinds: tuple[str, str], chain: bool, conv: bool) -> onnx.ModelProto:
    net = QdqNet((1, 3, 6, 6))
    a = net.pair(net.input, scales[0], *KINDS[kinds[0]])
    b = net.pair(a if chain else net.input, scales[1], *KINDS[kinds[1]])
    read = [(b, scales[1])] if chain else [(a, scales[0]), (b, scales[1])]
    outputs = [net.coded_conv(x, scale, 4) if conv else net.op("LeakyRelu", x) for x, scale in read]
    return net.model([(y, (1, 4 if conv else 3, 6, 6)) for y in outputs], 13)


@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("scales", [(0.01, 0.05), (0.05, 0.01), (0.02, 0.03)])
def test_every_reader_gets_what_its_pairs_leave(
    scales: tuple[float, float], kinds: tuple[str, str], chain: bool, conv: bool
) -> None:
    model = with_two_pairs(scales, kinds, chain, conv)
    released, ranges = release_pairs(imported(model), tables=True)
    fused = fuse(float_ends(prepare(released)))
    found, _ = scales_of_file(fused, ranges, InputCode("float32", 1.0), dict, "mse")
    graph, numbers = mixed_numbers(found, ())
    runner, _ = bound(lower(graph, [1], numbers))
    reach = 127 * (scales[0] if chain else max(scales))  # the input stays inside the widest pair that reads it
    x = np.random.default_rng(1).uniform(-reach, reach, (1, 3, 6, 6)).astype(np.float32)
    runner.input[0, ..., list(runner.program.tensors[runner.program.inputs[0]].channels())] = x[0]
    for want, got in zip(onnxruntime_outputs(model, x), runner.run(), strict=True):
        noise = float(((got.astype(np.float64) - want) ** 2).sum())
        assert 10 * np.log10(float((want.astype(np.float64) ** 2).sum()) / max(noise, 1e-30)) > GOOD_DB
