"""The table of graph passes, multiply-accumulates, each layer's share of the loss: what a build's report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net
from PIL import Image

from orind.daemon.prediction import devices
from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.importer.onnx_model import read_model
from orind.kernels.ir.macs import multiply_accumulates
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import FUSE, PREPARE, fuse, prepare
from orind.kernels.perf.model import costs
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.borders import layers_of
from orind.kernels.quant.coding import find_scales
from orind.kernels.quant.gate import Regress
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.pictures import Source
from orind.kernels.quant.ranking import rank_layers
from orind.kernels.quant.reference import Reference
from orind.kernels.quant.report import ranking_facts
from orind.kernels.report.passes import IMPORT, PRECISION, PassTable
from orind.kernels.spec import InputSpec, ModelSpec

(AGX,) = devices("agx-orin:MAXN")


def small(cast: bool = False) -> onnx.ModelProto:
    """Convolution, BatchNormalization, Relu, depthwise with residual, 1x1."""
    net = Net((1, 3, 16, 16), name="bytes", dtype=onnx.TensorProto.UINT8 if cast else onnx.TensorProto.FLOAT)
    x = net.input
    if cast:
        x = net.op("Cast", net.input, to=onnx.TensorProto.FLOAT)
        net.channels[x] = 3
    x = net.op("Relu", net.norm(net.conv(x, 32, 3, 2, gain=1.6 / 255 if cast else 1.6)))
    x = net.op("Relu", net.op("Add", x, net.conv(net.conv(x, 32, 3, group=32), 32, 1)))
    return net.model([(net.conv(x, 6, 1), (1, 6, 8, 8))])


def test_every_pass_has_a_row_and_its_figures_are_those_of_its_graph(tmp_path: Path) -> None:
    onnx.save(small(), tmp_path / "m.onnx")
    graph = read_model(tmp_path / "m.onnx")
    table, graphs = PassTable(AGX), [graph]

    def seen(name: str, after: Any) -> None:
        table.seen(name, after)
        graphs.append(after)
    table.seen(IMPORT, graph)
    fused = fuse(prepare(graph, seen), seen)
    programs, _ = lower(fused, [1], FloatNumbers(fused))
    table.lowered(programs[1], len(fused.nodes), "fp32")
    rows = table.report()["rows"]
    assert [r["name"] for r in rows] == [IMPORT, *(p.__name__ for p in (*PREPARE, *FUSE)), PRECISION]
    assert [r["nodes"] for r in rows[:-1]] == [len(g.nodes) for g in graphs]
    at = {r["name"]: i for i, r in enumerate(rows)}
    for name in (IMPORT, "fold_batchnorm", "fuse_convolutions"):
        assert rows[at[name]]["changed"] and rows[at[name]]["why"] == ""
    before, after = rows[at["fold_batchnorm"] - 1], rows[at["fold_batchnorm"]]
    assert before["kernels"] == after["kernels"] + 1 and before["us"] > after["us"]       # counted before it is folded
    assert rows[at["fuse_convolutions"]]["us"] < after["us"]
    expected = costs(programs[1], AGX).ns / 1000
    for row in (rows[-2], rows[-1]):                          # what the passes leave is what is lowered
        assert row["us"] == pytest.approx(expected, abs=0.01) and row["peak_bytes"] == programs[1].arena_bytes
        assert row["kernels"] == len(programs[1].steps)
    assert not rows[-1]["changed"] and table.report()["device"] == {"board": "agx-orin", "mode": "MAXN"}


def test_a_graph_that_cannot_be_lowered_yet_has_no_figures_and_says_why(tmp_path: Path) -> None:
    net = Net((1, 4, 8, 8))
    y = net.op("LayerNormalization", net.input, net.constant(np.ones(8)), axis=-1)
    onnx.save(net.model([(y, (1, 4, 8, 8))]), tmp_path / "m.onnx")
    graph = read_model(tmp_path / "m.onnx")
    table = PassTable(None)
    table.seen("x", graph.rebuilt([*graph.nodes[:-1], graph.nodes[-1].__class__(
        "odd", "Unknown", graph.nodes[-1].inputs, graph.nodes[-1].outputs)]))
    (row,) = table.rows
    assert row["us"] is row["peak_bytes"] is row["kernels"] is None and "node 'odd' (Unknown)" in row["why"]
    assert table.report()["device"] is None


def test_multiply_accumulates_of_all_that_sums_products(tmp_path: Path) -> None:
    net = Net((1, 8, 12, 12))
    x = net.conv(net.input, 16, 3, 2, group=2)
    rows = net.op("Reshape", x, net.constant(np.array([1, 16, 36])))
    y = net.op("MatMul", rows, net.op("Transpose", rows, perm=[0, 2, 1]))
    onnx.save(net.model([(y, (1, 16, 16))]), tmp_path / "m.onnx")
    graph = read_model(tmp_path / "m.onnx")
    by_op = {node.op: multiply_accumulates(graph).get(node.name, 0) for node in graph.nodes}
    assert by_op["Conv"] == 16 * 4 * 9 * 36 and by_op["MatMul"] == 16 * 16 * 36
    assert by_op["Reshape"] == by_op["Transpose"] == 0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """INT8 with every layer's share measured, although nothing had to be ranked."""
    path = tmp_path_factory.mktemp("share")
    onnx.save(small(cast=True), path / "m.onnx")
    (path / "frames").mkdir()
    rng = np.random.default_rng(0)
    for i in range(24):
        np.save(path / "frames" / f"{i:02d}.npy", rng.integers(0, 256, (3, 16, 16), dtype=np.uint8))
    told = build_plan(path / "m.onnx", ModelSpec.for_tensor("m"), [path / "frames"], path / "m.plan", "int8",
                      method="minmax", accept_loss=True, kl_share=True, passes_on=AGX).report
    with PlanFile.open_path(path / "m.plan") as plan:
        assert json.loads(plan.metadata["report"]) == told
    return told


def test_a_layers_share_is_its_part_of_what_single_int8_layers_cost(report: dict[str, Any]) -> None:
    assert report["ranking"] == {"measured": True, "pictures": 16, "why": ""}
    rows = report["layers"]
    counted = [row for row in rows if row["cost"] is not None]
    assert {row["op"] for row in counted} == {"Conv 3x3 /2 + Relu", "Conv 3x3 dw", "Conv 1x1 + Add + Relu", "Conv 1x1"}
    total = sum(max(row["cost"], 0) for row in counted)
    for row in counted:
        assert row["kl_share"] == pytest.approx(max(row["cost"], 0) / total, abs=1e-3)
    assert sum(row["kl_share"] for row in counted) == pytest.approx(1, abs=1e-3)
    assert report["passes"]["rows"][-1]["peak_bytes"] == report["arena_bytes"]["1"]
    assert sum(row["macs"] for row in rows) == 32 * 27 * 64 + 32 * 9 * 64 + 32 * 32 * 64 + 6 * 32 * 64


def test_pixels_are_ranked_as_the_bytes_that_they_are(tmp_path: Path) -> None:
    """A float input of 0..1 has uint8 codes. The first layer alone in int8 costs what a program says in which it is."""
    onnx.save(small(), tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    spec, pictures = ModelSpec("m", "regress", input=InputSpec()), sorted(tmp_path.glob("*.png"))
    prepared = prepare(read_model(tmp_path / "m.onnx"))
    programs, constants = lower(fuse(prepared), [1], FloatNumbers(fuse(prepared)))
    floats, source = ProgramRunner(programs[1], constants), Source(spec, (16, 16, 3), "float32", 1.0, True, "m")
    scales, _ = find_scales(prepared, fuse(float_ends(prepared)), spec, source, pictures, "minmax", Regress(), print)
    assert scales.input.dtype == "uint8"
    quick = Reference(Regress(), floats, source, pictures)
    first, *others = layers_of(scales.graph)

    def cost(half: list[str]) -> float:
        graph, numbers = mixed_numbers(scales, half)
        programs, constants = lower(graph, [1], numbers)
        entry = programs[1].tensors[programs[1].inputs[0]]
        return quick.cost(ProgramRunner(programs[1], constants),
                          Source(spec, (16, 16, 3), entry.dtype, entry.scale, True, "m"))
    alone = cost(others) - cost([first, *others])
    assert rank_layers(scales, quick, print)[first] == pytest.approx(alone, rel=0.15)


def test_what_was_not_ranked_says_why() -> None:
    assert "--kl-share" in ranking_facts({}, "int8", 16)["why"]
    assert ranking_facts({}, "fp16", 16)["why"] == "no layer is int8"
    assert "costs anything" in ranking_facts({"a": -1e-9, "b": 0.0}, "mixed", 16)["why"]
