"""What a normaliser may ask for and add: constants, shapes and types by name. Callers: this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.errors import UnsupportedModel, refuse
from ..ir.graph import Node

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """What a dequantised constant was: its scale, or one along `axis` (float64), and its codes less the zero point."""

    scale: Array
    axis: int
    codes: Array


@dataclass(frozen=True)
class Code:
    """How a computed tensor is coded between a QuantizeLinear and its DequantizeLinear."""

    scale: float
    zero: int
    dtype: str


class Context:
    """`constants`, `shapes` and `dtypes` grow as the graph is read; `version` is the node's since_version."""

    def __init__(self, file: str, opset: int, constants: dict[str, Array]) -> None:
        self.file = file
        self.opset = opset
        self.version = 0
        self.constants = constants
        self.shapes: dict[str, Shape] = {name: tuple(value.shape) for name, value in constants.items()}
        self.dtypes: dict[str, str] = {name: value.dtype.name for name, value in constants.items()}
        self.grids: dict[str, Grid] = {}               # constants that were dequantised
        self.coded: dict[str, Code] = {}               # computed tensors between the two nodes of a pair
        self.pairs: dict[tuple[str, Code], str] = {}   # (tensor, code) -> the QuantizeLinear's output

    def keep(self, name: str, value: Array) -> None:
        """A tensor whose value is known."""
        self.constants[name] = value
        self.declare(name, tuple(value.shape), value.dtype.name)

    def declare(self, name: str, shape: Shape, dtype: str) -> None:
        self.shapes[name] = shape
        self.dtypes[name] = dtype

    def add(self, node: Node, what: str, value: Array) -> str:
        """A constant of our own behind a node's name; returns its name, which nothing else has."""
        wanted = name = f"{node.name}/{what}"
        count = 1
        while name in self.shapes:
            count += 1
            name = f"{wanted} {count}"
        self.keep(name, value)
        return name

    def constant(self, node: Node, index: int, what: str) -> Array | None:
        """Input `index` as an array; None if it is left out; refused if it is computed at run time."""
        if index >= len(node.inputs) or not node.inputs[index]:
            return None
        value = self.constants.get(node.inputs[index])
        if value is None:
            raise self.refuse(node, f"its {what} is computed at run time", "export with fixed shapes and constants")
        return value

    def shape(self, node: Node, index: int = 0) -> Shape:
        """Shape of input `index`; refused if the node lacks it."""
        if index >= len(node.inputs) or not node.inputs[index]:
            raise self.refuse(node, f"has no input {index}", "the file is damaged: export the model again")
        return self.shapes[node.inputs[index]]

    def axis(self, node: Node, axis: object, rank: int) -> int:
        """`axis` counted from the front; refused unless -rank <= axis < rank."""
        if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
            raise self.refuse(node, f"axis {axis} of a tensor of {rank} dimensions", "export the model again")
        return int(axis) % rank

    def finite(self, node: Node) -> None:
        """Refuses weights (all inputs but the first) with NaN or infinity."""
        for name in node.inputs[1:]:
            value = self.constants.get(name)
            if value is not None and value.dtype.kind == "f" and not np.isfinite(value).all():
                raise self.refuse(node, f"its weights '{name}' hold NaN or infinity", "train or export the model again")

    def refuse(self, node: Node, why: str, remedy: str) -> UnsupportedModel:
        return refuse(self.file, node.name, node.op, why, remedy)
