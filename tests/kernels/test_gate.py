"""The gate of heat maps and of regression: figures by hand, builds, refusals, and what is served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net
from PIL import Image

from orind.kernels.build import BuildReport, build_plan
from orind.kernels.devices import CpuDevice
from orind.kernels.ir.errors import ModelError
from orind.kernels.model import open_models
from orind.kernels.picture import Picture
from orind.kernels.plan.file import PlanFile
from orind.kernels.pre.decode_yolo import YoloDecoder
from orind.kernels.pre.decoder import DecoderError, make_decoder
from orind.kernels.pre.heat_map import MapDecoder
from orind.kernels.quant.divergence import Levels
from orind.kernels.quant.gate import OVERFLOWED, Classify, Detect, HeatMap, Regress, Tally, compare, cost_of
from orind.kernels.quant.pictures import Source
from orind.kernels.quant.reference import Reference
from orind.kernels.quant.verdict import AccuracyError, enforce, gate_lines, judge_gate
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

SPEC = ModelSpec("faces", "map", (), (1,), InputSpec(resize="none"), DecoderSpec("map", score_threshold=0.5))
LINES = ModelSpec("lines", "regress", (), (1,), InputSpec(resize="none"))
f32 = np.float32


def heat_map(shapes: list[tuple[int, ...]], **options: object) -> HeatMap:
    decoder = make_decoder(replace(SPEC, decoder=replace(SPEC.decoder, **options)), shapes)  # type: ignore[arg-type]
    assert isinstance(decoder, MapDecoder)
    return HeatMap(decoder, 0.03)


def test_map_by_hand() -> None:
    task, tally = heat_map([(2, 2), (3,)]), Tally()
    want, got = np.array([[0.1, 0.5], [0.09, 0.9]], f32), np.array([[0.2, 0.4], [0.9, 0.9]], f32)
    task.add(tally, [want, np.array([3, 0, 4], f32)], [got, np.array([3, 0, 3], f32)])
    figures = task.figures(tally)
    kl = [0.1 * np.log(0.1 / 0.2) + 0.9 * np.log(0.9 / 0.8), 0.5 * np.log(0.5 / 0.4) + 0.5 * np.log(0.5 / 0.6), 0]
    assert figures["kl_p99"] == pytest.approx(max(kl), rel=0.012)
    assert figures["pixels"] == 3 and figures["kl_mean"] == pytest.approx(np.mean(kl), rel=1e-5)
    assert figures["excess"] == pytest.approx(np.mean(kl) / 0.03, rel=1e-5)
    alarm = 0.09 * np.log(0.09 / 0.9) + 0.91 * np.log(0.91 / 0.1)                     # FP32 does not count that pixel
    assert figures["false_alarms"] == 1 and task.cost(tally) == figures["strict"]
    assert figures["strict"] == pytest.approx((sum(kl) + alarm) / 3 / 0.03, rel=1e-5)
    assert figures["agreement"] == pytest.approx(1 / 3)                # {0.5, 0.9} against {0.9 (was 0.09), 0.9}
    assert figures["others_sqnr_db"] == pytest.approx(10 * np.log10(25))
    lines = gate_lines(judge_gate(figures, "map", 64, []))
    assert lines[0] == "accuracy gate: n = 64 held-back pictures, 3 pixels"
    assert "  SQNR of the other outputs 13.98 dB (not gated)" in lines
    assert "  IoU of the masks at score 0.5: 0.3333 (not gated)" in lines
    assert any(line.startswith("  false alarms: 1 pixels that FP32 does not count (not gated)") for line in lines)


def test_many_divergences_in_little_memory() -> None:
    values = np.random.default_rng(1).exponential(0.01, 20_000)
    levels = Levels()
    for part in np.split(values, 20):
        levels.add(part)
    assert levels.count == 20_000 and levels.total == pytest.approx(values.sum())
    assert levels.above(0.01) == pytest.approx(np.percentile(values, 99), rel=0.02)
    levels.add(np.zeros(2_000_000))
    assert levels.above(0.01) == 0.0 and levels.levels.nbytes < 20_000
    levels.add(np.full(1_000_000, 100.0))                            # beyond the last level
    assert 19 < levels.above(0.01) <= 20


def test_map_with_logits_and_with_nothing_on_it() -> None:
    task = heat_map([(1, 4)], activation="sigmoid")
    tally = Tally()
    x = np.array([[-9, -9, -9, -9]], f32)
    task.add(tally, [x], [x])
    assert task.figures(tally) == {"pixels": 0, "false_alarms": 0, "excess": 0.0} and task.cost(tally) == 0
    judged = judge_gate(task.figures(tally), "map", 64, [])
    assert judged["met"] is None and judged["error"] == "not enough objects: 0 pixels above score 0.1, 50 are needed"
    task.add(tally, [x + 9], [x + 9])
    assert task.figures(tally)["pixels"] == 4 and task.figures(tally)["kl_mean"] == 0
    assert task.figures(tally)["agreement"] == 1.0


def test_false_alarms_of_a_detector_count_where_layers_are_chosen() -> None:
    """FP32 sees one object, the coded program another one too: the gate's figure stays, `strict` and `cost` do not."""
    task, quiet, loud = detector(), Tally(), Tally()
    want = np.array([[10, 30, 50], [10, 30, 50], [8, 8, 8], [8, 8, 8], [0.9, 0.01, 0.01]], f32)
    got = want.copy()
    got[4, 1] = 0.8
    task.add(quiet, [want], [want])
    task.add(loud, [want], [got])
    alarm = 0.01 * np.log(0.01 / 0.8) + 0.99 * np.log(0.99 / 0.2)
    assert task.figures(quiet)["strict"] == task.figures(quiet)["excess"] == 0 == task.cost(quiet)
    figures = task.figures(loud)
    assert figures["excess"] == 0 and figures["false_alarms"] == 1 and figures["agreement"] == 0
    assert figures["strict"] == pytest.approx(alarm / 0.03, rel=1e-5) == pytest.approx(task.cost(loud), rel=1e-5)
    assert loud.completed(loud).alarm_kl == loud.alarm_kl and loud.lost() > quiet.lost()


def test_what_is_no_map() -> None:
    with pytest.raises(DecoderError, match=r"decoder map reads output 2, the model has outputs 0 to 1"):
        heat_map([(4,), (4,)], output=2)
    task, x = heat_map([(2,)]), np.array([-4.0, 5.0], f32)
    with pytest.raises(DecoderError, match=r"values go from -4 to 5; give decoder.activation: sigmoid"):
        task.add(Tally(), [x], [x])
    tally = Tally()
    task.add(tally, [np.array([0.5, 1.0005], f32)], [x])               # a coded program may err, and is measured
    assert task.figures(tally)["kl_mean"] > 1


def test_regress_by_hand() -> None:
    task, tally = Regress(), Tally()
    task.add(tally, [np.array([3, 4], f32), np.array([10], f32)], [np.array([3, 3], f32), np.array([10], f32)])
    figures = task.figures(tally)
    assert figures["sqnr_db"] == pytest.approx(10 * np.log10(25)) and figures["least_sqnr_db"] == 25
    assert figures["excess"] == pytest.approx(10 ** (2.5 - np.log10(25)))


def test_an_answer_that_is_not_finite_is_no_answer() -> None:
    spec = ModelSpec("c", "classify", ("a", "b"), (1,), InputSpec(), DecoderSpec("topk"))
    task, tally = Classify(make_decoder(spec, [(2,)]), 0.03), Tally()  # type: ignore[arg-type]
    want = [np.array([0.5, 0.5], f32)]
    compare(task, tally, want, [np.array([np.nan, 0.5], f32)])
    assert "not finite" in tally.overflow and cost_of(task, tally) == OVERFLOWED


@pytest.mark.parametrize("task", [Regress(), heat_map([(2,), (2,)])])
def test_no_output_may_be_nan(task: Regress | HeatMap) -> None:
    """Not only the first: the least SQNR of 306 dB and NaN was 306."""
    whole = np.array([0.5, 1.0], f32)
    for number in (0, 1):
        for bad in (np.nan, np.inf):
            tally, got = Tally(), [whole, whole]
            got[number] = np.array([0.5, bad], f32)
            compare(task, tally, [whole, whole], got)
            assert tally.overflow == f"output {number} is not finite" and cost_of(task, tally) == OVERFLOWED


class Fixed:
    """A program with the same answer to everything."""

    def __init__(self, *outputs: list[float]) -> None:
        self.input = np.zeros((1, 2), f32)
        self.outputs = [np.array([value], f32) for value in outputs]
        self.overflows: dict[int, str] = {}

    def run(self) -> list[Any]:
        return self.outputs


def test_a_program_whose_second_output_is_nan_does_not_meet_the_gate(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(2, f32))
    source = Source(ModelSpec.for_tensor("t"), (2,), "float32", 1.0, False, "t")
    reference = Reference(Regress(), Fixed([1, 2], [3, 4]), source, [tmp_path / "x.npy"] * 64)
    assert judge_gate(reference.measure(Fixed([1, 2], [3, 4]), source), "tensor", 64, [])["met"]
    figures = judge_gate(reference.measure(Fixed([1, 2], [3, np.nan]), source), "tensor", 64, [])
    assert figures["met"] is False and figures["overflow"] == "output 1 is not finite"
    with pytest.raises(AccuracyError, match=r"no finite answer \(overflow: output 1 is not finite\)"):
        enforce(figures, "int8", False, [])


def detector() -> Detect:
    decoder = make_decoder(ModelSpec("d", "detect", ("a",), (1,), InputSpec(), DecoderSpec("yolo")), [(5, 3)])
    assert isinstance(decoder, YoloDecoder)
    return Detect(decoder, 64, 64, 0.03)


def test_no_answer_is_not_an_answer_without_objects() -> None:
    """A box that the decoder refuses ends the frame: where FP32 sees nothing that agreed with it."""
    quiet = np.array([[10, 30, 50], [10, 30, 50], [8, 8, 8], [8, 8, 8], [0.2, 0.01, 0.01]], f32)
    far = quiet.copy()
    far[:, 0] = 1e9, 1e9, 8, 8, 0.3
    task, tally = detector(), Tally()
    compare(task, tally, [quiet], [far])
    assert tally.overflow.startswith("a box reaches beyond") and cost_of(task, tally) == OVERFLOWED
    tally = Tally()
    compare(task, tally, [far], [far])                                  # FP32 itself has no answer: nothing agrees
    assert tally.overflow == "" and (tally.pictures, tally.agree) == (1, 0)


def test_false_alarms_where_fp32_sees_nothing_are_told() -> None:
    want = np.array([[10, 30, 50], [10, 30, 50], [8, 8, 8], [8, 8, 8], [0.2, 0.01, 0.01]], f32)
    got = want.copy()
    got[4, 1:] = 0.8
    task, tally = detector(), Tally()
    task.add(tally, [want], [got])
    figures = judge_gate(task.figures(tally), "detect", 64, [])
    assert figures["anchors"] == 0 and figures["false_alarms"] == 2 and figures["met"] is None
    assert "  false alarms: 2 anchors that FP32 does not count (not gated)" in gate_lines(figures)
    pixels, tally = heat_map([(2,)]), Tally()
    pixels.add(tally, [np.array([0.05, 0.0], f32)], [np.array([0.9, 0.0], f32)])
    assert pixels.figures(tally)["false_alarms"] == 1


def net(activation: str) -> onnx.ModelProto:
    """A map at half size, and another output beside it."""
    made = Net((1, 3, 16, 16))
    x = made.op("Relu", made.conv(made.input, 16, 3, 2))
    x = made.op("Relu", made.conv(x, 16))
    heat, rest = made.conv(x, 1, 1, gain=4.0), made.conv(x, 4, 1)
    return made.model([(made.op("Sigmoid", heat) if activation == "none" else heat, (1, 1, 8, 8)),
                       (rest, (1, 4, 8, 8))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate")
    (path / "pictures").mkdir()
    rng = np.random.default_rng(3)
    for i in range(64):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path / f"pictures/{i:02d}.png")
    for activation in ("none", "sigmoid"):
        onnx.save(net(activation), path / f"{activation}.onnx")
    return path


def build(folder: Path, out: Path, spec: ModelSpec, precision: str = "int8", model: str = "none",
          **options: object) -> BuildReport:
    return build_plan(folder / f"{model}.onnx", spec, [folder / "pictures"], out, precision, method="minmax",
                      **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["none", "sigmoid"])
def test_build_of_a_map(folder: Path, tmp_path: Path, activation: str) -> None:
    spec = replace(SPEC, decoder=replace(SPEC.decoder, activation=activation))
    figures = build(folder, tmp_path / "m.plan", spec, model=activation).report["gate"]
    assert figures["met"] and figures["is_gate"] and figures["pictures"] == 16 and 50 <= figures["pixels"] <= 16 * 64
    assert 0 < figures["kl_mean"] < 0.03 and 0.8 < figures["agreement"] < 1 and figures["others_sqnr_db"] > 20
    with pytest.raises(AccuracyError, match="times the limits"):
        build(folder, tmp_path / "m.plan", spec, model=activation, max_kl=1e-9)


def test_a_map_is_served_as_its_outputs(folder: Path, tmp_path: Path) -> None:
    build(folder, tmp_path / "m.plan", SPEC, "mixed")
    with PlanFile.open_path(tmp_path / "m.plan") as plan:
        assert json.loads(plan.metadata["report"])["mixed"]["layers"] == []
    (model,) = open_models([PlanFile.open_path(tmp_path / "m.plan")], CpuDevice(), 768)
    try:
        assert model.interface.tensor_shape == (5 * 64,) and model.interface.row_width == 1
        frame = Picture("rgb8", 16, 16, 0, np.zeros(768, dtype=np.uint8))
        target = np.full((5 * 64, 1), -1, f32)
        assert model.run([frame], [target]) == [5 * 64]
        assert 0 <= target[:64].min() <= target[:64].max() <= 1
    finally:
        model.close()


def test_build_for_regression(folder: Path, tmp_path: Path) -> None:
    figures = build(folder, tmp_path / "r.plan", LINES).report["gate"]
    assert figures["met"] and figures["task"] == "regress" and 25 < figures["sqnr_db"] < 60
    assert gate_lines(figures)[1].startswith("  SQNR ")


def test_refusals_of_a_build(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DecoderError, match="is no map of probabilities"):
        build(folder, tmp_path / "m.plan", SPEC, model="sigmoid")
    made = Net((1, 3, 16, 16))
    x = made.conv(made.input, 4, 3, 2)
    quiet = made.op("Sigmoid", made.op("Sub", x, made.constant(np.full((1, 1, 1, 1), 60, f32))))
    onnx.save(made.model([(quiet, (1, 4, 8, 8))]), tmp_path / "quiet.onnx")
    onnx.save(made.model([(made.op("Log", x), (1, 4, 8, 8))]), tmp_path / "broken.onnx")
    with pytest.raises(AccuracyError, match=r"not enough objects: 0 pixels above score 0\.1.*with objects on them"):
        build_plan(tmp_path / "quiet.onnx", SPEC, [folder / "pictures"], tmp_path / "q.plan", "int8")
    with pytest.raises(ModelError, match=r"03\.png: the model gives NaN or infinity on this picture in FP32"):
        build_plan(tmp_path / "broken.onnx", LINES, [folder / "pictures"], tmp_path / "b.plan", "fp16")
