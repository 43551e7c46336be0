"""What each layer costs when it alone is int8, by float32 runs that imitate its codes. Callers: `mixed.py`, `build.py`.

One FP32 program is bound for all layers, with a second set of weights: those that the codes stand for. A picture is run
once; at each layer its inputs are rounded to their codes, it runs with the second weights, its result is rounded, and
the run goes on to the outputs; then the arena is put back as it was before the layer. So a layer costs the part of the
network behind it, not a program of its own and whole runs. The index of a table (10 bits) is not imitated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..cpu.binding import Call
from ..cpu.executor import FUNCTIONS, ProgramRunner
from ..ir.graph import Graph, Node
from ..ir.program import Program
from ..ir.steps import Step
from ..passes.islands import IMAGE, coded_nodes, is_coded
from ..passes.lower import lower
from ..passes.lower_f32 import FloatNumbers
from ..passes.merge_parallel import part_outputs
from .borders import CUT, UNCUT, layers_of, with_cuts
from .choice import round_to_codes
from .gate import Tally, compare, cost_of
from .quantise import IntegerNumbers
from .reference import Reference
from .scales import Scales

Progress = Callable[[str], None]
Floats = npt.NDArray[np.float32]
SECOND = " of codes"
"""Suffix of the constants that codes stand for."""


@dataclass(frozen=True, slots=True)
class _Coded:
    """A layer: its step, the calls that run it with the weights of codes, scales of the tensors that get codes.

    `bytes_read`: those of its inputs whose codes are uint8.
    """

    step: Step
    calls: Sequence[Call]
    reads: Mapping[str, float]
    makes: Mapping[str, float]
    bytes_read: frozenset[str]


def rank_layers(scales: Scales, quick: Reference, progress: Progress) -> dict[str, float]:
    """What each layer costs when it alone is int8, in parts of the gate's limits (`Task.cost`), by node name.

    The pictures are those of `quick`. Below 0 where the rounding happens to bring the answer nearer to FP32's.
    """
    names = layers_of(scales.graph)
    runner, layers = _bound(scales, names)
    least, seen = Tally(), {name: Tally() for name in names}
    for number, (path, want) in enumerate(zip(quick.pictures, quick.wanted, strict=True)):
        quick.source.writer(path)(runner.input[0])
        _measure(runner, layers, quick, want, least, seen)
        progress(f"ranked {len(names)} layers on {number + 1} of {len(quick.pictures)} pictures")
    floor = cost_of(quick.task, least)
    return {name: cost_of(quick.task, tally) - floor for name, tally in seen.items()}


def _measure(runner: ProgramRunner, layers: Mapping[str, _Coded], quick: Reference, want: Sequence[Floats],
             least: Tally, seen: Mapping[str, Tally]) -> None:
    """Adds to the tallies what the frame in the runner's input shows."""
    arena, before = runner.binding.arena, runner.binding.arena.copy()
    runner.binding.overflows.clear()
    with np.errstate(all="ignore"):
        for index, (step, calls) in enumerate(runner.steps):
            layer = layers.get(step.name)
            if layer is not None:
                np.copyto(before, arena)
                _run_coded(runner, layer)
                for _ in runner.walk(index + 1):
                    pass
                compare(quick.task, seen[step.name], want, [output[0] for output in runner.outputs])
                np.copyto(arena, before)
            for call in calls:
                call()
    compare(quick.task, least, want, [output[0] for output in runner.outputs])


def _run_coded(runner: ProgramRunner, layer: _Coded) -> None:
    """The layer as int8 would compute it; other readers of its inputs find them as they were."""
    views = {name: runner.binding.view(name, 0) for name in layer.reads}
    kept = {name: view.copy() for name, view in views.items()}
    for name, scale in layer.reads.items():
        round_to_codes(views[name], scale, *((0, 255) if name in layer.bytes_read else (-128, 127)))
    for call in layer.calls:
        call()
    for name, view in views.items():
        if not _overlap(runner.program, name, layer.step.writes()[0]):
            np.copyto(view, kept[name])
    for name, scale in layer.makes.items():
        round_to_codes(runner.binding.view(name, 0), scale)


def _overlap(program: Program, a: str, b: str) -> bool:
    """Whether two tensors share bytes: a step may write its result over an input that nothing reads any more."""
    x, y = program.tensors[a], program.tensors[b]
    if x.offset == y.offset and x.pitch == y.pitch:
        return x.start < y.start + y.span and y.start < x.start + x.span
    return x.offset < y.offset + y.frame_bytes and y.offset < x.offset + x.frame_bytes


def _bound(scales: Scales, names: Sequence[str]) -> tuple[ProgramRunner, dict[str, _Coded]]:
    graph = _without_requantise(with_cuts(scales.graph, scales.cuts))
    scale = {**scales.scale, **{name + end: scales.scale[name] for name in scales.cuts for end in (UNCUT, CUT)}}
    programs, constants = lower(graph, [1], FloatNumbers(graph))
    _, second = lower(_weights_of_codes(graph, scales, names), [1], FloatNumbers(graph))
    runner = ProgramRunner(programs[1], {**constants, **{name + SECOND: value for name, value in second.items()}})
    coded = coded_nodes(graph)
    nodes = {node.name: node for node in graph.nodes}
    tensors = programs[1].tensors
    pixels = frozenset(_stored(info.name, programs[1]) for info in graph.inputs if scales.input.dtype == "uint8")
    layers = {}
    for step in programs[1].steps:
        if step.name not in names:
            continue
        with_codes = replace(step, **{key: getattr(step, key) + SECOND for key in ("weight", "bias")
                                      if hasattr(step, key)})
        node = nodes[step.name]
        made = {part: scale[part] for name in node.outputs if is_coded(graph, coded, name)
                for part in part_outputs(graph, name) or (name,)}
        read = {stored: scale[name] for name in node.inputs if name in scale
                and tensors[stored := _stored(name, programs[1])].dtype == "float32"}
        layers[step.name] = _Coded(step, FUNCTIONS[type(step).__name__](with_codes, runner.binding, 0), read, made,
                                   pixels)
    return runner, layers


def _stored(name: str, program: Program) -> str:
    return name + IMAGE if name + IMAGE in program.tensors else name


def _weights_of_codes(graph: Graph, scales: Scales, names: Sequence[str]) -> Graph:
    numbers = IntegerNumbers(scales)
    constants: dict[str, Floats] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "Conv" and node.name in names:
            weight = graph.constants[node.inputs[1]]
            s_x = scales.scale[node.inputs[0].removesuffix(CUT)]
            codes, s_w, bias_q = numbers.codes(node, weight, _bias(graph, node), s_x)
            side = s_w.astype(np.float64).reshape((-1,) + (1,) * (weight.ndim - 1))
            w, b = f"{node.name}/w", f"{node.name}/b"
            constants |= {w: (codes * side).astype(np.float32), b: (bias_q * s_x * s_w).astype(np.float32)}
            node = replace(node, inputs=(node.inputs[0], w, b, *node.inputs[3:]))
        nodes.append(node)
    return graph.rebuilt(nodes, constants=constants)


def _bias(graph: Graph, node: Node) -> Floats:
    named = node.inputs[2] if len(node.inputs) > 2 else ""
    return graph.constants[named] if named else np.zeros(len(graph.constants[node.inputs[1]]), dtype=np.float32)


def _without_requantise(graph: Graph) -> Graph:
    source: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        if node.op == "Requantise":
            source[node.output] = source.get(node.inputs[0], node.inputs[0])
        else:
            nodes.append(replace(node, inputs=tuple(source.get(name, name) for name in node.inputs)))
    return graph.rebuilt(nodes)
