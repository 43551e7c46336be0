"""What an ONNX model means, as an immutable graph: importer makes it, passes turn it into another, lowering reads it.

Tensors keep ONNX's logical shapes (N, C, H, W); nothing here knows of memory. Invariants, checked on construction:
nodes are in topological order, every tensor has one producer, every input is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ModelError

Array = npt.NDArray[Any]

MAC_OPS = frozenset({"Conv"})
"""Multiply-accumulates after `dense_as_convolution`: Gemm and MatMul by a constant have become Conv."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Logical shape (ONNX order, all sizes known) and NumPy dtype name of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Node:
    """One operator. Operators have ONNX's names and meaning, plus those listed in `reference.py`."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    @property
    def output(self) -> str:
        return self.outputs[0]

    def with_attrs(self, **attrs: Any) -> Node:
        return replace(self, attrs={**self.attrs, **attrs})


@dataclass(frozen=True)
class Graph:
    """`file` is the model's file name, for messages. `input_layout` says how the ONNX file orders each graph input."""

    file: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    tensors: Mapping[str, TensorInfo]
    input_layout: str = "as-is"

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        known = {i.name for i in self.inputs} | set(self.constants)
        for node in self.nodes:
            for name in node.inputs:
                if name and name not in known:
                    raise ModelError(f"{self.file}: node '{node.name}' ({node.op}) reads '{name}', which nothing "
                                     "before it makes: the graph has a cycle or lacks a tensor; export the model again")
            for name in node.outputs:
                if name and name in known:
                    raise ModelError(f"{self.file}: node '{node.name}' ({node.op}) makes '{name}' a second time; "
                                     "export the model again")
                known.add(name)
        for name in self.outputs:
            if name not in known:
                raise ModelError(f"{self.file}: graph output '{name}' is made by no node; export the model again")

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.constants:
            return tuple(self.constants[name].shape)
        return self.tensors[name].shape

    def only_consumer(self, name: str) -> Node | None:
        """The node that alone reads `name`, or None if several do or it is a graph output."""
        nodes = self.consumers.get(name, ())
        return nodes[0] if len(nodes) == 1 and name not in self.outputs else None

    @cached_property
    def body(self) -> frozenset[str]:
        """Names of the nodes with a multiply-accumulate at or after them; all others are the float tail (CONTRACT)."""
        leads: set[str] = set()
        names: set[str] = set()
        for node in reversed(self.nodes):
            if node.op in MAC_OPS or any(out in leads for out in node.outputs):
                names.add(node.name)
                leads.update(node.inputs)
        return frozenset(names)

    def rebuilt(self, nodes: Iterable[Node], *, constants: Mapping[str, Array] | None = None,
                tensors: Iterable[TensorInfo] = (), inputs: tuple[TensorInfo, ...] | None = None,
                input_layout: str | None = None) -> Graph:
        """A new graph with these nodes; `constants` and `tensors` are added to the known ones."""
        return Graph(self.file, self.inputs if inputs is None else inputs, self.outputs, tuple(nodes),
                     {**self.constants, **(constants or {})}, {**self.tensors, **{t.name: t for t in tensors}},
                     self.input_layout if input_layout is None else input_layout)

    def float_constant(self, name: str) -> npt.NDArray[np.float64] | None:
        """A constant as float64, or None if `name` is not one."""
        value = self.constants.get(name)
        return None if value is None else np.asarray(value, dtype=np.float64)
