"""The page, the Graphviz text and the layered drawing of `orind inspect`: whole, escaped, and equal to the program."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import Net, detector_onnx
from PIL import Image

from orind.daemon.inspect_command import describe
from orind.daemon.prediction import predictions
from orind.kernels.build import build_plan
from orind.kernels.ir.lifetimes import lifetimes
from orind.kernels.ir.program import Program, programs_from_text
from orind.kernels.plan.file import PlanFile
from orind.kernels.plan.layout import PlanError
from orind.kernels.report import layering
from orind.kernels.report.charts import byte_step, size_text, tick_step
from orind.kernels.report.dataflow import INPUT, Flow
from orind.kernels.report.dot import dot
from orind.kernels.report.layers import precision_of, records_of, shortened
from orind.kernels.report.markup import breakable, clean, tag
from orind.kernels.report.overview import figures_of, gate_figures, verdict
from orind.kernels.report.page import page
from orind.kernels.spec import DecoderSpec, InputSpec, ModelSpec

SPEC = ModelSpec("parts", "detect", ("a", "b", "c", "<i>d</i>"), (1, 2), InputSpec(), DecoderSpec("yolo"))
BAD = '<script>alert("1")</script>'
VOID = {"meta", "br", "rect", "path", "circle", "line", "wbr"}


class Page(HTMLParser):
    """Elements in order as (name, attributes); fails on one that is not closed or closed twice."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({key for key, _ in attrs}) == len(attrs)
        self.elements.append((name, dict(attrs)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        assert name in VOID
        self.elements.append((name, dict(attrs)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for element, attrs in self.elements if element == name]


def opened(path: Path) -> tuple[dict[str, Any], dict[int, Program]]:
    with PlanFile.open_path(path) as plan:
        return describe(plan), programs_from_text(plan.metadata["program"])


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[int, Program]]:
    """A detector in INT8 (concats, residuals, pools, a float tail), with a node named like an attack."""
    folder = tmp_path_factory.mktemp("page")
    model = detector_onnx(64)
    next(n for n in model.graph.node if n.op_type == "MaxPool").name = BAD
    onnx.save(model, folder / "net.onnx")
    rng = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    build_plan(folder / "net.onnx", SPEC, [folder], folder / "net.plan", "int8", method="minmax")
    return opened(folder / "net.plan")


@pytest.fixture(scope="module")
def text(plan: tuple[dict[str, Any], dict[int, Program]]) -> str:
    table, programs = plan
    return page(table, programs[1], predictions(programs, "agx-orin:MODE_30W"))


def test_the_page_is_well_formed_and_has_every_layer_once(plan: tuple[dict[str, Any], dict[int, Program]],
                                                          text: str) -> None:
    table, programs = plan
    found = Page(text)
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    count = len(programs[1].steps)
    assert sorted(i for i in ids if i and i.startswith("layer-")) == sorted(f"layer-{n}" for n in range(count))
    assert len(set(ids)) == len(ids) and {"graph", "error", "time", "memory", "passes", "layers"} <= set(ids)
    targets = {attrs["href"] for attrs in found.all("a")}
    assert targets <= {f"#{i}" for i in ids}                       # every link leads to a place of this page
    boxes = [a for a in found.all("a") if (a.get("class") or "").startswith("n ")]
    assert [a["data-s"] for a in boxes] and {a["data-s"] for a in boxes} == {str(n) for n in range(count)}
    assert len(boxes) == count
    names = [attrs["title"] for attrs in found.all("td") if attrs.get("class") == "name" and "title" in attrs]
    assert names == [row["name"] for row in table["report"]["layers"]]
    shown = "".join(data for _, data in found.texts)
    assert "a model, not a measurement" in shown and "not measured: no layer had to be ranked" in shown
    assert "only 1 pictures are held back" in shown


def test_the_page_loads_nothing_and_its_policy_allows_only_what_it_has(text: str) -> None:
    found = Page(text)
    for _, attrs in found.elements:
        assert not {"src", "style", "srcset", "action", "xlink:href"} & set(attrs)
        assert not [key for key in attrs if key.startswith("on")]
    assert not re.search(r"url\(|@import|//[a-z]", text) and len(found.all("script")) == 1
    (policy,) = (a["content"] or "" for a in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    for element in ("style", "script"):
        (body,) = (data for name, data in found.texts if name == element)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")


def test_names_of_a_model_stay_text(text: str) -> None:
    assert BAD not in text and "<i>" not in text
    found = Page(text)
    assert any(BAD in data.replace("\u200b", "") for name, data in found.texts if name == "title")
    assert "<i>d</i>" in "".join(data for _, data in found.texts)
    assert tag("p", 'a"b', title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;">a&quot;b</p>'
    assert clean("a\x00\x1b[2J\ud800\u202eb") == "a\ufffd\ufffd[2J\ufffd\ufffdb"
    assert breakable("a/<b>") == "a/<wbr>&lt;b&gt;"
    assert tag("line", x1=1.0, x2=2.346, hidden=True, y1=None) == '<line x1="1" x2="2.35" hidden/>'


def test_the_memory_map_is_the_programs(plan: tuple[dict[str, Any], dict[int, Program]], text: str) -> None:
    _, programs = plan
    program = programs[1]
    rects = [a for a in Page(text).all("rect") if "data-offset" in a]
    drawn = sorted(tuple(int(a[f"data-{key}"] or 0) for key in ("offset", "bytes", "first", "last")) for a in rects)
    offset = {t.buffer: t.offset for t in program.tensors.values()}
    assert drawn == sorted((offset[b], v.size, v.first, v.last) for b, v in lifetimes(program).items())
    assert max(at + size for at, size, _, _ in drawn) == program.arena_bytes
    scale = 330 / program.arena_bytes
    for a in rects:
        assert float(a["height"] or 0) == pytest.approx(max(int(a["data-bytes"] or 0) * scale - 1, 0.5), abs=0.02)
    for batch in programs:
        flow = Flow(programs[batch])
        assert max(flow.live_bytes()) <= programs[batch].arena_bytes
        for i, a in enumerate(flow.buffers):                         # no two at one time in one place
            for b in flow.buffers[i + 1:]:
                assert a.alone_to < b.first or b.alone_to < a.first or a.end <= b.offset or b.end <= a.offset


def test_edges_pass_through_concats_made_in_place(plan: tuple[dict[str, Any], dict[int, Program]]) -> None:
    _, programs = plan
    program = programs[1]
    flow, count = Flow(program), len(program.steps)
    assert {e.reader for e in flow.edges} == set(range(count + 1))
    assert {e.writer for e in flow.edges} == {INPUT, *range(count)}
    assert all(e.writer < e.reader for e in flow.edges)
    pools = [i for i, step in enumerate(program.steps) if type(step).__name__ == "MaxPool"]
    reader = pools[-1] + 1                                           # reads the Concat of SPPF's four branches
    assert {e.writer for e in flow.edges if e.reader == reader} == {pools[0] - 1, *pools}
    with pytest.raises(PlanError, match="does not name every buffer"):
        Flow(replace(program, tensors={n: replace(t, buffer="") for n, t in program.tensors.items()}))


def test_dot_is_graphviz(plan: tuple[dict[str, Any], dict[int, Program]]) -> None:
    table, programs = plan
    flow = Flow(programs[1])
    lines = dot('a "b" \\ c', flow, records_of(programs[1], table["report"], None)).splitlines()
    string = r'"(?:[^"\\]|\\.)*"'
    attributes = rf"\[\w+=(?:{string}|\w+)(?:, \w+=(?:{string}|\w+))*\]"
    assert re.fullmatch(rf"digraph {string} {{", lines[0]) and lines[-1] == "}"
    for line in lines[1:-1]:
        assert re.fullmatch(rf"  (?:\w+ -> )?\w+ {attributes};", line), line
    assert sum(bool(re.match(r"  \w+ -> ", line)) for line in lines) == len(flow.edges)
    assert sum(bool(re.match(r"  s\d+ \[", line)) for line in lines) == len(programs[1].steps)
    assert any("<script>alert(\\\"1\\\")" in line for line in lines)


def test_a_float_plan_and_one_for_every_mode(tmp_path: Path) -> None:
    net = Net((1, 3, 16, 16))
    onnx.save(net.model([(net.conv(net.input, 8, 3, 2), (1, 8, 8, 8))]), tmp_path / "m.onnx")
    build_plan(tmp_path / "m.onnx", None, [], tmp_path / "m.plan", "fp32")
    table, programs = opened(tmp_path / "m.plan")
    shown = "".join(data for _, data in Page(page(table, programs[1], predictions(programs, "orin-nx"))).texts)
    assert "nothing is rounded" in shown and all(f"orin-nx:{mode}" in shown for mode in ("MAXN_SUPER", "10W", "25W"))
    assert "name a board with --board" in page(table, programs[1], [])
    half = {**table, "report": {**table["report"], "precision": "fp16"}}
    assert "had no calibration pictures" in page(half, programs[1], [])
    with pytest.raises(PlanError, match=r"its report is of 0 layers, its program has \d+: make it with"):
        records_of(programs[1], {**table["report"], "layers": []}, None)


def test_what_the_verdict_says() -> None:
    gate = {"pictures": 64, "is_gate": True, "met": True, "kl_mean": 0.003, "limit_kl": 0.03, "iou_mean": 0.985,
            "least_iou": 0.97, "sqnr_db": 28.0, "least_sqnr_db": 25.0}
    said = {kind: verdict({"precision": kind, "gate": {}}) for kind in ("fp32", "int8")}
    assert "nothing to judge" in said["fp32"] and "not measured" in said["int8"]
    for change, word in (({}, "gate met"), ({"met": False}, "NOT met"), ({"is_gate": False}, "not a gate"),
                         ({"met": None, "error": "not enough <objects>"}, "not enough &lt;objects&gt;")):
        assert word in verdict({"precision": "int8", "gate": {**gate, **change}})
    shown = gate_figures({**gate, "iou_mean": 0.971, "sqnr_db": 24.0, "least_sqnr_db": 25.0}) or ""
    assert "margin: 90% left" in shown and "margin: 3% left" in shown and "exceeded by 26%" in shown
    used = [part for _, _, _, part in figures_of(gate)]
    assert used == pytest.approx([0.1, 0.5, 10 ** -0.3])


def test_mixed_precision_without_a_layer_in_fp16_is_int8() -> None:
    rows = [{"name": "a"}]
    assert precision_of({"precision": "mixed", "gate": {"met": True}, "mixed": {"layers": rows}}) == ("mixed", "")
    assert precision_of({"precision": "mixed", "gate": {"met": True}, "mixed": {"layers": []}}) == (
        "int8", "mixed: no layer needed FP16")
    assert precision_of({"precision": "mixed", "gate": {}}) == (
        "int8", "mixed: no pictures to choose layers for FP16 by")
    assert precision_of({"precision": "fp16", "gate": {}}) == ("fp16", "")


def test_the_page_tells_what_the_terminal_prints() -> None:
    gate = {"pictures": 64, "pixels": 900, "kl_mean": 0.003, "kl_p99": 0.02, "limit_kl": 0.03, "agreement": 0.98,
            "others_sqnr_db": 31.46, "false_alarms": 7, "strict": 0.456, "looks": 2}
    shown = gate_figures(gate)
    for text in ("SQNR of the other outputs 31.5 dB", "false alarms: 7 (with them within the limits, 54.4 % left)",
                 "look 2 at", "900 pixels", "63 of 64 (not gated)"):
        assert text in (shown or "")
    alone = gate_figures({"pictures": 64, "anchors": 0, "false_alarms": 3, "excess": 0.0})
    assert "0 anchors, false alarms: 3" in (alone or "") and "times" not in (alone or "") and gate_figures({}) is None


def test_the_page_says_how_far_int8_is_by_what_layers_were_chosen_by(
        plan: tuple[dict[str, Any], dict[int, Program]]) -> None:
    """Within the gate and out of the limits with false alarms: layers are kept for those."""
    table, programs = plan
    name = table["report"]["layers"][0]["name"]
    mixed = {"layers": [{"name": name, "share": None, "why": "because"}], "macs_fp16": 0.25, "looks": 3, "pictures": 48,
             "int8": {"excess": 0.8, "strict": 3.21}}
    for half, text in (({}, ", false alarms counted"),
                       ({"fp16": {"excess": 0.5, "strict": 0.7}}, ", all in FP16 within the limits, 30 % left,")):
        shown = page({**table, "report": {**table["report"], "mixed": {**mixed, **half}}}, programs[1], [])
        assert f"On 48 calibration pictures all in INT8 is 3.21 times the limits{text}" in shown
        assert "The held-back pictures were looked at 3 times." in shown


def test_a_layered_drawing_keeps_ranks_apart_and_in_order() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 9, 80, 300):
        edges = sorted({(i, i + 1) for i in range(count - 1)} | {
            (int(a), int(b)) for a, b in np.sort(rng.integers(0, count, (count // 3, 2)), 1) if a < b})
        ranks = layering.ranks_of(count, edges)
        assert all(ranks[a] < ranks[b] for a, b in edges)
        drawn = layering.layered(count, edges, 1400)
        assert sorted(i.node for rank in drawn.ranks for i in rank if not i.lane) == list(range(count))
        for rank in drawn.ranks:
            for left, right in pairwise(rank):
                assert right.x - left.x >= (left.width + right.width) / 2 + layering.GAP_X - 1e-6
        assert [c.first for c in drawn.columns] == [0, *(c.end for c in drawn.columns[:-1])]
        assert drawn.width <= 1400 or len(drawn.columns) == 1
    assert layering.spaced([5.0, 5.0], [10.0, 10.0], [1.0, 3.0]) == [-13.0, 11.0]


def test_scales_and_names() -> None:
    assert [tick_step(v) for v in (0, 9.4, 22, 730)] == [1.0, 2.0, 5.0, 200.0]
    assert byte_step(616 * 1024) == 128 * 1024 and size_text(630784) == "616 KiB" and size_text(12) == "12 B"
    assert shortened(["/a/b/c", "/a/b/d/e", "x"]) == ["c", "d/e", "x"]
    assert shortened(["/a/b/c+/a/b/d", "/a/b/e"]) == ["c + d", "e"]
    assert shortened(["/only"]) == ["only"] and shortened(["a/b", "a/b/c"]) == ["b", "b/c"]
