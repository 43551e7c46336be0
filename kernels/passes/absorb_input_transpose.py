"""Pass: a graph input in NHWC followed by a Transpose to NCHW becomes an NCHW input (programs are NHWC anyway).

Caller: `pipeline.py`. `Graph.input_layout` remembers how the ONNX file orders its input, for those who feed the ONNX
model itself (`verify --onnx`).
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, TensorInfo


def absorb_input_transpose(graph: Graph) -> Graph:
    source = graph.inputs[0]
    readers = graph.consumers.get(source.name, ())
    if len(source.shape) != 4 or source.name in graph.outputs or len(readers) != 1:
        return graph
    node = readers[0]
    if node.op != "Transpose" or tuple(node.attrs["perm"]) != (0, 3, 1, 2) or node.output in graph.outputs:
        return graph
    info = TensorInfo(source.name, graph.shape(node.output), source.dtype)
    nodes = [replace(n, inputs=tuple(source.name if i == node.output else i for i in n.inputs))
             for n in graph.nodes if n is not node]
    return graph.rebuilt(nodes, tensors=[info], inputs=(info,), input_layout="nhwc")
