"""Runs ONNX's own test cases through our importer and FP32 executor: `scripts/onnx_conformance [--full]`.

Node cases (onnx.backend.test.case.node), the convolution cases that came from PyTorch, and the light_* networks. A case
counts where its floats are float32, its node is one operator and that version of the operator is one that we claim
(kernels/importer/versions.py). `--full` writes docs/operators.md. Also imported by tests/kernels/test_conformance.py.

A light network counts twice, as packaged and with drawn weights (light_networks.py says why).

A case's first float input is the model's input, the others become constants, as weights would be; where the operator
works on batches (convolutions, poolings) the first axis is the program's batch. Empty inputs are constants.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from light_networks import NAMES, light_network
from onnx import numpy_helper

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.importer.onnx_model import import_model
from orind.kernels.importer.versions import VERSIONS, since_version
from orind.kernels.ir.errors import ModelError
from orind.kernels.passes.lower import lower
from orind.kernels.passes.lower_f32 import FloatNumbers
from orind.kernels.passes.pipeline import fuse, prepare

Array = npt.NDArray[Any]
ROOT = Path(__file__).resolve().parent.parent
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
BATCHED = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
                     "BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN"})
AUXILIARY = frozenset({"int64", "int32", "bool"})
FOLDED = frozenset({"Range", "ConstantOfShape", "OneHot", "ScatterND", "GatherND", "GatherElements", "CumSum", "Trilu"})
"""Taken where all inputs are constants: exporters write them around shapes, grids and anchors."""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    """`op` is the operator, or the group of a case of several nodes."""

    name: str
    op: str
    model: onnx.ModelProto
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True)
class Result:
    """`refused`: the compiler's reason; `wrong`: how a result differs. Neither: passed."""

    case: Case
    refused: str = ""
    wrong: str = ""

    @property
    def passed(self) -> bool:
        return not self.refused and not self.wrong


def claimed(model: onnx.ModelProto) -> bool:
    """Whether the model is one node of an operator and version that we claim."""
    if len(model.graph.node) != 1 or model.graph.node[0].domain not in ("", "ai.onnx"):
        return False
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    op = model.graph.node[0].op_type
    return since_version(op, opset) in VERSIONS.get(op, ())


def is_float32(case: Case) -> bool:
    """Whether what goes in and comes out is float32, apart from indices, sizes and truth values."""
    types = {a.dtype.name for a in (*case.inputs, *case.outputs)}
    return types <= AUXILIARY | {"float32"} and all(a.dtype == np.float32 for a in case.outputs)


def node_cases() -> list[Case]:
    """The float32 single-node cases whose version we claim."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases
        collected = collect_testcases(None)
    found = []
    for case in collected:
        if case.model is None or not claimed(case.model) or not case.data_sets:
            continue
        inputs, outputs = case.data_sets[0]
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in (*inputs, *outputs)):
            continue
        arrays = tuple(tuple(np.asarray(a) for a in side) for side in (inputs, outputs))
        made = Case(case.name, case.model.graph.node[0].op_type, case.model, *arrays)
        if is_float32(made):
            found.append(made)
    return found


def _stored(path: Path) -> Array:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def pytorch_cases() -> Iterator[Case]:
    """Conv1d, Conv2d, Conv3d and transposed ones, as PyTorch exported them."""
    folders = (*DATA.glob("pytorch-converted/test_Conv*"), *DATA.glob("pytorch-operator/test_operator_conv*"))
    for folder in sorted(folders):
        data = folder / "test_data_set_0"
        inputs = tuple(_stored(p) for p in sorted(data.glob("input_*.pb")))
        outputs = tuple(_stored(p) for p in sorted(data.glob("output_*.pb")))
        op = "ConvTranspose" if "ranspose" in folder.name else "Conv"
        yield Case(folder.name, f"{op} (PyTorch)", onnx.load(folder / "model.onnx"), inputs, outputs)


def light_cases(names: Sequence[str] = NAMES) -> Iterator[Case]:
    """Two of each: the file and its packaged output, then the drawn weights and what ONNX Runtime makes of them."""
    for name in names:
        light = light_network(name)
        yield Case(name, "light networks, as packaged", light.model, (light.x,), (light.output,))
        outputs = tuple(onnxruntime_outputs(light.drawn, light.noise))
        yield Case(f"{name}, drawn weights", "light networks, drawn weights", light.drawn, (light.noise,), outputs)


def onnxruntime_outputs(model: onnx.ModelProto, x: Array) -> list[Array]:
    """Graph optimisation off, one thread."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    weights = {w.name for w in model.graph.initializer}
    return list(session.run(None, {next(i.name for i in model.graph.input if i.name not in weights): x}))


def with_constants(case: Case) -> tuple[onnx.ModelProto, Array]:
    """The model with all inputs but the first float one as initializers, and that one's value."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    weights = {w.name for w in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in weights]
    live = [i for i, a in enumerate(case.inputs) if a.dtype == np.float32 and a.size and case.op not in FOLDED]
    first = live[0] if live else -1
    for i, (name, value) in enumerate(zip(names, case.inputs, strict=False)):
        if i != first:
            model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    return model, case.inputs[first] if live else np.zeros(1, dtype=np.float32)


def run_model(model: onnx.ModelProto, x: Array, batched: bool) -> list[Array]:
    """Outputs of our FP32 program; raises ModelError."""
    weights = {w.name for w in model.graph.initializer}
    entry = next((i.name for i in model.graph.input if i.name not in weights), "")
    batch = x.shape[0] if batched else 1
    if not entry:                                      # all is constant: give it an input that nobody reads
        entry = "unread"
        model.graph.input.append(onnx.helper.make_tensor_value_info(entry, onnx.TensorProto.FLOAT, list(x.shape)))
    shape = (1, *x.shape[1:]) if batched else x.shape or (1,)
    dims = model.graph.input[[i.name for i in model.graph.input].index(entry)].type.tensor_type.shape
    if not x.shape and not dims.dim:
        dims.dim.add().dim_value = 1
    graph = fuse(prepare(import_model(model, Path("case.onnx"), {entry: shape}, batched)))
    programs, constants = lower(graph, [batch], FloatNumbers(graph))
    runner = ProgramRunner(programs[batch], constants)
    image = len(shape) == 4 and shape[0] == 1
    frames = x.reshape(batch, *shape[1:]) if batched or shape[0] == 1 else x.reshape(1, *shape)
    runner.input[...] = frames.transpose(0, 2, 3, 1) if image else frames
    return [np.asarray(o) for o in runner.run()]


def judge(case: Case) -> Result:
    model, x = with_constants(case)
    try:
        outputs = run_model(model, x, case.op.split()[0] in BATCHED and x.ndim > 2)
    except ModelError as error:
        return Result(case, refused=str(error))
    for got, want in zip(outputs, case.outputs, strict=True):
        if got.size != want.size:
            return Result(case, wrong=f"shape {got.shape} instead of {want.shape}")
        got = got.reshape(want.shape)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(invalid="ignore"):
            worst = float(np.abs(np.where(same, 0, got - want)).max(initial=0))
        least = 0.0 if case.op.startswith("light") else 1.0                # their probabilities are 1 / 1000
        if not worst <= TOLERANCE * max(least, float(np.abs(want[np.isfinite(want)]).max(initial=0))):
            return Result(case, wrong=f"largest difference {worst:.2e}")
    return Result(case)


def _reason(result: Result) -> str:
    """Why, without file and node."""
    text = result.refused or f"WRONG: {result.wrong}"
    found = re.match(r"\S+: node '[^']*' \(\w+\): (.*?)(?:;|$)", text, re.S)
    return re.sub(r"\s+", " ", found[1] if found else text)[:90]


def table(results: Sequence[Result]) -> str:
    """docs/operators.md."""
    groups = sorted({r.case.op for r in results}, key=lambda op: (" " in op, op))
    single = [r for r in results if " " not in r.case.op]
    passed = sum(r.passed for r in single)
    lines = ["# ONNX's own test cases", "",
             "Made by `scripts/onnx_conformance --full`: every float32 case of one node whose version of the "
             "operator is taken, the",
             "convolutions that came from PyTorch, and the light networks, in FP32 on the CPU executor.", "",
             f"{len({r.case.op for r in single})} operators, {len(single)} cases of one node, {passed} passed "
             f"({100 * passed / len(single):.1f} %).", "",
             "| operator | cases | passed | refused, and why |", "| --- | ---: | ---: | --- |"]
    for op in groups:
        mine = [r for r in results if r.case.op == op]
        reasons = Counter(_reason(r) for r in mine if not r.passed)
        why = "; ".join(f"{n}: {text}" for text, n in reasons.most_common())
        lines.append(f"| {op} | {len(mine)} | {sum(r.passed for r in mine)} | {why.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="light networks too; writes docs/operators.md")
    parser.add_argument("--only", metavar="OP", help="cases of one operator, each with its verdict")
    options = parser.parse_args()
    cases = [c for c in [*node_cases(), *pytorch_cases()] if options.only in (None, c.op.split()[0])]
    results = [judge(case) for case in cases]
    if options.full:
        results += [judge(case) for case in light_cases()]
        (ROOT / "docs" / "operators.md").write_text(table(results))
    for result in results:
        if options.only or result.wrong:
            print(f"{result.case.name}: {result.refused or result.wrong or 'passed'}")
    single = [r for r in results if " " not in r.case.op]
    others = [r for r in results if " " in r.case.op]
    print(f"{len({r.case.op for r in single})} operators, {len(single)} cases of one node: "
          f"{sum(r.passed for r in single)} passed, {sum(bool(r.refused) for r in single)} refused, "
          f"{sum(bool(r.wrong) for r in single)} wrong; others: {sum(r.passed for r in others)} of {len(others)}")
    return int(any(r.wrong for r in results))


if __name__ == "__main__":
    sys.exit(main())
