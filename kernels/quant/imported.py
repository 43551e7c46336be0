"""Scales that a quantised ONNX model (QDQ) brings along, under CONTRACT.md, instead of calibrated ones.

Caller: `build.py`. Pairs of int8 with zero point 0 stand in the graph as FakeQuantise nodes until here: their scales
are kept to the bit. The ranges of all others were remembered by `release_pairs`: their tensors are coded again,
symmetrically. Nothing is guessed: a tensor that the file leaves in float needs calibration pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir.errors import UnsupportedModel
from ..ir.graph import Array, Graph, Node, TensorInfo
from ..passes.intervals import Intervals
from ..passes.islands import coded_nodes, is_coded
from ..passes.release_pairs import clip_of_range, range_of
from . import contract
from .calibrate import BINS, Histogram, best_scale
from .file_codes import codes_of_file
from .scales import LARGEST_LOSS_DB, InputCode, Scales, assign_scales, group_names, keeps_scale

Ranges = Mapping[str, tuple[float, float]]
AS_GOOD_AS_KEPT_DB = 120.0
"""Codes that only float32 keeps from being the weights themselves: one weight a channel has no other code than 127."""
UNKNOWN_PRE = 8.0
"""Where CONTRACT.md's tables stop looking at the range of a pre-activation."""


def given_range(low: float, high: float) -> Histogram:
    """A tensor of which only the range is known: as if all magnitudes up to it were as frequent."""
    top = max(-low, high)
    return Histogram(top, low, high, counts=np.ones(BINS, dtype=np.int64))


class _Fixed:
    """FakeQuantise nodes become scales of the tensors that they read; Requantise where that one has another scale."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        self.graph = graph
        self.ranges = ranges
        self.coded = coded_nodes(graph)
        self.scale: dict[str, float] = {}
        self.nodes: list[Node] = []
        self.tensors: list[TensorInfo] = []
        self.constants: dict[str, Array] = {}
        self.kept, self.dropped = 0, 0

    def requantise(self, name: str, x: str, scale: float) -> str:
        """`name`, which is x under another scale."""
        self.nodes.append(Node(name, "Requantise", (x,), (name,)))
        self.tensors.append(TensorInfo(name, self.graph.shape(x)))
        self.scale[name] = scale
        return name

    def run(self) -> Graph:
        alias: dict[str, str] = {}
        seen = Intervals(self.graph)
        sources = {info.name for info in self.graph.inputs}
        for node in self.graph.nodes:
            seen.see(node)
            node = replace(node, inputs=tuple(alias.get(name, name) for name in node.inputs))
            if node.op != "FakeQuantise":
                self._share(node)
                continue
            x, y = node.inputs[0], node.output
            self.kept += 1
            if not is_coded(self.graph, self.coded, y):             # float32 readers: no code is made
                self.kept, self.dropped = self.kept - 1, self.dropped + 1
                if not seen.stays(node.inputs[0], *range_of(node), node.attrs["alpha"]) and x not in sources:
                    self.nodes.append(clip_of_range(self.graph, node, self.constants))
                    continue
                alias[y] = x
                if y in self.graph.outputs:
                    self.nodes.append(Node(node.name, "Identity", (x,), (y,)))
            elif self.scale.setdefault(x, node.attrs["alpha"]) == node.attrs["alpha"]:
                alias[y] = x
            else:
                self.nodes.append(replace(node, op="Requantise", attrs={}))
                self.scale[y] = node.attrs["alpha"]
        return self.graph.rebuilt(self.nodes, constants=self.constants, tensors=self.tensors)

    def _share(self, node: Node) -> None:
        """A node that only moves values: its inputs come to the scale of its output."""
        live = [name for name in node.inputs if name and name not in self.graph.constants]
        if not keeps_scale(node) or node.name not in self.coded or not live:
            self.nodes.append(node)
            return
        known = [self.scale[name] for name in live if name in self.scale]
        own = [reader.attrs["alpha"] for reader in self.graph.consumers.get(node.output, ())
               if reader.op == "FakeQuantise" and is_coded(self.graph, self.coded, reader.output)]
        choice = (known or own)[:1] if len(live) == 1 else own[:1] or known
        wanted = max(choice, default=None)
        if wanted is not None:
            inputs = tuple(name if name not in live else self._brought(node, i, name, wanted)
                           for i, name in enumerate(node.inputs))
            node = replace(node, inputs=inputs)
            self.scale.update(dict.fromkeys(node.outputs, wanted))
        self.nodes.append(node)

    def _brought(self, node: Node, index: int, x: str, wanted: float) -> str:
        """Input `index` under the scale `wanted`: as it is, or behind a Requantise."""
        if x not in self.scale:
            low, high = self.ranges.get(x, (0.0, 0.0))
            own = max(-low, high) / 127
            if own == 0 or 0 <= 20 * np.log10(wanted / own) <= LARGEST_LOSS_DB:
                self.scale[x] = wanted
        if self.scale.get(x) == wanted:
            return x
        return self.requantise(f"{node.name}/requantise{index}", x, wanted)


def scales_of_file(fused: Graph, ranges: Ranges, code: InputCode, calibrate: Callable[[], Mapping[str, Histogram]],
                   method: str) -> tuple[Scales, dict[str, Any]]:
    """Scales for a fused graph that may hold FakeQuantise nodes, and what the report says of them.

    `code` is how the spec would code the input; the file's own code wins where it is int8 or uint8 with zero point 0.
    `calibrate` is called only for tensors of which the file says nothing: ranges over pictures, empty without pictures.
    Raises UnsupportedModel.
    """
    work = _Fixed(fused, ranges)
    graph = work.run()
    source = graph.inputs[0].name
    low, high = ranges.get(source, (0.0, 0.0))
    if code.dtype != "float32" and source in work.scale:
        code = InputCode("int8", work.scale.pop(source))
    elif code.dtype != "float32" and low == 0 < high:
        code = InputCode("uint8", contract.single(high / 255))
    code = replace(code, given=work.scale)
    found = {name: given_range(*ends) for name, ends in ranges.items()}
    known = {*work.scale, *found, *(() if code.dtype == "float32" else (source,))}
    asked = _without_scale(graph, known)
    calibrated = calibrate() if asked else {}
    missing = [name for name in asked if name not in calibrated]
    if missing:
        raise UnsupportedModel(f"{graph.file}: the file leaves {len(missing)} tensors in float that INT8 needs a scale "
                               f"for ({', '.join(missing[:5])}): give --calibrate with pictures, or quantise the model "
                               "with QuantizeLinear and DequantizeLinear behind every operator")
    for name in asked:
        scale = best_scale(calibrated[name], method)
        found[name] = replace(calibrated[name], counts=np.ones(BINS, dtype=np.int64), top=127 * scale,
                              low=-127 * scale, high=127 * scale)
    scales = assign_scales(graph, found, code, "minmax")
    clash = [name for name, s in work.scale.items() if scales.scale.get(name, s) != s]
    if clash:
        raise UnsupportedModel(f"{graph.file}: tensor '{clash[0]}' has the scale {work.scale[clash[0]]:g} in the file, "
                               f"but shares memory with one of scale {scales.scale[clash[0]]:g}: quantise all tensors "
                               "alike")
    scales = replace(scales, ranges={**found, **_before_tables(scales, found, calibrated)})
    return scales, {"method": "file", **_facts(scales, work, ranges, asked)}


def _without_scale(graph: Graph, known: set[str]) -> list[str]:
    """Tensors that will be integers, in groups of which no member has a scale."""
    groups = group_names(graph)
    have = {groups.get(name, name) for name in known}
    coded = coded_nodes(graph)
    made = [name for node in graph.nodes if node.op != "Requantise" and not (keeps_scale(node) and node.name in coded)
            for name in node.outputs]
    return [name for name in (*(info.name for info in graph.inputs), *made)
            if groups.get(name, name) not in have and is_coded(graph, coded, name)]


def _before_tables(scales: Scales, found: Mapping[str, Histogram],
                   calibrated: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """A range for every pre-activation of a table: of pictures, of the file, or as far as tables look."""
    made = {}
    for node in scales.graph.nodes:
        name = node.attrs.get("pre")
        if name is None or name in found:
            continue
        reach = UNKNOWN_PRE
        if node.attrs["activation"] == "LeakyRelu":
            reach = 128 * scales.scale.get(node.output, 1.0)
        made[name] = calibrated.get(name, Histogram(low=-reach, high=reach))
    return made


def _facts(scales: Scales, work: _Fixed, ranges: Ranges, asked: list[str]) -> dict[str, Any]:
    """Counts, and the loss: how much coarser a tensor's step became, and how near the weights stayed."""
    graph = scales.graph
    coded = coded_nodes(graph)
    coarser = [scales.scale[name] * 255 / (high - low) for name, (low, high) in ranges.items()
               if is_coded(graph, coded, name) and name in scales.scale and name not in work.scale]
    kept, noisy = 0, []
    for node in graph.nodes:
        if node.op != "Conv" or node.name not in coded:
            continue
        weight = graph.constants[node.inputs[1]].astype(np.float64)
        bias = graph.constants[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else np.zeros(len(weight))
        s_x = scales.scale.get(node.inputs[0], 1.0)
        if codes_of_file(node, weight, bias, s_x) is not None:
            kept += 1
            continue
        s_w = contract.weight_scales(weight, bias, s_x)
        back = contract.weight_codes(weight, s_w) * s_w.astype(np.float64).reshape((-1,) + (1,) * (weight.ndim - 1))
        error = float(((weight - back) ** 2).sum())
        sqnr = 10 * float(np.log10(max(float((weight ** 2).sum()), 1e-30) / max(error, 1e-30)))
        if sqnr > AS_GOOD_AS_KEPT_DB:
            kept += 1
        else:
            noisy.append(sqnr)
    return {"input": {"dtype": scales.input.dtype, "scale": scales.input.scale},
            "scales_kept": work.kept, "scales_coded_again": len(coarser),
            "coarsest_step": max(coarser, default=1.0),
            "scales_calibrated": len(asked), "pairs_before_float": work.dropped, "weights_kept": kept,
            "weights_coded_again": len(noisy), "least_weight_sqnr_db": min(noisy, default=None)}


def loss_of_import(facts: Mapping[str, Any]) -> str:
    """What a person is told about the loss; empty where everything was kept."""
    parts = []
    if facts["scales_coded_again"]:
        parts.append(f"{facts['scales_coded_again']} tensors that are not int8 with zero point 0 are coded again, "
                     f"in steps up to {facts['coarsest_step']:.2f} times as wide")
    if facts["weights_coded_again"]:
        parts.append(f"the weights of {facts['weights_coded_again']} layers are coded again (least SQNR "
                     f"{facts['least_weight_sqnr_db']:.1f} dB)")
    if facts["scales_calibrated"]:
        parts.append(f"{facts['scales_calibrated']} tensors that the file leaves in float were calibrated")
    return "; ".join(parts)
