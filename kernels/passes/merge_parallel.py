"""Pass: convolutions of one input with one geometry and one bound become one convolution with the channels of all.

Caller: `build.py`, after scales are found (`merged_scales`) and for float programs; the input is read once and launches
are saved. The parts are views of the whole (`channel_map.py`) and cost nothing. Each part keeps its own INT8 scale: a
multiplier belongs to a channel anyway (CONTRACT.md), so the codes are the same bits as before. Not merged, since it
would gain nothing: a part that a Concat of the body would have had made in place, which would become a copy; and parts
of the float tail, unless all of them only meet again in one Concat, which then goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..ir.graph import Array, Graph, Node, TensorInfo
from .grids import joined_grids, without_grids
from .islands import coded_nodes

GEOMETRY = ("kernel_shape", "strides", "pads", "dilations")
BOUNDS = ((None, None), (0.0, None))
"""Bounds whose codes do not depend on a tensor's scale."""


def merge_parallel(graph: Graph) -> Graph:
    """The same function; Split nodes with the attribute `parts` follow the merged convolutions."""
    coded = coded_nodes(graph)
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        key = _key(graph, node, coded)
        if key is not None:
            groups.setdefault(key, []).append(node)
    at: dict[str, tuple[Node, ...]] = {}                     # first member's name -> what stands in its place
    gone: set[str] = set()
    made: set[str] = set()                                   # names of what is added
    constants: dict[str, Array] = {}
    tensors: list[TensorInfo] = []
    for members in groups.values():
        if len(members) < 2:
            continue
        join = graph.only_consumer(members[0].output)
        if join is not None and join.op == "Concat":
            if not _meets_again(graph, members, join):
                continue
            order = {name: i for i, name in enumerate(join.inputs)}
            ordered = sorted(members, key=lambda node: order[node.output])
            at[members[0].name] = (_whole(graph, ordered, join.output, constants, made),)
            gone.add(join.name)
        else:
            name = graph.free_name("+".join(node.output for node in members), made)
            made.add(name)
            whole = _whole(graph, members, name, constants, made)
            sizes, split = (graph.free_name(f"{whole.name}/{what}", made) for what in ("sizes", "parts"))
            made.update((sizes, split))
            constants[sizes] = np.array([graph.shape(node.output)[1] for node in members])
            tensors.append(TensorInfo(name, (1, int(constants[sizes].sum()), *graph.shape(members[0].output)[2:])))
            at[members[0].name] = (whole, Node(split, "Split", (name, sizes),
                                               tuple(node.output for node in members), {"axis": 1, "parts": True}))
        gone.update(node.name for node in members)
    if not at:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += at.get(node.name, () if node.name in gone else (node,))
    return graph.rebuilt(nodes, constants=constants, tensors=tensors)


def part_outputs(graph: Graph, name: str) -> tuple[str, ...]:
    """The parts of a merged convolution's output, in the order of its channels; empty for any other tensor."""
    for reader in graph.consumers.get(name, ()):
        if reader.op == "Split" and reader.attrs.get("parts"):
            return reader.outputs
    return ()


def _key(graph: Graph, node: Node, coded: frozenset[str]) -> tuple[object, ...] | None:
    """What convolutions must have in common to be merged; None for a node that stays as it is."""
    bounds = node.attrs.get("bounds", (None, None))
    if node.op != "Conv" or node.name not in coded or node.output in graph.outputs or bounds not in BOUNDS:
        return None
    if node.attrs["group"] != 1 or node.attrs.get("activation") or len(node.inputs) > 3:
        return None
    readers = graph.consumers.get(node.output, ())
    joined = readers[0].name if len(readers) == 1 and readers[0].op == "Concat" else ""
    if not joined and not (readers and all(reader.name in coded and reader.op != "Concat" for reader in readers)):
        return None
    return (node.inputs[0], *(node.attrs[key] for key in GEOMETRY), bounds, joined)


def _meets_again(graph: Graph, members: Sequence[Node], join: Node) -> bool:
    """Whether a Concat of channels joins the members, each once, and nothing else."""
    return join.op == "Concat" and join.attrs["axis"] % 4 == 1 and len(join.inputs) == len(members) \
        and {node.output for node in members} == set(join.inputs)


def _whole(graph: Graph, members: Sequence[Node], output: str, constants: dict[str, Array], made: set[str]) -> Node:
    """The convolution that makes the channels of all; its names are not in the graph yet, and are added to `made`."""
    name = graph.free_name("+".join(node.name for node in members), made)
    weight_name, bias_name = (graph.free_name(f"{name}/{what}", made) for what in ("weight", "bias"))
    made.update((name, weight_name, bias_name))
    first = members[0]
    weights = [graph.constants[node.inputs[1]] for node in members]
    constants[weight_name] = np.concatenate(weights)
    constants[bias_name] = np.concatenate([
        graph.constants[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else
        np.zeros(len(weight), dtype=np.float32) for node, weight in zip(members, weights, strict=True)])
    return replace(first, name=name, inputs=(first.inputs[0], weight_name, bias_name), outputs=(output,),
                   attrs={**without_grids(first), **joined_grids(members)})
