"""A trained net made hard by an exact rescaling: all-INT8 collapses, mixed precision brings it under the gate."""

from __future__ import annotations

from pathlib import Path

import hard
import onnx
import pytest

from orind.kernels.build import build_plan
from orind.kernels.quant.verdict import AccuracyError
from orind.kernels.spec_yaml import read_spec

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "configs" / "models" / "blazeface-back"


def test_mixed_precision_rescues_a_net_that_int8_ruins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orind.kernels.build.RANKING_PICTURES", 4)           # of 16, for the time it takes
    monkeypatch.setattr("orind.kernels.build.SEARCH_PICTURES", 16)           # of 48
    model, pairs = hard.rescaled(onnx.load(MODEL.with_suffix(".onnx")))
    assert pairs == 32
    onnx.save(model, tmp_path / "hard.onnx")
    spec = read_spec(MODEL.with_suffix(".yaml"))
    crops = [hard.face_crops(tmp_path / "crops", 64)]
    with pytest.raises(AccuracyError, match=r"times the limits") as caught:
        build_plan(tmp_path / "hard.onnx", spec, crops, tmp_path / "h.plan", "int8", method="minmax")
    assert caught.value.figures["kl_mean"] > 0.5 and caught.value.figures["iou_mean"] < 0.8
    report = build_plan(tmp_path / "hard.onnx", spec, crops, tmp_path / "h.plan", "mixed", method="minmax").report
    assert report["gate"]["met"] and report["gate"]["is_gate"] and report["gate"]["anchors"] >= 50
    assert report["gate"]["agreement"] >= 0.75                               # no false alarms either
    rows = report["mixed"]["layers"]
    print(f"{len(rows)} layers, {report['mixed']['macs_fp16']:.3f} of the MACs in FP16: {report['gate']}")
    assert sum("differ" in row["why"] for row in rows) > len(rows) / 2
