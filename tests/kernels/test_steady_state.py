"""A run allocates little, whatever the size of the tensors: NumPy's casting buffers, and blocks of a fixed size."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from compiled import fill, fp32, int8
from forms import recent_yolo, segmenter, vit, yolox
from models import Net, detector_onnx
from test_half import fp16
from test_memory_check import SHIPPED

from orind.kernels.pre import polynomial

LARGEST = 8 * 4 * polynomial.BLOCK
"""Bytes: the temporaries of a polynomial's block; NumPy's casting buffers are smaller."""


def activations() -> onnx.ModelProto:
    """Activations of an image of 192 x 192 x 16, 2.3 MB, that a convolution makes and the next one reads."""
    net = Net((1, 3, 192, 192))
    x = net.conv(net.input, 16)
    for op, attrs in (("Erf", {}), ("Gelu", {}), ("Mish", {}), ("Softsign", {}), ("Elu", {"alpha": 0.7}),
                      ("ThresholdedRelu", {"alpha": 0.2}), ("HardSwish", {}), ("LeakyRelu", {"alpha": 0.1})):
        x = net.op("MaxPool", net.op(op, x, **attrs), kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    y = net.conv(x, 4, 1)
    return net.model([(y, (1, 4, 192, 192))], 20)


NETS: dict[str, Any] = {
    "detector": lambda: detector_onnx(256), "blazeface": lambda: onnx.load(SHIPPED / "blazeface-back.onnx"),
    "yolox": lambda: yolox(True, 128), "recent yolo": lambda: recent_yolo(128), "vit": lambda: vit(True, 128),
    "segmenter": lambda: segmenter(128), "activations": activations}


@pytest.mark.parametrize(("name", "compiled"), [
    *((name, fp32) for name in NETS), ("detector", int8), ("blazeface", int8), ("segmenter", fp16),
    ("blazeface", fp16)])
def test_no_step_allocates_much(name: str, compiled: Any) -> None:
    runner, _ = compiled(NETS[name]())
    fill(runner, 1)
    runner.run()
    tracemalloc.start()
    try:
        for step, calls in runner.steps:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with np.errstate(all="ignore"):
                for call in calls:
                    call()
            assert tracemalloc.get_traced_memory()[1] - before < LARGEST, step
    finally:
        tracemalloc.stop()
