"""Scales that a quantised ONNX model (QDQ) brings along, under CONTRACT.md, instead of calibrated ones.

Caller: `build.py`. Pairs of int8 with zero point 0 stand in the graph as FakeQuantise nodes until here: their scales
are kept to the bit. The ranges of all others were remembered by `release_pairs`: their tensors are coded again,
symmetrically. A tensor that the file leaves in float holds what its values and its readers ask for (`held.py`), or
needs calibration pictures; nothing else is guessed, but that a tensor with a pair for one reader and none for another
stays in the pair's range where no picture tells, which the report says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir.errors import UnsupportedModel
from ..ir.graph import Array, Graph, Node, TensorInfo
from ..passes.fuse_convolutions import SUM
from ..passes.islands import coded_nodes, is_coded
from ..passes.lower_flat import DEFAULT_ALPHA
from ..passes.release_pairs import clip_of_range, inside_of_pairs, range_of
from . import contract
from .calibrate import BINS, Histogram, best_scale, given_range
from .file_codes import codes_of_file
from .held import Range, Values
from .scales import LARGEST_LOSS_DB, InputCode, Scales, assign_scales, keeps_scale
from .unknown import unknown_tensors
from .views import Separated, separate

Ranges = Mapping[str, Range]
AS_GOOD_AS_KEPT_DB = 120.0
"""Codes that only float32 keeps from being the weights themselves: one weight a channel has no other code than 127."""
UNKNOWN_PRE = 8.0
"""Where CONTRACT.md's tables stop looking at the range of a pre-activation."""


class _Fixed:
    """FakeQuantise nodes become scales of the tensors that they read; Requantise where that one has another scale."""

    def __init__(self, made: Separated, told: Ranges) -> None:
        self.graph = graph = made.graph
        self.told = told
        self.ranges = made.ranges
        self.coded = coded_nodes(graph)
        self.scale = dict(made.scale)                        # by the first of the tensors that share one
        self.first: dict[str, str] = {}
        self.nodes: list[Node] = []
        self.tensors: list[TensorInfo] = []
        self.constants: dict[str, Array] = {}
        self.cuts: dict[str, Range] = {}
        self.widened: set[str] = set()
        self.kept, self.dropped = 0, 0

    def find(self, name: str) -> str:
        """The first of the tensors that share a scale with this one."""
        while name in self.first:
            name = self.first[name]
        return name

    def requantise(self, name: str, x: str, scale: float) -> str:
        """`name`, which is x under another scale."""
        self.nodes.append(Node(name, "Requantise", (x,), (name,)))
        self.tensors.append(TensorInfo(name, self.graph.shape(x)))
        self.scale[name] = scale
        return name

    def run(self) -> Graph:
        alias: dict[str, str] = {}
        of_codes: dict[str, str] = {}                               # likewise, for readers of codes alone
        seen = inside_of_pairs(self.graph, self.told)
        for info in self.graph.inputs:
            self._widen(info.name)
        for node in self.graph.nodes:
            seen.see(node)
            renamed = alias if node.name not in self.coded else {**alias, **of_codes}
            node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
            if node.op != "FakeQuantise":
                self._share(node)
                continue
            x, y = node.inputs[0], node.output
            self.kept += 1
            if not is_coded(self.graph, self.coded, y):             # float32 readers: no code is made
                self.kept, self.dropped = self.kept - 1, self.dropped + 1
                if not seen.stays(x, *range_of(node), node.attrs["alpha"]):
                    self.nodes.append(clip_of_range(self.graph, node, self.constants))
                    continue
                alias[y] = x
                if y in self.graph.outputs:
                    self.nodes.append(Node(node.name, "Identity", (x,), (y,)))
                continue
            cut, cuts = x, not seen.stays(x, *range_of(node), node.attrs["alpha"])
            if self.scale.setdefault(self.find(x), node.attrs["alpha"]) == node.attrs["alpha"]:
                if cuts and self._made_in_float(x) and any(r.name not in self.coded for r in self.graph.consumers[y]):
                    of_codes[y] = x
                    self.nodes.append(clip_of_range(self.graph, node, self.constants))
                else:
                    alias[y] = x
            else:
                self.nodes.append(replace(node, op="Requantise", attrs={}))
                self.scale[y] = node.attrs["alpha"]
                cut = y
            if cuts:
                self.cuts[cut] = range_of(node)
        self.scale |= {name: self.scale[first] for name in self.first if (first := self.find(name)) in self.scale}
        return self.graph.rebuilt(self.nodes, constants=self.constants, tensors=self.tensors)

    def _made_in_float(self, name: str) -> bool:
        maker = self.graph.producers.get(name)
        return maker is not None and maker.name not in self.coded

    def _widen(self, source: str) -> None:
        """A graph input that is read through pairs that stand and in the range of one that is gone: codes for both."""
        readers = [reader for reader in self.graph.consumers.get(source, ()) if reader.name in self.coded]
        own = [reader.attrs["alpha"] for reader in readers if reader.op == "FakeQuantise"]
        low, high = self.told.get(source, (0.0, 0.0))
        needed = max(-low / 128, high / 127)
        if own and len(own) < len(readers) and needed > max(own) * (1 + 1e-6):
            self.scale[source] = contract.single(needed)
            self.widened.add(source)

    def _share(self, node: Node) -> None:
        """A node that only moves values: its inputs come to the scale of its output."""
        live = [name for name in node.inputs if name and name not in self.graph.constants]
        if not keeps_scale(node) or node.name not in self.coded or not live:
            self.nodes.append(node)
            return
        known = [self.scale[first] for name in live if (first := self.find(name)) in self.scale]
        own = [reader.attrs["alpha"] for name in node.outputs for reader in self.graph.consumers.get(name, ())
               if reader.op == "FakeQuantise" and is_coded(self.graph, self.coded, reader.output)]
        if known and not own:
            known += [self._reach(name) for name in live]
        elif own and not known and len(live) == 1 \
                and 20 * np.log10(max(self._reach(live[0]), 1e-30) / max(own)) > LARGEST_LOSS_DB:
            known = [contract.single(self._reach(live[0]))]       # a part reaches further than the pairs of others
        wanted = max((known or own) if len(live) == 1 else own or known, default=None)
        if wanted is not None:
            inputs = tuple(name if name not in live else self._brought(node, i, name, wanted)
                           for i, name in enumerate(node.inputs))
            node = replace(node, inputs=inputs)
            self.scale.update(dict.fromkeys(node.outputs, wanted))
        else:
            for name in (*live[1:], *node.outputs):
                if self.find(name) != self.find(live[0]):
                    self.first[self.find(name)] = self.find(live[0])
        self.nodes.append(node)

    def _reach(self, name: str) -> float:
        """The scale that a tensor needs by its range, where it has no other; 0 where nothing is known."""
        if self.find(name) in self.scale:
            return 0.0
        together = [other for other in self.ranges if self.find(other) == self.find(name)]
        return max((self.ranges[other].largest / 127 for other in together), default=0.0)

    def _brought(self, node: Node, index: int, x: str, wanted: float) -> str:
        """Input `index` under the scale `wanted`: as it is, or behind a Requantise."""
        first = self.find(x)
        if first not in self.scale:
            own = self._reach(x)
            if own == 0 or 0 <= 20 * np.log10(wanted / own) <= LARGEST_LOSS_DB:
                self.scale[first] = wanted
        if self.scale.get(first) == wanted:
            return x
        return self.requantise(f"{node.name}/requantise{index}", x, wanted)


def scales_of_file(fused: Graph, ranges: Ranges, code: InputCode, calibrate: Callable[[], Mapping[str, Histogram]],
                   method: str) -> tuple[Scales, dict[str, Any]]:
    """Scales for a fused graph that may hold FakeQuantise nodes, and what the report says of them.

    `code` is how the spec would code the input; the file's own code wins where it is int8 or uint8 with zero point 0.
    `calibrate` is called only for tensors of which the file says nothing: ranges over pictures, empty without pictures.
    Raises UnsupportedModel.
    """
    asked, needed = unknown_tensors(fused, ranges, code)
    calibrated = calibrate() if asked else {}
    missing = [name for name in needed if name not in calibrated]
    if missing:
        raise UnsupportedModel(f"{fused.file}: the file leaves {len(missing)} tensors in float that INT8 needs a scale "
                               f"for ({', '.join(missing[:5])}): give --calibrate with pictures, or quantise the model "
                               "with QuantizeLinear and DequantizeLinear behind every operator")
    tables = [node.attrs[SUM].table for node in fused.nodes if SUM in node.attrs]
    used = {name: calibrated[name] for name in (*asked, *tables) if name in calibrated and name not in ranges}
    ends = {name: (histogram.low, histogram.high) for name, histogram in used.items()}
    made = separate(Values(fused, {**ends, **ranges}), ranges, used, method)
    work = _Fixed(made, ranges)
    graph = work.run()
    source = graph.inputs[0].name
    low, high = ranges.get(source, (0.0, 0.0))
    if code.dtype != "float32" and source in work.scale:
        code = InputCode("int8", work.scale.pop(source))
    elif code.dtype != "float32" and low == 0 < high:
        code = InputCode("uint8", contract.single(high / 255))
    code = replace(code, given=work.scale)
    found = {name: _as_range(histogram, method) for name, histogram in made.ranges.items()}
    scales = assign_scales(graph, found, code, "minmax")
    torn = [name for name, scale in work.scale.items() if scales.scale.get(name, scale) != scale]
    if torn:
        together = {scales.group[name] for name in torn}
        names = sorted(name for name in work.scale if scales.group.get(name) in together)
        raise UnsupportedModel(f"{fused.file}: the file gives tensors that must share one code in INT8 several scales "
                               f"({', '.join(f'{name}: {work.scale[name]:.6g}' for name in names[:5])}): quantise the "
                               "model with one scale for them, or build with --precision fp16")
    scales = replace(scales, ranges={**found, **_before_tables(scales, ranges, calibrated)}, cuts=work.cuts)
    return scales, {"method": "file", **_facts(scales, work, ranges, [name for name in asked if name in used]),
                    "copies": len(made.copies), "assumed": made.assumed}


def _as_range(histogram: Histogram, method: str) -> Histogram:
    """What pictures gave, cut as the method says; a range as it is."""
    if not histogram.pixels:
        return histogram
    top = 127 * best_scale(histogram, method)
    return replace(histogram, counts=np.ones(BINS, dtype=np.int64), top=top, low=-top, high=top)


def _before_tables(scales: Scales, ranges: Ranges, calibrated: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """A range for every pre-activation of a table: of the file, of pictures, or as far as tables look.

    LeakyRelu goes on below: as far as its codes reach, unless the table's steps would become wider than they are.
    """
    made = {}
    for node in scales.graph.nodes:
        name = node.attrs.get("pre")
        if name is None:
            continue
        reach = UNKNOWN_PRE
        if node.attrs["activation"] == "LeakyRelu":
            slope = node.attrs["activation_attrs"].get("alpha", DEFAULT_ALPHA["LeakyRelu"])
            reach = 128 / max(slope, 0.25) * scales.scale.get(node.output, 1.0)
        unknown = Histogram(low=-reach, high=reach)
        made[name] = given_range(*ranges[name]) if name in ranges else calibrated.get(name, unknown)
    return made


def _facts(scales: Scales, work: _Fixed, ranges: Ranges, asked: list[str]) -> dict[str, Any]:
    """Counts, and the loss: how much coarser a tensor's step became, and how near the weights stayed."""
    graph = scales.graph
    coded = coded_nodes(graph)
    coarser = [scales.scale[name] * 255 / (high - low) for name, (low, high) in ranges.items()
               if is_coded(graph, coded, name) and name in scales.scale
               and (name not in work.scale or name in work.widened)]
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
    if facts["copies"]:
        parts.append(f"{facts['copies']} layers are computed once more, since readers of what they make need it under "
                     "scales that are far apart")
    if facts["assumed"]:
        parts.append(f"{len(facts['assumed'])} tensors ({', '.join(facts['assumed'][:5])}) are read in float beside a "
                     "pair: they are taken to stay in its range; pictures (--calibrate) would tell")
    return "; ".join(parts)
