"""Graph to program: layouts, channel map, steps with their packed weights, arena offsets for each batch size.

Callers: `build.py` and tests. The arithmetic of an image node comes from a `Numbers` object (`lower_f32.py`,
`lower_i8.py`); flat nodes are float32 at every precision (`lower_flat.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..ir.errors import UnsupportedModel, refuse
from ..ir.graph import Graph, Node
from ..ir.program import ALIGN, Program, Tensor
from ..ir.steps import Copy, FromFlat, MaxPool, Step, ToFlat, Upsample
from . import lower_flat
from .arena import Lifetime, place
from .channel_map import UNIT, ChannelMap, map_channels
from .layouts import Layouts, assign_layouts

Array = npt.NDArray[Any]
KEEPS_TYPE = frozenset({"MaxPool", "Resize", "Pad", "Concat", "Split"})


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
        self.buffers: dict[str, str] = {}             # tensor -> buffer whose lifetime it shares
        self.steps: list[Step] = []
        for info in graph.inputs:
            self.declare(info.name, numbers.input_dtype(info.dtype))
        image_nodes = {node.name for node in self.layouts.image_nodes}
        for node in self.graph.nodes:
            if node.name in image_nodes:
                self._image(node)
            elif node.op == "FromFlat":
                self.declare(node.output, "float32")
                self.steps.append(FromFlat(node.name, node.inputs[0], node.output))
            elif node.op == "ToFlat":
                self.declare(node.output, "float32", exact=self.tensors[node.inputs[0]].exact)
                self.steps.append(ToFlat(node.name, node.inputs[0], node.output))
            else:
                lower_flat.lower(node, self)

    def refuse(self, node: Node, why: str, remedy: str) -> UnsupportedModel:
        return refuse(self.graph.file, node.name, node.op, why, remedy)

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = np.ascontiguousarray(value)
        return name

    def declare(self, name: str, dtype: str, exact: bool = False, alias: str = "") -> Tensor:
        """Adds the tensor `name`; flat ones may be an `alias` of another (same bytes, other shape)."""
        shape = self.graph.shape(name)
        if name in self.layouts.images:
            view = self.map.views[name]
            starts = self.map.starts(view.root)
            first, end = starts[view.first], starts[view.first + len(view.sizes)]
            segments = tuple((starts[view.first + i] - first, n) for i, n in enumerate(view.sizes))
            _, c, h, w = shape
            integer = dtype != "float32"
            tensor = Tensor(name, dtype, "nhwc", (h, w, c), 0, h * w * starts[-1] * np.dtype(dtype).itemsize,
                            self.numbers.scale(name) if integer else 1.0, integer or exact, starts[-1], first,
                            end - first, segments)
            self.buffers[name] = view.root
        else:
            size = max(1, int(np.prod(shape))) * np.dtype(dtype).itemsize
            tensor = Tensor(name, dtype, "flat", shape, 0, size, 1.0, exact)
            self.buffers[name] = self.buffers[alias] if alias else name
        self.tensors[name] = tensor
        return tensor

    def _image(self, node: Node) -> None:
        x = self.tensors[node.inputs[0]]
        if node.op not in KEEPS_TYPE:
            readers = self.graph.consumers.get(node.output, ())
            body_reads = any(reader.name in self.layouts.body for reader in readers)
            dtype = self.numbers.dtype(node, node.output, body_reads)
            self.declare(node.output, dtype, exact=x.dtype != "float32")
            self.steps.append(self.numbers.emit(node, self))
            return
        types = {self.tensors[name].dtype for name in node.inputs if name in self.tensors}
        if len(types) > 1:
            raise self.refuse(node, f"joins tensors of types {sorted(types)}", "build with --precision fp32")
        for name in node.outputs:
            self.declare(name, x.dtype, exact=x.exact)
        y = self.tensors[node.output]
        if node.op == "MaxPool":
            a = node.attrs
            self.steps.append(MaxPool(node.name, x.name, y.name, a["kernel_shape"], a["strides"], a["pads"],
                                      a["dilations"]))
        elif node.op == "Resize":
            self.steps.append(Upsample(node.name, x.name, y.name, node.attrs["factors"]))
        elif node.op == "Pad":
            self._pad(node, x, y)
        elif node.op == "Concat":
            at = 0
            for index, name in enumerate(node.inputs):
                part = self.tensors[name]
                if (node.name, index) in self.map.copied:
                    self.steps.append(Copy(f"{node.name}#{index}", name, y.name, runs(part, y, at)))
                at += part.shape[2]

    def _pad(self, node: Node, x: Tensor, y: Tensor) -> None:
        given = self.graph.constants[node.inputs[1]].tolist()
        axes = [0, 1, 2, 3]
        if len(node.inputs) > 3 and node.inputs[3]:
            axes = [int(i) % 4 for i in self.graph.constants[node.inputs[3]]]
        begin = dict(zip(axes, given, strict=False))
        value = self.graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if value is not None and value.any():
            raise self.refuse(node, f"pads with {value.reshape(-1)[0]}", "only zero padding is taken here")
        self.steps.append(Copy(node.name, x.name, y.name, runs(x, y, begin.get(1, 0)),
                               (begin.get(2, 0), begin.get(3, 0)), clear=True))

    def program(self, batch: int) -> Program:
        """Offsets for this batch size. Inputs and outputs keep their bytes for the whole run."""
        last = len(self.steps)
        pinned = {self.buffers[n] for n in (*(i.name for i in self.graph.inputs), *self.graph.outputs)}
        first_use: dict[str, int] = {}
        last_use: dict[str, int] = {}
        nbytes: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            for name in (*step.reads(), *step.writes()):
                buffer = self.buffers[name]
                first_use.setdefault(buffer, index)
                last_use[buffer] = index
        for name, tensor in self.tensors.items():
            size = -(-tensor.frame_bytes // 64) * 64 if batch > 1 else tensor.frame_bytes
            nbytes[self.buffers[name]] = max(nbytes.get(self.buffers[name], 0), size)
        lives = [Lifetime(b, n * batch, -1 if b in pinned else first_use.get(b, 0),
                          last if b in pinned else last_use.get(b, last)) for b, n in nbytes.items()]
        offsets, total = place(lives)
        tensors = {name: replace(t, offset=offsets[self.buffers[name]], frame_bytes=nbytes[self.buffers[name]])
                   for name, t in self.tensors.items()}
        return Program(batch, max(total, ALIGN), tuple(i.name for i in self.graph.inputs), self.graph.outputs, tensors,
                       tuple(self.steps), self.graph.input_layout)


def runs(x: Tensor, y: Tensor, at: int) -> tuple[tuple[int, int, int], ...]:
    """Physical channel runs (from, to, count) that put x's channels at y's logical channels from `at` on."""
    found: list[tuple[int, int, int]] = []
    for source, target in zip(x.channels(), y.channels()[at:], strict=False):
        if found and found[-1][0] + found[-1][2] == source and found[-1][1] + found[-1][2] == target:
            found[-1] = (found[-1][0], found[-1][1], found[-1][2] + 1)
        else:
            found.append((int(source), int(target), 1))
    return tuple(found)


def merged_groups(groups: int, channels: int) -> int:
    """Fewer, larger groups: at least 16 channels each, so that a group is worth a matrix product."""
    per = channels // groups
    for joined in range(1, groups + 1):
        if groups % joined == 0 and joined * per >= UNIT:
            return groups // joined
    return 1


def pack_weight(weight: Array, x: Tensor, y: Tensor, groups: int) -> tuple[Array, int]:
    """(M, C / groups, kh, kw) to (kh, kw, physical input channels of a group, y.span), and the groups it needs.

    Pads are 0. Groups whose channels do not lie together, or that are small, are written out into larger ones.
    """
    m, per, kh, kw = weight.shape
    xs, ys = x.channels(), y.channels()
    lies_plain = np.array_equal(xs, np.arange(len(xs))) and np.array_equal(ys, np.arange(len(ys)))
    count = merged_groups(groups, len(xs)) if groups > 1 and lies_plain else 1
    x_span = x.span if count == 1 else len(xs) // count
    packed = np.zeros((kh, kw, x_span, y.span), dtype=weight.dtype)
    for row in range(m):
        first = row // (m // groups) * per
        rows = xs[first:first + per] - (0 if count == 1 else row // (m // count) * x_span)
        packed[:, :, rows, ys[row]] = weight[row].transpose(1, 2, 0)
    return packed, count


def pack_channels(values: Array, y: Tensor) -> Array:
    """(C,) or (kh, kw, C) logical to physical, pads 0."""
    packed = np.zeros((*values.shape[:-1], y.span), dtype=values.dtype)
    packed[..., y.channels()] = values
    return packed


def is_depthwise(weight: Array, groups: int) -> bool:
    return groups > 1 and weight.shape[0] == groups and weight.shape[1] == 1


def lower(graph: Graph, batches: Iterable[int], numbers: Numbers) -> tuple[dict[int, Program], dict[str, Array]]:
    """A program for each batch size, and the constants they share. Raises UnsupportedModel."""
    lowering = Lowering(graph, numbers)
    return {batch: lowering.program(batch) for batch in batches}, lowering.constants
