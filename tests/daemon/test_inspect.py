"""`orind inspect`: the table for a terminal, the page and the Graphviz text as files and on stdout, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from models import detector_onnx

from orind.daemon import cli, inspect_table
from orind.kernels.plan.file import PlanFile, write_plan

Captured = pytest.CaptureFixture[str]
PASSES = ("import", "fold_batchnorm", "precision")
STEERS = "\x1b[2Jpool"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FP16, one node named with a terminal's escape sequence."""
    folder = tmp_path_factory.mktemp("inspected")
    model = detector_onnx(64)
    next(n for n in model.graph.node if n.op_type == "MaxPool").name = STEERS
    onnx.save(model, str(folder / "net.onnx"))
    assert cli.main(["build", str(folder / "net.onnx"), "--precision", "fp16", "-o", str(folder / "net.plan")]) == 0
    return folder / "net.plan"


def test_the_table_fits_a_terminal_and_its_sums_are_right(plan: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(plan), "--layers", "--board", "agx-orin:MODE_30W"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= 132 and "\x1b" not in text and "\ufffd[2Jpool" in text
    start = next(i for i, line in enumerate(lines) if line.startswith("layer ") and " SQNR " in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("together"))
    assert lines[start].split() == ["layer", "op", "shape", "type", "SQNR", "share", "MMAC", "KB", "us"]
    rows = [line.split() for line in lines[start + 1:end]]
    sums = [sum(float(row[i]) for row in rows) for i in (-3, -2, -1)]
    assert [float(v) for v in lines[end].split()[1:]] == pytest.approx(sums, abs=0.06 * len(rows))
    assert lines[end + 1] == "share: not measured, no layer is int8"
    with PlanFile.open_path(plan) as file:
        report = json.loads(file.metadata["report"])
    assert len(rows) == report["steps"]
    assert report["passes"]["device"] == {"board": "agx-orin", "mode": "MAXN"}
    rows = [row for row in report["passes"]["rows"] if row["name"] in PASSES]
    for board, timed in (("agx-orin:MODE_30W", False), ("agx-orin:MAXN", True), ("agx-orin", True), (None, True)):
        assert cli.main(["inspect", str(plan), "--layers", *(["--board", board] if board else [])]) == 0
        text = capsys.readouterr().out
        shown = [line for line in text.splitlines() if line.startswith(tuple(f"{name} " for name in PASSES))]
        for line, row in zip(shown, rows, strict=True):
            us, peak = f"{row['us']:.1f}" if timed else "-", f"{row['peak_bytes'] / 1024:.1f}"
            assert line.split() == [row["name"], str(row["nodes"]), str(row["kernels"]), us, peak]
        words = " ".join(text.split())
        assert ("latency predicted for agx-orin:MAXN" in words) == timed
        assert ("predicted for agx-orin:MAXN; rebuild with --board agx-orin:MODE_30W for its own" in words) != timed


def test_the_summary_fits_a_screen_and_leaks_no_key(plan: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(plan), "--board", "agx-orin:MODE_30W"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and lines[0] == f"{plan}: net, tensor, fp16, {plan.stat().st_size} bytes"
    assert lines[2].startswith("input    float32 ") and lines[2].endswith(", batch sizes 1")
    assert any(line.startswith("made by  orind ") and " from net.onnx, sha256 " in line for line in lines)
    assert not [line for line in lines if "_" in line.replace("MODE_30W", "") or "labels" in line]
    assert re.fullmatch(r"\d+ layers and the passes: --layers; all of it: --json, --html FILE", lines[-1])


@pytest.mark.parametrize(("told", "text"), [
    ({"method": "mse", "pictures": 48, "pictures_given": 48, "tensors_that_left": ["a", "b"], "held_back": 16},
     "mse on 48 pictures; 2 tensors use another method; 16 pictures held back to judge"),
    ({"method": "minmax", "pictures": 48, "pictures_given": 90, "held_back": 0}, "minmax on 48 of 90 given pictures"),
    ({"method": "file", "scales_kept": 7, "scales_coded_again": 1, "held_back": 4},
     "7 of the file kept, 1 coded again; 4 pictures held back to judge"),
])
def test_where_the_scales_come_from(told: dict[str, Any], text: str) -> None:
    assert inspect_table._calibration(told) == text


def test_a_page_is_written_and_says_where(plan: Path, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "net.html"
    page.write_text("old")
    assert cli.main(["inspect", str(plan), "--html", str(page)]) == 0
    text = page.read_text()
    assert capsys.readouterr().out == f"{page}  {len(text.encode())} bytes\n"
    assert text.startswith("<!DOCTYPE html>") and "agx-orin MAXN" in text
    assert 'id="energy"' in text and "#energy" in text
    assert cli.main(["inspect", str(plan), "--html", str(page), "--board", "orin-nx:25W"]) == 0
    told = page.read_text()
    assert "What an inference costs" in told and told.count("<td>orin-nx:25W") == 3, "306 and 408 MHz, and the time"
    assert "orin-nx 25W" in page.read_text() and "rebuild with --board orin-nx:25W for its own." in page.read_text()
    assert cli.main(["inspect", str(plan), "--json", "--board", "orin-nx:25W"]) == 0
    kept = json.loads(capsys.readouterr().out.partition("\n")[2])["report"]["passes"]
    assert kept["device"] == {"board": "agx-orin", "mode": "MAXN"}, "JSON has all that the plan holds"


def test_dot_goes_to_stdout(plan: Path, capsys: Captured) -> None:
    assert cli.main(["inspect", str(plan), "--dot"]) == 0
    text = capsys.readouterr().out
    assert text.startswith('digraph "net" {') and text.endswith("}\n") and "\x1b" not in text


def test_refusals(plan: Path, tmp_path: Path, capsys: Captured) -> None:
    missing = tmp_path / "none" / "x.html"
    assert cli.main(["inspect", str(plan), "--html", str(missing)]) == 1
    assert capsys.readouterr().err == (f"orind inspect: --html {missing}: No such file or directory; name a file that "
                                       "can be written\n")
    assert cli.main(["inspect", str(plan), "--html", str(tmp_path)]) == 1
    assert "Is a directory" in capsys.readouterr().err
    before = plan.read_bytes()
    assert cli.main(["inspect", str(plan), "--html", str(plan)]) == 2
    assert "that is the plan itself" in capsys.readouterr().err and plan.read_bytes() == before
    for both in (["--json", "--dot"], ["--dot", "--html", "x"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(["inspect", str(plan), *both])
        assert caught.value.code == 2
    capsys.readouterr()


@pytest.mark.parametrize("key", ["layers", "precision"])
def test_a_report_that_lacks_something_is_named(plan: Path, tmp_path: Path, capsys: Captured, key: str) -> None:
    with PlanFile.open_path(plan) as file:
        metadata = {k: v for k, v in file.metadata.items() if k not in ("format", "crc32")}
        metadata["report"] = json.dumps({k: v for k, v in json.loads(metadata["report"]).items() if k != key})
        write_plan(tmp_path / "x.plan", dict(file.tensors), metadata)
    for form in ([], ["--html", str(tmp_path / "x.html")]):
        assert cli.main(["inspect", str(tmp_path / "x.plan"), *form]) == 65
        said = capsys.readouterr()
        assert said.out == "" and said.err == (f"orind inspect: {tmp_path / 'x.plan'}: it holds no {key}: make it "
                                               "with orind build\n")


def test_a_report_and_a_program_that_do_not_belong_together(plan: Path, tmp_path: Path, capsys: Captured) -> None:
    with PlanFile.open_path(plan) as file:
        whole = {k: v for k, v in file.metadata.items() if k not in ("format", "crc32")}
        report, spec = json.loads(whole["report"]), json.loads(whole["spec"])
        report["layers"].pop()
        changes = ({"report": json.dumps(report)}, {"spec": json.dumps({**spec, "batch": [8]})}, {"report": "[1]"},
                   {"provenance": "{"})
        said = (r"its report is of \d+ layers, its program has \d+: make it",
                "it holds no program for batch 8: make it", "its report is no JSON object: make it",
                "its provenance cannot be read: make it")
        for number, change in enumerate(changes):
            write_plan(tmp_path / f"{number}.plan", dict(file.tensors), whole | change)
    for number, text in enumerate(said):
        path = tmp_path / f"{number}.plan"
        assert cli.main(["inspect", str(path)]) == 65
        assert re.fullmatch(f"orind inspect: {path}: {text} with orind build\n", capsys.readouterr().err)


WRONG: tuple[tuple[str, tuple[str | int, ...], object, str], ...] = (
    ("report", ("layers", 0, "shape"), None, r"report\.layers\[0\]\.shape must be a list of whole numbers"),
    ("report", ("layers",), "x", r"report\.layers must be a list of objects"),
    ("report", ("layers", 0), None, r"report\.layers must be a list of objects"),
    ("report", ("layers", 0, "macs"), float("nan"), r"report\.layers\[0\]\.macs must be a whole number"),
    ("report", ("passes", "rows"), [], r"report\.passes\.rows must be a list of objects, not empty"),
    ("report", ("warnings",), [3], r"report\.warnings must be a list of texts"),
    ("report", ("arena_bytes",), {"x": 1}, r"report\.arena_bytes must be bytes by batch size"),
    ("report", ("gate",), [], r"report\.gate must be an object"),
    ("provenance", ("model",), None, r"provenance\.model must be a text"),
    ("provenance", ("shapes",), {"x": "1"}, r"provenance\.shapes must be sizes by input"),
    ("spec", ("batch",), [7], r"it holds no program for batch 7"),
    ("spec", ("task",), "fly", r"task: must be one of"),
    ("spec", ("decoder", "iou_threshold"), 10**400, r"spec\.decoder\.iou_threshold is a number of too many digits"),
)


@pytest.mark.parametrize(("part", "place", "value", "words"), WRONG)
def test_what_a_plan_says_in_another_shape_is_refused_by_every_form_and_by_verify(
        plan: Path, tmp_path: Path, capsys: Captured, part: str, place: tuple[str | int, ...], value: object,
        words: str) -> None:
    with PlanFile.open_path(plan) as file:
        whole = {k: v for k, v in file.metadata.items() if k not in ("format", "crc32")}
        said = inside = json.loads(whole[part])
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value
        write_plan(tmp_path / "x.plan", dict(file.tensors), whole | {part: json.dumps(said)})
    for command, *form in (("inspect",), ("inspect", "--dot"), ("inspect", "--json"),
                           ("inspect", "--html", str(tmp_path / "x.html")), ("verify",)):
        assert cli.main([command, str(tmp_path / "x.plan"), *form]) == 65
        shown = capsys.readouterr()
        assert shown.out == "" and re.match(f"orind {command}: (.*x\\.plan: )?{words}", shown.err)


def test_a_fault_of_the_program_is_not_one_of_the_plan(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[str]:
        return [{}["absent"]]
    for command, place in (("inspect", "inspect_table.lines"), ("verify", "verify_command.verify")):
        monkeypatch.setattr(f"orind.daemon.{place}", broken)
        with pytest.raises(KeyError, match="absent"):
            cli.main([command, str(plan)])
