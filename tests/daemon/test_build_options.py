"""`orind build --explain` and `--input` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from orind.daemon.cli import main
from orind.kernels.build import BuildReport


def saved(path: Path, op: str) -> str:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, "h", "w"]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], "only")], "g", info[:1], info[1:])
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "m.onnx", "LSTM")
    assert main(["build", path, "--explain", "--input", "x=1x3x8x8"]) == 65
    said = capsys.readouterr().out
    assert "'only' (LSTM)" in said and said.endswith("m.onnx: 1 problem\n")
    path = saved(tmp_path / "m.onnx", "Relu")
    assert main(["build", path, "--explain"]) == 65
    assert "--input x=1x3x256x256" in capsys.readouterr().out
    assert main(["build", path, "--explain", "--input", "x=1x3x8x8"]) == 0
    assert "no problems" in capsys.readouterr().out


def test_output_and_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "m.onnx", "Relu")
    assert main(["build", path]) == 2
    assert "-o PLAN is missing" in capsys.readouterr().err
    for wrong, said in ((["--input", "x=1x0"], "must be like images=1x3x480x640, not 'x=1x0'"),
                        (["--input", "x=1x３"], "must be like images"),
                        (["--input", f"x={'1' * 5000}"], "must be like images"),
                        (["--max-kl", "abc"], "--max-kl: must be a number above 0, not abc"),
                        (["--max-kl", "inf"], "must be a number above 0, not inf")):
        with pytest.raises(SystemExit):
            main(["build", path, *wrong])
        assert said in capsys.readouterr().err
    assert main(["build", path, "--input", "x=1x3x8x8", "--input", "x=1x3x9x9"]) == 2
    assert "--input x: its shape is given twice; give it once" in capsys.readouterr().err
    out = tmp_path / "m.plan"
    assert main(["build", path, "-o", str(out), "--precision", "fp32", "--input", "x=1x3x8x8"]) == 0
    assert out.exists()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_shares_of_no_layer_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str) -> None:
    path, out = saved(tmp_path / "m.onnx", "Relu"), tmp_path / "m.plan"
    given = ["build", path, "-o", str(out), "--input", "x=1x3x8x8", "--kl-share"]
    assert main([*given, "--precision", precision]) == 2
    assert f"--kl-share: with --precision {precision} no layer is INT8" in capsys.readouterr().err and not out.exists()


def test_every_refusal_names_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["build", saved(tmp_path / "m.onnx", "Log"), "-o", str(tmp_path / "o"), "--input", "x=1x3x8x8",
             "--precision", "fp32"]
    (tmp_path / "x.npy").touch()
    (tmp_path / "m.yaml").write_text("name: m\ntask: detect\nlabels: [a]\ninput: {}\ndecoder: {kind: yolo}\n")
    (tmp_path / "zeros").mkdir()
    np.save(tmp_path / "zeros" / "a.npy", np.zeros((3, 8, 8), np.float32))
    (tmp_path / "t.yaml").write_text("name: m\ntask: tensor\n")
    for more, said in ((["--spec", str(tmp_path / "m.yaml")], f"{tmp_path}/m.yaml: decoder yolo with 1 labels needs"),
                       (["--spec", str(tmp_path / "t.yaml"), "--calibrate", str(tmp_path / "zeros")],
                        f"{tmp_path}/m.onnx: the golden run gives NaN or infinity in output 'y'"),
                       (["--spec", str(tmp_path / "t.yaml"), "--precision", "int8"],
                        f"{tmp_path}/m.onnx: no calibration pictures"),
                       (["--calibrate", str(tmp_path / "x.npy")], f"{tmp_path}/x.npy: this model takes tensors")):
        assert main([*given, *more]) == 65
        error = capsys.readouterr().err
        assert f"orind build: {said}" in error and error.count(f"{tmp_path}") == 1


@pytest.mark.parametrize("chosen", [[], [{"name": "conv", "share": None, "why": "because"}]])
def test_fp16_layers_are_said_to_be_chosen_only_where_some_are(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    chosen: list[dict[str, Any]],
) -> None:
    gate = {"task": "detect", "pictures": 9, "is_gate": True, "met": True, "looks": 1}
    report = {"gate": gate, "mixed": {"layers": chosen, "looks": 1}}
    made = BuildReport(tmp_path / "x.plan", "0" * 64, report, ())
    monkeypatch.setattr("orind.kernels.build.build_plan", lambda *given, **more: made)
    (tmp_path / "x.onnx").touch()
    assert main(["build", str(tmp_path / "x.onnx"), "-o", str(tmp_path / "x.plan")]) == 0
    out = capsys.readouterr().out
    assert ("FP16 layers were chosen" in out) == bool(chosen) and "  met\n" in out and report["gate"] == gate
