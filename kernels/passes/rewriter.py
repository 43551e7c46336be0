"""Writes a graph anew, node by node, with names of its own for what it adds. Callers: passes that replace nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..ir.graph import Array, Graph, Node, TensorInfo

Shape = tuple[int, ...]


class Rewriter:
    """Collects nodes, constants and tensors of a new graph; `add` names what it makes after `node`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.node = Node("", "", (), ("",))
        self.count = 0
        self.made: set[str] = set()

    def free(self, wanted: str) -> str:
        """A name that neither the graph nor what was added has."""
        name = self.graph.free_name(wanted, self.made)
        self.made.add(name)
        return name

    def shape(self, name: str) -> Shape:
        if name in self.tensors:
            return self.tensors[name].shape
        return tuple(self.constants[name].shape) if name in self.constants else self.graph.shape(name)

    def constant(self, value: Array) -> str:
        self.count += 1
        name = self.free(f"{self.node.name}/value {self.count}")
        self.constants[name] = value
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def add(self, op: str, inputs: tuple[str, ...], shape: Shape, last: bool = False, named: str = "",
            **attrs: object) -> str:
        """`last`: makes the output of the node that is replaced. `named`: a name for the output, if it is free."""
        self.count += 1
        output = self.node.output if last else self.free(f"{self.node.name}/{op} {self.count}")
        name = self.node.name if last else output
        if named and not last:
            output = self.free(named)
        self.nodes.append(Node(name, op, inputs, (output,), attrs))
        if not last:
            self.tensors[output] = TensorInfo(output, shape)
        return output

    def rename(self, made: str, name: str) -> None:
        """The tensor that the last node made gets the name of an output of the node that is replaced."""
        self.nodes[-1] = replace(self.nodes[-1], outputs=(name,))
        del self.tensors[made]

    def reshape(self, x: str, shape: Shape, last: bool = False) -> str:
        return self.add("Reshape", (x, self.constant(np.array(shape, dtype=np.int64))), shape, last)

    def finish(self) -> Graph:
        return self.graph.rebuilt(self.nodes, constants=self.constants, tensors=self.tensors.values())
