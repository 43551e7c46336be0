"""A plan's outputs beside its ONNX model's: on the golden input, or on pictures, with the figures of its task as well.

Caller: `verify.py`. Invariant: only ONNX Runtime gives a verdict on outputs. Our own FP32 import shares importer and
executor with the plan, so it can only give a figure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .cpu.executor import CpuExecutor, ProgramRunner
from .ir.program import Program
from .plan.file import PlanFile
from .plan.layout import PlanError
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
        self.worst = max(self.worst, float(np.abs(got - want).max() / max(float(np.abs(want).max()), 1e-30)))
        self.signal += float((want.astype(np.float64) ** 2).sum())
        self.noise += float(((got - want).astype(np.float64) ** 2).sum())

    @property
    def decibel(self) -> float:
        return 10 * float(np.log10(max(self.signal, 1e-30) / max(self.noise, 1e-30)))


def _told(plan: PlanFile, part: str) -> dict[str, Any]:
    """What the build wrote into the metadata under `part`."""
    try:
        value = json.loads(plan.metadata[part])
    except (KeyError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PlanError(f"{plan.path}: it holds no {part}: make it with orind build")
    return value


class Reference:
    """The model in FP32: `input` (H, W, C) or flat is written by the caller, `run` gives the outputs of one frame."""

    def __init__(self, onnx: Path, shapes: dict[str, tuple[int, ...]], kind: str) -> None:
        from .importer.onnx_model import read_model
        from .passes.lower import lower
        from .passes.lower_f32 import FloatNumbers
        from .passes.pipeline import fuse, prepare
        graph = fuse(prepare(read_model(onnx, shapes)))
        programs, constants = lower(graph, [1], FloatNumbers(graph))
        self.runner = ProgramRunner(programs[1], constants)
        self.input: Array = self.runner.input[0]
        self._session = _runtime(onnx, shapes) if kind == "onnxruntime" else None

    def run(self) -> list[Array]:
        if self._session is None:
            return [o[0].copy() for o in self.runner.run()]
        nchw = self.input.ndim == 3 and self.runner.program.input_layout != "nhwc"
        given = self.input.transpose(2, 0, 1) if nchw else self.input
        return self._session(np.ascontiguousarray(given)[None])


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
    session = onnxruntime.InferenceSession(model, options)
    entry = session.get_inputs()[0].name
    return lambda x: [np.asarray(output) for output in session.run(None, {entry: x})]


def against_onnx(plan: PlanFile, programs: dict[int, Program], onnx: Path, reference: str,
                 images: Path | None) -> list[Check]:
    """Raises PlanError, ModelError, and CalibrationError for pictures that cannot be used."""
    if reference not in REFERENCES:
        raise ValueError(f"reference '{reference}' is not one of {', '.join(REFERENCES)}")
    provenance, report = _told(plan, "provenance"), _told(plan, "report")
    same = hashlib.sha256(onnx.read_bytes()).hexdigest() == provenance.get("model_sha256")
    checks = [Check("model file", same, f"{onnx.name} is the one that the plan was built from" if same else
                    f"{onnx.name} is not the file that the plan was built from: name that one, or build again")]
    if not same:                                  # its outputs may have other shapes: nothing to compare
        return checks
    shapes = {name: tuple(shape) for name, shape in provenance.get("shapes", {}).items()}
    model = Reference(onnx, shapes, reference)
    found: dict[int, Difference] = {}
    with CpuExecutor(plan, min(programs), programs) as executor:
        if images is None:
            frames = _golden_frame(plan, executor, model)
        else:
            pictures = _Pictures(plan, executor, model, images, report)
            frames = iter(pictures)
        for got, want in frames:
            for index, (a, b) in enumerate(zip(got, want, strict=True)):
                found.setdefault(index, Difference()).add(a, b)
    # a model that rounds its activations multiplies the last bit of a float sum by a step of its codes
    judged = reference == "onnxruntime" and report.get("precision") == "fp32" and not report.get("quantised_by_file")
    checks += [Check(f"output {index} against {reference}", d.worst <= LIMIT_FP32 if judged else None,
                     f"largest difference {d.worst:.2e} of the largest value, SQNR {d.decibel:.1f} dB")
               for index, d in found.items()]
    return checks if images is None else [*checks, pictures.figures()]


def _outputs(executor: CpuExecutor, model: Reference) -> Outputs:
    got = [o[0].copy() for o in executor.run()]
    return got, [w.reshape(g.shape) for w, g in zip(model.run(), got, strict=True)]


def _golden_frame(plan: PlanFile, executor: CpuExecutor, model: Reference) -> Iterator[Outputs]:
    """(plan's, model's) outputs for the first golden frame, of which the model gets the real values."""
    entry = executor.program.tensors[executor.program.inputs[0]]
    executor.input[...] = plan.tensors["golden.input"][:executor.batch]
    x = executor.input[0]
    model.input[...] = x if entry.dtype == "uint8" and entry.scale == 1.0 else \
        x.astype(np.float32) * np.float32(entry.scale)
    yield _outputs(executor, model)


class _Pictures:
    """The pictures of a folder through plan and model, each preprocessed for its own input, and the task's figures."""

    def __init__(self, plan: PlanFile, executor: CpuExecutor, model: Reference, images: Path,
                 report: dict[str, Any]) -> None:
        from .quant.gate import Tally, make_task
        from .quant.pictures import CalibrationError, Source, find_pictures
        from .quant.verdict import LIMIT_KL
        self.executor, self.model = executor, model
        self.spec = ModelSpec.from_json(plan.metadata["spec"])
        self.paths = find_pictures([images])
        if not self.paths:
            raise CalibrationError(f"{images}: holds no pictures")
        self.task = make_task(self.spec, model.runner, report.get("gate", {}).get("limit_kl", LIMIT_KL))
        self.tally = Tally()
        self.sources = []
        for program in (executor.program, model.runner.program):
            t = program.tensors[program.inputs[0]]
            self.sources.append(Source(self.spec, t.shape, t.dtype, t.scale, program.input_layout != "nhwc", plan.path))

    def __iter__(self) -> Iterator[Outputs]:
        from .quant.gate import compare
        for path in self.paths:
            self.sources[0].writer(path)(self.executor.input[0])
            self.sources[1].writer(path)(self.model.input)
            got, want = _outputs(self.executor, self.model)
            self.tally.overflow = self.tally.overflow or self.executor.overflows.get(0, "")
            compare(self.task, self.tally, want, got)
            yield got, want

    def figures(self) -> Check:
        """What the accuracy gate would say of these pictures; no verdict where they are too few for one."""
        from .quant.gate import OVERFLOWED
        from .quant.verdict import gate_lines, judge_gate
        lost = {"overflow": self.tally.overflow, "excess": OVERFLOWED}
        figures = judge_gate(lost if self.tally.overflow else self.task.figures(self.tally), self.spec.task,
                             len(self.paths), [])
        lines = [line.strip() for line in gate_lines(figures)[1:]]
        return Check(f"accuracy, {len(self.paths)} images", figures["met"] if figures["is_gate"] else None,
                     "; ".join([self.spec.task, *lines]))
