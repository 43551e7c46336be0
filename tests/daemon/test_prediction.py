"""`--board`: a board's modes, predictions by layer in words and JSON, the report that a build writes, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from models import detector_onnx

from orind.daemon import cli, prediction
from orind.kernels.perf.device import DeviceError
from orind.kernels.plan.file import PlanFile

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted")
    onnx.save(detector_onnx(64), str(folder / "net.onnx"))
    arguments = ["build", str(folder / "net.onnx"), "--precision", "fp32", "-o", str(folder / "net.plan")]
    assert cli.main([*arguments, "--board", "orin-nx:25W"]) == 0
    return folder / "net.plan"


def test_a_board_with_a_mode_is_one_device_and_without_one_all() -> None:
    (one,) = prediction.devices("agx-orin:MODE_30W")
    assert (one.sms, one.gpu_hz) == (8, 612_000_000)
    assert [d.mode for d in prediction.devices("agx-orin")] == ["MAXN", "MODE_15W", "MODE_30W", "MODE_50W"]


@pytest.mark.parametrize(("spec", "text"), [
    ("agx-orin:MODE30W", "has no mode 'MODE30W'; did you mean 'MODE_30W'?"), ("agx-orin:", "has no mode ''"),
    ("thor", "no board 'thor' (known: agx-orin,"), ("../boards/agx-orin", "no board '../boards/agx-orin'")])
def test_unknown_boards_and_modes_are_a_usage_error(plan: Path, capsys: Captured, spec: str, text: str) -> None:
    for command in (["inspect", str(plan)], ["build", str(plan), "-o", "x.plan"]):
        assert cli.main([*command, "--board", spec]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith(f"orind {command[0]}: --board {spec}: ") and text in said.err


@pytest.mark.parametrize(("content", "text"), [
    ("name: bad\nmodes: [{name: A}]\n", "compute: a mapping of what the time model needs is required"),
    ("[]\n", "bad.yaml:1: expected a table"), ("a: [\n", "bad.yaml:2"), (None, "bad.yaml: Is a directory")])
def test_a_board_file_that_is_not_whole_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None,
                                                 text: str) -> None:
    if content is None:
        (tmp_path / "bad.yaml").mkdir()
    else:
        (tmp_path / "bad.yaml").write_text(content)
    monkeypatch.setattr("orind.daemon.config_file.BOARDS", tmp_path)
    with pytest.raises(DeviceError) as caught:
        prediction.devices("bad")
    assert text in str(caught.value)


def test_inspect_prints_a_prediction_by_layer_and_says_that_it_is_one(plan: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(plan), "--board", "agx-orin:MODE_30W", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    (found,) = table["predicted"]
    assert found["what"] == "a model's prediction, not a measurement"
    assert [row["name"] for row in found["layers"]] == [row["name"] for row in table["report"]["layers"]]
    assert found["us"] == pytest.approx(sum(row["us"] for row in found["layers"]), abs=1)
    assert found["low_us"] <= found["us"] <= found["high_us"] and found["makespan_us"] <= found["us"] + 1
    assert any(row["critical"] for row in found["layers"])
    assert cli.main(["inspect", str(plan), "--board", "agx-orin:MODE_30W"]) == 0
    said = capsys.readouterr().out
    assert "predicted time: a model's prediction, not a measurement" in said and "L2 20 to 47 bytes" in said
    assert f"agx-orin:MODE_30W                 8   612.0  204.7     1 {found['us'] / 1e3:8.3f}" in said
    assert "DRAM 0.65 to 0.80" in said and f"{'together':44} {found['us']:8.1f}" in said


def test_a_board_without_a_mode_gives_totals_of_all(plan: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(plan), "--board", "orin-nx"]) == 0
    said = capsys.readouterr().out
    assert all(f"orin-nx:{mode} " in said for mode in ("MAXN_SUPER", "10W", "15W", "25W", "40W"))
    assert "critical" not in said


def test_a_build_for_a_board_keeps_its_prediction_in_the_plan(plan: Path, capsys: Captured) -> None:
    with PlanFile.open_path(plan) as file:
        (found,) = json.loads(file.metadata["report"])["predicted"]
    assert (found["board"], found["mode"], found["sms"]) == ("orin-nx", "25W", 8)
    assert cli.main(["inspect", str(plan)]) == 0
    said = capsys.readouterr().out
    assert "orin-nx:25W" in said and "prediction, not a measurement" in said
