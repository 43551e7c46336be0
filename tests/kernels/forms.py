"""Networks of the forms that users bring, with fixed random weights. Imported by tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from models import Net
from test_recognition import erf_gelu, focus

Shape = Sequence[int]


def ints(net: Net, *values: int) -> str:
    return net.constant(np.array(values, dtype=np.int64))


def floats(net: Net, *values: float) -> str:
    return net.constant(np.array(values, dtype=np.float32))


def size_of(net: Net, x: str, axis: int) -> str:
    """Shape, Gather, Unsqueeze: one size as exporters of dynamic models take it."""
    found = net.op("Gather", net.op("Shape", x), net.constant(np.array(axis)), axis=0)
    return str(net.op("Unsqueeze", found, ints(net, 0)))


def grid(net: Net, rows: str, columns: str, step: float) -> str:
    """(1, 2, rows * columns) of cell centres, made in the graph by Range, Expand and ConstantOfShape."""
    zero, one = net.constant(np.array(0)), net.constant(np.array(1))

    def line(count: str) -> str:
        numbers = net.op("Range", zero, net.op("Squeeze", count, ints(net, 0)), one)
        return str(net.op("Add", net.op("Cast", numbers, to=1), net.constant(np.array(0.5, dtype=np.float32))))
    both = net.op("Concat", rows, columns, axis=0)
    y = net.op("Expand", net.op("Unsqueeze", line(rows), ints(net, 1)), both)
    x = net.op("Expand", net.op("Unsqueeze", line(columns), ints(net, 0)), both)
    scale = net.op("Mul", net.op("ConstantOfShape", both, value=onnx.helper.make_tensor("v", 1, [1], [1.0])),
                   net.constant(np.array(step, dtype=np.float32)))
    parts = [net.op("Reshape", net.op("Mul", v, scale), ints(net, 1, 1, -1)) for v in (x, y)]
    return str(net.op("Concat", *parts, axis=1))


def separable(net: Net, x: str, out: int, stride: int = 1) -> str:
    """A depthwise-separable block with SiLU."""
    x = net.silu(net.norm(net.conv(x, net.channels[x], 3, stride, group=net.channels[x], bias=False)))
    return net.cbs(x, out, 1)


def yolox(decode: bool, size: int = 64, opset: int = 13) -> onnx.ModelProto:
    """Focus stem, depthwise-separable blocks, asymmetric Pad + pooling, decoupled heads; decode in the graph or not."""
    net = Net((1, 3, size, size), 3)
    x = net.cbs(focus(net, net.input), 16)
    small = separable(net, x, 24, 2)
    large = separable(net, small, 32, 2)
    padded = net.op("Pad", large, ints(net, 0, 0, 0, 0, 0, 0, 1, 1))
    net.channels[padded] = 32
    large = net.op("Add", large, net.op("MaxPool", padded, kernel_shape=[2, 2], strides=[1, 1]))
    sizes = net.op("Concat", ints(net, 1, 32), size_of(net, small, 2), size_of(net, small, 3), axis=0)
    up = net.op("Resize", large, "", "", sizes, mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric")
    net.channels[up] = net.channels[large] = 32
    levels = []
    for x, step in ((net.concat(up, small), 4), (large, 8)):
        x = net.cbs(x, 24, 1)
        boxes, classes = separable(net, x, 24), separable(net, x, 24)
        head = net.concat(net.conv(boxes, 4, 1, gain=0.3), net.op("Sigmoid", net.conv(boxes, 1, 1)),
                          net.op("Sigmoid", net.conv(classes, 3, 1)))
        flat = net.op("Reshape", head, net.op("Concat", ints(net, 1, 8), ints(net, -1), axis=0))
        if decode:
            places = grid(net, size_of(net, head, 2), size_of(net, head, 3), float(step))
            xy, wh, rest = (net.op("Slice", flat, ints(net, a), ints(net, b), ints(net, 1))
                            for a, b in ((0, 2), (2, 4), (4, 8)))
            stride = net.constant(np.array(step, dtype=np.float32))
            flat = net.op("Concat", net.op("Add", net.op("Mul", xy, stride), places),
                          net.op("Mul", net.op("Exp", wh), stride), rest, axis=1)
        levels.append(flat)
    y = net.op("Transpose", net.op("Concat", *levels, axis=2), perm=[0, 2, 1])
    return net.model([(y, [None] * 3)], opset)


def attention(net: Net, x: str, heads: int, side: tuple[int, int]) -> str:
    """The attention block of recent YOLOs: qkv by a convolution, positions by a depthwise one."""
    c, n = net.channels[x], side[0] * side[1]
    key = c // heads // 2
    qkv = net.conv(x, c + 2 * key * heads, 1)
    flat = net.op("Reshape", qkv, ints(net, 1, heads, 2 * key + c // heads, n))
    q, k, v = net.op("Split", flat, ints(net, key, key, c // heads), outputs=3, axis=2)
    scores = net.op("MatMul", net.op("Transpose", q, perm=[0, 1, 3, 2]), k)
    weights = net.op("Softmax", net.op("Mul", scores, net.constant(np.array(key ** -0.5, dtype=np.float32))), axis=-1)
    mixed = net.op("MatMul", v, net.op("Transpose", weights, perm=[0, 1, 3, 2]))
    image = net.op("Reshape", mixed, ints(net, 1, c, *side))
    places = net.op("Reshape", v, ints(net, 1, c, *side))
    net.channels[image] = net.channels[places] = c
    both = net.op("Add", image, net.conv(places, c, 3, group=c))
    net.channels[both] = c
    out = net.op("Add", x, net.conv(both, c, 1))
    net.channels[out] = c
    return str(out)


def recent_yolo(size: int = 64, bins: int = 8) -> onnx.ModelProto:
    """C2f, SPPF, attention, and a head with DFL (softmax over bins, expectation by a convolution)."""
    net = Net((1, 3, size, size), 4)
    x = net.c2f(net.cbs(net.cbs(net.input, 16, 3, 2), 32, 3, 2))
    x = net.sppf(net.c2f(net.cbs(x, 32, 3, 2)))
    n = size // 8
    x = attention(net, x, 2, (n, n))
    boxes = net.op("Reshape", net.conv(net.cbs(x, 16), 4 * bins, 1), ints(net, 1, 4, bins, n * n))
    share = net.op("Softmax", net.op("Transpose", boxes, perm=[0, 2, 1, 3]), axis=1)
    weight = net.constant(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
    distance = net.op("Reshape", net.op("Conv", share, weight), ints(net, 1, 4, n * n))
    places = grid(net, ints(net, n), ints(net, n), 1.0)
    low = net.op("Sub", places, net.op("Slice", distance, ints(net, 0), ints(net, 2), ints(net, 1)))
    high = net.op("Add", places, net.op("Slice", distance, ints(net, 2), ints(net, 4), ints(net, 1)))
    centre = net.op("Div", net.op("Add", low, high), floats(net, 2))
    classes = net.op("Sigmoid", net.op("Reshape", net.conv(net.cbs(x, 16), 3, 1), ints(net, 1, 3, -1)))
    eight = floats(net, 8)
    y = net.op("Concat", net.op("Mul", centre, eight), net.op("Mul", net.op("Sub", high, low), eight), classes, axis=1)
    return net.model([(y, (1, 7, n * n))])


def vit(decomposed: bool, size: int = 32, width: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Patches, class token, positions, one block of attention and MLP with GELU; LayerNormalization in parts or not."""
    net = Net((1, 3, size, size), 5)
    tokens = (size // 8) ** 2

    def weight(*shape: int) -> str:
        return net.constant(net.rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32))

    def norm(x: str) -> str:
        scale, bias = weight(width), weight(width)
        if not decomposed:
            return str(net.op("LayerNormalization", x, scale, bias, axis=-1))
        d = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
        spread = net.op("ReduceMean", net.op("Pow", d, floats(net, 2)), axes=[-1])
        root = net.op("Sqrt", net.op("Add", spread, floats(net, 1e-5)))
        return str(net.op("Add", net.op("Mul", net.op("Div", d, root), scale), bias))

    def dense(x: str, a: int, b: int) -> str:
        return str(net.op("Add", weight(b), net.op("MatMul", x, weight(a, b))))
    x = net.conv(net.input, width, 8, 8, pads=[0, 0, 0, 0])
    x = net.op("Transpose", net.op("Reshape", x, ints(net, 1, width, -1)), perm=[0, 2, 1])
    token = net.op("Expand", weight(1, 1, width), ints(net, 1, 1, 1))
    x = net.op("Add", net.op("Concat", token, x, axis=1), weight(tokens + 1, width))
    qkv = net.op("Reshape", dense(norm(x), width, 3 * width), ints(net, 1, tokens + 1, 3, heads, width // heads))
    qkv = net.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", qkv, net.constant(np.array(i)), axis=0) for i in range(3))
    scores = net.op("MatMul", net.op("Mul", q, floats(net, (width // heads) ** -0.5)),
                    net.op("Transpose", k, perm=[0, 1, 3, 2]))
    mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    x = net.op("Add", x, dense(net.op("Reshape", mixed, ints(net, 1, tokens + 1, width)), width, width))
    hidden = erf_gelu(net, dense(norm(x), width, 2 * width), 1)
    x = norm(net.op("Add", x, dense(hidden, 2 * width, width)))
    first = net.op("Gather", x, net.constant(np.array(0)), axis=1)
    y = net.op("Gemm", first, weight(10, width), weight(10), transB=1)
    return net.model([(y, (1, 10))])


def scaled(size: int = 16) -> onnx.ModelProto:
    """In-graph scaling: numbers in front, scale layers and PRelu between convolutions, positions added in full."""
    net = Net((1, 3, size, size), 7)

    def keep(x: str, c: int) -> str:
        net.channels[x] = c
        return x
    x = keep(net.op("Div", net.op("Sub", net.input, floats(net, 0.25)), floats(net, 0.5)), 3)
    x = net.op("Mul", net.conv(x, 16), floats(net, 0.7))
    slope = net.constant(net.rng.uniform(0, 0.5, (16, 1, 1)).astype(np.float32))
    x = keep(net.op("PRelu", x, slope), 16)
    pooled = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    gain = net.constant(net.rng.uniform(0.5, 2, (1, 16, 1, 1)).astype(np.float32))
    x = net.op("Relu", net.conv(keep(net.op("Mul", pooled, gain), 16), 24))
    places = net.constant(net.rng.normal(0, 0.5, (1, 24, size // 2, size // 2)).astype(np.float32))
    x = net.op("Add", net.conv(keep(net.op("Add", x, places), 24), 24, 3, group=24), x)
    return net.model([(net.conv(keep(x, 24), 5, 1), (1, 5, size // 2, size // 2))])


def segmenter(size: int = 32) -> onnx.ModelProto:
    """A DBNet-like head: HardSwish blocks, bilinear and nearest Resize, transposed convolutions, uint8 input scaled."""
    net = Net((1, 3, size, size), 6, dtype=onnx.TensorProto.UINT8)
    x = net.op("Div", net.op("Cast", net.input, to=1), floats(net, 255))
    net.channels[x] = 3
    x = net.op("HardSwish", net.norm(net.conv(x, 16, 3, 2)))
    net.channels[x] = 16
    deep = net.op("LeakyRelu", net.conv(x, 24, 3, 2), alpha=0.1)
    net.channels[deep] = 24
    scales = floats(net, 1, 1, 2, 2)
    wide = net.op("Resize", deep, "", scales, mode="linear", coordinate_transformation_mode="align_corners")
    near = net.op("Resize", deep, "", scales, mode="nearest", nearest_mode="ceil",
                  coordinate_transformation_mode="align_corners")
    net.channels[wide] = net.channels[near] = 24
    x = net.concat(wide, x, near)
    gate = net.op("HardSigmoid", net.conv(net.op("ReduceMean", x, axes=[2, 3]), 64, 1))
    x = net.op("Mul", x, gate)
    net.channels[x] = 64
    for c in (12, 1):
        w = net.constant(net.rng.normal(0, 0.2, (net.channels[x], c, 2, 2)).astype(np.float32))
        y = net.op("ConvTranspose", x, w, net.constant(np.zeros(c, dtype=np.float32)), strides=[2, 2])
        x = net.op("Relu", y) if c > 1 else net.op("Sigmoid", y)
        net.channels[x] = c
    return net.model([(x, (1, 1, 2 * size, 2 * size))])
