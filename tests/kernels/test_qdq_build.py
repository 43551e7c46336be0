"""Quantised (QDQ) models from file to plan, and what `--explain` says of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
from PIL import Image
from qdq import as_int8
from qdq_forms import every_form, residual_in_float
from qdq_random import as_input, frames, random_qdq

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import CpuExecutor
from orind.kernels.explain import explain
from orind.kernels.plan.file import PlanFile
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec
from orind.kernels.verify import verify

SPEC = ModelSpec("quantised", "regress", (), (1, 2), InputSpec(), DecoderSpec("none"))


def test_a_sound_quantised_model_is_explained(tmp_path: Path) -> None:
    for name, model, text in (("a", every_form(), "16 scales kept, 0 coded again; INT8 needs no pictures"),
                              ("b", residual_in_float(True), "quantised already; the file leaves 1 tensors in float")):
        onnx.save(model, tmp_path / f"{name}.onnx")
        found = explain(tmp_path / f"{name}.onnx")
        assert found.problems == () and re.search(text, found.summary), found.summary


def test_builds_of_a_quantised_model(tmp_path: Path) -> None:
    """No pictures are needed; given, they judge, and calibrate only what the file leaves in float."""
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for i in range(8):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "pictures" / f"{i}.png")
    for name, model in (("whole", every_form()), ("parts", residual_in_float(True))):
        onnx.save(model, tmp_path / f"{name}.onnx")
    lines: list[str] = []
    out = tmp_path / "a.plan"
    result = build_plan(tmp_path / "whole.onnx", SPEC, [], out, "int8", lines.append)
    assert result.report["calibration"]["scales_kept"] == 16 and result.report["quantised_by_file"]
    assert "scales are those of the quantised model" in lines and verify(out, tmp_path / "whole.onnx").ok
    judged = build_plan(tmp_path / "whole.onnx", SPEC, [tmp_path / "pictures"], out, "mixed", lines.append)
    assert judged.report["gate"]["sqnr_db"] > 25 and judged.report["mixed"]["layers"] == []
    assert "scales are those of the quantised model: pictures only judge them" in lines
    half = build_plan(tmp_path / "whole.onnx", SPEC, [], out, "fp16")
    assert any("rounding of activations is left out" in warning for warning in half.warnings)
    parts = build_plan(tmp_path / "parts.onnx", SPEC, [tmp_path / "pictures"], out, "int8", accept_loss=True)
    assert parts.report["calibration"]["scales_calibrated"] == 1
    assert any("1 tensors that the file leaves in float were calibrated" in warning for warning in parts.warnings)
    whole = build_plan(tmp_path / "whole.onnx", None, [], out, "fp32")
    assert "calibration" not in whole.report and verify(out, tmp_path / "whole.onnx").ok


def test_layers_in_float16_are_ranked_with_the_cuts_of_the_file(tmp_path: Path) -> None:
    """Without them INT8 layers, which cut, came nearer to the file than none, by 2,000 times the limits."""
    model = random_qdq(3)
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "frames").mkdir()
    for i in range(24):
        np.save(tmp_path / "frames" / f"{i:02d}.npy", as_input(frames()[i % 3])[0])
    result = build_plan(tmp_path / "m.onnx", ModelSpec.for_tensor("m"), [tmp_path / "frames"], tmp_path / "m.plan",
                        "mixed", accept_loss=True, kl_share=True)
    costs = [row["cost"] for row in result.report["layers"] if row["cost"] is not None]
    assert costs and min(costs) > -1
    assert verify(tmp_path / "m.plan", tmp_path / "m.onnx").ok


def test_a_quantised_model_needs_no_spec(tmp_path: Path) -> None:
    """Its input is then the model's own float tensor, coded behind the input under the file's scale."""
    model = every_form()
    onnx.save(model, tmp_path / "m.onnx")
    result = build_plan(tmp_path / "m.onnx", None, [], tmp_path / "m.plan", "int8")
    assert result.report["calibration"]["input"]["dtype"] == "float32"
    runner, *_ = as_int8(model)
    with PlanFile.open_path(tmp_path / "m.plan") as plan, CpuExecutor(plan, 1) as executor:
        assert all(tensor.exact for tensor in executor.program.tensors.values())
        values = np.random.default_rng(0).normal(0, 1, executor.input[0].shape).astype(np.float32)
        runner.input[0] = np.clip(np.rint(values * 64), -128, 127)
        executor.input[0] = values
        assert np.array_equal(executor.run()[0], runner.run()[0])
