"""Every model of foreign_models.py and ONNX's nine light networks: built, compared, judged, timed.

Behind scripts/bench_models. FP32 of all: distance to ONNX Runtime at the outputs (limit 1e-3) and layer by layer on the
reference's own inputs (limit 1e-5). INT8, or mixed where INT8 misses the gate, of those with a spec: what the gate of
the build says on 64 held-back pictures, and right answers where the truth is known. Time: ratio to ONNX Runtime FP32
with one thread, turn by turn.

Invariant: a gate that is not met is in the table as such; what cannot be built, or FP32 beyond its limits, ends with 1.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from foreign_models import ENTRIES, FETCHED, Entry
from harness import ROOT, machine
from model_figures import (
    LIMIT_LAYER,
    LIMIT_OUTPUT,
    Runtime,
    file_input,
    layer_distances,
    output_distances,
    time_ratios,
)
from model_pictures import COUNT, label_of, pictures_of, tensors_of
from onnx_conformance import light_cases
from terminal import table

from orind.kernels.build import build_plan
from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.importer.onnx_model import import_model, read_model
from orind.kernels.ir.graph import Graph
from orind.kernels.ir.program import programs_from_text
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.plan.file import PlanFile
from orind.kernels.quant.pictures import Source, split
from orind.kernels.spec import ModelSpec
from orind.kernels.spec_yaml import read_spec

# As in an engine process; set before NumPy is loaded, so by starting anew
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
REPETITIONS = 15
GATE_PRECISION = "mixed"


@dataclass
class Row:
    """One model. Distances as in model_figures.py; `gate`, `int8` as in a build's report; `*_time` are ratios."""

    name: str
    nodes: int = 0
    kernels: int = 0
    output: float = 0.0
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
    date: str = ""
    compiler: str = ""

    @property
    def within(self) -> bool:
        """Whether it was built and FP32 is within its limits."""
        return not self.failed and self.output <= LIMIT_OUTPUT and self.layer <= LIMIT_LAYER


def main() -> int:
    options = _options()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    print(machine(), flush=True)
    kept = earlier(options.json)
    rows: list[Row] = []
    for name, run in _work(options):
        started = time.monotonic()
        row = Row(name, date=str(datetime.datetime.now(datetime.timezone.utc).date()), compiler=compiler())
        try:
            run(row)
        except Exception as error:  # noqa: BLE001  one model's failure is its row: the others are measured still
            traceback.print_exc()
            row.failed = f"{type(error).__name__}: {error}"
        row.build_s = round(time.monotonic() - started, 1)
        rows.append(row)
        print("\n".join([*described(row), ""]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(r) for r in merged(kept, rows)], indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text(markdown(merged(kept, rows)))
        print(f"wrote {options.markdown}")
    print("\n".join(summary(rows)))
    return int(not all(row.within for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: scripts/bench_models --only text-detection",
    )  # fmt: skip
    parser.add_argument("--models", type=Path, default=FETCHED, metavar="DIR",
                        help="where scripts/fetch_models put them (default build/models)")  # fmt: skip
    parser.add_argument("--only", metavar="NAME", help="models whose name starts so")
    parser.add_argument("--fp32-only", action="store_true", help="no INT8: a minute instead of an hour")
    parser.add_argument("--noise", type=int, metavar="SEED",
                        help="FP32 is compared on noise in 0..1 instead of a picture of the set")  # fmt: skip
    parser.add_argument("--pictures", type=int, default=COUNT,
                        help=f"of each set, a quarter of them held back (default {COUNT})")  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"turns of each (default {REPETITIONS})")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="all figures, written after every model; what FILE has of other models stays")  # fmt: skip
    parser.add_argument("--markdown", type=Path, metavar="FILE",
                        help="writes the table of docs/measurements/models.md, of all models in --json")  # fmt: skip
    options = parser.parse_args()
    if options.pictures < 4 or options.repetitions < 1:
        parser.error("--pictures must be at least 4, --repetitions at least 1")
    if not _work(options):
        every = ", ".join(name for name, _ in _work(argparse.Namespace(**{**vars(options), "only": None})))
        parser.error(f"no model is called '{options.only}'; known are {every}")
    return options


def _work(options: argparse.Namespace) -> list[tuple[str, Callable[[Row], None]]]:
    """Name and measurement of every model that is asked for."""
    found: list[tuple[str, Callable[[Row], None]]] = []
    for entry in ENTRIES:
        found.append((entry.name, partial(measure_entry, entry=entry, options=options)))
    for path in sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx")):
        found.append((path.stem, partial(measure_light, name=path.stem, repetitions=options.repetitions)))
    return [(name, run) for name, run in found if options.only is None or name.startswith(options.only)]


def compiler() -> str:
    """Names the sources that a row was measured with."""
    digest = hashlib.sha256()
    for source in sorted((ROOT / "kernels").rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def earlier(path: Path | None) -> list[Row]:
    """The rows of an earlier run. Raises SystemExit naming the file if it is not one of ours."""
    if path is None or not path.exists():
        return []
    try:
        return [Row(**row) for row in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path}: not written by this version of scripts/bench_models ({error}): name another "
                         "file") from error


def merged(kept: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Both, in the order of the bench; the later of a model's rows."""
    by_name = {row.name: row for row in (*kept, *rows)}
    order = [*(entry.name for entry in ENTRIES), *sorted(name for name in by_name if name.startswith("light_"))]
    return [by_name[name] for name in order if name in by_name]


# -- measuring ---------------------------------------------------------------------------------------------------


def compiled(graph: Graph) -> tuple[Graph, ProgramRunner]:
    """The fused graph of an imported one and its FP32 program of batch 1."""
    fused = fuse(prepare(graph))
    programs, constants = lower(fused, [1], FloatNumbers(fused))
    return fused, ProgramRunner(programs[1], constants)


def measure_fp32(row: Row, graph: Graph, runtime: Runtime, fused: Graph, runner: ProgramRunner, exact: bool) -> None:
    """Distances of the picture that is in the runner's input."""
    x = file_input(runner)
    ours = [o.copy() for o in runner.run()]
    name = runner.program.inputs[0]
    tensors = runtime.every_tensor(x)
    outputs = output_distances(graph, ours, tensors, x, exact)
    row.nodes, row.kernels = len(graph.nodes), len(runner.program.steps)
    row.output = max(o.to_runtime for o in outputs)
    if exact:
        row.ours_exact = max(o.ours_to_exact for o in outputs)
        row.runtime_exact = max(o.runtime_to_exact for o in outputs)
    given = runner.logical(name, 0)
    image = runner.program.tensors[name].layout == "nhwc"
    layers = layer_distances(fused, runner, tensors, given.transpose(2, 0, 1)[None] if image else given)
    worst = max(layers, key=lambda layer: layer.distance)
    row.layer, row.worst_layer = worst.distance, f"{worst.step} ({worst.kind}, against {worst.judge})"
    row.layers, row.layers_by_runtime = len(layers), sum(layer.judge == "onnxruntime" for layer in layers)


def measure_light(row: Row, name: str, repetitions: int) -> None:
    """A light network on ONNX's own input for it, without its last Softmax (onnx_conformance.py says why)."""
    case = next(case for case in light_cases() if case.name == name)
    runtime = Runtime(case.model, {})
    graph = import_model(case.model, Path(f"{name}.onnx"))
    fused, runner = compiled(graph)
    x = case.inputs[0]
    runner.input[...] = x.transpose(0, 2, 3, 1)
    measure_fp32(row, graph, runtime, fused, runner, exact=False)
    runner.input[...] = x.transpose(0, 2, 3, 1)
    session = runtime.session(optimised=True)
    row.runtime_ms, times, _ = time_ratios(lambda: session.run(None, {runtime.input: x}), [runner.run], repetitions)
    row.fp32_time = times[0]


def measure_entry(row: Row, entry: Entry, options: argparse.Namespace) -> None:
    file = entry.onnx(options.models)
    if not file.exists():
        how = "scripts/fetch_models --efficientnet" if entry.name.startswith("efficientnet") else "scripts/fetch_models"
        raise FileNotFoundError(f"{file} is not there: run {how} first")
    spec = replace(read_spec(entry.spec), batch=(1,))
    runtime = Runtime(onnx.load(str(file)), entry.shapes)
    graph = read_model(file, entry.shapes)
    fused, runner = compiled(graph)
    row.task, row.pictures = spec.task, entry.pictures
    pictures = pictures_of(entry.pictures, options.models, options.models / "pictures", options.pictures)
    shape = runner.program.tensors[runner.program.inputs[0]].shape
    given = pictures if spec.input is not None else tensors_of(pictures, shape, options.models / "pictures")
    _, held = split(given)
    source = source_of(spec, runner, file.name)
    source.writer(held[0])(runner.input[0])
    if options.noise is not None:
        noise = np.random.default_rng(options.noise).random(runner.input.shape, dtype=np.float32)
        np.copyto(runner.input, noise)
    measure_fp32(row, graph, runtime, fused, runner, exact=True)
    source.writer(held[0])(runner.input[0])
    x = file_input(runner)
    session = runtime.session(optimised=True)
    runs: list[Callable[[], object]] = [runner.run]
    with tempfile.TemporaryDirectory(prefix="orind-") as scratch:
        plan = Path(scratch) / "fp32.plan"
        build_plan(file, spec, [], plan, "fp32", shapes=entry.shapes)
        row.fp32_bytes = plan.stat().st_size
        if not options.fp32_only:
            coded = measure_coded(row, entry, spec, given, Path(scratch), options)
            coded_source = source_of(spec, coded, file.name)
            coded_source.writer(held[0])(coded.input[0])
            runs.append(coded.run)
            row.right_fp32 = right_answers(spec, runner, source, held)
            row.right_coded = right_answers(spec, coded, coded_source, held)
        row.runtime_ms, times, _ = time_ratios(lambda: session.run(None, {runtime.input: x}), runs, options.repetitions)
    row.fp32_time = times[0]
    row.coded_time = times[1] if len(times) > 1 else ""


def measure_coded(row: Row, entry: Entry, spec: ModelSpec, given: Sequence[Path], scratch: Path,
                  options: argparse.Namespace) -> ProgramRunner:
    """Builds the INT8 or mixed plan, notes what its gate says, -> its program."""
    plan = scratch / "coded.plan"

    def told(line: str) -> None:
        print(f"   {entry.name}: {line}", file=sys.stderr, flush=True)

    report = build_plan(entry.onnx(options.models), spec, given, plan, GATE_PRECISION, told, accept_loss=True,
                        shapes=entry.shapes).report
    row.gate, row.int8 = report["gate"], report["mixed"]["int8"]
    row.coded_bytes, row.coded_kernels = plan.stat().st_size, report["steps"]
    half = [layer for layer in report["layers"] if layer["precision"] == "float16"]
    row.half_layers = len(half)
    row.half_macs = sum(layer["macs"] for layer in half) / max(1, sum(layer["macs"] for layer in report["layers"]))
    with PlanFile.open_path(plan) as file:
        constants = {name: np.array(value) for name, value in file.tensors.items()}
        return ProgramRunner(programs_from_text(file.metadata["program"])[1], constants)


def source_of(spec: ModelSpec, runner: ProgramRunner, file: str) -> Source:
    entry = runner.program.tensors[runner.program.inputs[0]]
    # the .npy files of this bench are (H, W, C) however the model's input lies
    return Source(spec, entry.shape, entry.dtype, entry.scale, False, file)


def right_answers(spec: ModelSpec, runner: ProgramRunner, source: Source, pictures: Sequence[Path]) -> float | None:
    """The part of the pictures whose class is the truth in their name; None where none is known."""
    labels = [label_of(path) for path in pictures]
    if spec.task != "classify" or None in labels:
        return None
    right = 0
    for path, label in zip(pictures, labels, strict=True):
        source.writer(path)(runner.input[0])
        right += spec.labels[int(runner.run()[0].argmax())] == str(label)
    return right / len(labels)


# -- telling -----------------------------------------------------------------------------------------------------


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
    return {True: "met", False: "NOT met", None: "no verdict: " + str(gate.get("error", ""))}[gate["met"]]


def described(row: Row) -> list[str]:
    """Everything about one model, for the terminal."""
    if row.failed:
        return [f"{row.name}: FAILED after {row.build_s} s: {row.failed}"]
    lines = [f"{row.name}: {row.nodes} nodes -> {row.kernels} kernels, {row.build_s} s",
             f"  FP32 {row.output:.1e} of ONNX Runtime's largest output"
             + ("" if row.ours_exact is None else
                f" (off float64: ours {row.ours_exact:.1e}, ONNX Runtime's {row.runtime_exact:.1e})"),
             f"  worst of {row.layers} layers ({row.layers_by_runtime} against ONNX Runtime) {row.layer:.1e}: "
             f"{row.worst_layer}",
             f"  time, 1 thread: ONNX Runtime {row.runtime_ms:.1f} ms, FP32 {row.fp32_time} of it"
             + (f", {_precision(row)} {row.coded_time}" if row.coded_time else "")]
    if row.gate:
        agreement = f", agreement {row.gate['agreement']:.3f}" if "agreement" in row.gate else ""
        right = "" if row.right_fp32 is None else f", right {row.right_fp32:.3f} FP32, {row.right_coded:.3f} coded"
        lines.append(f"  {_precision(row)}, task {row.task}, n = {row.gate['pictures']}: {_measure(row.gate)}"
                     f"{agreement}{right}: gate {_verdict(row.gate)}; INT8 alone: {_measure(row.int8)}")
    return lines


def _precision(row: Row) -> str:
    if row.half_layers is None:
        return ""
    return f"mixed, {row.half_layers} steps FP16 ({row.half_macs:.0%} of MACs)" if row.half_layers else "INT8"


HEAD = ["model", "nodes -> kernels", "FP32: output", "FP32: worst layer", "FP32 time", "precision", "plan KB",
        "gate, n", "agreement", "right", "gate", "INT8 alone", "coded time"]  # fmt: skip


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
            row.coded_time]  # fmt: skip


def summary(rows: Sequence[Row]) -> list[str]:
    return table(HEAD, [_cells(row) for row in rows])


def markdown(rows: Sequence[Row]) -> str:
    """docs/measurements/models.md."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    exact = [row for row in rows if row.ours_exact is not None and not row.failed]
    off = ["| model | ours against ONNX Runtime | ours off float64 | ONNX Runtime off float64 | worst layer |",
           "| --- | --- | --- | --- | --- |"]
    off += [f"| {row.name} | {_number(row.output)} | {_number(row.ours_exact)} | {_number(row.runtime_exact)} | "
            f"{row.worst_layer} |" for row in exact]  # fmt: skip
    dates = sorted({row.date for row in rows})
    mixed = [] if len({row.compiler for row in rows}) < 2 else [
        "", "Not all rows are of the same state of the compiler: " + "; ".join(
            f"{version or 'unknown'}: {', '.join(r.name for r in rows if r.compiler == version)}"
            for version in dict.fromkeys(row.compiler for row in rows)) + "."]
    return "\n".join([
        "# Models that are not ours", "",
        f"Measured on {' to '.join(dict.fromkeys((dates[0], dates[-1])))} by `scripts/bench_models --json FILE "
        f"--markdown FILE` on {machine().split(', load')[0]}, shared with",
        f"other work, no GPU, Python {sys.version.split()[0]}, NumPy {np.__version__}. Models and photographs: "
        "`scripts/fetch_models`. Sets of pictures:", "`scripts/model_pictures.py`.", *mixed, "", *lines, "",
        "* FP32: max|a - b| / max|b| against ONNX Runtime with graph optimisation off, on a held-back picture (light "
        f"networks: ONNX's own input); limit {LIMIT_OUTPUT:g}.",
        "* Worst layer: each step alone, what it reads overwritten with the reference's values (ONNX Runtime's tensor "
        "of that name; where a pass",
        f"  made a tensor that the file does not have, our reference operators in float64); limit {LIMIT_LAYER:g}.",
        "* Time: ratio to ONNX Runtime FP32 as it comes, one thread each, median and middle 80 % of turns taken in "
        "alternation. On a shared machine",
        "  ratios of models below a few ms are rough.",
        "* Gate: on the held-back quarter of the set, by the spec's task, limits of `docs/models.md`. Crops of one "
        "photograph are alike: the",
        "  figures say how well the plan keeps the model's answers there, not how good the model is. A false alarm is "
        "what FP32 does not find there:", "  an anchor, or a pixel of a map; it is printed, and has no limit.",
        "* Right: answers that are the truth, which is known where pages and lines were turned.", "",
        "Where the distance at an output is large though every layer is exact to its limit, the network itself "
        "magnifies rounding: then ONNX", "Runtime is as far from float64 as ours is.", "", *off, "",
        "On noise (`scripts/bench_models --only text-detection --fp32-only --noise 0`) text detection is beyond the "
        "limit. It is ONNX Runtime's Sigmoid:", "nothing is found, the largest probability is tiny, and its "
        "approximation is off by a part of that, while ours stays at rounding from float64.", "",
        "`line-segments` ends in a suppression in the graph: a score stays where it equals the largest near it, and "
        "is 0 elsewhere, so a last", "bit decides whether it is there; and the layers before magnify rounding. Serve "
        "it in FP32, or cut it before the suppression.", ""])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
