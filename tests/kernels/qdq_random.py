"""Random quantised (QDQ) networks for tests: a tensor may have a pair, wide or cut far below its range, and each of its
readers sees that one, one of its own or none. Some operators have no codes: Slice, Transpose, Softmax.

A net is drawn twice from one seed: first without pairs, run by ONNX Runtime to see the range of every tensor, then
with pairs whose scales are made of those ranges.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from compiled import onnxruntime_session
from numpy.typing import NDArray
from qdq import QdqNet

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir.graph import Graph
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.quant.calibrate import Histogram, collect
from orind.kernels.quant.coding import images_as_tensors

Array = NDArray[Any]
SIDE, WIDTH = 8, 6
INPUT_SCALE = 0.02
STEPS = ("Conv", "Conv", "Conv", "Conv", "Add", "Add", "Sub", "Mul", "Concat", "MaxPool", "AveragePool", "Split",
         "Gate", "Slice", "Transpose", "Softmax")
KINDS = ("exact", "exact", "int8", "uint8")
CUTS = (1.0, 1.0, 1.0, 0.6, 0.3)
"""What part of a tensor's range a pair keeps; quantisers cut by far where they take in a Clip."""


class RandomNet:
    """One draw: `ends` are the ranges of the tensors of the net without pairs, None while those are not known."""

    def __init__(self, seed: int, ends: Mapping[str, tuple[float, float]] | None) -> None:
        self.shape_of_net, self.pairs = random.Random(seed), random.Random(seed + 1_000_000)
        self.net = QdqNet((1, 3, SIDE, SIDE), seed)
        self.ends = ends
        self.plain: dict[str, str] = {}                      # tensor -> what it was called without pairs
        self.paired: dict[str, str] = {}                     # tensor -> what most of its readers see
        self.often = self.pairs.choice((0.4, 0.7, 0.9))

    def made(self, y: str) -> str:
        """The tensor; most of its readers will see it behind one pair, or none."""
        name = self.plain[y] = f"t{len(self.plain)}"
        self.paired[y] = y if self.pairs.random() > self.often else self.pair(y, name)
        return y

    def read(self, x: str) -> str:
        """What one reader sees of a tensor."""
        draw = self.pairs.random()
        return self.pair(x, self.plain[x]) if draw < 0.15 else x if draw < 0.25 else self.paired[x]

    def pair(self, y: str, name: str) -> str:
        kind, cut = self.pairs.choice(KINDS), self.pairs.choice(CUTS)
        if self.ends is None:
            return y
        low, high = (min(self.ends[name][0], 0.0) * cut, max(self.ends[name][1], 0.0) * cut)
        if kind == "exact":
            return self.net.pair(y, max(-low, high, 1e-3) / 127)
        scale = max(high - low, 1e-3) / 255
        least, dtype = (-128, np.int8) if kind == "int8" else (0, np.uint8)
        return self.net.pair(y, scale, int(np.clip(round(least - low / scale), least, least + 255)), dtype)

    def conv(self, x: str, out: int = WIDTH) -> str:
        """Its bias moves sums away from 0, so that addends may cancel each other."""
        net, rng = self.net, self.net.rng
        k = self.shape_of_net.choice((1, 3))
        group = out if net.channels[x] == out and self.shape_of_net.random() < 0.2 else 1
        shape = (out, net.channels[x] // group, k, k)
        codes = rng.integers(-127, 128, shape).astype(np.int8)
        scale = (rng.uniform(0.6, 1.4, out) * 1.6 / 73 / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        bias = rng.normal(0, self.shape_of_net.choice((0.1, 1.5)), out).astype(np.float32)
        y = net.op("Conv", x, net.weight(codes, scale), net.constant(bias), kernel_shape=[k, k], pads=[k // 2] * 4,
                   group=group)
        net.channels[y] = out
        return str(y)

    def activation(self, x: str) -> str:
        kind = self.shape_of_net.choice(("Relu", "SiLU", "SiLU", "LeakyRelu", "HardSwish", "Sigmoid", "Clip"))
        if kind == "SiLU":
            return self.net.silu(x)
        if kind == "Clip":
            return str(self.net.op("Clip", x, *(self.net.constant(np.float32(v)) for v in (0, 6))))
        return str(self.net.op(kind, x, **({"alpha": 0.3} if kind == "LeakyRelu" else {})))

    def step(self, pool: list[str]) -> str:
        net, draw = self.net, self.shape_of_net
        x, other = draw.choice(pool[-3:]), draw.choice(pool)
        kind = draw.choice(STEPS)
        if kind == "Conv":
            y = self.made(self.conv(self.read(x)))
            return self.made(self.activation(self.read(y))) if draw.random() < 0.8 else y
        if kind == "Gate":
            mean = self.made(net.op("GlobalAveragePool", self.read(x)))
            mean = self.made(self.conv(self.read(mean), net.channels[x]))
            return self.made(net.op("Mul", self.read(x), self.read(self.made(net.op("Sigmoid", self.read(mean))))))
        if kind in ("Add", "Sub", "Mul") and net.channels[x] == net.channels[other] and x != other:
            return self.made(net.op(kind, self.read(x), self.read(other)))
        if kind == "Concat" and x != other:
            return self.made(net.concat(self.read(x), self.read(other)))
        if kind.endswith("Pool"):
            return self.made(net.op(kind, self.read(x), kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4))
        if kind in ("Split", "Slice") and net.channels[x] % 2 == 0:
            half = net.channels[x] // 2
            parts = net.op("Split", self.read(x), net.constant(np.array([half, half])), axis=1, outputs=2) \
                if kind == "Split" else [net.op("Slice", self.read(x), *(net.constant(np.array([at])) for at in ends))
                                         for ends in ((0, half, 1), (half, 2 * half, 1))]
            for part in parts:
                net.channels[part] = half
                self.made(part)
            return self.made(net.concat(*(self.read(part) for part in reversed(parts))))
        if kind in ("Transpose", "Softmax"):
            attrs = {"axis": 1} if kind == "Softmax" else {"perm": [0, 1, 3, 2]}
            return self.made(net.op(kind, self.read(x), **attrs))
        return self.made(self.activation(self.read(x)))

    def model(self) -> onnx.ModelProto:
        x = self.net.pair(self.net.input, INPUT_SCALE)
        pool = [self.made(self.conv(x)), self.made(self.activation(self.read(self.made(self.conv(x)))))]
        for _ in range(self.shape_of_net.randint(3, 9)):
            pool.append(self.step(pool))
        last = self.net.op("Relu", self.read(pool[-1]))
        self.plain[last] = f"t{len(self.plain)}"
        return self.net.model([(self.conv(self.pair(last, self.plain[last])), (1, WIDTH, SIDE, SIDE))])


def frames(count: int = 3) -> list[Array]:
    """Codes (H, W, 3) of inputs that fill the range."""
    rng = np.random.default_rng(5)
    return [rng.integers(-127, 128, (SIDE, SIDE, 3)) for _ in range(count)]


def calibrate_on(scale: float) -> Callable[[Graph], Mapping[str, Histogram]]:
    """Ranges of a prepared graph's tensors over `frames`, whose codes are worth `scale`."""
    def calibrate(prepared: Graph) -> Mapping[str, Histogram]:
        programs, constants = lower(prepared, [1], FloatNumbers(prepared))
        writers = [lambda out, v=codes: np.copyto(out, v * np.float32(scale)) for codes in frames()]
        ranges = collect(ProgramRunner(programs[1], constants), writers, lambda done: None)
        return ranges | images_as_tensors(ranges)
    return calibrate


def as_input(codes: Array) -> Array:
    return np.ascontiguousarray((codes * np.float32(INPUT_SCALE)).transpose(2, 0, 1), dtype=np.float32)[None]


def values_of(model: onnx.ModelProto, names: list[str], codes: Array) -> dict[str, Array]:
    """By ONNX Runtime, of any tensors."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in names)
    session = onnxruntime_session(whole)
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: as_input(codes)}), strict=True))


def random_qdq(seed: int) -> onnx.ModelProto:
    plain = RandomNet(seed, None)
    model = plain.model()
    ends: dict[str, tuple[float, float]] = {}
    for codes in frames():
        for tensor, value in values_of(model, list(plain.plain), codes).items():
            name = plain.plain[tensor]
            low, high = ends.get(name, (0.0, 0.0))
            ends[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return RandomNet(seed, ends).model()


def within(model: onnx.ModelProto, ends: Mapping[str, tuple[float, float]]) -> onnx.ModelProto:
    """The same model with tensors that all readers see cut to these ends."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    for node in model.graph.node:
        again = onnx.NodeProto()
        again.CopyFrom(node)
        again.input[:] = [f"{name}_within" if name in ends else name for name in node.input]
        nodes.append(again)
        for name in (name for name in node.output if name in ends):
            names = [f"{name}_least", f"{name}_most"]
            weights += [onnx.numpy_helper.from_array(np.float32(v), n) for v, n in zip(ends[name], names, strict=True)]
            nodes.append(onnx.helper.make_node("Clip", [name, *names], [f"{name}_within"]))
    graph = onnx.helper.make_graph(nodes, "within", model.graph.input, model.graph.output,
                                   [*model.graph.initializer, *weights])
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def without_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with each pair of a computed tensor as the Clip to the range of its codes."""
    constants = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    clips: dict[str, onnx.NodeProto] = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, zero = (constants[name] for name in node.input[1:])
            info = np.iinfo(zero.dtype)
            for end, code in (("low", info.min), ("high", info.max)):
                value = np.float32((code - int(zero)) * float(scale))
                model_name = f"{node.output[0]}_{end}"
                constants[model_name] = value
            clips[node.output[0]] = node
        elif node.op_type == "DequantizeLinear" and node.input[0] in clips:
            quantise = clips[node.input[0]]
            ends = [f"{quantise.output[0]}_{end}" for end in ("low", "high")]
            nodes.append(onnx.helper.make_node("Clip", [quantise.input[0], *ends], [node.output[0]]))
        else:
            nodes.append(node)
    weights = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "plain", model.graph.input, model.graph.output, weights)
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
