"""The accuracy gate of whole builds: its figures, its verdict by number of pictures and objects, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import Net
from part_builds import SPEC, build, pictures

from orind.kernels.quant.divergence import bernoulli_kl, box_iou, categorical_kl, same_detections
from orind.kernels.quant.verdict import AccuracyError, enforce, gate_lines, judge_gate
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify


def test_figures_of_the_gate() -> None:
    p, q = np.array([0.5, 0.9]), np.array([0.25, 0.9])
    assert bernoulli_kl(p, q)[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(0.5 / 0.75))
    assert bernoulli_kl(p, q)[1] == 0 and bernoulli_kl(np.array([1.0]), np.array([0.0]))[0] == pytest.approx(16.1, 0.01)
    assert categorical_kl(np.array([0.5, 0.5]), np.array([0.25, 0.75])) == pytest.approx(0.1438, abs=1e-4)
    box = np.array([[0, 0, 10, 10]], dtype=np.float32)
    assert box_iou(box, box + 5)[0] == pytest.approx(25 / 175) and box_iou(box, box + 20)[0] == 0
    row = np.array([[0, 0, 10, 10, 0.9, 1]])
    near, other = row + np.array([0.2, 0, 0, 0, 0, 0]), row + np.array([0, 0, 0, 0, 0, 1])
    assert same_detections(row, near) and not same_detections(row, other) and not same_detections(row, row[:0])
    twice = np.concatenate([row, row])
    assert same_detections(twice, twice) and not same_detections(twice, np.concatenate([row, other]))


def classifier(classes: int) -> onnx.ModelProto:
    net = Net((1, 3, 16, 16))
    x = net.op("Relu", net.conv(net.input, 16, 3, 2))
    x = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", net.conv(x, 24))))
    w = net.constant(net.rng.normal(0, 1, (classes, 24)).astype(np.float32))
    return net.model([(net.op("Softmax", net.op("Gemm", x, w, transB=1)), (1, classes))])


def test_gate_of_a_classifier(part_folder: Path, tmp_path: Path) -> None:
    onnx.save(classifier(5), tmp_path / "c.onnx")
    spec = ModelSpec("c", "classify", tuple("abcde"), (1,), InputSpec(resize="stretch"), DecoderSpec("topk"))
    figures = build(part_folder, tmp_path / "c.plan", "int8", spec, model=tmp_path / "c.onnx").report["gate"]
    assert figures["pictures"] == 3 and not figures["is_gate"] and figures["met"] and figures["agreement"] == 1.0
    assert 0 <= figures["kl_mean"] <= figures["kl_p99"] < 0.03
    assert verify(tmp_path / "c.plan").ok


def test_gate_of_a_detector(part_folder: Path, tmp_path: Path) -> None:
    """Enough pictures, enough objects: an untrained detector finds something everywhere."""
    options = {"spec": replace(SPEC, batch=(1,)), "pictures": [pictures(tmp_path / "many", 72)], "max_kl": 1e-9}
    out = tmp_path / "d.plan"
    out.write_bytes(b"old")
    with pytest.raises(AccuracyError, match=r"times the limits.*build with --precision") as caught:
        build(part_folder, out, "int8", **options)
    assert out.read_bytes() == b"old"
    assert any("NOT met" in line for line in gate_lines(caught.value.figures))
    result = build(part_folder, out, "int8", accept_loss=True, **options)
    figures = result.report["gate"]
    assert figures["is_gate"] and figures["anchors"] >= 50 and figures["pictures"] == 18
    assert not figures["met"] and figures["loss_accepted"] and figures["limit_kl"] == 1e-9
    assert set(figures) >= {"kl_mean", "kl_p99", "iou_mean", "agreement"} and figures["kl_mean"] > 0
    assert any("the gate is weak below 64" in w for w in result.warnings)
    assert any("times the limits" in w for w in result.warnings)
    assert [line.split()[0] for line in gate_lines(figures)] == ["accuracy", "KL", "IoU", "pictures", "NOT"]


def test_too_few_objects_is_an_error_of_the_gate(part_folder: Path, tmp_path: Path) -> None:
    model = onnx.load(part_folder / "net.onnx")
    biases = {n.input[2] for n in model.graph.node if n.op_type == "Conv" and len(n.input) > 2}
    for tensor in model.graph.initializer:
        if tensor.name in biases and tensor.dims == [4]:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(4, -60, dtype=np.float32), tensor.name))
    onnx.save(model, tmp_path / "quiet.onnx")
    few, many = pictures(tmp_path / "few", 5), pictures(tmp_path / "many", 64)
    result = build(part_folder, tmp_path / "q.plan", "int8", model=tmp_path / "quiet.onnx", pictures=[few])
    assert "not enough objects: 0 anchors" in result.report["gate"]["error"]
    assert result.report["gate"]["met"] is None and not result.report["gate"]["is_gate"]
    assert any("not enough objects" in w for w in result.warnings)
    with pytest.raises(AccuracyError, match=r"not enough objects: 0 anchors.*with objects on them") as caught:
        build(part_folder, tmp_path / "q.plan", "int8", model=tmp_path / "quiet.onnx", pictures=[many])
    assert "no verdict" in gate_lines(caught.value.figures)[-1]
    none = build(part_folder, tmp_path / "q.plan", "int8", pictures=[few / "000.png"])
    assert none.report["gate"] == {} and any("no pictures are held back" in w for w in none.warnings)
    assert gate_lines(none.report["gate"]) == []


def test_verdict_by_number_of_pictures() -> None:
    for count, is_gate, warned in ((15, False, "are not a gate"), (16, True, "weak below 64"), (64, True, "")):
        warnings: list[str] = []
        figures = judge_gate({"kl_mean": 0.06, "kl_p99": 0.1, "limit_kl": 0.03, "excess": 2.0}, "classify", count,
                             warnings)
        assert figures["is_gate"] is is_gate and figures["met"] is False
        assert [warned in w for w in warnings] == ([True] if warned else [])
        if not is_gate:
            enforce(figures, "int8", False, warnings)
            assert "at 2.00 times the limits" in warnings[-1]
            continue
        for precision, remedy in (("int8", "--precision mixed or fp32"), ("mixed", "--precision fp16 or fp32"),
                                  ("fp16", "--precision fp32, or")):
            with pytest.raises(AccuracyError, match=remedy):
                enforce(figures, precision, False, warnings)


def test_task_tensor_is_judged_by_its_noise(tmp_path: Path) -> None:
    net = Net((1, 3, 8, 8), name="bytes", dtype=onnx.TensorProto.UINT8)
    x = net.op("Cast", net.input, to=onnx.TensorProto.FLOAT)
    net.channels[x] = 3
    x = net.op("Relu", net.conv(x, 20))
    onnx.save(net.model([(net.conv(x, 4), (1, 4, 8, 8))]), tmp_path / "u8.onnx")
    for i in range(64):
        np.save(tmp_path / f"{i}.npy", np.random.default_rng(i).integers(0, 256, (3, 8, 8), dtype=np.uint8))
    result = build(tmp_path, tmp_path / "u.plan", "int8", ModelSpec.for_tensor("u8"), model=tmp_path / "u8.onnx",
                   pictures=[tmp_path])
    figures = result.report["gate"]
    assert figures["met"] and 25 < figures["sqnr_db"] < 60 and figures["pictures"] == 16
    assert "  SQNR" in gate_lines(figures)[1]
