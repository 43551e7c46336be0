"""`orind verify`: is this plan whole, does it compute what it computed when it was built, and how far is it from ONNX?

Caller: the command line. Each check is one line with a verdict; the first failure of the bytes ends it, since what
follows would judge damaged numbers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .cpu.executor import CpuExecutor, ProgramRunner
from .ir.errors import GoldenMismatch, ProgramError
from .ir.program import ALIGN, programs_from_text
from .plan.file import PlanFile
from .plan.layout import PlanError

Array = npt.NDArray[Any]
LIMIT_FP32 = 1e-3
"""Of the largest value: rounding that deep networks magnify; a wrong layer is far beyond it (docs/measurements)."""
REFERENCES = ("import", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Check:
    """`ok` None: not a verdict, a figure to read."""

    name: str
    ok: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok is not False for check in self.checks)


def verify(path: Path, onnx: Path | None = None, reference: str = "import") -> VerifyReport:
    """Checks a plan on the CPU executor; with `onnx`, also against that model: through our own FP32 import, or through
    ONNX Runtime where it is named (and installed). Only ONNX Runtime gives a verdict: our import shares importer and
    executor with the plan, so it can only give a figure. Raises PlanError for a file that is not a plan, ModelError."""
    checks: list[Check] = []
    with PlanFile.open_path(path) as plan:
        try:
            plan.verify()
        except PlanError as error:
            return VerifyReport((Check("hash", False, str(error)),))
        checks.append(Check("hash", True, f"sha256 {plan.sha256[:12]}, {plan.size} bytes"))
        off = [name for name, value in plan.tensors.items() if value.ctypes.data % ALIGN]
        checks.append(Check("alignment", not off, f"{len(plan.tensors)} tensors on {ALIGN} bytes" if not off else
                            f"tensor '{off[0]}' is not aligned to {ALIGN} bytes: build the plan again"))
        try:
            programs = programs_from_text(plan.metadata["program"])
            if not programs:
                checks.append(Check("program", False, "the plan holds no program: build it again"))
            checks += [_golden(plan, batch) for batch in programs]
        except ProgramError as error:
            checks.append(Check("program", False, str(error)))
        if onnx is not None and all(check.ok for check in checks):
            checks += _against_onnx(plan, onnx, reference)
    return VerifyReport(tuple(checks))


def _golden(plan: PlanFile, batch: int) -> Check:
    with CpuExecutor(plan, batch) as executor:
        steps = len(executor.program.steps)
        exact = sum(all(executor.program.tensors[n].exact for n in s.writes()) for s in executor.program.steps)
        try:
            executor.golden()
        except GoldenMismatch as error:
            return Check(f"golden, batch {batch}", False, str(error))
    return Check(f"golden, batch {batch}", True, f"outputs and {exact} of {steps} steps bit for bit")


def _against_onnx(plan: PlanFile, onnx: Path, reference: str) -> list[Check]:
    if reference not in REFERENCES:
        raise ValueError(f"reference '{reference}' is not one of {', '.join(REFERENCES)}")
    same = hashlib.sha256(onnx.read_bytes()).hexdigest() == json.loads(plan.metadata["provenance"])["model_sha256"]
    checks = [Check("model file", same, f"{onnx.name} is the one that the plan was built from" if same else
                    f"{onnx.name} is not the file that the plan was built from: name that one, or build again")]
    if not same:                                  # its outputs may have other shapes: nothing to compare
        return checks
    batch = min(programs_from_text(plan.metadata["program"]))
    with CpuExecutor(plan, batch) as executor:
        entry = executor.program.tensors[executor.program.inputs[0]]
        executor.input[...] = plan.tensors["golden.input"][:batch]
        x = executor.input[0].astype(np.float32) * np.float32(entry.scale) if entry.dtype != "uint8" or \
            entry.scale != 1.0 else executor.input[0].copy()
        got = [o[0].copy() for o in executor.run()]
        layout = executor.program.input_layout
    shapes = {name: tuple(shape) for name, shape in json.loads(plan.metadata["provenance"]).get("shapes", {}).items()}
    want = _imported(onnx, x, shapes) if reference == "import" else _runtime(onnx, x, layout, shapes)
    report = json.loads(plan.metadata["report"])
    # a model that rounds its activations multiplies the last bit of a float sum by a step of its codes
    judged = reference == "onnxruntime" and report["precision"] == "fp32" and not report.get("quantised_by_file")
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        b = b.reshape(a.shape)
        worst = float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30))
        noise = float(((a - b).astype(np.float64) ** 2).sum())
        db = 10 * float(np.log10(max(float((b.astype(np.float64) ** 2).sum()), 1e-30) / max(noise, 1e-30)))
        checks.append(Check(f"output {index} against {reference}", worst <= LIMIT_FP32 if judged else None,
                            f"largest difference {worst:.2e} of the largest value, SQNR {db:.1f} dB"))
    return checks


def _imported(onnx: Path, x: Array, shapes: dict[str, tuple[int, ...]]) -> list[Array]:
    """Outputs of the model's own FP32 program, of one frame."""
    from .importer.onnx_model import read_model
    from .passes.lower import lower
    from .passes.lower_f32 import FloatNumbers
    from .passes.pipeline import fuse, prepare
    graph = fuse(prepare(read_model(onnx, shapes)))
    programs, constants = lower(graph, [1], FloatNumbers(graph))
    runner = ProgramRunner(programs[1], constants)
    runner.input[0] = x
    return [o[0].copy() for o in runner.run()]


def _runtime(onnx: Path, x: Array, layout: str, shapes: dict[str, tuple[int, ...]]) -> list[Array]:
    """Outputs of ONNX Runtime, graph optimisation off, one thread; `shapes` replace those of the model's inputs."""
    import onnxruntime

    from .importer.shaped import with_shapes
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(with_shapes(onnx, shapes) if shapes else str(onnx), options)
    given = x.transpose(2, 0, 1) if x.ndim == 3 and layout != "nhwc" else x
    entry = session.get_inputs()[0]
    return [np.asarray(o) for o in session.run(None, {entry.name: np.ascontiguousarray(given)[None]})]
