"""A row for every model that scripts/bench_models measures, kept as JSON, and how it is told: in lines, as tables.

Callers: bench_models.py and its test. Invariant: rows of an earlier run stand beside new ones only if the same version
of orind measured them, and the document says when each was measured. What the figures mean is in docs/models.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from figures import machine
from foreign_models import ENTRIES
from light_networks import NAMES
from model_figures import LIMIT_LAYER, LIMIT_OUTPUT

from orind.daemon.terminal import table

VERSION = version("orind")


@dataclass
class Row:
    """One model. Distances as in model_figures.py; `gate`, `int8` as in a build's report; `*_time` are ratios.

    `packaged`: the distance of a light network to the output that is packaged with it. `measured`: UTC, to the minute.
    """

    name: str
    nodes: int = 0
    kernels: int = 0
    output: float = 0.0
    packaged: float | None = None
    ours_exact: float | None = None
    runtime_exact: float | None = None
    layer: float = 0.0
    worst_layer: str = ""
    layers: int = 0
    layers_by_runtime: int = 0
    runtime_ms: float = 0.0
    fp32_time: str = ""
    fp32_bytes: int = 0
    task: str = ""
    pictures: str = ""
    coded_time: str = ""
    coded_bytes: int = 0
    coded_kernels: int = 0
    gate: dict[str, Any] = field(default_factory=dict)
    int8: dict[str, Any] = field(default_factory=dict)
    half_layers: int | None = None
    half_macs: float = 0.0
    right_fp32: float | None = None
    right_coded: float | None = None
    build_s: float = 0.0
    failed: str = ""
    measured: str = ""
    version: str = VERSION

    @property
    def within(self) -> bool:
        """Whether it was built and FP32 is within its limits."""
        furthest = max(self.output, self.packaged or 0.0)
        return not self.failed and furthest <= LIMIT_OUTPUT and self.layer <= LIMIT_LAYER


def earlier(path: Path | None) -> list[Row]:
    """The rows of an earlier run. Raises SystemExit naming the file if they are not ours, or of another version."""
    if path is None or not path.exists():
        return []
    try:
        rows = [Row(**row) for row in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not written by this version of scripts/bench_models ({error}): name another "
                         "file") from error
    for row in rows:
        if row.version != VERSION:
            raise SystemExit(f"{path}: {row.name} was measured with orind {row.version}, this is {VERSION}: name "
                             "another file, so that one table is of one version")
    return rows


def merged(kept: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Both, in the order of the bench; the later of a model's rows."""
    by_name = {row.name: row for row in (*kept, *rows)}
    order = [*(entry.name for entry in ENTRIES), *NAMES]
    return [by_name[name] for name in order if name in by_name]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _measure(figures: dict[str, Any]) -> str:
    if not figures:
        return ""
    if "kl_mean" in figures:
        more = f", IoU {figures['iou_mean']:.3f}" if "iou_mean" in figures else ""
        more += f", {figures['false_alarms']} false alarms" if "false_alarms" in figures else ""
        return f"KL {figures['kl_mean']:.4f}{more}"
    return f"SQNR {figures['sqnr_db']:.1f} dB" if "sqnr_db" in figures else "no finite answer"


def _verdict(gate: dict[str, Any]) -> str:
    if not gate:
        return ""
    if not gate["is_gate"]:
        return f"none: only {gate['pictures']} pictures"
    told = {True: "met", False: "NOT met", None: "no verdict: " + str(gate.get("error", ""))}[gate["met"]]
    return told + (f", {gate['looks']} looks" if gate.get("looks", 1) > 1 else "")


def described(row: Row) -> list[str]:
    """Everything about one model, for the terminal."""
    if row.failed:
        return [f"{row.name}: FAILED after {row.build_s} s: {row.failed}"]
    lines = [f"{row.name}: {row.nodes} nodes -> {row.kernels} kernels, {row.build_s} s",
             f"  FP32 {row.output:.1e} of ONNX Runtime's largest output"
             + ("" if row.ours_exact is None else
                f" (off float64: ours {row.ours_exact:.1e}, ONNX Runtime's {row.runtime_exact:.1e})")
             + ("" if row.packaged is None else f"; {row.packaged:.1e} of the packaged output, as packaged"),
             f"  worst of {row.layers} layers ({row.layers_by_runtime} against ONNX Runtime) {row.layer:.1e}: "
             f"{row.worst_layer}",
             f"  time, 1 thread: ONNX Runtime {row.runtime_ms:.1f} ms, FP32 {row.fp32_time} of it"
             + (f", {_precision(row)} {row.coded_time}" if row.coded_time else "")]
    if row.gate:
        agreement = f", agreement {row.gate['agreement']:.3f}" if "agreement" in row.gate else ""
        right = "" if row.right_fp32 is None else f", right {row.right_fp32:.3f} FP32, {row.right_coded:.3f} coded"
        lines.append(f"  {_precision(row)}, task {row.task}, n = {row.gate['pictures']}: {_measure(row.gate)}"
                     f"{agreement}{right}: gate {_verdict(row.gate)}; INT8 alone, calibration "
                     f"pictures: {_measure(row.int8)}")
    return lines


def _precision(row: Row) -> str:
    if row.half_layers is None:
        return ""
    return f"mixed, {row.half_layers} steps FP16 ({row.half_macs:.0%} of MACs)" if row.half_layers else "INT8"


HEAD = ["model", "nodes -> kernels", "FP32: output", "FP32: worst layer", "FP32 time", "precision", "plan KB",
        "gate, n", "agreement", "right", "gate", "INT8 alone, calibration pictures", "coded time"]


def _cells(row: Row) -> list[str]:
    if row.failed:
        return [row.name, f"FAILED: {row.failed.splitlines()[0][:120]}", *[""] * (len(HEAD) - 2)]
    size = f"{row.fp32_bytes // 1024} -> {row.coded_bytes // 1024}" if row.coded_bytes else \
        str(row.fp32_bytes // 1024 or "")
    gate = f"{_measure(row.gate)}, {row.gate['pictures']}" if row.gate else ""
    agreement = f"{row.gate['agreement']:.3f}" if "agreement" in row.gate else ""
    right = "" if row.right_fp32 is None else f"{row.right_fp32:.3f} -> {row.right_coded:.3f}"
    return [row.name, f"{row.nodes} -> {row.kernels}", _number(row.output), _number(row.layer), row.fp32_time,
            _precision(row) or "FP32", size, gate, agreement, right, _verdict(row.gate), _measure(row.int8),
            row.coded_time]


def summary(rows: Sequence[Row]) -> list[str]:
    return table(HEAD, [_cells(row) for row in rows])


def markdown(rows: Sequence[Row]) -> str:
    """docs/measurements/models.md."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    off = ["| model | ours against ONNX Runtime | ours off float64 | ONNX Runtime off float64 | as packaged | "
           "worst layer | measured, UTC |", f"|{' --- |' * 7}"]
    off += [f"| {row.name} | {_number(row.output)} | {_number(row.ours_exact)} | {_number(row.runtime_exact)} | "
            f"{_number(row.packaged)} | {row.worst_layer} | {row.measured} |" for row in rows if not row.failed]
    return "\n".join([
        "# Models that are not ours", "",
        f"Measured with orind {VERSION} by `scripts/bench_models --json FILE --markdown FILE` on "
        f"{machine().split(', load')[0]}, shared with other work,",
        f"no GPU, Python {sys.version.split()[0]}, NumPy {np.__version__}, ONNX Runtime {onnxruntime.__version__}; the "
        "second table says when. Models and photographs:",
        "`scripts/fetch_models`. Sets of pictures: `scripts/model_pictures.py`. What follows from the figures: "
        "[models.md](../models.md).", "", *lines, "",
        "* FP32: max|a - b| / max|b| against ONNX Runtime with graph optimisation off, on a held-back picture (light "
        f"networks: noise); limit {LIMIT_OUTPUT:g}.",
        "* Worst layer: each step alone, what it reads overwritten with the reference's values (ONNX Runtime's tensor "
        "of that name; where a pass",
        f"  made a tensor that the file does not have, our reference operators in float64); limit {LIMIT_LAYER:g}.",
        "* Light networks are packaged with weights that are one number, so that exchanged channels would not show. "
        "They are measured with weights",
        "  drawn from a fixed seed (`scripts/light_networks.py`), without their last Softmax. \"As packaged\" is the "
        "distance of the file as it is to the",
        f"  output that is packaged with it; limit {LIMIT_OUTPUT:g}.",
        "* Time: ratio to ONNX Runtime FP32 as it comes, one thread each, median and middle 80 % of turns taken in "
        "alternation. On a shared machine",
        "  ratios of models below a few ms are rough.",
        "* Gate: on the held-back quarter of the set, by the spec's task, limits of `docs/models.md`. Crops of one "
        "photograph are alike: the",
        "  figures say how well the plan keeps the model's answers there, not how good the model is. A false alarm is "
        "what FP32 does not find there:", "  an anchor, or a pixel of a map; it is printed, and has no limit.",
        "* Looks: how many sets of FP16 layers were judged on the held-back pictures until one met the gate, where not "
        "the first did; each makes",
        "  the verdict a little kinder.",
        "* INT8 alone: what the search for layers in FP16 starts from, on up to 64 of the calibration pictures, not on "
        "those of the gate.",
        "* Right: answers that are the truth, which is known where pages and lines were turned.", "", *off, ""])
