"""Whole networks of users' forms in FP32 against ONNX Runtime with graph optimisation off."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from compiled import fill, fp32, imported, onnxruntime_outputs
from forms import recent_yolo, segmenter, vit, yolox

from orind.kernels.passes.pipeline import fuse, prepare

LIMIT = 1e-3
NETS = {"yolox raw": yolox(False), "yolox decoded": yolox(True), "recent yolo": recent_yolo(), "vit": vit(False),
        "vit decomposed": vit(True), "segmenter": segmenter()}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("batch", [1, 2])
def test_form(name: str, batch: int) -> None:
    model = NETS[name]
    runner, _ = fp32(model, batch)
    fill(runner, 1)
    frames = runner.input.copy()
    got = [o.copy() for o in runner.run()]
    for i in range(batch):
        want = onnxruntime_outputs(model, np.ascontiguousarray(frames[i].transpose(2, 0, 1))[None])
        for a, b in zip(got, want, strict=True):
            assert a[i].shape == b.shape[1:] and np.abs(b).max() > 0
            assert np.abs(a[i] - b[0]).max() <= LIMIT * np.abs(b).max()


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op for node in fuse(prepare(imported(model))).nodes]


def test_what_is_left_of_a_form() -> None:
    assert "Slice" not in ops(yolox(False)) and not {"Range", "Expand", "Shape"} & set(ops(yolox(True)))
    assert ops(vit(True)).count("LayerNormalization") == 3 and ops(vit(True)).count("Gelu") == 1
    assert ops(vit(False)).count("LayerNormalization") == 3
    assert "Cast" not in ops(segmenter()) and ops(segmenter()).count("ZeroStuff") == 2
