"""What scripts/bench_models measures of one model: distance to ONNX Runtime, layer by layer and at the end, and time.

Caller: bench_models.py and its test. Distances are max|a - b| / max|b| of a tensor, b being the reference. ONNX Runtime
runs with graph optimisation off wherever numbers are compared, and as it comes, with one thread, where time is.

`layer_distances` is each step alone: before it runs, what it reads is overwritten with the reference's own values, so
that no step's error reaches another. The reference is ONNX Runtime's tensor of that name; where a pass made a tensor
that the file does not have (a folded layer, another layout), it is kernels/ir/reference.py in float64 on the
reference's inputs of that node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from figures import spread

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.importer.shaped import with_shapes
from orind.kernels.ir.graph import Graph
from orind.kernels.ir.program import Tensor
from orind.kernels.ir.reference import evaluate, run_graph
from orind.kernels.passes.layouts import assign_layouts

Array = npt.NDArray[Any]
LIMIT_OUTPUT, LIMIT_LAYER = 1e-3, 1e-5
WARM_UP = 2


@dataclass(frozen=True)
class LayerDistance:
    """A step against the reference on the reference's inputs; `judge` is "onnxruntime" or "float64"."""

    step: str
    kind: str
    distance: float
    judge: str


@dataclass(frozen=True)
class OutputDistance:
    """An output: ours against ONNX Runtime, and what each is off an evaluation of the file's graph in float64."""

    name: str
    to_runtime: float
    ours_to_exact: float
    runtime_to_exact: float


def distance(got: Array, want: Array) -> float:
    """max|got - want| / max|want|; max|got| where the reference is 0. ValueError: other sizes, not finite."""
    if got.size != want.size:
        raise ValueError(f"{got.shape} against {want.shape}")
    a, b = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (got, want))
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        raise ValueError("NaN or infinity: no distance can be told")
    largest = float(np.abs(b).max(initial=0))
    return float(np.abs(a - b).max(initial=0)) / (largest or 1.0)


class Runtime:
    """ONNX Runtime on a model with fixed input shapes, one thread."""

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.model = with_shapes(model, shapes)
        weights = {w.name for w in model.graph.initializer}
        self.input = next(i.name for i in self.model.graph.input if i.name not in weights)
        self.outputs = [o.name for o in self.model.graph.output]

    def session(self, optimised: bool, every: bool = False) -> onnxruntime.InferenceSession:
        """`every`: all tensors that nodes make are outputs, after the model's own."""
        model = self.model
        if every:
            model = onnx.ModelProto()
            model.CopyFrom(self.model)
            made = [name for node in model.graph.node for name in node.output if name and name not in self.outputs]
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def every_tensor(self, x: Array) -> dict[str, Array]:
        """All tensors for the input `x` (as the file orders it), graph optimisation off."""
        session = self.session(False, every=True)
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, (np.asarray(v) for v in session.run(names, {self.input: x})), strict=True))


def file_input(runner: ProgramRunner) -> Array:
    """The runner's input of frame 0 in the order of the ONNX file, batch axis included."""
    name = runner.program.inputs[0]
    value = runner.logical(name, 0)
    if runner.program.tensors[name].layout == "flat":
        return np.ascontiguousarray(value.reshape(runner.program.tensors[name].shape))
    return np.ascontiguousarray((value if runner.program.input_layout == "nhwc" else value.transpose(2, 0, 1))[None])


def layer_distances(fused: Graph, runner: ProgramRunner, tensors: Mapping[str, Array], x: Array) -> list[LayerDistance]:
    """Every step of an FP32 program of batch 1 that makes a tensor of the fused graph.

    tensors: ONNX Runtime's, by name. x: the graph's input in ONNX's order (N, C, H, W), or flat.
    """
    values, judges = _reference_values(fused, tensors, x)
    program = runner.program
    found = []
    running = runner.walk()
    for step in program.steps:
        for name in step.reads():
            if name in values:
                _put(runner, name, values[name])
        next(running)
        for name in step.writes():
            if name in values:
                want = values[name]
                got = _as_onnx(runner.logical(name, 0), program.tensors[name])
                found.append(LayerDistance(step.name, type(step).__name__, distance(got, want), judges[name]))
    return found


def _reference_values(fused: Graph, tensors: Mapping[str, Array], x: Array) -> tuple[dict[str, Array], dict[str, str]]:
    graph = assign_layouts(fused).graph
    values: dict[str, Array] = {graph.inputs[0].name: x}
    judges: dict[str, str] = {graph.inputs[0].name: "onnxruntime"}
    for node in graph.nodes:
        inputs = [None if not n else graph.constants[n] if n in graph.constants else values[n] for n in node.inputs]
        exact: tuple[Array, ...] | None = None
        for index, name in enumerate(node.outputs):
            theirs = tensors.get(name)
            if not name:
                continue
            if node.op in ("ToFlat", "FromFlat"):
                values[name], judges[name] = values[node.inputs[0]], judges[node.inputs[0]]
            elif theirs is not None and theirs.shape == graph.shape(name):
                values[name], judges[name] = theirs, "onnxruntime"
            else:
                exact = exact or evaluate(node, [_wide(v) for v in inputs])
                values[name], judges[name] = exact[index].astype(np.float32), "float64"
    return values, judges


def _wide(value: Array | None) -> Array | None:
    return value.astype(np.float64) if value is not None and value.dtype == np.float32 else value


def _as_onnx(value: Array, tensor: Tensor) -> Array:
    return value.transpose(2, 0, 1)[None] if tensor.layout == "nhwc" else value


def _put(runner: ProgramRunner, name: str, value: Array) -> None:
    """The value of a tensor (ONNX's order) into the arena; the pads between its channels keep what they hold."""
    tensor = runner.program.tensors[name]
    view = runner.binding.view(name, 0)
    if tensor.layout == "nhwc":
        view[..., tensor.channels()] = value[0].transpose(1, 2, 0)
    else:
        view[...] = value.reshape(view.shape)


def output_distances(graph: Graph, outputs: Sequence[Array], tensors: Mapping[str, Array], x: Array,
                     exact: bool = True) -> list[OutputDistance]:
    """graph: as imported, before any pass. outputs: ours, in its order. exact False: NaN for what is off float64."""
    wide = run_graph(_widened(graph), {graph.inputs[0].name: x.astype(np.float64)}) if exact else {}
    found = []
    for name, ours in zip(graph.outputs, outputs, strict=True):
        theirs = tensors[name]
        off = [distance(v, wide[name]) if exact else float("nan") for v in (ours, theirs)]
        found.append(OutputDistance(name, distance(ours, theirs), off[0], off[1]))
    return found


def _widened(graph: Graph) -> Graph:
    """The graph with its float constants in float64, in which NumPy then computes."""
    wide = {name: np.asarray(_wide(value)) for name, value in graph.constants.items()}
    return replace(graph, constants=wide)


def time_ratios(floor: Callable[[], object], runs: Sequence[Callable[[], object]],
                repetitions: int) -> tuple[float, list[str], list[float]]:
    """(median ms of the floor, "median (low-high)" of each run over the floor, its median), taken turn by turn."""
    taken: list[list[int]] = [[] for _ in range(len(runs) + 1)]
    for turn in range(repetitions + WARM_UP):
        for index, run in enumerate((floor, *runs)):
            start_ns = time.perf_counter_ns()
            run()
            if turn >= WARM_UP:
                taken[index].append(time.perf_counter_ns() - start_ns)
    ratios = [[a / b for a, b in zip(mine, taken[0], strict=True)] for mine in taken[1:]]
    return float(np.median(taken[0])) / 1e6, [spread(r) for r in ratios], [float(np.median(r)) for r in ratios]
