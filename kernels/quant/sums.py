"""A table that goes into a sum, taken apart from it where the sum's scale would cut the table's values.

Callers: `views.py`, `coding.py`. CONTRACT.md fuses convolution, table and sum with the table in the sum's scale: right
as long as the sum reaches as far as the table. Where the other term cancels what the table gives, or a pair cuts the
sum, the table gets a scale of its own and the sum is one of two scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..ir.graph import Array, Graph, Node, TensorInfo
from ..passes.fuse_convolutions import POST, PRE, SUM
from ..passes.release_pairs import OF_PAIR, ends_of_clip
from .calibrate import Histogram, best_scale
from .scales import LARGEST_LOSS_DB, Scales, loss_db

FUSED_ONLY = (SUM, "bounds")
FUSED_PARTS = (*FUSED_ONLY, "activation", "activation_attrs", "pre", PRE, POST, OF_PAIR)


def saturates(table: Histogram, scale: float, method: str) -> bool:
    """Whether the values of a table lose by a sum's `scale` because they reach further."""
    return best_scale(table, method) > scale and loss_db(table, scale, method) > LARGEST_LOSS_DB


def taken_apart(graph: Graph, node: Node, name: str, constants: dict[str, Array]) -> tuple[list[Node],
                                                                                        list[TensorInfo]]:
    """Convolution with table, giving the tensor `name`; sum; Clip where there was one: the same function."""
    fused = node.attrs[SUM]
    attrs = {key: value for key, value in node.attrs.items() if key not in FUSED_ONLY}
    copy = node.output if "bounds" not in node.attrs else f"{name}/{fused.total}"
    nodes = [replace(node, inputs=node.inputs[:3], outputs=(name,), attrs=attrs),
             Node(f"{name}/{fused.add}", "Add", (name, node.inputs[3]), (copy,))]
    if "bounds" in node.attrs:
        ends = ends_of_clip(graph, name, node.attrs["bounds"], constants)
        nodes.append(Node(f"{name}/bounds", "Clip", (copy, *ends), node.outputs))
    shape = graph.shape(node.inputs[3])
    return nodes, [TensorInfo(new, shape) for new in (name, copy)]


def in_float(graph: Graph, node: Node, shape: tuple[int, ...],
             constants: dict[str, Array]) -> tuple[list[Node], list[TensorInfo]]:
    """What was fused into a convolution, whose output has this shape, as nodes of their own: codes take it in, a
    float32 output does not."""
    a = node.attrs
    parts: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []

    def clip(key: str) -> None:
        if key in a:
            parts.append(("Clip", ends_of_clip(graph, f"{node.name}/{key}", a[key], constants), {}))
    clip(PRE)
    if "activation" in a:
        parts.append((a["activation"], (), dict(a["activation_attrs"])))
    clip(POST)
    parts += [("Add", (name,), {}) for name in node.inputs[3:]]
    clip("bounds")
    names = [graph.free_name(f"{node.output}@sums{i or ''}") for i in range(len(parts))] + [node.output]
    made = [replace(node, inputs=node.inputs[:3], outputs=(names[0],),
                    attrs={key: value for key, value in a.items() if key not in FUSED_PARTS})]
    made += [Node(f"{node.name}/float{i}", op, (names[i], *more), (names[i + 1],), attrs)
             for i, (op, more, attrs) in enumerate(parts)]
    return made, [TensorInfo(name, shape) for name in names[:-1]]


def without_cut_tables(scales: Scales, ranges: Mapping[str, Histogram], method: str) -> Scales:
    """Calibrated scales: each table that reaches further than its sum has one of its own.

    Where a method cuts off rare values of the sum, those of the table go with them: that is no loss.
    """
    graph, nodes = scales.graph, []
    constants: dict[str, Array] = {}
    tensors: list[TensorInfo] = []
    added: dict[str, float] = {}
    for node in graph.nodes:
        table = ranges.get(node.attrs[SUM].table) if SUM in node.attrs else None
        scale = scales.scale.get(node.output)
        if table is None or scale is None \
                or not saturates(table, max(scale, ranges[node.output].largest / 127), method):
            nodes.append(node)
            continue
        name = node.attrs[SUM].table
        parts, infos = taken_apart(graph, node, name, constants)
        nodes += parts
        tensors += infos
        added |= {info.name: scale for info in infos} | {name: best_scale(table, method)}
    if not added:
        return scales
    group = {name: scales.group.get(name, name) for name in added}
    return replace(scales, graph=graph.rebuilt(nodes, constants=constants, tensors=tensors),
                   scale={**scales.scale, **added}, group={**scales.group, **group})
