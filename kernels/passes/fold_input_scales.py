"""Pass: a Mul or Div by one number a channel in front of convolutions goes into their weights. Caller: `pipeline.py`.

What a model does to its pixels first (x / 255) would else be a layer of its own at full size. Only factors: a shift
in front of a padded convolution is not the same at the border. Products in float64, rounded once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir.graph import Array, Graph, Node
from .fold_scales import Doubles, per_channel
from .grids import scaled_grid

LARGEST_RATIO = 4.0


def _alike(gain: Doubles) -> bool:
    """Whether one INT8 scale an output channel still suits the weights of all input channels."""
    size = np.abs(gain)
    return bool(np.isfinite(size).all() and size.max() <= LARGEST_RATIO * size.min())


def fold_input_scales(graph: Graph) -> Graph:
    gone: dict[str, tuple[str, Doubles]] = {}                  # tensor -> (tensor that is multiplied, factors)
    for node in reversed(graph.nodes):
        found = per_channel(graph, node)
        if found is None or found[2].any() or node.output in graph.outputs or not _alike(found[1]):
            continue
        source = graph.producers.get(found[0])
        if source is not None and source.op in ("Conv", "BatchNormalization"):
            continue                                           # it goes into the convolution behind which it stands
        readers = graph.consumers.get(node.output, ())
        if readers and all((reader.op == "Conv" and node.output not in reader.inputs[1:]) or reader.output in gone
                           for reader in readers):
            gone[node.output] = found[:2]
    if not gone:
        return graph
    constants: dict[str, Array] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op == "Conv" and node.inputs[0] in gone:
            weight, groups = graph.constants[node.inputs[1]].astype(np.float64), node.attrs["group"]
            source_name, gain = node.inputs[0], np.ones(weight.shape[1] * groups)
            while source_name in gone:
                source_name, factors = gone[source_name]
                gain = gain * factors
            side = gain.reshape(groups, weight.shape[1]).repeat(len(weight) // groups, 0)
            name = graph.free_name(f"{node.name}/weight*factor", constants)
            constants[name] = (weight * side.reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2))).astype(np.float32)
            attrs = scaled_grid(node, np.full(len(weight), gain[0]))      # checked again where codes are made
            node = replace(node, inputs=(source_name, name, *node.inputs[2:]), attrs=attrs)
        if node.output not in gone:
            nodes.append(node)
    return graph.rebuilt(nodes, constants=constants)
