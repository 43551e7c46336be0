"""A plan's outputs beside its ONNX model's: on the golden input, or on pictures, with the figures of its task as well.

Caller: `verify.py`. Invariant: only ONNX Runtime gives a verdict on outputs. Our own FP32 import shares importer and
executor with the plan, so it can only give a figure. What is not finite fails whoever is asked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .cpu.executor import CpuExecutor, ProgramRunner
from .ir.errors import ModelError
from .ir.program import Program
from .plan.file import PlanFile
from .plan.told import text_of, told
from .spec import ModelSpec

Array = npt.NDArray[Any]
Outputs = tuple[list[Array], list[Array]]
LIMIT_FP32 = 1e-3
"""Part of an output's largest value by which an FP32 plan may differ from ONNX Runtime: sums are in another order."""
REFERENCES = ("import", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Check:
    """`ok` None: not a verdict, a figure to read."""

    name: str
    ok: bool | None
    text: str


@dataclass
class Difference:
    """Of one output, over all frames."""

    worst: float = 0.0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, got: Array, want: Array) -> None:
        """NaN stays NaN."""
        with np.errstate(invalid="ignore"):
            off = np.abs(got - want)
        self.worst = float(np.maximum(self.worst, off.max() / max(float(np.abs(want).max()), 1e-30)))
        self.signal += float((want.astype(np.float64) ** 2).sum())
        self.noise += float((off.astype(np.float64) ** 2).sum())

    def verdict(self, judged: bool) -> bool | None:
        """False for what is not finite, whoever is the reference; None where `judged` is False."""
        if not np.isfinite(self.worst):
            return False
        return self.worst <= LIMIT_FP32 if judged else None

    @property
    def decibel(self) -> float:
        """Below every number where there is no finite answer."""
        if not np.isfinite(self.noise):
            return -np.inf
        return 10 * float(np.log10(max(self.signal, 1e-30) / max(self.noise, 1e-30)))


class OnnxModel:
    """The model in FP32, as a build's reference has it, or through ONNX Runtime: `input` (1, H, W, C) or (1, ...) is
    written by the caller, `run` gives outputs of the same shapes either way, their first axis 1."""

    def __init__(self, onnx: Path, shapes: dict[str, tuple[int, ...]], kind: str, precision: str) -> None:
        from .importer.onnx_model import read_model
        from .passes.lower import lower
        from .passes.lower_f32 import FloatNumbers
        from .passes.pipeline import fuse, prepare
        from .passes.release_pairs import quantised_by_file, release_tail
        graph = read_model(onnx, shapes)
        prepared = prepare(graph)
        if quantised_by_file(graph) and precision != "fp32":
            prepared = release_tail(prepared)
        fused = fuse(prepared)
        programs, constants = lower(fused, [1], FloatNumbers(fused))
        self.runner = ProgramRunner(programs[1], constants)
        self.input: Array = self.runner.input
        self._session = _runtime(onnx, shapes) if kind == "onnxruntime" else None

    def run(self) -> list[Array]:
        if self._session is None:
            return self.runner.run()
        x = self.input[0]
        nchw = x.ndim == 3 and self.runner.program.input_layout != "nhwc"
        found = self._session(np.ascontiguousarray(x.transpose(2, 0, 1) if nchw else x)[None])
        return [value.reshape(own.shape) for value, own in zip(found, self.runner.outputs, strict=True)]


def _runtime(onnx: Path, shapes: dict[str, tuple[int, ...]]) -> Callable[[Array], list[Array]]:
    """ONNX Runtime, graph optimisation off, one thread; `shapes` replace those of the model's inputs."""
    import onnxruntime
    from onnx import load

    from .importer.shaped import with_shapes
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = with_shapes(load(str(onnx)), shapes).SerializeToString() if shapes else str(onnx)
    faults = _faults()
    try:
        session = onnxruntime.InferenceSession(model, options)
    except faults as error:
        raise _refused(onnx, error) from error
    entry = session.get_inputs()[0].name

    def run(x: Array) -> list[Array]:
        try:
            return [np.asarray(output) for output in session.run(None, {entry: x})]
        except faults as error:
            raise _refused(onnx, error) from error
    return run


def _faults() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: classes of its own without a common base."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state
    return tuple(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))


def _refused(onnx: Path, error: Exception) -> ModelError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return ModelError(f"{onnx}: ONNX Runtime refuses it: {lines[0] if lines else type(error).__name__}; compare with "
                      "--reference import, or export it for this version")


def against_onnx(plan: PlanFile, programs: dict[int, Program], onnx: Path, reference: str,
                 images: Path | None) -> list[Check]:
    """Raises PlanError, ModelError, and CalibrationError for pictures that cannot be used."""
    if reference not in REFERENCES:
        raise ValueError(f"reference '{reference}' is not one of {', '.join(REFERENCES)}")
    provenance, report = told(plan, "provenance"), told(plan, "report")
    same = hashlib.sha256(onnx.read_bytes()).hexdigest() == provenance.get("model_sha256")
    checks = [Check("model file", same, f"{onnx.name} is the one that the plan was built from" if same else
                    f"{onnx.name} is not the file that the plan was built from: name that one, or build again")]
    if not same:                                  # its outputs may have other shapes: nothing to compare
        return checks
    shapes = {name: tuple(shape) for name, shape in provenance.get("shapes", {}).items()}
    model = OnnxModel(onnx, shapes, reference, report["precision"])
    with CpuExecutor(plan, min(programs), programs) as executor:
        if images is None:
            pairs, accuracy = [_golden_frame(plan, executor, model)], []
        else:
            pairs, figures = _pictures(plan, executor, model, images, report)
            accuracy = [figures]
    found: dict[int, Difference] = {}
    for got, want in pairs:
        for index, (a, b) in enumerate(zip(got, want, strict=True)):
            found.setdefault(index, Difference()).add(a, b.reshape(a.shape))
    # a model that rounds its activations multiplies the last bit of a float sum by a step of its codes
    judged = reference == "onnxruntime" and report["precision"] == "fp32" and not report.get("quantised_by_file")
    checks += [Check(f"output {index} against {reference}", d.verdict(judged),
                     f"largest difference {d.worst:.2e} of the largest value, SQNR {d.decibel:.1f} dB")
               for index, d in found.items()]
    return checks + accuracy


def _golden_frame(plan: PlanFile, executor: CpuExecutor, model: OnnxModel) -> Outputs:
    """(plan's, model's) outputs for the first golden frame, of which the model gets the real values."""
    entry = executor.program.tensors[executor.program.inputs[0]]
    executor.input[...] = plan.tensors["golden.input"][:executor.batch]
    x = executor.input[0]
    model.input[0] = x if entry.dtype == "uint8" and entry.scale == 1.0 else \
        x.astype(np.float32) * np.float32(entry.scale)
    return [o[0].copy() for o in executor.run()], [o[0].copy() for o in model.run()]


class _Kept:
    """A plan's executor that keeps the outputs of every run."""

    def __init__(self, executor: CpuExecutor) -> None:
        self.executor = executor
        self.input = executor.input
        self.outputs: list[list[Array]] = []

    @property
    def overflows(self) -> Mapping[int, str]:
        return self.executor.overflows

    def run(self) -> list[Array]:
        found = self.executor.run()
        self.outputs.append([o[0].copy() for o in found])
        return found


def _pictures(plan: PlanFile, executor: CpuExecutor, model: OnnxModel, images: Path,
              report: Mapping[str, Any]) -> tuple[list[Outputs], Check]:
    """(plan's, model's) outputs for the pictures of a folder, each preprocessed for its own input, up to the first
    without an answer; and what the accuracy gate would say: no verdict where they are too few for one."""
    from .quant.gate import make_task
    from .quant.pictures import CalibrationError, Source, find_pictures
    from .quant.reference import Reference
    from .quant.verdict import LIMIT_KL, gate_lines, judge_gate
    spec = ModelSpec.from_json(text_of(plan, "spec"))
    paths = find_pictures([images])
    if not paths:
        raise CalibrationError(f"{images}: holds no pictures")
    coded, source = (Source(spec, t.shape, t.dtype, t.scale, program.input_layout != "nhwc", plan.path)
                     for program in (executor.program, model.runner.program)
                     for t in [program.tensors[program.inputs[0]]])
    task = make_task(spec, model.runner, report.get("gate", {}).get("limit_kl", LIMIT_KL))
    reference, kept = Reference(task, model, source, paths), _Kept(executor)
    figures = judge_gate(reference.measure(kept, coded), spec.task, len(paths), [])
    ok = False if "overflow" in figures else figures["met"] if figures["is_gate"] else None
    lines = [line.strip() for line in gate_lines(figures)[1:]]
    return (list(zip(kept.outputs, reference.wanted, strict=False)),
            Check(f"accuracy, {len(paths)} images", ok, "; ".join([spec.task, *lines])))
