"""Every model of foreign_models.py and ONNX's nine light networks: built, compared, judged, timed.

Behind scripts/bench_models; model_table.py tells what came out. FP32 of all: distance to ONNX Runtime at the outputs
(limit 1e-3) and layer by layer on the reference's own inputs (limit 1e-5). INT8, or mixed where INT8 misses the gate,
of those with a spec: what the gate of the build says on 64 held-back pictures, and right answers where the truth is
known. Time: ratio to ONNX Runtime FP32 with one thread, turn by turn.

Invariant: a gate that is not met is in the table as such; what cannot be built, or FP32 beyond its limits, ends with 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from figures import machine
from foreign_models import ENTRIES, FETCHED, Entry
from light_networks import NAMES, light_network
from model_figures import Runtime, distance, file_input, layer_distances, output_distances, time_ratios
from model_pictures import COUNT, label_of, pictures_of, tensors_of
from model_table import Row, described, earlier, markdown, merged, summary

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


def main() -> int:
    options = _options()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    print(machine(), flush=True)
    kept = earlier(options.json)
    rows: list[Row] = []
    for name, run in _work(options):
        started = time.monotonic()
        row = Row(name, measured=f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}")
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
    )
    parser.add_argument("--models", type=Path, default=FETCHED, metavar="DIR",
                        help="where scripts/fetch_models put them (default build/models)")
    parser.add_argument("--only", metavar="NAME", help="models whose name starts so")
    parser.add_argument("--fp32-only", action="store_true", help="no INT8: minutes instead of half an hour")
    parser.add_argument("--pictures", type=int, default=COUNT,
                        help=f"of each set, a quarter of them held back (default {COUNT})")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help=f"turns of each (default {REPETITIONS})")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="all figures, written after every model; what FILE has of other models stays")
    parser.add_argument("--markdown", type=Path, metavar="FILE",
                        help="writes the table of docs/measurements/models.md, of all models in --json")
    options = parser.parse_args()
    if options.pictures < 4 or options.repetitions < 1:
        parser.error("--pictures must be at least 4, --repetitions at least 1")
    for file in (options.json, options.markdown):
        if file is not None and not file.parent.is_dir():
            parser.error(f"{file}: there is no folder {file.parent}")
    if not _work(options):
        every = ", ".join(name for name, _ in _work(argparse.Namespace(**{**vars(options), "only": None})))
        parser.error(f"no model is called '{options.only}'; known are {every}")
    return options


def _work(options: argparse.Namespace) -> list[tuple[str, Callable[[Row], None]]]:
    """Name and measurement of every model that is asked for."""
    found: list[tuple[str, Callable[[Row], None]]] = []
    for entry in ENTRIES:
        found.append((entry.name, partial(measure_entry, entry=entry, options=options)))
    for name in NAMES:
        found.append((name, partial(measure_light, name=name, repetitions=options.repetitions)))
    return [(name, run) for name, run in found if options.only is None or name.startswith(options.only)]


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
    """A light network with drawn weights, and as packaged against its packaged output."""
    light = light_network(name)
    _, packaged = compiled(import_model(light.model, Path(f"{name}.onnx")))
    packaged.input[...] = light.x.transpose(0, 2, 3, 1)
    row.packaged = distance(packaged.run()[0], light.output)
    runtime = Runtime(light.drawn, {})
    graph = import_model(light.drawn, Path(f"{name}.onnx"))
    fused, runner = compiled(graph)
    runner.input[...] = light.noise.transpose(0, 2, 3, 1)
    measure_fp32(row, graph, runtime, fused, runner, exact=False)          # vgg19 in float64 takes minutes
    runner.input[...] = light.noise.transpose(0, 2, 3, 1)
    session = runtime.session(optimised=True)
    row.runtime_ms, times, _ = time_ratios(lambda: session.run(None, {runtime.input: light.noise}), [runner.run],
                                           repetitions)
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


if __name__ == "__main__":
    sys.exit(main())
