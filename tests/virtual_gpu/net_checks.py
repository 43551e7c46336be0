"""Convolutions of odd shapes on the CUDA executor and on the CPU's: `net_checks.py edges|random|deep|pads`. Prints as
JSON, of each net, the outputs that differ and how many of its convolutions ran on the GPU (deep: as split-K); pads: the
steps that differ, pads included, and those that leave a pad that is not 0.

Started by test_odd_shapes.py with LD_LIBRARY_PATH set, in a process of its own: which libcuda.so.1 a process has is
decided once.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))

from compiled import calibrated, fill
from models import Net

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.cuda.device import Device
from orind.kernels.cuda.executor import CudaExecutor
from orind.kernels.ir.steps import ConvI8
from orind.kernels.passes.lower import lower
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.half import mixed_numbers

Pair = tuple[int, int]
SEEDS = 60
EDGES: tuple[tuple[Pair, Pair, Pair, Pair, Sequence[int]], ...] = (
    # image, window, stride, dilation, pads: of each two the last that the kernel's numbers hold and one beyond
    ((16384, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((16385, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((1, 49153), (1, 3), (1, 1), (1, 1), (0, 1, 0, 1)),
    ((1, 49154), (1, 3), (1, 1), (1, 1), (0, 1, 0, 1)),
    ((32770, 1), (2, 1), (2, 1), (32767, 1), (0, 0, 0, 0)),
    ((32770, 1), (2, 1), (2, 1), (32768, 1), (0, 0, 0, 0)),
    ((1, 65540), (1, 2), (1, 2), (1, 65535), (0, 0, 0, 0)),
    ((1, 65540), (1, 2), (1, 2), (1, 65536), (0, 0, 0, 0)),
)


def window(
    net: Net, x: str, image: Pair, out: int, k: Pair, stride: Pair, dilation: Pair, pads: Sequence[int], group: int = 1
) -> tuple[str, Pair]:
    """A convolution, and what it leaves of the image."""
    per = net.channels[x] // group
    weight = net.rng.normal(0, 1.6 / np.sqrt(per * k[0] * k[1]), (out, per, *k)).astype(np.float32)
    y = net.op(
        "Conv",
        x,
        net.constant(weight),
        net.constant(net.rng.normal(0, 0.1, out).astype(np.float32)),
        kernel_shape=k,
        strides=stride,
        dilations=dilation,
        pads=list(pads),
        group=group,
    )
    net.channels[y] = out
    height, width = ((image[i] + pads[i] + pads[i + 2] - (k[i] - 1) * dilation[i] - 1) // stride[i] + 1 for i in (0, 1))
    return y, (height, width)


def edge(image: Pair, k: Pair, stride: Pair, dilation: Pair, pads: Sequence[int]) -> onnx.ModelProto:
    net = Net((1, 16, *image))
    y, left = window(net, net.input, image, 8, k, stride, dilation, pads)
    y = net.op("MaxPool", y, kernel_shape=left)
    return net.model([(net.conv(y, 2, 1), (1, 2, 1, 1))])


def random_net(seed: int) -> onnx.ModelProto:
    """Groups, channels that fill no unit, one-pixel images, strides beyond the image, sums, halves and joins."""
    draw = random.Random(seed)
    image = draw.choice(((1, 1), (1, 7), (9, 1), (5, 5), (3, 11)))
    net = Net((1, draw.choice((2, 5, 16, 33)), *image), seed)
    x, image = window(net, net.input, image, draw.choice((8, 12, 24, 40)), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    for _ in range(draw.randint(1, 3)):
        groups = draw.choice([n for n in (1, 2, 3, 4) if net.channels[x] % n == 0])
        k = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
        stride = draw.choice((1, 1, 2, 9)), draw.choice((1, 1, 2, 50))
        dilation = draw.choice((1, 2)), draw.choice((1, 3))
        pads = [draw.choice((3, 4, 5)) for _ in range(4)]
        before = x, image
        x, image = window(net, x, image, groups * draw.choice((1, 4, 7, 12)), k, stride, dilation, pads, groups)
        x = net.op(draw.choice(("Relu", "Tanh", "LeakyRelu")), x)
        if draw.random() < 0.4 and net.channels[x] % 2 == 0:
            half = net.channels[x] // 2
            parts = net.op("Split", x, net.constant(np.array([half, half])), axis=1, outputs=2)
            net.channels[parts[0]] = net.channels[parts[1]] = half
            y, _ = window(net, parts[1], image, half, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
            x = net.concat(parts[1], net.op("Add", y, parts[0]))
        if before[1] == image:
            x = net.concat(x, before[0])
    y, image = window(net, x, image, draw.choice((1, 7, 19)), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    return net.model([(y, (1, net.channels[y], *image))])


def compare(model: onnx.ModelProto, batch: int, device: Device, seed: int) -> tuple[list[str], int]:
    """Outputs that are not the CPU's to the bit, and how many convolutions the GPU did."""
    graph, numbers = mixed_numbers(calibrated(model, seed=seed), ())
    programs, constants = lower(graph, [batch], numbers)
    program = programs[batch]
    right = ProgramRunner(program, constants)
    fill(right, seed)
    entry = program.tensors[program.inputs[0]]
    right.input[..., np.setdiff1d(np.arange(right.input.shape[-1]), entry.channels())] = 0  # pads
    plan = SimpleNamespace(tensors=constants, metadata={})
    with CudaExecutor.alone(plan, batch, programs, device=device, cpu_steps=True, separate=seed % 2 == 1) as cuda:
        np.copyto(cuda.input, right.input)
        on_cpu = {name for name, _ in cuda.placement.on_cpu}
        wrong = [
            name
            for name, want, got in zip(program.outputs, right.run(), cuda.run(), strict=True)
            if not np.array_equal(want, got)
        ]
        done = [step for step in program.steps if isinstance(step, ConvI8) and step.name not in on_cpu]
    return wrong, len(done)


def deep_net() -> onnx.ModelProto:
    """Few pixels of many channels: there are fewer blocks than SMs, and K is long."""
    net = Net((1, 128, 3, 3))
    x = net.silu(net.conv(net.input, 128))
    y = net.op("Add", net.conv(x, 128), x)
    return net.model([(net.conv(y, 6, 3), (1, 6, 3, 3))])


def deep(precision: str, batch: int, device: Device) -> tuple[float, int]:
    """How far from the CPU's the outputs of three runs are, in parts of the largest, and the launches of split-K."""
    scales = calibrated(deep_net())
    graph, numbers = mixed_numbers(scales, layers_of(scales.graph) if precision == "fp16" else ())
    programs, constants = lower(graph, [batch], numbers)
    right, worst = ProgramRunner(programs[batch], constants), 0.0
    plan = SimpleNamespace(tensors=constants, metadata={})
    with CudaExecutor.alone(plan, batch, programs, device=device, cpu_steps=True) as cuda:
        for seed in range(3):  # what a launch leaves of its partial sums and counters the next one finds
            fill(right, seed)
            np.copyto(cuda.input, right.input)
            for want, got in zip(right.run(), cuda.run(), strict=True):
                worst = max(worst, float(np.abs(want - got).max() / np.abs(want).max()))
        return worst, sum(launch.kernel.split for launch in cuda._launches.values())


def sigmoids() -> onnx.ModelProto:
    """20 channels in units of 16, through a function that is not 0 at 0: alone, and before a sum."""
    net = Net((1, 3, 5, 5))
    x = net.op("Sigmoid", net.conv(net.input, 20))
    y = net.op("Add", net.op("Sigmoid", net.conv(x, 20)), x)
    return net.model([(net.conv(y, 2, 1), (1, 2, 5, 5))])


def pads(precision: str, device: Device) -> dict[str, list[str]]:
    scales = calibrated(sigmoids())
    graph, numbers = mixed_numbers(scales, layers_of(scales.graph) if precision == "fp16" else ())
    programs, constants = lower(graph, [2], numbers)
    tables = [table for table in constants.values() if table.shape == (1024,)]
    assert precision == "fp16" or (len(tables) == 2 and all(table[512] for table in tables))
    plan, right = SimpleNamespace(tensors=constants, metadata={}), ProgramRunner(programs[2], constants)
    told: dict[str, list[str]] = {"differ": [], "cpu": [], "gpu": []}
    with CudaExecutor.alone(plan, 2, programs, device=device, cpu_steps=True) as cuda:
        fill(right)
        right.input[..., 3:] = 0
        np.copyto(cuda.input, right.input)
        for step, _ in zip(right.walk(), cuda._walk(), strict=True):
            if right.sum_of(step) != cuda.runner.sum_of(step):
                told["differ"].append(step.name)
            tensor = programs[2].tensors[step.writes()[0]]
            if tensor.layout == "nhwc" and tensor.dtype != "float32":
                beside = np.setdiff1d(np.arange(tensor.span), tensor.channels())
                assert len(beside)
                for side, runner in (("cpu", right), ("gpu", cuda.runner)):
                    if runner.binding.all_frames(tensor.name)[..., beside].any():
                        told[side].append(step.name)
    return told


def main(which: str) -> object:
    device = Device()
    try:
        if which == "deep":
            return [deep(precision, batch, device) for precision in ("int8", "fp16") for batch in (1, 4)]
        if which == "pads":
            return [pads(precision, device) for precision in ("int8", "fp16")]
        if which == "edges":
            return [compare(edge(*given), 1, device, 0) for given in EDGES]
        return [compare(random_net(seed), (1, 3, 8)[seed % 3], device, seed) for seed in range(SEEDS)]
    finally:
        device.close()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
