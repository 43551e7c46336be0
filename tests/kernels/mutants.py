"""Plans in memory for tests that damage them, and what an engine says of one. Imported by tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from compiled import fill, fp32, int8
from forms import segmenter, vit
from models import Net, detector_onnx
from test_half import fp16

from orind.kernels.cpu.executor import CpuExecutor, ProgramRunner
from orind.kernels.ir.errors import GoldenMismatch, ProgramError
from orind.kernels.ir.program import programs_to_text
from orind.kernels.ir.validate import programs_of
from orind.kernels.plan.layout import PlanError
from orind.kernels.spec import ModelSpec, SpecError

REFUSALS = (PlanError, ProgramError, SpecError, GoldenMismatch)


@dataclass
class Parts:
    """What a plan holds; stands for an opened plan whose sums are right."""

    tensors: dict[str, Any]
    metadata: dict[str, str]


def gated() -> Any:
    """Steps that the other nets lack: gates, averages, depthwise, padding, a copied part of a Concat."""
    net = Net((1, 3, 12, 10))
    x = net.op("Relu", net.conv(net.input, 20))
    x = net.op("Add", net.conv(x, 20, group=20), net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1],
                                                        pads=[1] * 4))
    x = net.op("Mul", x, net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 20, 1)))
    x = net.op("Pad", net.concat(*[net.op("Tanh", x)] * 2), net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    return net.model([(net.op("Softmax", net.conv(x, 4, 1), axis=1), (1, 4, 14, 12))])


BASES: dict[str, Callable[[], tuple[ProgramRunner, dict[str, Any]]]] = {
    "detector fp32": lambda: fp32(detector_onnx(32, (4, 8, 8, 8)), 2),
    "detector int8": lambda: int8(detector_onnx(32, (4, 8, 8, 8)), 2, frames=1),
    "vit": lambda: fp32(vit(True, 16, 8, 2)),
    "segmenter fp16": lambda: fp16(segmenter(16)), "gated int8": lambda: int8(gated(), frames=1),
    "gated fp32": lambda: fp32(gated())}


@cache
def base(name: str) -> Parts:
    runner, constants = BASES[name]()
    batch = runner.program.batch
    fill(runner, 1)
    tensors = {**constants, "golden.input": runner.input.copy()}
    tensors[f"golden.crc.b{batch}"] = np.array([runner.checksum(step) for step in runner.walk()], np.uint32)
    tensors |= {f"golden.output.{i}": value.copy() for i, value in enumerate(runner.outputs)}
    spec = ModelSpec.for_tensor("mutant", (batch,)).to_json()
    return Parts(tensors, {"spec": spec, "program": programs_to_text({batch: runner.program})})


def verdict(parts: Any) -> str:
    """"runs", or the error with which an engine would refuse; anything else than an error of ours is raised."""
    try:
        ModelSpec.from_json(parts.metadata["spec"])
        programs = programs_of(parts.metadata, parts.tensors)
        for batch in programs:
            with CpuExecutor(parts, batch, programs) as executor:
                executor.golden()
    except REFUSALS as error:
        assert 20 < len(str(error)) < 3000
        return f"{type(error).__name__}: {error}"
    return "runs"
