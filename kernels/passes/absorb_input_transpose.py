"""Pass: a graph input in NHWC followed by a Transpose to NCHW becomes an NCHW input (programs are NHWC anyway).

Caller: `pipeline.py`. Arithmetic with constants may stand before the Transpose (TensorFlow's exporters normalise in the
graph): it is done in NCHW then, unless a constant widens the input, whose shape is what users give.
`Graph.input_layout` remembers how the ONNX file orders its input, for those who feed the ONNX model itself
(`verify --onnx`).
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Array, Graph, Node, TensorInfo

BEFORE = frozenset({"Add", "Sub", "Mul", "Div", "Cast", "Clip", "Relu"})


def absorb_input_transpose(graph: Graph) -> Graph:
    source = graph.inputs[0]
    if len(source.shape) != 4:
        return graph
    chain: list[Node] = []
    name = source.name
    while True:
        readers = graph.consumers.get(name, ())
        if name in graph.outputs or len(readers) != 1:
            return graph
        node = readers[0]
        if node.op == "Transpose":
            break
        if node.op not in BEFORE or graph.shape(node.output) != source.shape \
                or any(_turned(graph, i) is None for i in node.inputs if i and i != name):
            return graph
        chain.append(node)
        name = node.output
    if tuple(node.attrs["perm"]) != (0, 3, 1, 2) or node.output in graph.outputs:
        return graph
    shape = graph.shape(node.output)
    infos = [TensorInfo(n, shape, (source if n == source.name else graph.tensors[n]).dtype)
             for n in (source.name, *(before.output for before in chain))]
    constants: dict[str, Array] = {}
    moved = {before.name: _moved(before, graph, constants) for before in chain}
    nodes = [moved.get(n.name) or replace(n, inputs=tuple(name if i == node.output else i for i in n.inputs))
             for n in graph.nodes if n is not node]
    return graph.rebuilt(nodes, constants=constants, tensors=infos, inputs=(infos[0],), input_layout="nhwc")


def _turned(graph: Graph, name: str) -> Array | None:
    """A constant of NHWC arithmetic for NCHW: the same for one value, (1, C, 1, 1) for one a channel; else None."""
    value = graph.constants.get(name)
    if value is None or value.size == 1:
        return value
    return value.reshape(1, -1, 1, 1) if value.size == value.shape[-1] else None


def _moved(node: Node, graph: Graph, constants: dict[str, Array]) -> Node:
    inputs = []
    for i in node.inputs:
        value = _turned(graph, i) if i else None
        if value is not None and value.size > 1:
            i = graph.free_name(f"{node.name}/{i} as NCHW", constants)
            constants[i] = value
        inputs.append(i)
    return replace(node, inputs=tuple(inputs))
