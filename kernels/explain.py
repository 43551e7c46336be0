"""`orind build --explain MODEL.onnx`: everything that keeps a model from being built, at once, and nothing is built.

Caller: the command line. First what the importer refuses, node by node; if that is nothing, what lowering refuses.
For a quantised model the summary says what becomes of its scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .importer.onnx_model import NO_SHAPES, import_model, parse
from .ir.errors import ModelError, UnsupportedModel
from .ir.graph import Graph
from .passes.float_ends import float_ends
from .passes.lower import lower
from .passes.lower_f32 import FloatNumbers
from .passes.merge_parallel import merge_parallel
from .passes.pipeline import fuse, prepare
from .passes.release_pairs import quantised_by_file, release_pairs
from .quant.half import mixed_numbers
from .quant.imported import scales_of_file
from .quant.parts import merged_scales
from .quant.scales import InputCode


@dataclass(frozen=True, slots=True)
class Explanation:
    """`problems`: one sentence each, with file, node, operator and remedy. `summary`: what would be built in FP32."""

    problems: tuple[str, ...]
    summary: str


def explain(path: Path, shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES) -> Explanation:
    """Never raises ModelError: what it says becomes a problem."""
    problems: list[str] = []
    try:
        graph = import_model(parse(path), path, shapes, problems=problems)
        if problems:
            return Explanation(tuple(problems), f"{path.name}: {_count(problems)}")
        fused = merge_parallel(fuse(prepare(graph)))
        programs, _ = lower(fused, [1], FloatNumbers(fused), problems)
    except ModelError as error:
        problems.append(str(error))
    if problems:
        return Explanation(tuple(dict.fromkeys(problems)), f"{path.name}: {_count(problems)}")
    quantised = f"; {_of_file(graph, problems)}" if quantised_by_file(graph) else ""
    if problems:
        return Explanation(tuple(dict.fromkeys(problems)), f"{path.name}: {len(graph.nodes)} nodes; FP32 can be built, "
                           f"INT8 has {_count(problems)}{quantised}")
    return Explanation((), f"{path.name}: {len(graph.nodes)} nodes, {len(fused.nodes)} after the passes, "
                           f"{len(programs[1].steps)} steps in FP32{quantised}; no problems")


def _count(problems: list[str]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def _of_file(graph: Graph, problems: list[str]) -> str:
    """What INT8 makes of the scales that a model brings along; what lowering with them refuses goes to `problems`."""
    try:
        released, ranges = release_pairs(graph, tables=True)
        fused = fuse(float_ends(prepare(released)))
        scales, facts = scales_of_file(fused, ranges, InputCode(graph.inputs[0].dtype, 1.0), dict, "mse")
    except UnsupportedModel as error:
        return f"quantised already; {str(error).removeprefix(f'{graph.file}: ')}"
    try:
        merged, numbers = mixed_numbers(merged_scales(scales), ())
        lower(merged, [1], numbers, problems)
    except UnsupportedModel as error:
        problems.append(str(error))
    said = (f"quantised already: {facts['scales_kept']} scales kept, {facts['scales_coded_again']} coded again; INT8 "
            "needs no pictures")
    if facts["assumed"]:
        said += f", which would say whether {', '.join(facts['assumed'][:5])} stay in their pairs' ranges"
    return said
