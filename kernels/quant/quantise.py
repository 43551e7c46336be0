"""Image nodes in INT8 under CONTRACT.md: weights, bias, multipliers and tables, and the step that uses them.

Caller: `lower.py` through `IntegerNumbers`. A node that has no integer form is refused with what to do; precision is
given or refused, never swapped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir.errors import UnsupportedModel
from ..ir.graph import Node
from ..ir.grid_steps import WEIGHT_UNIT, ResampleI8
from ..ir.reference import ACTIVATIONS
from ..ir.steps import AddI8, AveragePoolI8, Convert, ConvI8, DepthwiseI8, MulI8, RequantiseI8, Step, TableI8
from ..passes.fuse_convolutions import POST, PRE
from ..passes.islands import coded_nodes, is_coded
from ..passes.lower import Array, Lowering, is_depthwise, pack_channels, pack_weight
from ..passes.lower_f32 import clip_bounds, counts, emit_f32, pool_window, resample_constants
from ..passes.merge_parallel import part_outputs
from . import contract
from .borders import unsuffixed
from .contract import Doubles
from .file_codes import codes_of_file
from .scales import Scales

AS_FP32 = "build with --precision fp32"
LARGEST_WINDOW = (1 << 31) // 255


class IntegerNumbers:
    """The Numbers of an INT8 program."""

    def __init__(self, scales: Scales, correct_bias: bool = True) -> None:
        self.scales = scales
        self.correct_bias = correct_bias
        self.coded = coded_nodes(scales.graph)

    def dtype(self, node: Node, name: str, body_reads: bool) -> str:
        if node.op == "Convert":
            return str(node.attrs["to"])
        coded = node.name in self.coded and is_coded(self.scales.graph, self.coded, name)
        return self.stored(node) if coded else "float32"

    def stored(self, node: Node) -> str:
        """Type of what a coded node makes for others."""
        return "int8"

    def input_dtype(self, dtype: str) -> str:
        return self.scales.input.dtype

    def scale(self, name: str) -> float:
        found = self.scales.scale.get(unsuffixed(name))
        if found is None:
            raise UnsupportedModel(f"{self.scales.graph.file}: tensor '{name}' has no calibrated range; {AS_FP32}")
        return found

    def emit(self, node: Node, lowering: Lowering) -> Step:
        x, y = lowering.tensors[node.inputs[0]], lowering.tensors[node.output]
        if node.op == "Convert":
            multiplier = 1.0 / y.scale if y.dtype == "int8" else x.scale
            return Convert(node.name, x.name, y.name, contract.single(multiplier))
        if node.op == "Conv" and x.dtype != "float32":
            return self._convolution(node, lowering)
        if x.dtype == y.dtype == "float32":
            return emit_f32(node, lowering)
        if x.dtype == "float32" or y.dtype == "float32":
            raise lowering.refuse(node, f"would join {x.dtype} and {y.dtype}", AS_FP32)
        return self._element(node, lowering)

    def _element(self, node: Node, out: Lowering) -> Step:
        graph = out.graph
        x, y = out.tensors[node.inputs[0]], out.tensors[node.output]
        if node.op in ("AveragePool", "GlobalAveragePool"):
            kernel, stride, pads = pool_window(node, graph.shape(x.name))
            if kernel[0] * kernel[1] >= LARGEST_WINDOW:
                raise out.refuse(node, f"sums {kernel[0]} x {kernel[1]} codes, which 32 bits may not hold", AS_FP32)
            n = counts(node, graph.shape(x.name), graph.shape(y.name))
            values = (x.scale / (n * y.scale)).astype(np.float32)
            return AveragePoolI8(node.name, x.name, y.name, out.constant(f"{node.name}/multiplier", values), kernel,
                                 stride, pads)  # type: ignore[arg-type]
        if node.op in ("Add", "Sub"):
            b = out.tensors[node.inputs[1]]
            m_b = contract.single(b.scale / y.scale)
            return AddI8(node.name, x.name, b.name, y.name, contract.single(x.scale / y.scale),
                         -m_b if node.op == "Sub" else m_b)
        if node.op == "Mul":
            a, b = x, out.tensors[node.inputs[1]]
            if a.shape[:2] == (1, 1) and b.shape[:2] != (1, 1):
                a, b = b, a
            return MulI8(node.name, a.name, b.name, y.name, contract.single(a.scale * b.scale / y.scale))
        if node.op == "Resize" and x.dtype == "int8":
            names = resample_constants(node, out, np.int32, WEIGHT_UNIT)
            gain = contract.single(x.scale / (WEIGHT_UNIT ** 2 * y.scale))
            return ResampleI8(node.name, x.name, y.name, *names, gain)
        if node.op in ("Relu", "Clip", "Requantise"):
            low, high = (None, None) if node.op == "Requantise" else clip_bounds(node, graph)
            codes = contract.clip_codes(low, high, y.scale)
            return RequantiseI8(node.name, x.name, y.name, contract.single(x.scale / y.scale), *codes)
        if node.op in ACTIVATIONS and x.dtype == "int8":
            table = contract.table_codes(_function(node.op, node), x.scale, y.scale, contract.LOW, contract.HIGH)
            return TableI8(node.name, x.name, y.name, out.constant(f"{node.name}/table", table))
        raise out.refuse(node, f"has no integer form on {x.dtype}", AS_FP32)

    def codes(self, node: Node, weight: Array, bias: Array, s_x: float) -> tuple[Array, contract.Floats, Array]:
        """(weight codes, scales, bias codes) of a convolution by CONTRACT.md, or those that the file brings along."""
        of_file = codes_of_file(node, weight, bias, s_x)
        if of_file is not None:
            return of_file
        scales = contract.weight_scales(weight, bias, s_x)
        codes = contract.weight_codes(weight, scales)
        bias = self._corrected(bias, weight, codes, scales, s_x, node)
        return codes, scales, contract.bias_codes(bias, s_x, scales)

    def _corrected(self, bias: Array, weight: Array, codes: Array, scales: Array, s_x: float, node: Node) -> Array:
        """The bias less the mean of what the rounding of the weights adds, from each input channel's calibrated mean.

        The border of an image is taken as its inside. Channels whose bias code would leave its range stay.
        """
        seen = self.scales.ranges.get(unsuffixed(node.inputs[0]))
        if not self.correct_bias or seen is None or not seen.pixels:
            return bias
        side = (-1,) + (1,) * (weight.ndim - 1)
        error = (codes * scales.astype(np.float64).reshape(side) - weight).sum((2, 3))          # (M, C / groups)
        groups = node.attrs["group"]
        means = seen.means().reshape(groups, -1).repeat(len(weight) // groups, 0)
        corrected = bias - (error * means).sum(1)
        fits = np.abs(contract.bias_codes(corrected, s_x, scales)) <= contract.LARGEST_BIAS
        return np.asarray(np.where(fits, corrected, bias))

    def _convolution(self, node: Node, out: Lowering) -> Step:
        graph, a = out.graph, node.attrs
        x, y = out.tensors[node.inputs[0]], out.tensors[node.output]
        weight = graph.constants[node.inputs[1]]
        has_bias = len(node.inputs) > 2 and node.inputs[2]
        bias = graph.constants[node.inputs[2]] if has_bias else np.zeros(len(weight), dtype=np.float32)
        largest = np.abs(weight.astype(np.float64)).reshape(len(weight), -1).max(1)
        if (tiny := np.flatnonzero((largest > 0) & (largest / 127 < contract.SMALLEST_SCALE))).size:
            raise out.refuse(node, f"the weights of channel {tiny[0]} are at most {largest[tiny[0]]:.3g}: their scale "
                             "underflows float32", f"set them to 0, or {AS_FP32}")
        codes, scales, bias_q = self.codes(node, weight, bias, x.scale)
        if not contract.sum_fits(codes, bias_q, x.dtype == "uint8").all():
            raise out.refuse(node, "its sums do not fit 32 bits", AS_FP32)
        low, high, table = contract.LOW, contract.HIGH, ""
        s_out: float | Array = y.scale
        if y.dtype == "float32":
            if a.get("activation") or "bounds" in a or len(node.inputs) > 3:
                raise out.refuse(node, "has no float32 output with what is fused into it", AS_FP32)
            s_out = 1.0
        elif parts := part_outputs(graph, y.name):                  # each channel under the scale of its part
            s_out = np.concatenate([np.full(graph.shape(part)[1], self.scale(part)) for part in parts])
        elif a.get("activation"):
            seen = self.scales.ranges[a["pre"]]
            function = _function(a["activation"], node)
            top = contract.table_top(function, y.scale, seen.high)
            s_out = contract.table_scale(a["activation"], y.scale, seen.low, seen.high, top)
            values = contract.table_codes(function, s_out, y.scale, contract.TABLE_LOW,
                                          contract.TABLE_HIGH)
            table = out.constant(f"{node.name}/table", values)
        if "bounds" in a:
            least, most = a["bounds"]
            low, high = contract.clip_codes(least, most, y.scale)
        residual, m_r = "", 0.0
        if len(node.inputs) > 3:
            residual = node.inputs[3]
            m_r = contract.single(out.tensors[residual].scale / y.scale)
        m = contract.multiplier(x.scale, scales, s_out)
        if (lost := np.flatnonzero((m < contract.SMALLEST_SCALE) & codes.reshape(len(codes), -1).any(1))).size:
            raise out.refuse(node, f"the multiplier of channel {lost[0]} underflows float32: its weights or its input "
                             "are too small for its output", f"scale the weights, or {AS_FP32}")
        groups = a["group"]
        depthwise = is_depthwise(weight, groups) and (x.segments, x.span) == (y.segments, y.span) \
            and contract.exact_in_float32(codes, bias_q, x.dtype == "uint8")
        if depthwise:
            packed: Array = pack_channels(codes[:, 0].transpose(1, 2, 0), y)
        else:
            packed, groups = pack_weight(codes, x, y, groups)
        kind = DepthwiseI8 if depthwise else ConvI8
        return kind(node.name, x.name, y.name, out.constant(f"{node.name}/weight", packed),
                    out.constant(f"{node.name}/bias", pack_channels(bias_q.astype(np.int32), y)),
                    out.constant(f"{node.name}/multiplier", pack_channels(m, y)),
                    a["kernel_shape"], a["strides"], a["pads"], a["dilations"], groups, low, high, table, residual, m_r)


def _function(op: str, node: Node) -> Callable[[Doubles], Doubles]:
    """The activation in float64, between the Clips that a quantised model's codes were."""
    attrs = node.attrs.get("activation_attrs", {}) if node.op == "Conv" else node.attrs
    before, after = (node.attrs.get(key, (-np.inf, np.inf)) for key in (PRE, POST))

    def call(x: Doubles) -> Doubles:
        return np.asarray(np.clip(ACTIVATIONS[op](np.clip(x, *before), attrs), *after), dtype=np.float64)
    return call
