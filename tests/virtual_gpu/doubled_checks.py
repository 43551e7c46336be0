"""Upsamplings by two that the convolution before them does while it stores: `doubled_checks.py PLAN`. Prints as JSON
what was found of each network, and what the golden check says of PLAN when such a kernel is planted wrong.

Started by test_doubled.py with LD_LIBRARY_PATH set, in a process of its own: which libcuda.so.1 a process has is
decided once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

from compiled import calibrated, fill
from models import Net

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.cuda import assignment, launching
from orind.kernels.cuda.convolution import Array
from orind.kernels.cuda.device import Device
from orind.kernels.cuda.executor import CudaExecutor
from orind.kernels.cuda.launches import Launch, launch_of
from orind.kernels.ir.errors import GoldenMismatch
from orind.kernels.ir.program import Program
from orind.kernels.ir.steps import Upsample
from orind.kernels.passes.lower import lower
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.half import mixed_numbers

BATCHES = (1, 3)
SIZE = (6, 5)


def up(net: Net, x: str) -> str:
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return str(net.op("Resize", x, "", scales, mode="nearest", **attributes))


def end(net: Net, x: str, sides: Sequence[int]) -> onnx.ModelProto:
    return net.model([(net.conv(x, 2, 1), (1, 2, *sides))])


def pyramid() -> onnx.ModelProto:
    """As in a detector's neck: what is doubled is joined with a larger image, whose place is taken before. 20 channels
    fill no unit; those behind them are pads."""
    net = Net((1, 3, 12, 10))
    large = net.op("Tanh", net.conv(net.input, 24))  # one scale for both: they lie in the joined image from the start
    small = net.op("Tanh", net.conv(net.conv(large, 40, 3, 2), 20, 1))
    return end(net, net.conv(net.concat(up(net, small), large), 16), (12, 10))


def chain() -> onnx.ModelProto:
    """Twice, one behind the other, in groups the second time; the arena may put what is doubled over what is read."""
    net = Net((1, 3, *SIZE))
    x = up(net, net.silu(net.conv(net.conv(net.input, 48), 32)))
    return end(net, up(net, net.conv(x, 32, group=2)), (24, 20))


def shortcut() -> onnx.ModelProto:
    net = Net((1, 3, *SIZE))
    x = net.conv(net.input, 32)
    y = net.op("Relu", net.op("Add", net.conv(x, 32), x))
    return end(net, up(net, y), (12, 10))


def two_readers() -> onnx.ModelProto:
    net = Net((1, 3, *SIZE))
    x = net.conv(net.input, 32)
    y = up(net, x)
    return net.model([(net.conv(y, 2, 1), (1, 2, 12, 10)), (net.conv(x, 2, 1), (1, 2, *SIZE))])


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    form.__name__: form for form in (pyramid, chain, shortcut, two_readers)
}


def ran(programs: dict[int, Program], constants: Mapping[str, Array], batch: int, device: Device, separate: bool,
        given: NDArray[Any]) -> tuple[CudaExecutor, list[Array]]:
    plan = SimpleNamespace(tensors=constants, metadata={})
    with CudaExecutor.alone(plan, batch, programs, device=device, cpu_steps=True, separate=separate) as cuda:
        np.copyto(cuda.input, given)
        return cuda, [output.copy() for output in cuda.run()]


def look(form: str, precision: str, batch: int, separate: bool, device: Device) -> dict[str, object]:
    """`steps` on the CPU and `segments` on the GPU, with and without; whether the outputs are those without, to the
    bit, and the CPU's, and else how far from these in parts of the largest."""
    scales = calibrated(FORMS[form]())
    graph, numbers = mixed_numbers(scales, layers_of(scales.graph) if precision == "fp16" else ())
    programs, constants = lower(graph, [batch], numbers)
    right = ProgramRunner(programs[batch], constants)
    fill(right)
    entry = programs[batch].tensors[programs[batch].inputs[0]]
    right.input[..., np.setdiff1d(np.arange(right.input.shape[-1]), entry.channels())] = 0  # pads
    given = right.input.copy()
    cuda, found = ran(programs, constants, batch, device, separate, given)
    stores, assignment._stores_doubled = assignment._stores_doubled, lambda *_: False
    apart, wanted = ran(programs, constants, batch, device, separate, given)
    assignment._stores_doubled = stores
    pairs = list(zip(right.run(), found, strict=True))
    return {
        "form": form, "precision": precision, "batch": batch, "separate": separate,
        "doubled": len(cuda._doubled),
        "steps": [len(cuda.cpu_steps), len(apart.cpu_steps)],
        "segments": [sum(s.on_device for s in executor.segments) for executor in (cuda, apart)],
        "as_apart": all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)),
        "as_cpu": all(np.array_equal(a, b) for a, b in pairs),
        "worst": max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs),
    }


def without_bias(step: assignment.Convolution, doubled: Upsample | None, program: Program,
                 constants: Mapping[str, Array], sms: int) -> Launch:
    """`launch_of`, but a kernel that doubles has no bias."""
    launch = launch_of(step, doubled, program, constants, sms)
    if doubled is not None:
        launch.packed.vectors[0].fill(0)
    return launch


def golden(path: Path, device: Device, separate: bool) -> str:
    """What the golden check says; empty where all is right."""
    with PlanFile.open_path(path) as plan, \
            CudaExecutor.alone(plan, device=device, cpu_steps=True, separate=separate) as cuda:
        assert len(cuda._doubled) == 1
        try:
            cuda.golden()
            cuda.golden()  # as it is served
        except GoldenMismatch as error:
            return str(error)
    return ""


def main(plan: Path) -> dict[str, object]:
    device = Device()
    try:
        found = [look(form, precision, batch, separate, device) for form in FORMS for precision in ("int8", "fp16")
                 for batch in BATCHES for separate in (False, True)]
        told = {"right": [golden(plan, device, separate) for separate in (False, True)]}
        launching.launch_of = without_bias
        told["planted"] = [golden(plan, device, separate) for separate in (False, True)]
        return {"networks": found, **told}
    finally:
        device.close()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
