"""Pass: BatchNormalization after a convolution goes into its weights; elsewhere it becomes a depthwise 1x1 convolution.

Caller: `pipeline.py`. The products are formed in float64 and rounded once to float32.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Array, Graph, Node
from .grids import scaled_grid


def fold_batchnorm(graph: Graph) -> Graph:
    """The same function."""
    nodes: dict[str, Node] = {}
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        nodes[node.name] = node
        if node.op != "BatchNormalization" or len(graph.shape(node.inputs[0])) != 4:
            continue
        parameters = [graph.float_constant(name) for name in node.inputs[1:5]]
        if any(p is None for p in parameters):
            continue
        scale, shift, mean, variance = (p for p in parameters if p is not None)
        gain = scale / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        key = graph.producers[node.inputs[0]].name if node.inputs[0] in graph.producers else ""
        before = nodes.get(key)
        if before is not None and before.op == "Conv" and graph.only_consumer(before.output) is node:
            known = {**graph.constants, **constants}
            weight = known[before.inputs[1]].astype(np.float64) * gain[:, None, None, None]
            bias = (known[before.inputs[2]].astype(np.float64)
                    if len(before.inputs) > 2 and before.inputs[2] else np.zeros(len(gain)))
            del nodes[key]
            name, source, attrs = before.name, before.inputs[0], scaled_grid(before, gain)
        else:
            weight, bias = gain[:, None, None, None], np.zeros(len(gain))
            name, source = node.name, node.inputs[0]
            attrs = {"group": len(gain), "kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0),
                     "dilations": (1, 1)}
        made = [graph.free_name(f"{name}/{what}+bn", constants) for what in ("weight", "bias")]
        constants[made[0]] = weight.astype(np.float32)
        constants[made[1]] = (shift + (bias - mean) * gain).astype(np.float32)
        nodes[node.name] = Node(name, "Conv", (source, *made), node.outputs, attrs)
    return graph.rebuilt(nodes.values(), constants=constants)
