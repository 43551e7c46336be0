"""scripts/bench_energy: its arithmetic, on a published network; fusion that is off is off; what is refused."""

from __future__ import annotations

from pathlib import Path

import bench_energy
import onnx
import pytest
from bench_energy import HEAD, Board, Built, Measure, in_words, rows_of, unfused
from models import detector_onnx
from published_nets import program_of, resnet50

from orind.kernels.build import build_plan
from orind.kernels.ir.program import programs_from_text
from orind.kernels.perf.model import costs
from orind.kernels.plan.file import PlanFile


def test_a_row_is_watts_times_time() -> None:
    programs = {batch: program_of(resnet50(), batch) for batch in (1, 4)}
    apart = {1: program_of(resnet50(), 1, fused=False)}
    board = Board.named("agx-orin:MODE_30W")
    built = [Built(Measure("INT8, not fused", "int8", False), apart, "a"),
             Built(Measure("INT8", "int8", True), programs, "b")]
    rows = [dict(zip(HEAD, row, strict=True)) for row in rows_of(built, board)]
    assert [row["measure"] for row in rows] == ["INT8, not fused", "INT8", "... batch 4", "... 510 MHz",
                                                "... 408 MHz", "... 306 MHz"]
    assert [row["accuracy"] for row in rows] == ["a", *"bbbbb"]
    for row in rows:
        watts, ms, batch = float(row["W"]), float(row["ms"]), int(row["batch"])
        assert float(row["mJ/inference"]) == pytest.approx(watts * ms / batch, rel=0.01)
        assert float(row["above idle"]) == pytest.approx((watts - 10.88) * ms / batch, rel=0.02)
    assert float(rows[1]["ms"]) == pytest.approx(costs(programs[1], board.device).ns / 1e6, abs=1e-3)
    assert float(rows[1]["energy"].rstrip("%")) == pytest.approx(
        100 * float(rows[1]["mJ/inference"]) / float(rows[0]["mJ/inference"]), abs=1)
    assert float(rows[2]["mJ/inference"]) < float(rows[1]["mJ/inference"]), "weights are read once for four"
    assert [float(row["W"]) for row in rows[3:]] == sorted((float(row["W"]) for row in rows[3:]), reverse=True)


def test_without_fusion_a_plan_has_more_kernels_and_afterwards_the_compiler_fuses_again(tmp_path: Path) -> None:
    onnx.save(detector_onnx(64), str(tmp_path / "net.onnx"))
    kernels = []
    for name in ("apart", "fused"):
        if name == "apart":
            with unfused():
                build_plan(tmp_path / "net.onnx", None, [], tmp_path / name, "fp16")
        else:
            build_plan(tmp_path / "net.onnx", None, [], tmp_path / name, "fp16")
        with PlanFile.open_path(tmp_path / name) as plan:
            kernels.append(len(programs_from_text(plan.metadata["program"])[1].steps))
    assert kernels[0] > kernels[1] + 10


def test_a_gate_in_words() -> None:
    gate = {"kl_p99": 0.01375, "iou_mean": 0.97106, "met": True}
    assert in_words(gate) == "KL 0.0138, IoU 0.971" and in_words({}) == "not judged"
    assert in_words({**gate, "met": False}).endswith(", misses the gate")


@pytest.mark.parametrize(("words", "why"), [
    ("--boards agx-orin", "name a mode as well"), ("--boards agx-orin:MODE_31W", "has no mode 'MODE_31W'"),
    ("--parts 0", "--parts must be at least 1"), ("--models another", "invalid choice")])
def test_what_is_refused(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_energy.main(words.split())
    assert ended.value.code == 2 and why in capsys.readouterr().err
