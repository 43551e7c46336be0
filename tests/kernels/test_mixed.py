"""Mixed precision: which layers become float16, why, and what a build says when nothing meets the gate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hard import rescaled
from models import Net
from verified import least_sqnr_db

from orind.kernels.build import BuildReport, build_plan
from orind.kernels.cpu.executor import CpuExecutor, ProgramRunner
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.plan.file import PlanFile
from orind.kernels.plan.told_shape import first_fault
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.coding import find_scales
from orind.kernels.quant.gate import Regress, Tally, strict
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.mixed import Choice, choose_layers
from orind.kernels.quant.pictures import Source
from orind.kernels.quant.ranking import rank_layers
from orind.kernels.quant.reference import Reference
from orind.kernels.quant.scales import Scales
from orind.kernels.quant.verdict import AccuracyError, gate_lines
from orind.kernels.spec import ModelSpec
from orind.kernels.verify import verify


def blocks() -> onnx.ModelProto:
    """uint8 in; depthwise then 1x1 twice, with a residual, as BlazeFace has them."""
    net = Net((1, 3, 16, 16), name="bytes", dtype=onnx.TensorProto.UINT8)
    x = net.op("Cast", net.input, to=onnx.TensorProto.FLOAT)
    net.channels[x] = 3
    x = net.op("Relu", net.conv(x, 32, 3, 2, gain=1.6 / 255))
    for _ in range(2):
        x = net.op("Relu", net.op("Add", x, net.conv(net.conv(x, 32, 3, group=32), 32, 1)))
    return net.model([(net.conv(x, 6, 1), (1, 6, 8, 8))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed")
    easy = blocks()
    hard, pairs = rescaled(easy)
    assert pairs == 2
    onnx.save(easy, path / "easy.onnx")
    onnx.save(hard, path / "hard.onnx")
    (path / "frames").mkdir()
    rng = np.random.default_rng(0)
    for i in range(64):
        np.save(path / "frames" / f"{i:02d}.npy", rng.integers(0, 256, (3, 16, 16), dtype=np.uint8))
    return path


def build(folder: Path, model: str, out: Path, precision: str, **options: object) -> BuildReport:
    return build_plan(folder / f"{model}.onnx", ModelSpec.for_tensor(model), [folder / "frames"], out, precision,
                      method="minmax", **options)  # type: ignore[arg-type]


def test_rescaling_changes_nothing_in_float(folder: Path, tmp_path: Path) -> None:
    outputs = []
    for model in ("easy", "hard"):
        build(folder, model, tmp_path / "f.plan", "fp32")
        with PlanFile.open_path(tmp_path / "f.plan") as plan, CpuExecutor(plan) as executor:
            executor.input[...] = plan.tensors["golden.input"]
            outputs.append(executor.run()[0].copy())
    assert np.abs(outputs[0] - outputs[1]).max() <= 1e-5 * np.abs(outputs[0]).max()


def test_an_easy_net_stays_int8(folder: Path, tmp_path: Path) -> None:
    result = build(folder, "easy", tmp_path / "e.plan", "mixed")
    assert result.report["gate"]["met"] and result.report["mixed"]["layers"] == []
    assert not any(row["precision"] == "float16" for row in result.report["layers"])
    build(folder, "easy", tmp_path / "i.plan", "int8")
    with PlanFile.open_path(tmp_path / "e.plan") as a, PlanFile.open_path(tmp_path / "i.plan") as b:
        assert a.metadata["program"] == b.metadata["program"]
        assert all(np.array_equal(a.tensors[name], b.tensors[name]) for name in b.tensors if name != "orind.sha256")


def test_a_hard_net_collapses_and_the_layers_at_fault_become_float16(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AccuracyError, match=r"times the limits.*--precision mixed") as caught:
        build(folder, "hard", tmp_path / "h.plan", "int8")
    assert caught.value.figures["sqnr_db"] < 20
    lines: list[str] = []
    result = build(folder, "hard", tmp_path / "h.plan", "mixed", progress=lines.append)
    assert result.report["gate"]["met"] and result.report["gate"]["sqnr_db"] >= 25
    told = result.report["mixed"]
    chosen = [row["name"] for row in told["layers"]]
    every = [row["name"] for row in result.report["layers"] if row["step"].startswith(("Conv", "Depthwise"))
             and row["step"] != "Convert"]
    assert 2 <= len(chosen) < len(every) and 0 < told["macs_fp16"] < 1
    assert {row["name"] for row in result.report["layers"] if row["step"] in ("ConvF16", "DepthwiseF16")} == set(chosen)
    assert all("differ" in row["why"] and row["share"] > 0 for row in told["layers"][:2])
    assert told["int8"]["excess"] > 1 >= told["fp16"]["excess"]
    assert least_sqnr_db(tmp_path / "h.plan", folder / "hard.onnx") >= 20
    for row in result.report["layers"]:                     # what follows a float sum is marked as toleranced
        if row["step"] == "ConvF16":
            assert not row["exact"]
    assert any("layers stay in FP16" in line for line in lines)
    looks = [line for line in lines if "at the held-back pictures" in line]
    assert told["looks"] == result.report["gate"]["looks"] == len(looks) and told["pictures"] == 48
    assert f"look {len(looks)} at these pictures" in "\n".join(gate_lines(result.report["gate"]))


def test_where_float16_does_not_do_either(folder: Path, tmp_path: Path) -> None:
    model = onnx.load(folder / "easy.onnx")
    first = next(n for n in model.graph.node if n.op_type == "Conv")
    for tensor in model.graph.initializer:
        if tensor.name in first.input:
            value = onnx.numpy_helper.to_array(tensor) * np.float32(1e4)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    onnx.save(rescaled(model)[0], tmp_path / "large.onnx")
    spec = ModelSpec.for_tensor("large")
    for precision in ("mixed", "fp16"):
        text = f"{precision} gives no finite answer \\(overflow: Conv_.*--precision fp32"
        with pytest.raises(AccuracyError, match=text) as caught:
            build_plan(tmp_path / "large.onnx", spec, [folder / "frames"], tmp_path / "l.plan", precision,
                       method="minmax")
        assert caught.value.figures["overflow"].startswith("Conv_")


def test_float16_needs_no_calibration(folder: Path, tmp_path: Path) -> None:
    result = build_plan(folder / "hard.onnx", None, [], tmp_path / "h.plan", "fp16")
    assert "calibration" not in result.report and verify(tmp_path / "h.plan").ok
    with PlanFile.open_path(tmp_path / "h.plan") as plan:
        assert json.loads(plan.metadata["provenance"])["precision"] == "fp16"


def prepared(folder: Path, model: str) -> tuple[Scales, ProgramRunner, Source, list[Path]]:
    """What `build_plan` has before it looks for layers."""
    spec, pictures = ModelSpec.for_tensor(model), sorted((folder / "frames").iterdir())[:6]
    graph = prepare(read_model(folder / f"{model}.onnx"))
    fused = fuse(graph)
    programs, constants = lower(fused, [1], FloatNumbers(fused))
    entry = programs[1].tensors[programs[1].inputs[0]]
    source = Source(spec, entry.shape, entry.dtype, 1.0, True, "x")
    floats = ProgramRunner(programs[1], constants)
    coded = fuse(float_ends(graph))
    scales, _ = find_scales(graph, coded, spec, source, pictures, "minmax", Regress(), lambda line: None)
    return scales, floats, source, pictures


@pytest.mark.parametrize("model", ["easy", "hard"])
def test_ranking_by_imitation_is_that_of_programs(folder: Path, model: str) -> None:
    """Each layer alone in int8 in a program of its own, the others in float16: the same costs, one by one."""
    scales, floats, source, pictures = prepared(folder, model)
    quick = Reference(Regress(), floats, source, pictures)
    every = layers_of(scales.graph)
    share = rank_layers(scales, quick, lambda line: None)
    assert list(share) == list(every)

    def cost(half: list[str]) -> float:
        graph, numbers = mixed_numbers(scales, half)
        programs, constants = lower(graph, [1], numbers)
        return quick.cost(ProgramRunner(programs[1], constants), source)
    for name in every:
        alone = cost([other for other in every if other != name]) - cost(list(every))
        assert share[name] == pytest.approx(alone, rel=0.05, abs=2e-4), name
    assert (sum(share.values()) > 1) is (model == "hard")


class Counted(Reference):
    """A reference whose figures depend on the number of float16 layers alone: (excess, strict) by that number."""

    def __init__(self, figures: Callable[[int], tuple[float, float]]) -> None:
        super().__init__(Regress(), None, None, [])  # type: ignore[arg-type]
        self.figures, self.asked = figures, list[int]()

    def measure(self, coded: Any, source: Any, give_up: Any = None) -> dict[str, Any]:
        self.asked.append(len(coded))
        return dict(zip(("excess", "strict"), self.figures(len(coded)), strict=True))


def chosen(folder: Path, search: Counted, held: Counted) -> tuple[Choice, list[str], list[str]]:
    """The choice, its layers by rank, and all layers by rank."""
    scales, floats, source, pictures = prepared(folder, "hard")
    quick = Reference(Regress(), floats, source, pictures)
    share = rank_layers(scales, quick, lambda line: None)
    ranked = sorted(share, key=lambda name: -share[name])
    choice = choose_layers(scales, lambda layers: (layers, None), lambda: quick,  # type: ignore[arg-type, return-value]
                           search, held, lambda line: None)
    return choice, sorted(choice.layers, key=ranked.index), ranked


def test_the_held_back_pictures_only_judge(folder: Path) -> None:
    """The search keeps its limits with two layers, the verdict needs four: three looks, at two, three and five."""
    search, held = Counted(lambda n: (2 - n / 2, 2 - n / 2)), Counted(lambda n: (2 - n / 4, 2 - n / 4))
    choice, layers, ranked = chosen(folder, search, held)
    assert held.asked == [2, 3, 5] and choice.figures["looks"] == choice.report["looks"] == 3
    assert set(search.asked[:2]) == {0, len(ranked)} and len(search.asked) > 4
    assert layers == ranked[:5] and choice.figures["excess"] == 0.75 and choice.warning == ""
    int8 = Counted(lambda n: (0.5, 0.5))
    choice, layers, _ = chosen(folder, int8, Counted(lambda n: (0.5, 0.5)))
    assert int8.asked == [0] and layers == [] and choice.report["looks"] == 1 and "costs" not in choice.report


def test_where_float16_gives_false_alarms_the_gate_decides(folder: Path) -> None:
    """Float16 keeps the gate, but not with false alarms: they are left out, not every layer taken."""
    loud = Counted(lambda n: (0.5, 3.0))
    choice, layers, _ = chosen(folder, loud, Counted(lambda n: (0.5, 3.0)))
    assert layers == [] and choice.report["layers"] == [] and choice.figures["excess"] == 0.5
    assert choice.warning.startswith("with false alarms FP16 itself is at 3 times the limits")
    search = Counted(lambda n: (2 - n / 2, 4 - n / 100))
    choice, layers, ranked = chosen(folder, search, Counted(lambda n: (2 - n / 2, 9.0)))
    assert len(layers) == 2 and choice.report["looks"] == 1 and choice.warning
    kept = Counted(lambda n: (0.5, 3.0))                                # false alarms only on the held-back pictures
    choice, layers, ranked = chosen(folder, Counted(lambda n: (0.5, 0.5)), kept)
    assert layers == [] and kept.asked == [0, 1, 3, len(ranked)] and choice.report["looks"] == 4


def test_where_no_set_keeps_the_limits_the_report_says_so(folder: Path) -> None:
    choice, layers, ranked = chosen(folder, Counted(lambda n: (3 - n / 10, 5)), Counted(lambda n: (3 - n / 10, 5)))
    assert sorted(layers) == sorted(ranked) and [row["name"] for row in choice.report["layers"]] == list(choice.layers)
    assert all(row["why"].startswith("no set of FP16 layers keeps the limits") for row in choice.report["layers"])
    assert choice.warning.startswith("no set of FP16 layers keeps the limits on the calibration pictures: all in FP16")
    assert choice.report["looks"] == 1 and choice.report["macs_fp16"] == 1


def test_giving_up_decides_as_a_whole_run_does(folder: Path) -> None:
    scales, floats, source, pictures = prepared(folder, "hard")
    held = Reference(Regress(), floats, source, pictures)
    every, given_up = layers_of(scales.graph), 0
    for count in range(len(every) + 1):
        graph, numbers = mixed_numbers(scales, every[:count])
        programs, constants = lower(graph, [1], numbers)
        coded = ProgramRunner(programs[1], constants)
        whole, soon = held.measure(coded, source), held.measure(coded, source, give_up=strict)
        assert (whole["excess"] > 1) is (soon["excess"] > 1) and soon["excess"] <= whole["excess"] * (1 + 1e-9)
        given_up += "given_up" in soon
        assert ("given_up" in soon) is False or 1 <= soon["given_up"] <= len(pictures)
    assert given_up > 2


def test_what_is_missing_is_taken_as_without_loss() -> None:
    tally, perfect = Tally(kl=[0.6], iou=[0.5]), Tally(kl=[0.0] * 4, iou=[1.0] * 4, pictures=2)
    whole = tally.completed(perfect)
    assert np.mean(whole.kl) == pytest.approx(0.15) and np.mean(whole.iou) == 0.875 and whole.pictures == 2


def test_a_report_may_say_that_a_layer_costs_less_than_nothing_or_was_not_ranked() -> None:
    rows = [{"cost": -0.1, "share": None}, {"cost": None, "share": -2.5}]
    assert first_fault({"layers": rows}, "report") is None
    assert first_fault({"share": "much"}, "report") == "report.share must be a number or null"
