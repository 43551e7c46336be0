"""`build_plan`, `verify` and the gate: from files to a plan that checks itself, and every refusal on the way."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net, detector_onnx, identity_onnx
from PIL import Image

from orind.kernels.build import build_plan
from orind.kernels.cpu import executor
from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.ir.errors import GoldenMismatch, ModelError, ProgramError
from orind.kernels.passes.pipeline import prepare
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.pre.decoder import DecoderError
from orind.kernels.quant.coding import input_code, spread_out
from orind.kernels.quant.divergence import bernoulli_kl, box_iou, categorical_kl, same_detections
from orind.kernels.quant.pictures import CalibrationError, find_pictures, load_picture, split
from orind.kernels.quant.verdict import AccuracyError, enforce, gate_lines, judge_gate
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify

SPEC = ModelSpec("parts", "detect", ("a", "b", "c", "d"), (1, 2), InputSpec(), DecoderSpec("yolo"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector and twelve pictures: smooth random colours, one JPEG, one PPM."""
    path = tmp_path_factory.mktemp("build")
    onnx.save(detector_onnx(64), path / "net.onnx")
    (path / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        suffix = {3: "jpg", 5: "ppm"}.get(i, "png")
        small = Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8))
        small.resize((90, 70), Image.Resampling.BICUBIC).save(path / "pictures" / f"{i:02d}.{suffix}")
    return path


def build(folder: Path, out: Path, precision: str, spec: ModelSpec | None = SPEC, **options: Any) -> Any:
    return build_plan(options.pop("model", folder / "net.onnx"), spec, options.pop("pictures", [folder / "pictures"]),
                      out, precision, **options)


@pytest.fixture(scope="module")
def plan(folder: Path) -> Path:
    build(folder, folder / "int8.plan", "int8")
    return folder / "int8.plan"


def test_report_of_an_int8_build(folder: Path, plan: Path) -> None:
    lines: list[str] = []
    result = build(folder, folder / "again.plan", "int8", progress=lines.append)
    assert (folder / "again.plan").read_bytes() == plan.read_bytes()        # same inputs, same bytes
    assert len(lines) >= 5 and lines[-1].startswith("wrote ")
    with PlanFile.open_path(plan) as opened:
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


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_golden_at_every_batch_and_verify(folder: Path, tmp_path: Path, precision: str) -> None:
    out = tmp_path / "x.plan"
    build(folder, out, precision)
    report = verify(out, folder / "net.onnx", "onnxruntime")
    assert report.ok and [c.name for c in report.checks] == [
        "hash", "alignment", "program, batch 1", "golden, batch 1", "memory, batch 1", "program, batch 2",
        "golden, batch 2", "memory, batch 2", "model file", "output 0 against onnxruntime"]
    assert report.checks[-1].ok is (True if precision == "fp32" else None)
    own = verify(out, folder / "net.onnx")             # the same importer and executor: a figure, never a verdict
    assert own.ok and own.checks[-1].ok is None and own.checks[-1].name == "output 0 against import"
    ratio = re.search(r"arena \d+ bytes, (\d\.\d+) of the largest live set", report.checks[4].text)
    assert ratio is not None and 1.0 <= float(ratio[1]) <= 1.15
    exact = report.checks[3].text
    if precision == "int8":
        assert re.fullmatch(r"outputs and (\d+) of \1 steps bit for bit", exact)
    else:
        assert re.fullmatch(r"outputs and 0 of \d+ steps bit for bit", exact)


def test_verify_on_pictures(folder: Path, plan: Path, tmp_path: Path) -> None:
    for reference in ("import", "onnxruntime"):
        report = verify(plan, folder / "net.onnx", reference, folder / "pictures")
        output, accuracy = report.checks[-2:]
        assert output.name == f"output 0 against {reference}" and output.ok is None
        assert float(re.search(r"SQNR (-?\d+\.\d) dB", output.text)[1]) > 10      # type: ignore[index]
        assert accuracy.name == "accuracy, 12 images" and accuracy.ok is None         # too few for a verdict
        assert accuracy.text.startswith("detect; ")
    (tmp_path / "none").mkdir()
    with pytest.raises(CalibrationError, match="none: holds no pictures"):
        verify(plan, folder / "net.onnx", "import", tmp_path / "none")
    (tmp_path / "none" / "text.png").write_bytes(b"no picture")
    with pytest.raises(CalibrationError, match=r"text\.png: cannot be read"):
        verify(plan, folder / "net.onnx", "import", tmp_path / "none")


def test_verify_names_what_touches_memory_that_is_not_its_own(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = executor.FUNCTIONS["Upsample"]

    def beside(step: Any, at: Any, frame: int) -> Any:
        """Spoils its own input when it is done: nobody reads that again, so no answer changes."""
        byte = at.arena[at.tensor(step.x).offset:][:1]
        return [*right(step, at, frame), partial(np.invert, byte, out=byte)]
    monkeypatch.setitem(executor.FUNCTIONS, "Upsample", beside)
    report = verify(plan)
    assert [c.name for c in report.checks if not c.ok] == ["memory, batch 1"]
    assert re.search("memory check: step 'Resize_.*' writes byte .* beside its tensor", report.checks[4].text)


def test_verify_under_the_shapes_that_the_plan_was_built_with(tmp_path: Path) -> None:
    """A file that declares a batch and a size which nobody means: a fully convolutional network as it is passed on."""
    net = Net((10, 3, 32, 32))
    onnx.save(net.model([(net.op("Relu", net.conv(net.input, 4)), (10, 4, 32, 32))]), tmp_path / "n.onnx")
    build_plan(tmp_path / "n.onnx", None, [], tmp_path / "n.plan", "fp32", shapes={"images": (1, 3, 48, 64)})
    report = verify(tmp_path / "n.plan", tmp_path / "n.onnx", "onnxruntime")
    assert report.ok and report.checks[-1].name == "output 0 against onnxruntime" and report.checks[-1].ok


def test_verify_names_damage_and_a_foreign_model(folder: Path, plan: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.plan"
    content = bytearray(plan.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    report = verify(damaged)
    assert not report.ok and len(report.checks) == 1 and "is damaged in tensor" in report.checks[0].text
    other = tmp_path / "other.onnx"
    onnx.save(detector_onnx(96, seed=5), other)
    for reference in ("import", "onnxruntime"):
        report = verify(plan, other, reference)
        assert not report.ok and "not the file that the plan was built from" in report.checks[-1].text
    with pytest.raises(ValueError, match="reference 'oracle' is not one of import, onnxruntime"):
        verify(plan, other, "oracle")


def changed(plan: Path, out: Path, **tensors: Any) -> Path:
    """A sound plan file with other tensors: what a wrong executor looks like to its golden check."""
    with PlanFile.open_path(plan) as opened:
        every = {name: tensors.get(name, np.array(value)) for name, value in opened.tensors.items()}
        metadata = {k: tensors.get(k, v) for k, v in opened.metadata.items() if k not in ("format", "crc32")}
    write_plan(out, every, metadata)
    return out


def test_golden_mismatch_names_the_step(plan: Path, tmp_path: Path) -> None:
    with PlanFile.open_path(plan) as opened:
        bias = np.array(opened.tensors["Conv_50/bias"])
    bias[3] += 100
    with PlanFile.open_path(changed(plan, tmp_path / "a.plan", **{"Conv_50/bias": bias})) as opened, \
            CpuExecutor(opened, 2) as cpu, pytest.raises(GoldenMismatch, match="step 'Conv_50'") as caught:
        cpu.golden()
    assert caught.value.step == "Conv_50"
    assert not verify(tmp_path / "a.plan").ok


def test_golden_mismatch_of_outputs(folder: Path, plan: Path, tmp_path: Path) -> None:
    build(folder, tmp_path / "f.plan", "fp32")
    for name, source in (("exact", plan), ("toleranced", tmp_path / "f.plan")):
        with PlanFile.open_path(source) as opened:
            output = np.array(opened.tensors["golden.output.0"])
        for factor in (1 + 1e-6, 1.01):
            path = changed(source, tmp_path / f"{name}.plan", **{"golden.output.0": output * np.float32(factor)})
            with PlanFile.open_path(path) as opened, CpuExecutor(opened) as cpu:
                if name == "toleranced" and factor < 1.001:
                    cpu.golden()
                else:
                    with pytest.raises(GoldenMismatch, match="output 'concat_153_0' differs"):
                        cpu.golden()


def test_verify_reports_a_program_that_this_version_cannot_run(plan: Path, tmp_path: Path) -> None:
    with PlanFile.open_path(plan) as opened:
        program = opened.metadata["program"].replace('"step":"Upsample"', '"step":"Downsample"')
    report = verify(changed(plan, tmp_path / "p.plan", program=program))
    assert not report.ok and "does not know" in report.checks[-1].text


def test_executor_refuses_a_batch_that_the_plan_lacks(plan: Path) -> None:
    with PlanFile.open_path(plan) as opened, pytest.raises(ProgramError, match=r"batch sizes \[1, 2\], not 3: add it"):
        CpuExecutor(opened, 3)


def test_executor_runs_from_a_plan(plan: Path) -> None:
    with PlanFile.open_path(plan) as opened, CpuExecutor(opened, 2) as cpu:
        assert cpu.input.shape == (2, 64, 64, 3) and cpu.input.dtype == np.uint8
        cpu.input[...] = opened.tensors["golden.input"]
        first = cpu.run()[0].copy()
        cpu.input[...] = 0
        assert not np.array_equal(cpu.run()[0], first)
        cpu.input[...] = opened.tensors["golden.input"]
        assert np.array_equal(cpu.run()[0], first)
        assert np.array_equal(first, opened.tensors["golden.output.0"])


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
        assert verify(tmp_path / "u.plan", tmp_path / "u8.onnx", "onnxruntime").ok
    np.save(tmp_path / "a.npy", np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(CalibrationError, match=r"a\.npy: holds \(4, 4\), the model takes \(8, 8, 3\)"):
        build(tmp_path, tmp_path / "u.plan", "int8", spec, model=tmp_path / "u8.onnx", pictures=[tmp_path])


def test_refused_builds_leave_the_old_plan(folder: Path, tmp_path: Path) -> None:
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
            build(folder, out, **{"precision": "int8", **options})
        assert out.read_bytes() == b"old"


def test_model_that_overflows_on_the_pictures(tmp_path: Path, folder: Path) -> None:
    net = Net((1, 3, 8, 8))
    w = np.full((4, 3, 1, 1), 3e38, dtype=np.float32)
    x = net.op("Conv", net.input, net.constant(w), kernel_shape=[1, 1])
    net.channels[x] = 4
    onnx.save(net.model([(net.conv(x, 4, 1), (1, 4, 8, 8))]), tmp_path / "net.onnx")
    spec = ModelSpec("t", "tensor")
    with pytest.raises(ModelError, match="becomes NaN or infinite on the calibration pictures"):
        classes = tuple(str(i) for i in range(4 * 8 * 8))
        classify = ModelSpec("t", "classify", classes, (1,), InputSpec(resize="stretch"), DecoderSpec("topk"))
        build(folder, tmp_path / "x.plan", "int8", classify, model=tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"golden run gives NaN or infinity in golden\.output\.0"):
        build(folder, tmp_path / "x.plan", "fp32", spec, model=tmp_path / "net.onnx", pictures=[])


def test_pictures(tmp_path: Path, folder: Path) -> None:
    found = find_pictures([folder / "pictures"])
    assert [p.name for p in found[:4]] == ["00.png", "01.png", "02.png", "03.jpg"]
    chosen, held = split(found)
    assert len(chosen) == 9 and [p.name for p in held] == ["03.jpg", "07.png", "11.png"]
    assert load_picture(found[3]).encoding == "yuv420" and load_picture(found[5]).encoding == "rgb8"
    for name, content in (("a.jpg", b"\xff\xd8\xff but no more"), ("b.png", b"no picture")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CalibrationError, match=f"{name}: cannot be read"):
            load_picture(tmp_path / name)


def test_input_code_follows_the_range_of_the_spec(folder: Path) -> None:
    graph = prepare(read_model(folder / "net.onnx"))
    assert input_code(SPEC, graph).dtype == "uint8"
    signed = input_code(replace(SPEC, input=InputSpec(mean=(127.5,), scale=(1 / 127.5,))), graph)
    assert (signed.dtype, signed.scale) == ("int8", float(np.float32(1 / 127)))


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


def test_gate_of_a_classifier(folder: Path, tmp_path: Path) -> None:
    onnx.save(classifier(5), tmp_path / "c.onnx")
    spec = ModelSpec("c", "classify", tuple("abcde"), (1,), InputSpec(resize="stretch"), DecoderSpec("topk"))
    figures = build(folder, tmp_path / "c.plan", "int8", spec, model=tmp_path / "c.onnx").report["gate"]
    assert figures["pictures"] == 3 and not figures["is_gate"] and figures["met"] and figures["agreement"] == 1.0
    assert 0 <= figures["kl_mean"] <= figures["kl_p99"] < 0.03
    assert verify(tmp_path / "c.plan").ok


def pictures(folder: Path, count: int, side: int = 64, seed: int = 1) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(folder / f"{i:03d}.png")
    return folder


def test_gate_of_a_detector(folder: Path, tmp_path: Path) -> None:
    """Enough pictures, enough objects: an untrained detector finds something everywhere."""
    options = {"spec": replace(SPEC, batch=(1,)), "pictures": [pictures(tmp_path / "many", 72)], "max_kl": 1e-9}
    out = tmp_path / "d.plan"
    out.write_bytes(b"old")
    with pytest.raises(AccuracyError, match=r"times the limits.*build with --precision") as caught:
        build(folder, out, "int8", **options)
    assert out.read_bytes() == b"old"
    assert any("NOT met" in line for line in gate_lines(caught.value.figures))
    result = build(folder, out, "int8", accept_loss=True, **options)
    figures = result.report["gate"]
    assert figures["is_gate"] and figures["anchors"] >= 50 and figures["pictures"] == 18
    assert not figures["met"] and figures["loss_accepted"] and figures["limit_kl"] == 1e-9
    assert set(figures) >= {"kl_mean", "kl_p99", "iou_mean", "agreement"} and figures["kl_mean"] > 0
    assert any("the gate is weak below 64" in w for w in result.warnings)
    assert any("times the limits" in w for w in result.warnings)
    assert [line.split()[0] for line in gate_lines(figures)] == ["accuracy", "KL", "IoU", "agreement", "NOT"]


def test_too_few_objects_is_an_error_of_the_gate(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "net.onnx")
    biases = {n.input[2] for n in model.graph.node if n.op_type == "Conv" and len(n.input) > 2}
    for tensor in model.graph.initializer:
        if tensor.name in biases and tensor.dims == [4]:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(4, -60, dtype=np.float32), tensor.name))
    onnx.save(model, tmp_path / "quiet.onnx")
    few, many = pictures(tmp_path / "few", 5), pictures(tmp_path / "many", 64)
    result = build(folder, tmp_path / "q.plan", "int8", model=tmp_path / "quiet.onnx", pictures=[few])
    assert "not enough objects: 0 anchors" in result.report["gate"]["error"]
    assert result.report["gate"]["met"] is None and not result.report["gate"]["is_gate"]
    assert any("not enough objects" in w for w in result.warnings)
    with pytest.raises(AccuracyError, match=r"not enough objects: 0 anchors.*with objects on them") as caught:
        build(folder, tmp_path / "q.plan", "int8", model=tmp_path / "quiet.onnx", pictures=[many])
    assert "no verdict" in gate_lines(caught.value.figures)[-1]
    none = build(folder, tmp_path / "q.plan", "int8", pictures=[few / "000.png"])
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


@pytest.mark.parametrize("method", ["mse", "minmax", "percentile", "entropy"])
def test_named_calibration_method(folder: Path, tmp_path: Path, method: str) -> None:
    result = build(folder, tmp_path / "m.plan", "int8", method=method)
    told = result.report["calibration"]
    assert told["method"] == method and told["pictures"] == 9 and told["held_back"] == 3
    assert ("tensors_that_left" in told) is (method == "mse")
    assert verify(tmp_path / "m.plan").ok
    with pytest.raises(CalibrationError, match="method 'best' is not one of mse, minmax, percentile, entropy"):
        build(folder, tmp_path / "m.plan", "int8", method="best")


def test_of_many_pictures_some_are_used_and_the_report_says_how_many(
        folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orind.kernels.quant.coding.CALIBRATION_PICTURES", 4)
    lines: list[str] = []
    told = build(folder, tmp_path / "c.plan", "int8", progress=lines.append).report["calibration"]
    assert told["pictures"] == 4 and told["pictures_given"] == 9
    assert any("9 calibration pictures given, 4 of them, spread over all, are used" in line for line in lines)
    numbered = [Path(str(i)) for i in range(10)]
    assert [p.name for p in spread_out(numbered, 4)] == ["0", "2", "5", "7"] and spread_out(numbered, 10) == numbered
