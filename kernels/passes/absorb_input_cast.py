"""Pass: a uint8 graph input that is cast to float32 only for convolutions is read by them directly.

Caller: `pipeline.py`. Integers 0..255 are exact in float32, and a uint8 input of scale 1 is what INT8 wants.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph


def absorb_input_cast(graph: Graph) -> Graph:
    source = graph.inputs[0]
    casts = {node.output: node for node in graph.nodes if node.op == "Cast" and node.inputs == (source.name,)
             and source.dtype == "uint8" and node.attrs["to"] == "float32" and node.output not in graph.outputs
             and all(reader.op == "Conv" for reader in graph.consumers.get(node.output, ()))}
    return graph.rebuilt(
        replace(node, inputs=(source.name, *node.inputs[1:])) if node.inputs[0] in casts else node
        for node in graph.nodes if node.output not in casts)
