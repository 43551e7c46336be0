"""`build_plan`: from files to a plan with its report, and every refusal on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net, identity_onnx
from part_builds import SPEC, build
from qdq import QdqNet
from verified import least_sqnr_db

from orind.kernels.build import build_plan
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.ir.errors import ModelError
from orind.kernels.passes.pipeline import prepare
from orind.kernels.plan.file import PlanFile
from orind.kernels.pre.decoder import DecoderError
from orind.kernels.quant.coding import input_code, spread_out
from orind.kernels.quant.pictures import CalibrationError, find_pictures, load_picture, split
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify


def test_report_of_an_int8_build(part_folder: Path, part_plan: Path) -> None:
    lines: list[str] = []
    result = build(part_folder, part_folder / "again.plan", "int8", progress=lines.append)
    assert (part_folder / "again.plan").read_bytes() == part_plan.read_bytes()        # same inputs, same bytes
    assert len(lines) >= 5 and lines[-1].startswith("wrote ")
    with PlanFile.open_path(part_plan) as opened:
        report = json.loads(opened.metadata["report"])
        provenance = json.loads(opened.metadata["provenance"])
        assert ModelSpec.from_json(opened.metadata["spec"]) == SPEC
    assert report == result.report and provenance["held_back"] == ["03.jpg", "07.png", "11.png"]
    assert report["nodes_before"] > 140 and report["nodes_after"] == 62 and report["precision"] == "int8"
    assert report["calibration"]["input"] == {"dtype": "uint8", "scale": float(np.float32(1 / 255))}
    layers = {row["name"]: row for row in report["layers"]}
    stem = layers["Conv_0"]
    assert stem["macs"] == 32 * 32 * 12 * 27 and stem["step"] == "ConvI8" and stem["exact"]
    assert all(row["sqnr_db"] > 8 for row in layers.values() if row["step"] == "ConvI8")
    assert any("not a gate" in w for w in result.warnings)


def test_identity_plan_without_spec(tmp_path: Path) -> None:
    onnx.save(identity_onnx(8), tmp_path / "identity.onnx")
    result = build(tmp_path, tmp_path / "i.plan", "fp32", None, model=tmp_path / "identity.onnx", pictures=[])
    assert result.report["steps"] == 2 and verify(tmp_path / "i.plan").ok


def test_int8_of_a_uint8_tensor_model(tmp_path: Path) -> None:
    net = Net((1, 3, 8, 8), name="bytes", dtype=onnx.TensorProto.UINT8)
    x = net.op("Cast", net.input, to=onnx.TensorProto.FLOAT)
    net.channels[x] = 3
    onnx.save(net.model([(net.conv(x, 4), (1, 4, 8, 8))]), tmp_path / "u8.onnx")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8))
    spec = ModelSpec.for_tensor("u8")
    for precision in ("fp32", "int8"):
        build(tmp_path, tmp_path / "u.plan", precision, spec, model=tmp_path / "u8.onnx", pictures=[tmp_path])
        assert least_sqnr_db(tmp_path / "u.plan", tmp_path / "u8.onnx") >= 20
    np.save(tmp_path / "a.npy", np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(CalibrationError, match=r"a\.npy: holds the shape \(4, 4\), the model takes \(3, 8, 8\)"):
        build(tmp_path, tmp_path / "u.plan", "int8", spec, model=tmp_path / "u8.onnx", pictures=[tmp_path])


def test_refused_builds_leave_the_old_plan(part_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.plan"
    out.write_bytes(b"old")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ModelError, "precision 'int4' is not one of mixed, int8, fp16, fp32", {"precision": "int4"}),
        (ModelError, "INT8 needs a spec", {"spec": None}),
        (CalibrationError, "no calibration pictures", {"pictures": []}),
        (CalibrationError, "no such file or folder", {"pictures": [tmp_path / "absent"]}),
        (ModelError, "the spec's colour 'mono' has 1 channels", {"spec": replace(SPEC, input=InputSpec("mono"))}),
        (CalibrationError, r"this model takes tensors: \.npy files are needed", {"spec": ModelSpec.for_tensor("t")}),
        (DecoderError, "decoder yolo with 3 labels needs", {"spec": replace(SPEC, labels=("a", "b", "c"))}),
        (DecoderError, "are all labels given", {"spec": replace(SPEC, labels=("a", "b")), "precision": "fp32"}),
        (CalibrationError, "picture is 90x70, this model takes 64x64",
         {"spec": replace(SPEC, input=InputSpec(resize="none"))}),
    ]
    for kind, text, options in cases:
        with pytest.raises(kind, match=text):
            build(part_folder, out, **{"precision": "int8", **options})
        assert out.read_bytes() == b"old"


def test_model_that_overflows_on_the_pictures(tmp_path: Path, part_folder: Path) -> None:
    net = Net((1, 3, 8, 8))
    w = np.full((4, 3, 1, 1), 3e38, dtype=np.float32)
    x = net.op("Conv", net.input, net.constant(w), kernel_shape=[1, 1])
    net.channels[x] = 4
    onnx.save(net.model([(net.conv(x, 4, 1), (1, 4, 8, 8))]), tmp_path / "net.onnx")
    spec = ModelSpec("t", "tensor")
    with pytest.raises(ModelError, match="becomes NaN or infinite on the calibration pictures"):
        classes = tuple(str(i) for i in range(4 * 8 * 8))
        classify = ModelSpec("t", "classify", classes, (1,), InputSpec(resize="stretch"), DecoderSpec("topk"))
        build(part_folder, tmp_path / "x.plan", "int8", classify, model=tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"golden run gives NaN or infinity in output '.*': the model"):
        build(part_folder, tmp_path / "x.plan", "fp32", spec, model=tmp_path / "net.onnx", pictures=[])


def test_pictures(tmp_path: Path, part_folder: Path) -> None:
    found = find_pictures([part_folder / "pictures"])
    assert [p.name for p in found[:4]] == ["00.png", "01.png", "02.png", "03.jpg"]
    chosen, held = split(found)
    assert len(chosen) == 9 and [p.name for p in held] == ["03.jpg", "07.png", "11.png"]
    assert load_picture(found[3]).encoding == "yuv420" and load_picture(found[5]).encoding == "rgb8"
    for name, content in (("a.jpg", b"\xff\xd8\xff but no more"), ("b.png", b"no picture")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CalibrationError, match=f"{name}: cannot be read"):
            load_picture(tmp_path / name)


def test_input_code_follows_the_range_of_the_spec(part_folder: Path) -> None:
    graph = prepare(read_model(part_folder / "net.onnx"))
    assert input_code(SPEC, graph).dtype == "uint8"
    signed = input_code(replace(SPEC, input=InputSpec(mean=(127.5,), scale=(1 / 127.5,))), graph)
    assert (signed.dtype, signed.scale) == ("int8", float(np.float32(1 / 127)))


@pytest.mark.parametrize("method", ["mse", "minmax", "percentile", "entropy"])
def test_named_calibration_method(part_folder: Path, tmp_path: Path, method: str) -> None:
    result = build(part_folder, tmp_path / "m.plan", "int8", method=method)
    told = result.report["calibration"]
    assert told["method"] == method and told["pictures"] == 9 and told["held_back"] == 3
    assert ("tensors_that_left" in told) is (method == "mse")
    assert verify(tmp_path / "m.plan").ok
    with pytest.raises(CalibrationError, match="method 'best' is not one of mse, minmax, percentile, entropy"):
        build(part_folder, tmp_path / "m.plan", "int8", method="best")


def test_of_many_pictures_some_are_used_and_the_report_says_how_many(
        part_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orind.kernels.quant.coding.CALIBRATION_PICTURES", 4)
    lines: list[str] = []
    told = build(part_folder, tmp_path / "c.plan", "int8", progress=lines.append).report["calibration"]
    assert told["pictures"] == 4 and told["pictures_given"] == 9
    assert any("9 calibration pictures given, 4 of them, spread over all, are used" in line for line in lines)
    numbered = [Path(str(i)) for i in range(10)]
    assert [p.name for p in spread_out(numbered, 4)] == ["0", "2", "5", "7"] and spread_out(numbered, 10) == numbered


def quantised() -> onnx.ModelProto:
    """A model that needs neither a spec nor pictures."""
    net = QdqNet((1, 3, 8, 8), name="x")
    return net.model([(net.coded_conv(net.pair(net.input, 1 / 127), 1 / 127, 8), (1, 8, 8, 8))])


def test_shares_are_refused_where_they_cannot_be_measured(part_folder: Path, tmp_path: Path) -> None:
    onnx.save(quantised(), tmp_path / "q.onnx")
    for precision in ("int8", "mixed"):
        with pytest.raises(CalibrationError, match="--kl-share needs --calibrate"):
            build_plan(tmp_path / "q.onnx", None, [], tmp_path / "q.plan", precision, kl_share=True)
    for precision in ("fp16", "fp32"):
        with pytest.raises(ModelError, match=f"--kl-share with --precision {precision}: no layer is INT8"):
            build(part_folder, tmp_path / "q.plan", precision, kl_share=True)
    assert not (tmp_path / "q.plan").exists()


@pytest.mark.parametrize("precision", ["int8", "mixed", "fp16", "fp32"])
def test_what_was_not_measured_warns(tmp_path: Path, precision: str) -> None:
    """Task `tensor` as any other."""
    onnx.save(quantised(), tmp_path / "q.onnx")
    result = build_plan(tmp_path / "q.onnx", None, [], tmp_path / "q.plan", precision)
    said = [f"the accuracy of {precision} was not measured" in warning for warning in result.warnings]
    assert any(said) is (precision != "fp32")
