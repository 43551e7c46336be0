"""`verify` and the golden check: a plan that is whole passes, and what is not is named."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net, detector_onnx
from part_builds import build, changed
from PIL import Image
from qdq import QdqNet

from orind.kernels.build import build_plan
from orind.kernels.cpu import executor
from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.ir.errors import GoldenMismatch, ModelError, ProgramError
from orind.kernels.plan.file import PlanFile, write_plan
from orind.kernels.plan.layout import PlanError
from orind.kernels.quant.pictures import CalibrationError
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify
from orind.kernels.verify_model import Difference


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_golden_at_every_batch_and_verify(part_folder: Path, tmp_path: Path, precision: str) -> None:
    out = tmp_path / "x.plan"
    build(part_folder, out, precision)
    report = verify(out, part_folder / "net.onnx", "onnxruntime")
    assert report.ok and [c.name for c in report.checks] == [
        "hash", "alignment", "program, batch 1", "golden, batch 1", "memory, batch 1", "program, batch 2",
        "golden, batch 2", "memory, batch 2", "model file", "output 0 against onnxruntime"]
    assert report.checks[-1].ok is (True if precision == "fp32" else None)
    own = verify(out, part_folder / "net.onnx")             # the same importer and executor: a figure, never a verdict
    assert own.ok and own.checks[-1].ok is None and own.checks[-1].name == "output 0 against import"
    ratio = re.search(r"arena \d+ bytes, (\d\.\d+) of the largest live set", report.checks[4].text)
    assert ratio is not None and 1.0 <= float(ratio[1]) <= 1.15
    exact = report.checks[3].text
    if precision == "int8":
        assert re.fullmatch(r"outputs and (\d+) of \1 steps bit for bit", exact)
    else:
        assert re.fullmatch(r"outputs and 0 of \d+ steps bit for bit", exact)


def test_verify_on_pictures(part_folder: Path, part_plan: Path, tmp_path: Path) -> None:
    for reference in ("import", "onnxruntime"):
        report = verify(part_plan, part_folder / "net.onnx", reference, part_folder / "pictures")
        output, accuracy = report.checks[-2:]
        assert output.name == f"output 0 against {reference}" and output.ok is None
        assert float(re.search(r"SQNR (-?\d+\.\d) dB", output.text)[1]) > 10      # type: ignore[index]
        assert accuracy.name == "accuracy, 12 images" and accuracy.ok is None         # too few for a verdict
        assert accuracy.text.startswith("detect; ")
    (tmp_path / "none").mkdir()
    with pytest.raises(CalibrationError, match="none: holds no pictures"):
        verify(part_plan, part_folder / "net.onnx", "import", tmp_path / "none")
    (tmp_path / "none" / "text.png").write_bytes(b"no picture")
    with pytest.raises(CalibrationError, match=r"text\.png: cannot be read"):
        verify(part_plan, part_folder / "net.onnx", "import", tmp_path / "none")


def test_verify_names_what_touches_memory_that_is_not_its_own(part_plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = executor.FUNCTIONS["Upsample"]

    def beside(step: Any, at: Any, frame: int) -> Any:
        """Spoils its own input when it is done: nobody reads that again, so no answer changes."""
        byte = at.arena[at.tensor(step.x).offset:][:1]
        return [*right(step, at, frame), partial(np.invert, byte, out=byte)]
    monkeypatch.setitem(executor.FUNCTIONS, "Upsample", beside)
    report = verify(part_plan)
    assert [c.name for c in report.checks if not c.ok] == ["memory, batch 1"]
    assert re.search("memory check: step 'Resize_.*' writes byte .* beside its tensor", report.checks[4].text)


def test_verify_under_the_shapes_that_the_plan_was_built_with(tmp_path: Path) -> None:
    """A file that declares a batch and a size which nobody means: a fully convolutional network as it is passed on."""
    net = Net((10, 3, 32, 32))
    onnx.save(net.model([(net.op("Relu", net.conv(net.input, 4)), (10, 4, 32, 32))]), tmp_path / "n.onnx")
    build_plan(tmp_path / "n.onnx", None, [], tmp_path / "n.plan", "fp32", shapes={"images": (1, 3, 48, 64)})
    report = verify(tmp_path / "n.plan", tmp_path / "n.onnx", "onnxruntime")
    assert report.ok and report.checks[-1].name == "output 0 against onnxruntime" and report.checks[-1].ok


def test_verify_names_damage_and_a_foreign_model(part_folder: Path, part_plan: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.plan"
    content = bytearray(part_plan.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
    report = verify(damaged)
    assert not report.ok and len(report.checks) == 1 and "is damaged in tensor" in report.checks[0].text
    other = tmp_path / "other.onnx"
    onnx.save(detector_onnx(96, seed=5), other)
    for reference in ("import", "onnxruntime"):
        report = verify(part_plan, other, reference)
        assert not report.ok and "not the file that the plan was built from" in report.checks[-1].text
    with pytest.raises(ValueError, match="reference 'oracle' is not one of import, onnxruntime"):
        verify(part_plan, other, "oracle")


def test_golden_mismatch_names_the_step(part_plan: Path, tmp_path: Path) -> None:
    with PlanFile.open_path(part_plan) as opened:
        bias = np.array(opened.tensors["Conv_50/bias"])
    bias[3] += 100
    with PlanFile.open_path(changed(part_plan, tmp_path / "a.plan", **{"Conv_50/bias": bias})) as opened, \
            CpuExecutor(opened, 2) as cpu, pytest.raises(GoldenMismatch, match="step 'Conv_50'") as caught:
        cpu.golden()
    assert caught.value.step == "Conv_50"
    assert not verify(tmp_path / "a.plan").ok


def test_golden_mismatch_of_outputs(part_folder: Path, part_plan: Path, tmp_path: Path) -> None:
    build(part_folder, tmp_path / "f.plan", "fp32")
    for name, source in (("exact", part_plan), ("toleranced", tmp_path / "f.plan")):
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


def test_verify_reports_a_program_that_this_version_cannot_run(part_plan: Path, tmp_path: Path) -> None:
    with PlanFile.open_path(part_plan) as opened:
        program = opened.metadata["program"].replace('"step":"Upsample"', '"step":"Downsample"')
    report = verify(changed(part_plan, tmp_path / "p.plan", program=program))
    assert not report.ok and "does not know" in report.checks[-1].text


def test_executor_refuses_a_batch_that_the_plan_lacks(part_plan: Path) -> None:
    with PlanFile.open_path(part_plan) as opened, \
            pytest.raises(ProgramError, match=r"batch sizes \[1, 2\], not 3: add it"):
        CpuExecutor(opened, 3)


def test_executor_runs_from_a_plan(part_plan: Path) -> None:
    with PlanFile.open_path(part_plan) as opened, CpuExecutor(opened, 2) as cpu:
        assert cpu.input.shape == (2, 64, 64, 3) and cpu.input.dtype == np.uint8
        cpu.input[...] = opened.tensors["golden.input"]
        first = cpu.run()[0].copy()
        cpu.input[...] = 0
        assert not np.array_equal(cpu.run()[0], first)
        cpu.input[...] = opened.tensors["golden.input"]
        assert np.array_equal(cpu.run()[0], first)
        assert np.array_equal(first, opened.tensors["golden.output.0"])


def test_what_is_not_finite_fails(tmp_path: Path) -> None:
    """One step of the codes is 2: where a picture has 1, INT8 gives log 0. Pictures of the build had no 1."""
    net = Net((1, 1, 8, 8), name="bytes", dtype=onnx.TensorProto.UINT8)
    x = net.op("Cast", net.input, to=onnx.TensorProto.FLOAT)
    for _ in range(2):
        x = net.op("Relu", net.op("Conv", x, net.constant(np.ones((1, 1, 1, 1), np.float32)), kernel_shape=[1, 1]))
    onnx.save(net.model([(x, (1, 1, 8, 8)), (net.op("Log", x), (1, 1, 8, 8))]), tmp_path / "log.onnx")
    for folder, least in (("built", 8), ("asked", 1)):
        (tmp_path / folder).mkdir()
        for i in range(3):
            frame = np.linspace(least, 255, 64).astype(np.uint8).reshape(1, 8, 8)
            np.save(tmp_path / folder / f"{i}.npy", frame)
    spec = ModelSpec.for_tensor("log")
    built = build_plan(tmp_path / "log.onnx", spec, [tmp_path / "built"], tmp_path / "l.plan", "int8", method="minmax")
    assert any("the accuracy of int8 was not measured" in warning for warning in built.warnings)
    assert verify(tmp_path / "l.plan", tmp_path / "log.onnx", images=tmp_path / "built").ok
    for reference in ("import", "onnxruntime"):
        report = verify(tmp_path / "l.plan", tmp_path / "log.onnx", reference, tmp_path / "asked")
        assert [check.name for check in report.checks if check.ok is False] == [f"output 1 against {reference}",
                                                                               "accuracy, 3 images"]
        assert "overflow: output 1 is not finite" in report.checks[-1].text and not report.ok


def test_a_difference_of_nan_is_no_difference_of_0() -> None:
    good, bad = np.array([1.0, 2.0], np.float32), np.array([1.0, np.nan], np.float32)
    for pairs in ([(good, bad)], [(bad, good)], [(bad, good), (good, good)], [(good, good), (bad, good)]):
        seen = Difference()
        for got, want in pairs:
            seen.add(got, want)
        assert seen.verdict(True) is seen.verdict(False) is False
    same = Difference()
    same.add(good, good)
    assert same.verdict(True) is True and same.verdict(False) is None


def test_a_quantised_model_is_measured_as_its_build_did(tmp_path: Path) -> None:
    """Against the file's arithmetic with a float tail: its rounding, which the plan leaves out, does not count."""
    net = QdqNet((1, 3, 8, 8), name="x")
    x = net.coded_conv(net.pair(net.input, 1 / 127), 1 / 127, 8)
    onnx.save(net.model([(net.pair(net.op("Sigmoid", x), 0.05), (1, 8, 8, 8))]), tmp_path / "q.onnx")
    (tmp_path / "all").mkdir()
    (tmp_path / "held").mkdir()
    for i in range(8):
        for folder in ["all"] + ["held"] * (i % 4 == 3):
            Image.fromarray(np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
                tmp_path / folder / f"{i}.png")
    spec = ModelSpec("q", "regress", (), (1,), InputSpec(), DecoderSpec("none"))
    figures = build_plan(tmp_path / "q.onnx", spec, [tmp_path / "all"], tmp_path / "q.plan", "int8").report["gate"]
    report = verify(tmp_path / "q.plan", tmp_path / "q.onnx", images=tmp_path / "held")
    assert f"SQNR {figures['sqnr_db']:.2f} dB" in report.checks[-1].text and figures["sqnr_db"] > 40


@pytest.mark.parametrize("part", ["spec", "report", "provenance"])
def test_a_plan_that_lacks_a_part_is_named(part_folder: Path, part_plan: Path, tmp_path: Path, part: str) -> None:
    with PlanFile.open_path(part_plan) as opened:
        metadata = {k: v for k, v in opened.metadata.items() if k not in ("format", "crc32", part)}
        write_plan(tmp_path / "x.plan", dict(opened.tensors), metadata)
    with pytest.raises(PlanError, match=f"x.plan: it holds no {part}: make it with orind build"):
        verify(tmp_path / "x.plan", part_folder / "net.onnx", images=part_folder / "pictures")


def test_a_model_that_onnx_runtime_refuses(tmp_path: Path) -> None:
    model = detector_onnx(32)
    model.ir_version = 99
    onnx.save(model, tmp_path / "m.onnx")
    build_plan(tmp_path / "m.onnx", None, [], tmp_path / "m.plan", "fp32")
    assert verify(tmp_path / "m.plan", tmp_path / "m.onnx").ok
    with pytest.raises(ModelError, match=r"m\.onnx: ONNX Runtime refuses it: .*ONNXRuntimeError.*; compare with --ref"):
        verify(tmp_path / "m.plan", tmp_path / "m.onnx", "onnxruntime")
