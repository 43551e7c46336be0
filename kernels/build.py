"""`orind build`: from an ONNX model, a spec and calibration pictures to a plan, and the report on it.

Caller: the command line. One way down: import, passes, calibrate, quantise, lower, gate, golden, write. Precision is
given or refused, never swapped; a plan that does not meet the gate is refused too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .cpu.executor import ProgramRunner
from .importer.onnx_model import NO_SHAPES, read_model
from .ir.errors import ModelError
from .ir.program import Program, programs_to_text
from .ir.validate import validate
from .passes.float_ends import float_ends
from .passes.lower import lower
from .passes.lower_f32 import FloatNumbers
from .passes.merge_parallel import merge_parallel
from .passes.pipeline import fuse, prepare
from .passes.release_pairs import is_exact, quantised_by_file, release_pairs, release_tail
from .perf.device import Device
from .perf.table import predict
from .plan.file import write_plan
from .quant.borders import layers_of
from .quant.coding import find_ranges, find_scales, input_code, spread_out, without_codes
from .quant.gate import make_task
from .quant.half import mixed_numbers
from .quant.imported import loss_of_import, scales_of_file
from .quant.mixed import RANKING_PICTURES, SEARCH_PICTURES, choose_layers
from .quant.parts import channel_scales, merged_scales
from .quant.pictures import CalibrationError, Source, find_pictures, split
from .quant.ranking import rank_layers
from .quant.reference import Reference
from .quant.report import layer_table, ranking_facts, signal_to_noise
from .quant.scales import Scales
from .quant.verdict import LIMIT_KL, enforce, judge_gate
from .report.passes import IMPORT, PassTable
from .spec import ModelSpec

Array = npt.NDArray[Any]
Progress = Callable[[str], None]
PRECISIONS = ("mixed", "int8", "fp16", "fp32")
WITHOUT_CODES = ("fp16", "fp32")
"""Precisions in which no layer is INT8."""
SQNR_PICTURES = 16
GOLDEN_SEED = 20_260


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did: the plan's path and hash, the report that the plan carries, warnings for the person."""

    path: Path
    sha256: str
    report: dict[str, Any]
    warnings: tuple[str, ...]


def build_plan(onnx_path: Path, spec: ModelSpec | None, calibration: Sequence[Path], out: Path,
               precision: str = "int8", progress: Progress = lambda line: None, *, method: str = "mse",
               max_kl: float = LIMIT_KL, accept_loss: bool = False, kl_share: bool = False,
               devices: Sequence[Device] = (), passes_on: Device | None = None,
               shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES) -> BuildReport:
    """Writes a plan. Raises ModelError, UnsupportedModel, DecoderError, CalibrationError, PlanError, and AccuracyError
    where the gate is not met and `accept_loss` is not given; the old plan then stays.
    The report holds what the time model predicts on each of `devices`, and for each graph pass on `passes_on`.
    `kl_share`: every layer's share of the loss is measured also where mixed precision has no need to rank them; it
    needs pictures and a precision with INT8 layers.
    `shapes` replace those of the model's inputs."""
    if precision not in PRECISIONS:
        raise ModelError(f"precision '{precision}' is not one of {', '.join(PRECISIONS)}")
    graph = read_model(onnx_path, shapes)
    of_file = quantised_by_file(graph)
    if kl_share and precision in WITHOUT_CODES:
        raise ModelError(f"--kl-share with --precision {precision}: no layer is INT8, so none has a share")
    if spec is None and precision in ("int8", "mixed") and not of_file:
        raise ModelError(f"{onnx_path}: INT8 needs a spec (how pictures become the input) and "
                         "calibration pictures; give --spec, or build with --precision fp32")
    spec = spec or ModelSpec.for_tensor(onnx_path.stem[:64])
    passes = PassTable(passes_on)
    passes.seen(IMPORT, graph)
    prepared = prepare(graph, passes.seen)
    if of_file and precision != "fp32":                  # the gate's reference: the file's arithmetic, float tail
        prepared = release_tail(prepared)
    fused = fuse(prepared, passes.seen)
    merged = merge_parallel(fused)
    passes.seen(merge_parallel.__name__, merged)
    progress(f"read {onnx_path.name}: {len(graph.nodes)} nodes, {len(merged.nodes)} after the passes")
    pictures = find_pictures(calibration)
    if kl_share and not pictures:
        raise CalibrationError("--kl-share needs --calibrate: a layer's share is measured on pictures")
    chosen, held = split(pictures)
    batches = sorted({1, *spec.batch})
    programs, constants = lower(merged, batches, FloatNumbers(merged))
    floats = ProgramRunner(programs[1], constants)
    source = _source(spec, programs[1], graph.file)
    task = make_task(spec, floats, max_kl)
    report: dict[str, Any] = {"precision": precision, "nodes_before": len(graph.nodes),
                              "nodes_after": len(merged.nodes), "quantised_by_file": of_file}
    warnings: list[str] = []
    coded, noise = source, {}
    costs: Mapping[str, float] = {}
    if precision != "fp32":
        if of_file:
            released, ranges = release_pairs(graph, is_exact if precision != "fp16" else lambda node: False,
                                             tables=precision == "int8" and not kl_share)
            prepared = prepare(released)
        fused = fuse(float_ends(prepared))
        if precision == "fp16":
            scales = without_codes(merge_parallel(fused))
            if of_file:
                warnings.append("FP16 of a quantised model: its rounding of activations is left out, its weights stay")
        elif of_file:
            scales, report["calibration"] = scales_of_file(
                fused, ranges, input_code(spec, fused),
                lambda: find_ranges(prepared, fused, source, chosen, progress) if chosen else {}, method)
            report["calibration"]["held_back"] = len(held)
            progress("scales are those of the quantised model" + (": pictures only judge them" if chosen else ""))
            if loss := loss_of_import(report["calibration"]):
                warnings.append(f"the model is quantised already: {loss}")
        else:
            scales, report["calibration"] = find_scales(prepared, fused, spec, source, chosen, method, task, progress)
            report["calibration"]["held_back"] = len(held)

        scales = merged_scales(scales) if precision != "fp16" else scales
        merged = scales.graph

        def make(layers: Collection[str]) -> tuple[ProgramRunner, Source]:
            programs, constants = _lower(scales, layers, [1])
            return ProgramRunner(programs[1], constants), _source(spec, programs[1], graph.file)
        layers: Collection[str] = layers_of(merged) if precision == "fp16" else ()
        figures = None
        ranking = spread_out(chosen, RANKING_PICTURES)
        judges = partial(Reference, task, floats, source)
        if held and precision == "mixed":
            search = judges(spread_out(chosen, SEARCH_PICTURES))
            choice = choose_layers(scales, make, partial(judges, ranking), search, judges(held), progress)
            layers, figures, report["mixed"] = choice.layers, choice.figures, choice.report
            costs = report["mixed"].pop("costs", {})
            warnings += [choice.warning] if choice.warning else []
        elif held:
            figures = judges(held).measure(*make(layers))
        report["gate"] = {} if figures is None else judge_gate(figures, spec.task, len(held), warnings)
        if not held:
            warnings.append(f"no pictures are held back: the accuracy of {precision} was not measured; give at least "
                            "64")
        enforce(report["gate"], precision, accept_loss, warnings)
        if kl_share and not costs:
            costs = rank_layers(scales, judges(ranking), progress)
        programs, constants = _lower(scales, layers, batches)
        runner = ProgramRunner(programs[1], constants)
        coded = _source(spec, programs[1], graph.file)
        noise = signal_to_noise(floats, runner, source, coded, chosen[:SQNR_PICTURES],
                                channel_scales(scales) if precision != "fp16" else {})
        progress(f"compared {len(noise)} layers with FP32")
    served = {batch: programs[batch] for batch in spec.batch}
    for program in served.values():
        validate(program, constants)                   # what no engine would load is not written
    first = served[spec.batch[0]]
    report["steps"] = len(first.steps)
    report["arena_bytes"] = {str(n): p.arena_bytes for n, p in served.items()}
    report["weight_bytes"] = sum(int(value.nbytes) for value in constants.values())
    report["layers"] = layer_table(first, constants, merged, noise, costs)
    report["ranking"] = ranking_facts(costs, precision, min(len(chosen), RANKING_PICTURES))
    passes.lowered(programs[1], len(merged.nodes), precision)
    report["passes"] = passes.report()
    report["warnings"] = warnings
    if devices:
        report["predicted"] = [predict(served[n], device) for device in devices for n in sorted(served)]
    tensors = {**constants, **_golden(served, constants, coded, chosen or pictures)}
    progress("ran the golden input")
    provenance = {"model": onnx_path.name, "shapes": dict(shapes),
                  "model_sha256": hashlib.sha256(onnx_path.read_bytes()).hexdigest(),
                  "orind": _version(), "precision": precision, "golden_seed": GOLDEN_SEED,
                  "held_back": [p.name for p in held]}
    digest = write_plan(out, tensors, {"spec": spec.to_json(), "program": programs_to_text(served),
                                       "report": json.dumps(report), "provenance": json.dumps(provenance)})
    progress(f"wrote {out}: {out.stat().st_size} bytes, {digest[:12]}")
    return BuildReport(out, digest, report, tuple(warnings))


def _lower(scales: Scales, layers: Collection[str], batches: Sequence[int]) -> tuple[dict[int, Program],
                                                                                   dict[str, Array]]:
    graph, numbers = mixed_numbers(scales, layers)
    return lower(graph, batches, numbers)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version
    try:
        return version("orind")
    except PackageNotFoundError:
        return "not installed"


def _source(spec: ModelSpec, program: Program, file: str) -> Source:
    tensor = program.tensors[program.inputs[0]]
    return Source(spec, tensor.shape, tensor.dtype, tensor.scale, program.input_layout != "nhwc", file)


def _golden(programs: dict[int, Program], constants: dict[str, Array], source: Source,
            pictures: Sequence[Path]) -> dict[str, Array]:
    """Golden input (largest batch), outputs, and a CRC-32 of every step for each batch size."""
    largest = max(programs)
    found: dict[str, Array] = {}
    for batch in sorted(programs, reverse=True):
        runner = ProgramRunner(programs[batch], constants)
        if batch == largest:
            _fill(runner.input, source, pictures)
            found["golden.input"] = runner.input.copy()
        np.copyto(runner.input, found["golden.input"][:batch])
        sums = [runner.checksum(step) for step in runner.walk()]
        found[f"golden.crc.b{batch}"] = np.array(sums, dtype=np.uint32)
        if batch == largest:
            found |= {f"golden.output.{i}": value.copy() for i, value in enumerate(runner.outputs)}
    for index, name in enumerate(programs[largest].outputs):
        if not np.isfinite(found[f"golden.output.{index}"]).all():
            raise ModelError(f"the golden run gives NaN or infinity in output '{name}': the model or its spec is wrong")
    return found


def _fill(frames: Array, source: Source, pictures: Sequence[Path]) -> None:
    """Pictures, cycled; without any, numbers from a fixed seed."""
    if pictures:
        for index, frame in enumerate(frames):
            source.writer(pictures[index % len(pictures)])(frame)
    elif frames.dtype == np.float32:
        frames[...] = np.random.default_rng(GOLDEN_SEED).random(frames.shape, dtype=np.float32)
    else:
        frames[...] = np.random.default_rng(GOLDEN_SEED).integers(0, 128, frames.shape, dtype=np.int16)
