"""Pass: Gemm and MatMul by a constant become Conv, with the Flatten in front absorbed into the kernel.

Caller: `pipeline.py`. So every multiply-accumulate has one form. A Flatten of (1, C, H, W) becomes an H x W kernel; an
activation behind a Reshape is moved in front of it, so that a chain of dense layers stays an image of 1 x 1.
"""

from __future__ import annotations

import numpy as np

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import Array, Graph, Node, TensorInfo
from .grids import grids

FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})
MOVED = frozenset(ACTIVATIONS) | {"Clip", "Identity", "Dropout"}
PLAIN = {"group": 1, "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.images: dict[str, str] = {}           # (1, K) tensor -> the four-dimensional tensor it flattens
        self.tensors: dict[str, TensorInfo] = dict(graph.tensors)
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.made: set[str] = set()

    def free(self, wanted: str) -> str:
        name = self.graph.free_name(wanted, self.made)
        self.made.add(name)
        return name

    def constant(self, wanted: str, value: Array) -> str:
        name = self.free(wanted)
        self.constants[name] = value
        return name

    def flatten(self, node: Node, image: str) -> None:
        """`node.output` as a Reshape of `image`."""
        shape = self.constant(f"{node.name}/shape", np.array(self.tensors[node.output].shape, dtype=np.int64))
        self.nodes.append(Node(self.free(f"{node.name}/flatten"), "Reshape", (image, shape), node.outputs))
        self.images[node.output] = image

    def image(self, wanted: str, shape: tuple[int, ...]) -> str:
        name = self.free(wanted)
        self.tensors[name] = TensorInfo(name, shape)
        return name

    def as_convolution(self, node: Node, weight: Array, bias: Array | None) -> None:
        """`weight` is (M, K)."""
        source = self.images.get(node.inputs[0])
        if source is None:
            source = self.image(f"{node.inputs[0]}/image:{node.name}", (1, weight.shape[1], 1, 1))
            shape = self.constant(f"{node.name}/image", np.array((1, weight.shape[1], 1, 1), dtype=np.int64))
            self.nodes.append(Node(self.free(f"{node.name}/unflatten"), "Reshape", (node.inputs[0], shape), (source,)))
        _, channels, height, width = self.tensors[source].shape
        inputs = [source, self.constant(f"{node.name}/weight",
                                        weight.reshape(-1, channels, height, width).astype(np.float32))]
        if bias is not None:
            each = np.broadcast_to(bias.reshape(-1), (len(weight),)).astype(np.float32)
            inputs.append(self.constant(f"{node.name}/bias", each))
        y = self.image(f"{node.output}/image", (1, len(weight), 1, 1))
        self.nodes.append(Node(node.name, "Conv", tuple(inputs), (y,),
                               {**PLAIN, "kernel_shape": (height, width), **grids(node)}))
        self.flatten(node, y)


def dense_as_convolution(graph: Graph) -> Graph:
    if not any(node.op in ("Gemm", "MatMul") for node in graph.nodes):
        return graph
    out = _Rewriter(graph)
    for node in graph.nodes:
        shape = graph.shape(node.inputs[0]) if node.inputs and node.inputs[0] else ()
        target = graph.shape(node.output)
        if node.op in FLATTENING and len(shape) == 4 and target == (1, int(np.prod(shape))):
            out.images[node.output] = node.inputs[0]
            out.nodes.append(node)
        elif node.op in MOVED and node.inputs[0] in out.images:
            image = out.images[node.inputs[0]]
            y = out.image(f"{node.output}/image", out.tensors[image].shape)
            out.nodes.append(Node(node.name, node.op, (image, *node.inputs[1:]), (y,), node.attrs))
            out.flatten(node, y)
        elif node.op == "Gemm":
            weight = graph.constants[node.inputs[1]].astype(np.float64) * node.attrs.get("alpha", 1.0)
            bias = None
            if len(node.inputs) > 2 and node.inputs[2]:
                bias = graph.constants[node.inputs[2]].astype(np.float64) * node.attrs.get("beta", 1.0)
            out.as_convolution(node, weight if node.attrs.get("transB") else weight.T, bias)
        elif node.op == "MatMul" and node.inputs[1] in graph.constants and len(shape) == 2 \
                and shape[0] == 1 and len(graph.shape(node.inputs[1])) == 2:
            out.as_convolution(node, graph.constants[node.inputs[1]].T, None)
        else:
            out.nodes.append(node)
    return graph.rebuilt(out.nodes, constants=out.constants, tensors=out.tensors.values())
