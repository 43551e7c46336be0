"""Pass: zeros around an image become the pads of the convolution behind; zero channels by Concat become a Pad.

Caller: `pipeline.py`. A Pad in front of a pooling stays: its zeros are values there, the pool's own border is not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir.graph import Array, Graph, Node


def _full_pads(graph: Graph, node: Node) -> list[int] | None:
    """(begin..., end...) over all four axes of a zero Pad; None where it is another Pad."""
    value = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if node.op != "Pad" or len(graph.shape(node.output)) != 4 or (value is not None and value.any()):
        return None
    full: list[int] = graph.constants[node.inputs[1]].tolist()
    return full if min(full) >= 0 and not node.attrs else None


def absorb_pads(graph: Graph) -> Graph:
    return _into_convolutions(_from_zero_concat(graph))


def _into_convolutions(graph: Graph) -> Graph:
    nodes = []
    for node in graph.nodes:
        source = graph.producers.get(node.inputs[0]) if node.op == "Conv" else None
        full = _full_pads(graph, source) if source is not None else None
        if source is not None and full is not None and full[:2] == full[4:6] == [0, 0]:
            pads = tuple(p + extra for p, extra in zip(node.attrs["pads"], (*full[2:4], *full[6:8]), strict=True))
            node = replace(node, inputs=(source.inputs[0], *node.inputs[1:])).with_attrs(pads=pads)
        nodes.append(node)
    return graph.rebuilt(nodes)


def _from_zero_concat(graph: Graph) -> Graph:
    nodes = []
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        live = [name for name in node.inputs if name not in graph.constants]
        zeros = node.op == "Concat" and node.attrs["axis"] % 4 == 1 and len(graph.shape(node.output)) == 4 \
            and len(live) == 1 and not any(graph.constants[n].any() for n in node.inputs if n not in live)
        if zeros:
            at = node.inputs.index(live[0])
            before = sum(graph.shape(name)[1] for name in node.inputs[:at])
            after = sum(graph.shape(name)[1] for name in node.inputs[at + 1:])
            pads = graph.free_name(f"{node.name}/pads", constants)
            constants[pads] = np.array([0, before, 0, 0, 0, after, 0, 0], dtype=np.int64)
            node = Node(node.name, "Pad", (live[0], pads), node.outputs)
        nodes.append(node)
    return graph.rebuilt(nodes, constants=constants)
