"""What an ONNX model means, as an immutable graph: importer makes it, passes turn it into another, lowering reads it.

Tensors keep ONNX's logical shapes (N, C, H, W); nothing here knows of memory. Invariants, checked on construction:
nodes are in topological order and have names of their own, every tensor has one producer, every input is known. A
rewritten graph takes no constant in the place of another one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
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



def same_value(a: Array, b: Array) -> bool:
    """Whether two constants are of one type and shape, and equal in every number (NaN equals itself)."""
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


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
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise ModelError(f"{self.file}: two nodes are called '{node.name}'; give every node a name of its own "
                                 "and export the model again")
            names.add(node.name)
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

    def free_name(self, wanted: str, taken: Container[str] = ()) -> str:
        """`wanted`, with a number behind it where a node, tensor or constant, or one of `taken`, is called so."""
        name, count = wanted, 1
        while name in self._names or name in taken:
            count += 1
            name = f"{wanted} {count}"
        return name

    @cached_property
    def _names(self) -> frozenset[str]:
        made = (name for node in self.nodes for name in node.outputs)
        return frozenset((*self.constants, *self.tensors, *(i.name for i in self.inputs), *made,
                          *(node.name for node in self.nodes)))

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
        """A new graph with these nodes; `constants` and `tensors` are added to the known ones.

        Raises ModelError where one of `constants` has the name of another value: it would change what others read.
        """
        for name, value in (constants or {}).items():
            if not same_value(self.constants.get(name, value), value):
                raise ModelError(f"{self.file}: a pass makes the constant '{name}', which is the name of another one; "
                                 "give it another name and export the model again")
        return Graph(self.file, self.inputs if inputs is None else inputs, self.outputs, tuple(nodes),
                     {**self.constants, **(constants or {})}, {**self.tensors, **{t.name: t for t in tensors}},
                     self.input_layout if input_layout is None else input_layout)

    def float_constant(self, name: str) -> npt.NDArray[np.float64] | None:
        """A constant as float64, or None if `name` is not one."""
        value = self.constants.get(name)
        return None if value is None else np.asarray(value, dtype=np.float64)
