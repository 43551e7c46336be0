"""Quantised (QDQ) models of every form, for tests."""

from __future__ import annotations

import numpy as np
import onnx
from qdq import QdqNet


def every_form(seed: int = 0) -> onnx.ModelProto:
    """Convolutions (by channel, by tensor, depthwise, of rows, with -128), sums, products, poolings, dense layers of
    tokens and a dense end; symmetric."""
    net = QdqNet((1, 3, 12, 10), seed)
    x = net.pair(net.input, 1 / 64)
    a = net.pair(net.op("Relu", net.coded_conv(x, 1 / 64, 20)), 0.015)
    b = net.pair(net.coded_conv(a, 0.015, 20, group=20), 0.01)
    c = net.pair(net.op("Relu", net.pair(net.coded_conv(a, 0.015, 20, 1, per_channel=False), 0.015)), 0.012)
    total = net.pair(net.op("Add", b, c), 0.016)
    gate = net.pair(net.op("Sigmoid", total), 1 / 127)
    product = net.pair(net.op("Mul", total, gate), 0.014)
    pooled = net.pair(net.op("MaxPool", product, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4), 0.014)
    joined = net.op("Concat", pooled, b, axis=1)
    net.channels[joined] = 40
    joined = net.pair(joined, 0.013)
    last = net.pair(net.op("Relu", net.coded_conv(joined, 0.013, 17, strides=[2, 2])), 0.03)
    rows = net.pair(net.op("Reshape", last, net.constant(np.array([1, 17, 30]))), 0.03)
    net.channels[rows] = 17
    rows = net.pair(net.op("Relu", net.coded_conv(rows, 0.03, 18, rank=1)), 0.02)
    rows = net.pair(net.coded_conv(rows, 0.02, 16, 1, rank=1), 0.02)
    tokens = net.pair(net.op("Transpose", rows, perm=[0, 2, 1]), 0.02)
    tokens = net.pair(net.op("Relu", net.pair(net.dense(tokens, 16, 20), 0.03)), 0.03)
    tokens = net.pair(net.dense(tokens, 20, 17, False), 0.06)
    image = net.op("Reshape", net.op("Transpose", tokens, perm=[0, 2, 1]), net.constant(np.array([1, 17, 6, 5])))
    mean = net.pair(net.op("GlobalAveragePool", net.pair(image, 0.06)), 0.02)
    flat = net.op("Flatten", mean)
    w = net.weight(net.rng.integers(-128, 128, (5, 17)).astype(np.int8), np.full(5, 0.01))
    bias = net.weight(net.rng.integers(-999, 999, 5).astype(np.int32), np.full(5, np.float32(0.02) * np.float32(0.01)))
    return net.model([(net.op("Gemm", flat, w, bias, transB=1), (1, 5))], 13)


def residual_in_float(shortcut: bool) -> onnx.ModelProto:
    """As tools for TensorRT write it: pairs in front of convolutions only."""
    net = QdqNet((1, 3, 8, 8))
    x = net.op("Relu", net.coded_conv(net.pair(net.input, 0.02), 0.02, 6))
    coded = net.pair(x, 0.2)
    y = net.op("Relu", net.coded_conv(coded, 0.2, 6))
    y = net.coded_conv(net.pair(y, 0.3), 0.3, 6)
    if shortcut:
        y = net.op("Add", y, net.op("MaxPool", net.coded_conv(coded, 0.2, 6, 1), kernel_shape=[1, 1]))
        net.channels[y] = 6
    else:
        y = net.op("Add", y, x)
        net.channels[y] = 6
    return net.model([(net.coded_conv(net.pair(net.op("Relu", y), 0.5), 0.5, 2), (1, 2, 8, 8))])
