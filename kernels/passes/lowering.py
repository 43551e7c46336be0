"""The state of one lowering: layouts, channel map, tensors, steps and packed constants; arena offsets at the end.

Callers: `lower.py`, which drives it, and the emitters (`lower_images.py`, `lower_flat.py`, a precision's `Numbers`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..ir.errors import UnsupportedModel, refuse
from ..ir.graph import Graph, Node, same_value
from ..ir.lifetimes import joined
from ..ir.program import ALIGN, Program, Tensor
from ..ir.steps import Step
from ..plan.layout import OWN
from .arena import place
from .channel_map import ChannelMap, map_channels
from .layouts import PADDED, Layouts, assign_layouts

Array = npt.NDArray[Any]


class Numbers(Protocol):
    """What a precision decides."""

    def dtype(self, node: Node, name: str, body_reads: bool) -> str:
        """Type of the image `name` made by `node` (not asked for nodes in KEEPS_TYPE)."""

    def input_dtype(self, dtype: str) -> str:
        """Type of the graph input whose ONNX type is `dtype`."""

    def scale(self, name: str) -> float:
        """Real value of one code of the integer image `name`."""

    def emit(self, node: Node, lowering: Lowering) -> Step:
        """The step of an image node other than those in KEEPS_TYPE; adds its constants to `lowering`."""


class Lowering:
    """The state of one lowering; `tensors` have no offsets yet, `constants` go into the plan."""

    def __init__(self, graph: Graph, numbers: Numbers) -> None:
        self.layouts: Layouts = assign_layouts(graph)
        self.graph = self.layouts.graph
        self.numbers = numbers
        self.map: ChannelMap = map_channels(self.graph, self.layouts.image_nodes, self.layouts.images,
                                            [i.name for i in graph.inputs])
        self.constants: dict[str, Array] = {}
        self.tensors: dict[str, Tensor] = {}
        self.steps: list[Step] = []
        for info in graph.inputs:
            dtype = numbers.input_dtype(info.dtype)
            self.declare(info.name, dtype, exact=True)       # every executor is given the same bits

    def refuse(self, node: Node, why: str, remedy: str) -> UnsupportedModel:
        return refuse(self.graph.file, node.name, node.op, why, remedy)

    def constant(self, wanted: str, value: Array) -> str:
        """Adds a constant of the program; its name, which has a number behind it where another value is called so."""
        value = np.ascontiguousarray(value)
        if wanted.startswith(OWN):                     # the container keeps these for itself
            wanted = f"constant {wanted}"
        name, count = wanted, 1
        while not same_value(self.constants.get(name, value), value):
            count += 1
            name = f"{wanted} {count}"
        self.constants[name] = value
        return name

    def declare(self, name: str, dtype: str, exact: bool = False, alias: str = "",
                shape: tuple[int, ...] | None = None) -> Tensor:
        """Adds the tensor `name`; flat ones may be an `alias` of another (same bytes, other shape)."""
        shape = self.graph.shape(name) if shape is None else shape
        if name in self.layouts.images:
            view = self.map.views[name]
            starts = self.map.starts(view.root)
            first, end = starts[view.first], starts[view.first + len(view.sizes)]
            segments = tuple((starts[view.first + i] - first, n) for i, n in enumerate(view.sizes))
            _, c, h, w = shape
            integer = dtype in ("int8", "uint8")
            tensor = Tensor(name, dtype, "nhwc", (h, w, c), 0, h * w * starts[-1] * np.dtype(dtype).itemsize,
                            self.numbers.scale(name.removesuffix(PADDED)) if integer else 1.0, exact, starts[-1], first,
                            end - first, segments, view.root)
        else:
            size = max(1, int(np.prod(shape))) * np.dtype(dtype).itemsize
            buffer = self.tensors[alias].buffer if alias else name
            tensor = Tensor(name, dtype, "flat", shape, 0, size, 1.0, exact, buffer=buffer)
        self.tensors[name] = tensor
        return tensor

    def program(self, batch: int) -> Program:
        """Offsets for this batch size. Inputs and outputs keep their bytes for the whole run."""
        size: dict[str, int] = {}
        for t in self.tensors.values():
            need = -(-t.frame_bytes // 64) * 64 if batch > 1 else t.frame_bytes
            size[t.buffer] = max(size.get(t.buffer, 0), need)
        tensors = {name: replace(t, frame_bytes=size[t.buffer]) for name, t in self.tensors.items()}
        program = Program(batch, 0, tuple(i.name for i in self.graph.inputs), self.graph.outputs, tensors,
                          tuple(self.steps), self.graph.input_layout)
        lives, place_of = joined(program)
        offsets, total = place(list(lives.values()))
        tensors = {name: replace(t, offset=offsets[place_of[t.buffer]]) for name, t in tensors.items()}
        return replace(program, arena_bytes=max(total, ALIGN), tensors=tensors)
