"""Whole networks of users' forms: FP32 against ONNX Runtime with graph optimisation off, INT8 against the judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from compiled import calibrated, fill, fp32, imported, onnxruntime_outputs
from forms import recent_yolo, scaled, segmenter, vit, yolox
from judge import Judge

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.ir import steps as s
from orind.kernels.ir.graph import Graph
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.quantise import IntegerNumbers
from orind.kernels.quant.scales import InputCode, Scales

LIMIT = 1e-3
NETS = {"yolox raw": yolox(False), "yolox decoded": yolox(True), "recent yolo": recent_yolo(), "vit": vit(False),
        "vit decomposed": vit(True), "segmenter": segmenter(), "scaled": scaled()}
INT8 = {"yolox raw": (21, 0, 0), "yolox decoded": (21, 0, 0), "recent yolo": (20, 1, 2), "vit": (6, 0, 4),
        "vit decomposed": (6, 0, 4), "segmenter": (5, 0, 0), "scaled": (6, 0, 1)}
"""Convolutions in INT8, convolutions left in float32, tensors of float32 islands that are coded for a convolution."""


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


@pytest.mark.parametrize("name", NETS)
def test_integer_parts_of_a_form_equal_the_judge(name: str) -> None:
    """What surrounds attention, norms and added positions is INT8; also with every second layer in float16."""
    model = NETS[name]
    scales = calibrated(model, InputCode("uint8", 1.0) if name == "segmenter" else None)
    for layers in ((), layers_of(scales.graph)[::2]):
        programs, constants = lower(*_placed(scales, layers))
        runner = ProgramRunner(programs[1], constants)
        fill(runner, 1)
        frames = runner.input.copy()
        judge = Judge(runner, constants)
        assert judge.run() > 0
        steps, tensors = runner.program.steps, runner.program.tensors
        if not layers:
            islands = [x for x in steps if isinstance(x, s.Convert) and tensors[x.x].dtype == "float32"]
            found = tuple(sum(isinstance(x, kind) for x in steps) for kind in (s.ConvI8, s.ConvF32))
            assert (*found, len(islands)) == INT8[name]
            assert judge.checked.get("Convert", 0) == sum(int(np.prod(tensors[x.y].shape)) for x in islands)
            floats, _ = fp32(model)
            floats.input[...] = frames if floats.input.dtype == np.uint8 else \
                frames * np.float32(tensors[runner.program.inputs[0]].scale)
            for got, want in zip(runner.outputs, floats.run(), strict=True):
                noise = float(((got - want) ** 2).sum() / (want ** 2).sum())
                assert noise < 10 ** -1.5, f"SQNR {-10 * np.log10(noise):.1f} dB"
        else:
            assert {"int8", "float16"} <= {t.dtype for t in tensors.values()}


def _placed(scales: Scales, layers: Sequence[str]) -> tuple[Graph, list[int], IntegerNumbers]:
    graph, numbers = mixed_numbers(scales, layers)
    return graph, [1], numbers


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op for node in fuse(prepare(imported(model))).nodes]


def test_what_is_left_of_a_form() -> None:
    assert "Slice" not in ops(yolox(False)) and not {"Range", "Expand", "Shape"} & set(ops(yolox(True)))
    for decomposed in (True, False):
        graph = fuse(prepare(imported(vit(decomposed))))
        left = [node.op for node in graph.nodes]
        assert left.count("LayerNormalization") == 3 and left.count("MatMul") == 2 and left.count("Conv") == 6
        assert [n.attrs["activation"] for n in graph.nodes if n.attrs.get("activation")] == ["Gelu"]
    assert "Cast" not in ops(segmenter()) and ops(segmenter()).count("ZeroStuff") == 2
