"""Small ONNX models for tests, made with onnx.helper; deterministic by seed. Imported by tests of several packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Writes a graph node by node; every method returns the name of its output."""

    def __init__(self, shape: Sequence[int], seed: int = 0, name: str = "images",
                 dtype: int = TensorProto.FLOAT) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.input = name
        self.dtype = dtype
        self.shape = tuple(shape)
        self.channels = {name: shape[1]}

    def constant(self, value: NDArray[Any]) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        names = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, f"{kind}_{len(self.nodes)}", **attrs))
        self.channels.setdefault(names[0], self.channels.get(inputs[0], 0))
        return names[0] if outputs == 1 else names

    def conv(self, x: str, out: int, k: int = 3, stride: int = 1, pads: Sequence[int] | None = None, group: int = 1,
             bias: bool = True, dilation: int = 1, gain: float = 1.6) -> str:
        fan = self.channels[x] // group * k * k
        w = self.rng.normal(0, gain / np.sqrt(fan), (out, self.channels[x] // group, k, k)).astype(np.float32)
        inputs = [x, self.constant(w)]
        if bias:
            inputs.append(self.constant(self.rng.normal(0, 0.1, out).astype(np.float32)))
        half = (k - 1) * dilation // 2
        y = self.op("Conv", *inputs, kernel_shape=[k, k], strides=[stride, stride], group=group,
                    pads=list(pads or [half] * 4), dilations=[dilation] * 2)
        self.channels[y] = out
        return str(y)

    def norm(self, x: str) -> str:
        c = self.channels[x]
        values = [self.rng.uniform(0.5, 1.5, c), self.rng.normal(0, 0.2, c), self.rng.normal(0, 0.2, c),
                  self.rng.uniform(0.5, 1.5, c)]
        return str(self.op("BatchNormalization", x, *[self.constant(v.astype(np.float32)) for v in values]))

    def silu(self, x: str) -> str:
        return str(self.op("Mul", x, self.op("Sigmoid", x)))

    def cbs(self, x: str, out: int, k: int = 3, stride: int = 1) -> str:
        return self.silu(self.norm(self.conv(x, out, k, stride, bias=False)))

    def concat(self, *xs: str, axis: int = 1) -> str:
        y = self.op("Concat", *xs, axis=axis)
        self.channels[y] = sum(self.channels[x] for x in xs)
        return str(y)

    def c2f(self, x: str) -> str:
        c = self.channels[x]
        a, b = self.op("Split", self.cbs(x, c, 1), self.constant(np.array([c // 2] * 2)), outputs=2, axis=1)
        self.channels[a] = self.channels[b] = c // 2
        m = self.op("Add", b, self.cbs(self.cbs(b, c // 2), c // 2))
        return self.cbs(self.concat(a, b, m), c, 1)

    def sppf(self, x: str) -> str:
        c = self.channels[x]
        parts = [self.cbs(x, c // 2, 1)]
        for _ in range(3):
            parts.append(self.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
        return self.cbs(self.concat(*parts), c, 1)

    def model(self, outputs: Sequence[tuple[str, Sequence[int]]], opset: int = 17) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info(self.input, self.dtype, self.shape)],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def identity_onnx(h: int, width: int = 4096) -> onnx.ModelProto:
    """uint8 (1, h, width, 1) in NHWC; one byte of each row comes out as float32 (1, 1, h, 1): every page is read."""
    net = Net((1, h, width, 1), name="bytes", dtype=TensorProto.UINT8)
    x = net.op("Transpose", net.input, perm=[0, 3, 1, 2])
    x = net.op("MaxPool", x, kernel_shape=[1, 1], strides=[1, width])
    return net.model([(net.op("Cast", x, to=TensorProto.FLOAT), (1, 1, h, 1))])


def detector_onnx(size: int = 256, width: Sequence[int] = (12, 24, 48, 96), classes: int = 4,
                  seed: int = 0) -> onnx.ModelProto:
    """An untrained part detector: CSP/C2f + SPPF, two-level neck, anchor-free heads, decode in the graph."""
    a, b, c, d = width
    net = Net((1, 3, size, size), seed)
    x = net.c2f(net.cbs(net.cbs(net.input, a, 3, 2), b, 3, 2))
    p3 = net.c2f(net.cbs(x, c, 3, 2))
    p4 = net.sppf(net.c2f(net.cbs(p3, d, 3, 2)))
    up = net.op("Resize", net.cbs(p4, c, 1), "", net.constant(np.array([1, 1, 2, 2], dtype=np.float32)),
                mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    t = net.c2f(net.cbs(net.concat(up, p3), c, 1))
    u = net.cbs(net.concat(net.cbs(t, c, 3, 2), p4), c, 1)
    levels, grids, strides = [], [], []
    for x, stride in ((t, 8), (u, 16)):
        h = net.cbs(x, c)
        both = net.concat(net.conv(h, 4, 1), net.conv(h, classes, 1))
        n = size // stride
        levels.append(net.op("Reshape", both, net.constant(np.array([1, 4 + classes, -1]))))
        row, column = np.meshgrid(np.arange(n) + 0.5, np.arange(n) + 0.5, indexing="ij")
        grids.append(np.stack([column, row]).reshape(1, 2, -1).astype(np.float32))
        strides.append(np.full((1, 1, n * n), stride, dtype=np.float32))
    o = net.op("Concat", *levels, axis=2)
    grid, stride_of = net.constant(np.concatenate(grids, 2)), net.constant(np.concatenate(strides, 2))

    def cut(x: str, first: int, end: int) -> str:
        bounds = [net.constant(np.array([v])) for v in (first, end, 1)]
        return str(net.op("Slice", x, *bounds))
    distance = net.op("Softplus", cut(o, 0, 4))
    low = net.op("Sub", grid, cut(distance, 0, 2))
    high = net.op("Add", grid, cut(distance, 2, 4))
    centre = net.op("Mul", net.op("Div", net.op("Add", low, high), net.constant(np.array(2, dtype=np.float32))),
                    stride_of)
    extent = net.op("Mul", net.op("Sub", high, low), stride_of)
    y = net.op("Concat", centre, extent, net.op("Sigmoid", cut(o, 4, 4 + classes)), axis=1)
    return net.model([(y, (1, 4 + classes, grids[0].shape[2] + grids[1].shape[2]))])


def sides(net: Net, x: str) -> list[int]:
    """Height and width of a tensor of the net so far."""
    graph = onnx.shape_inference.infer_shapes(net.model([(x, [None] * 4)])).graph
    return [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim][2:]


def random_net(seed: int) -> onnx.ModelProto:
    """A few branches of random operators that join in a Concat and end in a convolution and a Sigmoid."""
    rng = np.random.default_rng(seed)
    net = Net((1, int(rng.integers(1, 6)), int(rng.integers(9, 20)), int(rng.integers(9, 20))), seed)
    trunk = net.conv(net.input, int(rng.integers(3, 40)), 3, int(rng.integers(1, 3)))
    branches = []
    for _ in range(int(rng.integers(1, 4))):
        x = trunk
        for _ in range(int(rng.integers(1, 4))):
            kind, c = rng.integers(0, 16), net.channels[x]
            if kind == 0:
                x = net.silu(net.conv(x, int(rng.integers(3, 40)), int(rng.choice([1, 3, 5]))))
            elif kind == 1:
                x = net.op("Relu", net.conv(x, c, 3, group=c))
            elif kind == 2:
                x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
            elif kind == 3:
                x = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4,
                           count_include_pad=int(rng.integers(0, 2)))
            elif kind == 4:
                x = net.op("Relu", net.op("Add", x, net.conv(x, c, 3)))
            elif kind == 5:
                x = net.op("Add", net.silu(net.conv(x, c, 1)), x)
            elif kind == 6:
                x = net.op("Clip", net.conv(x, c, 1), net.constant(np.array(0.1, dtype=np.float32)),
                           net.constant(np.array(0.9, dtype=np.float32)))
            elif kind == 7:
                gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), c, 1))
                x = net.op("Mul", x, gate)
            elif kind == 8:
                x = net.conv(x, c, 3, group=2 if c % 2 == 0 else 1, dilation=2, pads=[2] * 4)
            elif kind == 9:
                x = net.op("Tanh", net.op("Sub", x, net.op("Relu", x)))
            elif kind == 10:
                x = net.op("LeakyRelu", net.conv(x, c, 3, bias=False), alpha=0.1)
            elif kind == 11:
                x = net.op("HardSwish", net.conv(x, int(rng.integers(1, 20)), 3))
            elif kind == 12 and c > 2:
                cut = int(rng.integers(1, c))
                a, b = net.op("Split", x, net.constant(np.array([cut, c - cut])), outputs=2, axis=1)
                net.channels[a], net.channels[b] = cut, c - cut
                x = net.concat(b, net.conv(x, 5, 1), a)
            elif kind == 13:
                zeros = net.constant(np.zeros((1, 7, *sides(net, x)), dtype=np.float32))
                x = net.op("Concat", x, zeros, axis=1)
                net.channels[x] = c + 7
            elif kind == 14:
                x = net.op("Pad", net.op("Relu", x), net.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
                x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1])
            elif c % 2 == 0:
                x = net.c2f(x)
            net.channels[x] = net.channels.get(x, c)
        branches.append(x)
    y = net.conv(net.concat(*branches), 5, 1)
    shape = onnx.shape_inference.infer_shapes(net.model([(y, [None] * 4)]))
    dims = [d.dim_value for d in shape.graph.output[0].type.tensor_type.shape.dim]
    return net.model([(net.op("Sigmoid", y), dims)])
