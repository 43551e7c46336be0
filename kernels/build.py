"""`orind build`: from an ONNX model, a spec and calibration pictures to a plan, and the report on it.

Caller: the command line. One way down: import, passes, calibrate, quantise, lower, golden, gate, write. Precision is
given or refused, never swapped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .cpu.executor import ProgramRunner
from .importer.onnx_model import read_model
from .ir.errors import ModelError
from .ir.graph import Graph
from .ir.program import Program, programs_to_text
from .passes.float_ends import float_ends
from .passes.lower import lower
from .passes.lower_f32 import FloatNumbers
from .passes.pipeline import fuse, prepare
from .plan.file import write_plan
from .pre.decoder import make_decoder
from .quant.calibrate import BINS, EXPONENT, Histogram, collect
from .quant.gate import measure_gate
from .quant.pictures import CalibrationError, Source, find_pictures, split
from .quant.quantise import IntegerNumbers
from .quant.report import layer_table, signal_to_noise
from .quant.scales import InputCode, Scales, assign_scales
from .spec import InputSpec, ModelSpec

Array = npt.NDArray[Any]
Progress = Callable[[str], None]
PRECISIONS = ("int8", "fp32")
CALIBRATION_PICTURES = 256
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
               precision: str = "int8", progress: Progress = lambda line: None) -> BuildReport:
    """Writes a plan. Raises ModelError, UnsupportedModel, DecoderError, CalibrationError, PlanError; the old plan
    then stays."""
    if precision not in PRECISIONS:
        raise ModelError(f"precision '{precision}' is not one of {', '.join(PRECISIONS)}")
    if spec is None and precision == "int8":
        raise ModelError(f"{onnx_path}: INT8 needs a spec (how pictures become the input) and calibration pictures; "
                         "give --spec, or build with --precision fp32")
    graph = read_model(onnx_path)
    spec = spec or ModelSpec.for_tensor(onnx_path.stem[:64])
    prepared = prepare(graph)
    fused = fuse(prepared)
    progress(f"read {onnx_path.name}: {len(graph.nodes)} nodes, {len(fused.nodes)} after the passes")
    pictures = find_pictures(calibration)
    chosen, held = split(pictures)
    float_programs, float_constants = lower(fused, [1], FloatNumbers(fused))
    float_runner = ProgramRunner(float_programs[1], float_constants)
    source = _source(spec, float_programs[1], graph.file)
    make_decoder(spec, [output.shape[1:] for output in float_runner.outputs], source.shape)
    report: dict[str, Any] = {"precision": precision, "nodes_before": len(graph.nodes), "nodes_after": len(fused.nodes)}
    warnings: list[str] = []
    if precision == "fp32":
        programs, constants = lower(fused, spec.batch, FloatNumbers(fused))
        coded, noise = source, {}
    else:
        fused = fuse(float_ends(prepared))
        scales = _calibrate(prepared, fused, spec, source, chosen, progress)
        programs, constants = lower(scales.graph, spec.batch, IntegerNumbers(scales))
        coded = _source(spec, programs[spec.batch[0]], graph.file)
        runner = ProgramRunner(lower(scales.graph, [1], IntegerNumbers(scales))[0][1], constants)
        noise = signal_to_noise(float_runner, runner, source, coded, chosen[:SQNR_PICTURES])
        progress(f"compared {len(noise)} layers with FP32")
        report["calibration"] = {"method": f"least |error|^{EXPONENT}", "bins": BINS, "pictures": len(chosen),
                                 "held_back": len(held),
                                 "input": {"dtype": scales.input.dtype, "scale": scales.input.scale}}
        report["gate"] = measure_gate(spec, float_runner, runner, source, coded, held, warnings)
    first = programs[spec.batch[0]]
    report["steps"] = len(first.steps)
    report["arena_bytes"] = {str(n): p.arena_bytes for n, p in programs.items()}
    report["weight_bytes"] = sum(int(value.nbytes) for value in constants.values())
    report["layers"] = layer_table(first, constants, fused, noise)
    tensors = {**constants, **_golden(programs, constants, coded, chosen or pictures)}
    progress("ran the golden input")
    provenance = {"model": onnx_path.name, "model_sha256": hashlib.sha256(onnx_path.read_bytes()).hexdigest(),
                  "orind": _version(), "precision": precision, "golden_seed": GOLDEN_SEED,
                  "held_back": [p.name for p in held]}
    digest = write_plan(out, tensors, {"spec": spec.to_json(), "program": programs_to_text(programs),
                                       "report": json.dumps(report), "provenance": json.dumps(provenance)})
    progress(f"wrote {out}: {out.stat().st_size} bytes, {digest[:12]}")
    return BuildReport(out, digest, report, tuple(warnings))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version
    try:
        return version("orind")
    except PackageNotFoundError:
        return "not installed"


def _source(spec: ModelSpec, program: Program, file: str) -> Source:
    tensor = program.tensors[program.inputs[0]]
    return Source(spec, tensor.shape, tensor.dtype, tensor.scale, program.input_layout != "nhwc", file)


def input_code(spec: ModelSpec, graph: Graph) -> InputCode:
    """Type and scale of an INT8 program's input. The range is that of the spec's arithmetic, so nothing is clipped.

    uint8 where no value is negative: for pixels in 0..1 the codes are then the pixels themselves.
    """
    if spec.input is None:
        if graph.inputs[0].dtype == "uint8":
            return InputCode("uint8", 1.0)
        raise ModelError(f"{graph.file}: INT8 of a model that takes float tensors as they are: give a spec with an "
                         "'input', or build with --precision fp32")
    low, high = input_range(spec.input)
    if low >= 0:
        return InputCode("uint8", float(np.float32(high / 255)))
    return InputCode("int8", float(np.float32(max(-low, high) / 127)))


def input_range(spec: InputSpec) -> tuple[float, float]:
    """The least and the largest value that preprocessing can give."""
    ends = [(pixel - m) * s for pixel in (0, 255)
            for m, s in np.broadcast(np.array(spec.mean), np.array(spec.scale))]
    return float(min(ends)), float(max(ends))


def _calibrate(prepared: Graph, fused: Graph, spec: ModelSpec, source: Source, chosen: Sequence[Path],
               progress: Progress) -> Scales:
    if not chosen:
        raise CalibrationError("no calibration pictures: INT8 needs some of the pictures that the model will see "
                               "(--calibrate DIR with .jpg, .png, .ppm or .npy)")
    code = input_code(spec, fused)
    used = list(chosen[:CALIBRATION_PICTURES])
    programs, constants = lower(prepared, [1], FloatNumbers(prepared))

    def told(done: int) -> None:
        if done % 16 == 0 or done == len(used):
            progress(f"calibrated on {done} of {len(used)} pictures")
    runner = ProgramRunner(programs[1], constants)
    ranges: dict[str, Histogram] = collect(runner, (source.writer(path) for path in used), told,
                                           {name for node in fused.nodes for name in node.outputs})
    broken = [name for name, h in ranges.items() if not h.finite]
    if broken:
        raise ModelError(f"{fused.file}: tensor '{broken[0]}' becomes NaN or infinite on the calibration pictures: "
                         "train or export the model again")
    return assign_scales(fused, ranges, code)


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
    for name, value in found.items():
        if name.startswith("golden.output") and not np.isfinite(value).all():
            raise ModelError(f"the golden run gives NaN or infinity in {name}: the model or its spec is wrong")
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
