"""scripts/bench_models on what needs no network: specs, sets of pictures, figures of the shipped models, the table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import bench_models
import foreign_models
import model_figures
import model_pictures
import model_table
import numpy as np
import onnx
import pytest
from foreign_models import ENTRIES, SPECS
from model_table import Row
from models import Net

from orind.kernels.importer.onnx_model import read_model
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.spec_yaml import read_spec

ROOT = Path(__file__).resolve().parents[2]
FACES = SPECS / "blazeface-back.onnx"


def test_every_spec_is_read_and_names_its_set_of_pictures() -> None:
    assert {entry.spec for entry in ENTRIES} == set(SPECS.glob("*.yaml"))
    for entry in ENTRIES:
        assert read_spec(entry.spec).name == entry.name
        assert f"on the set `{entry.pictures}`" in entry.spec.read_text() and entry.pictures in model_pictures.SETS
        for name, shape in entry.shapes.items():
            assert f"--input {name}={'x'.join(map(str, shape))}" in entry.spec.read_text()


def test_sets_are_fixed_and_a_missing_photograph_is_named(tmp_path: Path) -> None:
    first = model_pictures.pictures_of("parts", tmp_path, tmp_path / "a", 2)
    again = model_pictures.pictures_of("parts", tmp_path, tmp_path / "b", 2)
    assert [p.name for p in first] == ["0000.png", "0001.png"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    with pytest.raises(FileNotFoundError, match=r"page\.png is not there: run scripts/fetch_models first"):
        model_pictures.pictures_of("pages", tmp_path, tmp_path / "a", 2)
    (tensor,) = model_pictures.tensors_of(first[:1], (8, 6, 4), tmp_path)
    value = np.load(tensor)
    assert value.shape == (8, 6, 4) and value.dtype == np.float32 and value.max() > 1 and (value[..., 3] == 1).all()
    with pytest.raises(ValueError, match="alpha"):
        model_pictures.tensors_of(first[:1], (8, 6, 3), tmp_path)
    assert model_pictures.label_of(Path("0003-270.png")) == 270 and model_pictures.label_of(Path("0003.png")) is None


def test_layers_alone_and_outputs_are_within_their_limits() -> None:
    runtime = model_figures.Runtime(onnx.load(FACES), {})
    graph = read_model(FACES)
    fused, runner = bench_models.compiled(graph)
    runner.input[...] = np.random.default_rng(3).uniform(-1, 1, runner.input.shape)
    row = Row("faces")
    bench_models.measure_fp32(row, graph, runtime, fused, runner, exact=True)
    assert row.within and 0 < row.output < 1e-4 and row.layer > 0 and row.nodes > row.kernels == row.layers == 82
    assert row.layers_by_runtime == 82 and row.ours_exact is not None and 0 < row.ours_exact < 1e-4


def test_one_wrong_layer_is_found_and_no_other_is_blamed() -> None:
    runtime = model_figures.Runtime(onnx.load(FACES), {})
    fused = fuse(prepare(read_model(FACES)))
    programs, constants = lower(fused, [1], FloatNumbers(fused))
    wrong = [s for s in programs[1].steps if type(s).__name__ == "ConvF32"][7]
    name = wrong.weight
    constants[name] = constants[name] * np.float32(1.001)
    runner = bench_models.ProgramRunner(programs[1], constants)
    runner.input[...] = np.random.default_rng(3).uniform(-1, 1, runner.input.shape)
    x = model_figures.file_input(runner)
    tensors = runtime.every_tensor(x)
    found = model_figures.layer_distances(fused, runner, tensors, x.transpose(0, 3, 1, 2))
    assert [d.step for d in found if d.distance > model_figures.LIMIT_LAYER] == [wrong.name]


def test_distances_and_ratios() -> None:
    assert model_figures.distance(np.array([1.0, 4.0]), np.array([1.0, 5.0])) == pytest.approx(0.2)
    assert model_figures.distance(np.array([0.5]), np.array([0.0])) == 0.5
    with pytest.raises(ValueError, match="NaN or infinity"):
        model_figures.distance(np.array([np.nan]), np.array([1.0]))
    with pytest.raises(ValueError, match="against"):
        model_figures.distance(np.zeros(2), np.zeros(3))
    turns: list[str] = []
    _, told, medians = model_figures.time_ratios(lambda: turns.append("floor"), [lambda: turns.append("ours")], 3)
    assert turns == ["floor", "ours"] * 5 and len(told) == len(medians) == 1 and medians[0] > 0


def test_a_model_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net((1, 3, 32, 32))
    x = net.op("GlobalAveragePool", net.op("Relu", net.conv(net.op("Relu", net.conv(net.input, 8, 3, 2)), 4)))
    onnx.save(net.model([(net.op("Softmax", net.op("Flatten", x), axis=1), (1, 4))]), tmp_path / "tiny.onnx")
    spec = "name: tiny\ntask: classify\nlabels: [a, b, c, d]\ninput: {colour: rgb}\ndecoder: {kind: topk}\n"
    (tmp_path / "tiny.yaml").write_text(spec)
    monkeypatch.setattr(foreign_models, "SPECS", tmp_path)
    entry, row = foreign_models.Entry("tiny", "parts", shipped=True), Row("tiny")
    bench_models.measure_entry(row, entry, argparse.Namespace(models=tmp_path, pictures=12, repetitions=1,
                                                              fp32_only=False))
    assert row.within and row.half_layers == 0 and row.gate["pictures"] == 3 and row.gate["kl_mean"] < 0.03
    assert row.right_fp32 is None and row.fp32_time and row.coded_time and row.coded_bytes > 0
    text = "\n".join(model_table.described(row))
    assert "INT8, task classify, n = 3: KL" in text and "gate none: only 3 pictures" in text and "off float64" in text
    table = model_table.markdown([row, Row("broken", failed="ModelError: why")])
    assert f"| tiny | {row.nodes} -> {row.kernels} |" in table and "| broken | FAILED: ModelError: why |" in table


def test_a_gate_that_is_not_met_is_told_and_a_missing_model_too(tmp_path: Path) -> None:
    gate = {"kl_mean": 0.2, "met": False, "is_gate": True, "pictures": 64, "agreement": 0.5}
    row = Row("lossy", gate=gate, int8={"excess": 1e9}, half_layers=2, half_macs=0.25)
    assert "gate NOT met; INT8 alone, calibration pictures: no finite answer" in "\n".join(model_table.described(row))
    assert "| NOT met | no finite answer |" in model_table.markdown([row])
    assert "| met, 3 looks |" in model_table.markdown([replace(row, gate=gate | {"met": True, "looks": 3})])
    assert row.within and not replace(row, layer=2e-5).within and not replace(row, failed="x").within
    told = subprocess.run(
        [sys.executable, ROOT / "scripts" / "bench_models.py", "--only", "centerface", "--models", tmp_path],
        capture_output=True, text=True, check=False)
    assert told.returncode == 1 and "is not there: run scripts/fetch_models first" in told.stdout


def test_rows_of_an_earlier_run_stay_and_later_ones_replace_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert model_table.earlier(file) == []
    old = [Row("light_vgg19", packaged=2e-7, measured="2026-11-28 09:00"), Row("centerface", output=1.0)]
    file.write_text(json.dumps([asdict(row) for row in old]))
    both = model_table.merged(model_table.earlier(file), [Row("centerface", output=2.0, measured="2026-11-29 10:00")])
    assert [(row.name, row.output) for row in both] == [("centerface", 2.0), ("light_vgg19", 0.0)]
    table = model_table.markdown(both)
    assert "| 2.0e-07 |  | 2026-11-28 09:00 |" in table and "|  |  | 2026-11-29 10:00 |" in table
    file.write_text(json.dumps([asdict(Row("centerface", version="0.0.9"))]))
    with pytest.raises(SystemExit, match=r"rows\.json: centerface was measured with orind 0\.0\.9, this is"):
        model_table.earlier(file)
    file.write_text('[{"who": 1}]')
    with pytest.raises(SystemExit, match=r"rows\.json: not written by this version"):
        model_table.earlier(file)


def test_a_light_network_is_measured_with_drawn_weights_and_checked_as_packaged() -> None:
    row = Row("light_squeezenet")
    bench_models.measure_light(row, "light_squeezenet", 1)
    assert row.within and row.packaged is not None and row.packaged < 1e-4 and 0 < row.output < 1e-4
    assert not replace(row, packaged=2e-3).within
    assert "of the packaged output" in "\n".join(model_table.described(row))


@pytest.mark.parametrize(("arguments", "said"), [
    (["--only", "nothing"], "no model is called 'nothing'; known are part-inspect, "),
    (["--pictures", "3"], "--pictures must be at least 4"),
    (["--json", "nowhere/rows.json"], "nowhere/rows.json: there is no folder nowhere"),
])
def test_a_wrong_option_is_told_before_anything_is_measured(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_models", *arguments])
    with pytest.raises(SystemExit):
        bench_models._options()
    assert said in capsys.readouterr().err
