"""`orind build`, `inspect`, `verify` over a real plan, and what they refuse."""

from __future__ import annotations

import configparser
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest

from orind.daemon import cli, verify_command
from orind.kernels.plan.file import write_plan

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(models.identity_onnx(2), str(tmp_path / "identity.onnx"))
    return tmp_path / "identity.onnx"


def test_a_plan_is_built_inspected_and_verified(tmp_path: Path, model: Path, capsys: Captured) -> None:
    plan = tmp_path / "identity.plan"
    assert cli.main(["build", str(model), "-o", str(plan), "--precision", "fp32"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{plan}  sha256 ") and " s] read identity.onnx" in said.err
    sha256 = said.out.split()[-1]
    assert cli.main(["inspect", str(plan), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["sha256"] == sha256 and table["input"] == {"dtype": "uint8", "shape": [2, 4096, 1]}
    assert cli.main(["inspect", str(plan)]) == 0
    assert f"{plan}: identity, tensor, fp32" in capsys.readouterr().out
    assert cli.main(["verify", str(plan), "--onnx", str(model)]) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert cli.main(["verify", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert cli.main(["verify", str(plan), "--images", str(tmp_path)]) == 2
    assert "--images needs --onnx MODEL" in capsys.readouterr().err
    pictures = ["--images", str(tmp_path / "pictures")]
    assert cli.main(["verify", str(plan), "--onnx", str(model), *pictures]) == 66
    assert "pictures: no such folder" in capsys.readouterr().err
    (tmp_path / "pictures").mkdir()
    assert cli.main(["verify", str(plan), "--onnx", str(model), *pictures]) == 65
    assert "pictures: holds no pictures" in capsys.readouterr().err
    np.save(tmp_path / "pictures" / "a.npy", np.ones((2, 4096, 1), np.uint8))
    assert cli.main(["verify", str(plan), "--onnx", str(model), *pictures]) == 0
    assert "accuracy, 1 images" in capsys.readouterr().out


def test_build_refuses_what_cannot_be_built(tmp_path: Path, model: Path, capsys: Captured) -> None:
    out = ["-o", str(tmp_path / "x.plan")]
    assert cli.main(["build", str(tmp_path / "none.onnx"), *out]) == 66
    assert "no such file" in capsys.readouterr().err
    assert cli.main(["build", str(model), *out]) == 65
    assert "INT8 needs a spec" in capsys.readouterr().err
    (tmp_path / "spec.yaml").write_text("name: x\ntsk: tensor\n")
    assert cli.main(["build", str(model), "--spec", str(tmp_path / "spec.yaml"), *out]) == 65
    assert "spec.yaml:2: tsk: unknown key" in capsys.readouterr().err
    truncated = tmp_path / "cut.onnx"
    truncated.write_bytes(model.read_bytes()[:50])
    assert cli.main(["build", str(truncated), *out, "--precision", "fp32"]) == 65
    assert "cut.onnx" in capsys.readouterr().err and not (tmp_path / "x.plan").exists()


def test_build_without_its_extra_says_what_to_install(
    tmp_path: Path, model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith(("orind.kernels.build", "orind.kernels.importer")):
            monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx", None)
        assert cli.main(["build", str(model), "-o", str(tmp_path / "x")]) == 69
    assert "onnx is missing; install orind[build]" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "orind.kernels.build", None)
    with pytest.raises(ImportError, match=r"orind\.kernels\.build"):
        cli.main(["build", str(model), "-o", str(tmp_path / "x")])


@pytest.mark.parametrize(("library", "extra"), [("onnxruntime", "test"), ("onnx", "build")])
def test_verify_names_the_extra_that_brings_what_is_missing(
    model: Path, identity_plan: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, library: str, extra: str
) -> None:
    def missing(*given: Any) -> None:
        raise ImportError(library, name=library)

    monkeypatch.setattr(verify_command, "verify", missing)
    words = ["verify", str(identity_plan), "--onnx", str(model), "--reference", "onnxruntime"]
    assert cli.main(words) == 69
    assert capsys.readouterr().err == f"orind verify: {library} is missing; install orind[{extra}]\n"
    brings = configparser.ConfigParser()
    brings.read(Path(__file__).parents[2] / "setup.cfg")
    assert f"\n{library}>=" in brings["options.extras_require"][extra]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_no_plan_is_65_and_what_is_not_there_66(
    tmp_path: Path, capsys: Captured, command: str, identity_plan: Path
) -> None:
    assert cli.main([command, str(tmp_path / "none.plan")]) == 66
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "x").write_bytes(b"MZ" * 3000)
    assert cli.main([command, str(tmp_path / "x")]) == 65
    broken = Path(shutil.copy(identity_plan, tmp_path / "broken.plan"))
    data = bytearray(broken.read_bytes())
    data[-300] ^= 1
    broken.write_bytes(data)
    assert cli.main([command, str(broken)]) in (1, 65)
    said = capsys.readouterr()
    assert "Traceback" not in said.err and "damaged" in said.err + said.out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_container_that_is_no_model_is_65(tmp_path: Path, capsys: Captured, command: str) -> None:
    path = tmp_path / "x.plan"
    write_plan(path, {"x": np.zeros(4, np.float32)}, {})
    assert cli.main([command, str(path)]) == 65
    assert "make it with orind build" in capsys.readouterr().err
    write_plan(path, {"x": np.zeros(4, np.float32)}, {"spec": "{}", "program": "x"})
    assert cli.main([command, str(path)]) == (65 if command == "inspect" else 1)  # to verify, it is a failed check
    said = capsys.readouterr()
    assert "cannot be read" in said.out or said.err.startswith(f"orind {command}: ")
