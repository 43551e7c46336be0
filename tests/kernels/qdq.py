"""Quantised ONNX models for tests, and what symmetric ones mean in whole numbers, worked out from the file alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from compiled import bound
from judge import half_even, single, stored
from models import Net
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from orind.kernels.cpu.executor import ProgramRunner
from orind.kernels.importer.onnx_model import import_model
from orind.kernels.ir.graph import Graph
from orind.kernels.passes.float_ends import float_ends
from orind.kernels.passes.lower import lower
from orind.kernels.passes.pipeline import fuse, prepare
from orind.kernels.passes.release_pairs import release_pairs
from orind.kernels.quant.calibrate import Histogram
from orind.kernels.quant.half import mixed_numbers
from orind.kernels.quant.imported import scales_of_file
from orind.kernels.quant.scales import InputCode, Scales

Array = NDArray[Any]
Codes = Callable[[float], Array]


class QdqNet(Net):
    """A Net that writes pairs: `pair` on a computed tensor, `weight` for codes with a DequantizeLinear alone."""

    def pair(self, x: str, scale: float, zero: int | None = 0, kind: type[np.generic] = np.int8) -> str:
        names = [self.constant(np.array(scale, dtype=np.float32))]
        if zero is not None:
            names.append(self.constant(np.array(zero, dtype=kind)))
        y = self.op("DequantizeLinear", self.op("QuantizeLinear", x, *names), *names)
        self.channels[y] = self.channels[x]
        return str(y)

    def weight(self, codes: Array, scale: Array, zero: Array | None = None, axis: int = 0) -> str:
        names = [self.constant(codes), self.constant(np.asarray(scale, dtype=np.float32))]
        if zero is not None:
            names.append(self.constant(zero))
        return str(self.op("DequantizeLinear", *names, **({"axis": axis} if np.ndim(scale) else {})))

    def coded_conv(self, x: str, s_x: float, out: int, k: int = 3, group: int = 1, per_channel: bool = True,
                   whole_range: bool = True, rank: int = 2, **attrs: Any) -> str:
        """Random codes, some of them -128; the bias in int32 at the scale that the product has."""
        shape = (out, self.channels[x] // group, *(k,) * rank)
        codes = self.rng.integers(-128 if whole_range else -100, 128 if whole_range else 90, shape).astype(np.int8)
        scale = self.rng.uniform(1e-3, 4e-3, out if per_channel else ()).astype(np.float32)
        bias = self.rng.integers(-4000, 4000, out).astype(np.int32)
        b_scale = np.float32(s_x) * scale
        attrs = {"pads": [k // 2] * 2 * rank, **attrs}
        y = self.op("Conv", x, self.weight(codes, scale), self.weight(bias, b_scale), group=group,
                    kernel_shape=[k] * rank, **attrs)
        self.channels[y] = out
        return str(y)

    def dense(self, x: str, inputs: int, out: int, per_channel: bool = True) -> str:
        """MatMul of tokens by random codes."""
        codes = self.rng.integers(-128, 128, (inputs, out)).astype(np.int8)
        scale = self.rng.uniform(2e-3, 8e-3, out if per_channel else ()).astype(np.float32)
        return str(self.op("MatMul", x, self.weight(codes, scale, axis=1)))


def as_int8(model: onnx.ModelProto, calibrate: Callable[[Graph], Mapping[str, Histogram]] = lambda prepared: {}
            ) -> tuple[ProgramRunner, dict[str, Array], Scales, dict[str, Any]]:
    """The INT8 program of a quantised model and the report on the import; without any pictures unless `calibrate` has
    some for the prepared graph."""
    released, ranges = release_pairs(import_model(model, Path("test.onnx")), tables=True)
    prepared = prepare(released)
    fused = fuse(float_ends(prepared))
    scales, facts = scales_of_file(fused, ranges, InputCode("int8", 1.0), lambda: calibrate(prepared), "mse")
    graph, numbers = mixed_numbers(scales, ())
    return *bound(lower(graph, [1], numbers)), scales, facts


def seen(runner: ProgramRunner) -> dict[str, Array]:
    """Every tensor (H, W, C) that the program writes as codes, as it was when it was written."""
    found = {}
    for step in runner.walk():
        for name in step.writes():
            if runner.program.tensors[name].dtype == "int8":
                found[name] = runner.logical(name, 0).copy()
    return found


def quantised(model: Path | onnx.ModelProto, folder: Path, frames: Sequence[Array], symmetric: bool,
              left_out: Sequence[str] = (), **options: Any) -> onnx.ModelProto:
    """By onnxruntime.quantization, in the QDQ format; `frames` calibrate it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    source, folded, made = (folder / f"{name}.onnx" for name in ("source", "folded", "qdq"))
    onnx.save(onnx.load(model) if isinstance(model, Path) else model, source)
    quant_pre_process(source, folded, skip_symbolic_shape=True)
    entry = onnx.load(folded).graph.input[0].name

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{entry: frame} for frame in frames]

        def get_next(self) -> dict[str, Array] | None:
            return self.left.pop() if self.left else None
    kinds = {} if not symmetric else {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8,
                                      "extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}}
    logging.disable(logging.WARNING)
    try:
        quantize_static(folded, made, Reader(), quant_format=QuantFormat.QDQ, nodes_to_exclude=list(left_out),
                        **{**kinds, **options})
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(made)


@dataclass
class Coded:
    """int8 codes (C, H, W) in int64, and what one code is worth."""

    codes: Array
    scale: float


def f32(x: Any) -> Any:
    return single(np.asarray(x, dtype=np.float64))


class WholeNumbers:
    """The codes behind every QuantizeLinear of a symmetric model, under CONTRACT.md; None where the integers end.

    Shares no code with the compiler. An operator gives its codes as a function of the scale they will have.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.constants = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
        self.constants |= {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in model.graph.node
                           if n.op_type == "Constant" and n.attribute[0].HasField("t")}
        self.grids: dict[str, tuple[Array, Array]] = {}              # dequantised constant -> (codes, scales)

    def run(self, frame: Array) -> dict[str, Array]:
        """Codes of each tensor that a QuantizeLinear reads, from the input's codes (C, H, W)."""
        values: dict[str, Any] = {self.model.graph.input[0].name: lambda scale: frame.astype(np.int64)}
        found: dict[str, Array] = {}
        for node in self.model.graph.node:
            if node.op_type == "Constant":
                continue
            if node.op_type == "DequantizeLinear" and node.input[0] in self.constants:
                self.grids[node.output[0]] = (self.constants[node.input[0]].astype(np.int64),
                                              self.constants[node.input[1]].astype(np.float64).reshape(-1))
                continue
            x = values.get(node.input[0])
            if node.op_type == "QuantizeLinear" and x is not None:
                scale = float(self.constants[node.input[1]].reshape(-1)[0])
                codes = x(scale) if callable(x) else requantised(x, scale)
                values[node.output[0]] = Coded(codes, scale)
                found[node.input[0]] = codes
            elif node.op_type == "DequantizeLinear":
                values[node.output[0]] = x
            else:
                inputs = [values.get(name) for name in node.input if name and name not in self.constants
                          and name not in self.grids]
                made = None
                if all(v is not None for v in inputs):
                    made = getattr(self, f"do_{node.op_type}", lambda *given: None)(node, *inputs)
                made = made if isinstance(made, list) else [made]
                values.update(zip(node.output, made, strict=False))
        return found

    def attrs(self, node: onnx.NodeProto) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in node.attribute}

    def do_Conv(self, node: onnx.NodeProto, x: Coded) -> Codes:
        a = self.attrs(node)
        weight, s_w = self.grids[node.input[1]]
        if weight.ndim == 3:                                    # rows: an image of one row
            return self.rows(node, x)
        m, per, kh, kw = weight.shape
        bias = self.grids[node.input[2]][0] if len(node.input) > 2 else np.zeros(m, dtype=np.int64)
        top, left, bottom, right = a.get("pads", [0] * 4)
        sy, sx = a.get("strides", [1, 1])
        padded = np.pad(x.codes, ((0, 0), (top, bottom), (left, right))).astype(np.float64)   # exact below 2^53
        rows, columns = (padded.shape[1] - kh) // sy + 1, (padded.shape[2] - kw) // sx + 1
        taps = np.stack([padded[:, r:r + sy * rows:sy, c:c + sx * columns:sx][:, :rows, :columns]
                         for r in range(kh) for c in range(kw)], 1)
        groups = a.get("group", 1)
        each = taps.reshape(groups, per * kh * kw, -1)
        acc = np.concatenate([weight.reshape(groups, m // groups, -1).astype(np.float64)[g] @ each[g]
                              for g in range(groups)]).reshape(m, rows, columns)
        acc = acc + bias[:, None, None]
        assert np.abs(acc).max() < 1 << 31
        worth = (x.scale * np.broadcast_to(s_w, (m,)))[:, None, None]
        return lambda scale: stored(single(f32(acc) * f32(worth / scale)), -128, 127)

    def do_Gemm(self, node: onnx.NodeProto, x: Coded) -> Codes:
        weight, s_w = self.grids[node.input[1]]
        weight = weight if self.attrs(node).get("transB") else weight.T
        acc = weight @ x.codes.reshape(-1) + self.grids[node.input[2]][0]
        return lambda scale: stored(single(f32(acc) * f32(x.scale * s_w / scale)), -128, 127)

    def rows(self, node: onnx.NodeProto, x: Coded) -> Codes:
        """A convolution of (C, W), tap by tap."""
        a = self.attrs(node)
        weight, s_w = self.grids[node.input[1]]
        padded = np.pad(x.codes, ((0, 0), tuple(a["pads"])))
        count = padded.shape[1] - weight.shape[2] + 1
        acc = sum(weight[:, :, k] @ padded[:, k:k + count] for k in range(weight.shape[2]))
        acc = acc + self.grids[node.input[2]][0][:, None]
        worth = (x.scale * np.broadcast_to(s_w, (len(weight),)))[:, None]
        return lambda scale: stored(single(f32(acc) * f32(worth / scale)), -128, 127)

    def do_MatMul(self, node: onnx.NodeProto, x: Coded) -> Codes:
        weight, s_w = self.grids[node.input[1]]
        acc = x.codes @ weight
        return lambda scale: stored(single(f32(acc) * f32(x.scale * s_w / scale)), -128, 127)

    def do_Reshape(self, node: onnx.NodeProto, x: Coded) -> Coded:
        return Coded(x.codes.reshape(self.constants[node.input[1]][1:]), x.scale)

    def do_Transpose(self, node: onnx.NodeProto, x: Coded) -> Coded:
        return Coded(x.codes.transpose([i - 1 for i in self.attrs(node)["perm"][1:]]), x.scale)

    def do_Relu(self, node: onnx.NodeProto, x: Coded | Codes) -> Codes:
        return lambda scale: np.maximum(x(scale) if callable(x) else requantised(x, scale), 0)

    def do_Sigmoid(self, node: onnx.NodeProto, x: Coded) -> Codes:
        return lambda scale: half_even(np.clip(1 / (1 + np.exp(-x.codes * x.scale)) / scale, -128, 127))

    def do_Mul(self, node: onnx.NodeProto, a: Coded, b: Coded) -> Codes:
        return lambda scale: stored(single(a.codes * b.codes * f32(a.scale * b.scale / scale)), -128, 127)

    def do_Add(self, node: onnx.NodeProto, a: Coded, b: Coded) -> Codes:
        return lambda scale: stored(single(single(a.codes * f32(a.scale / scale)) + single(
            b.codes * f32(b.scale / scale))), -128, 127)

    def do_Concat(self, node: onnx.NodeProto, *parts: Coded) -> Codes | None:
        if self.attrs(node)["axis"] != 1:
            return None
        return lambda scale: np.concatenate([requantised(p, scale) for p in parts])

    def do_Split(self, node: onnx.NodeProto, x: Coded) -> list[Coded]:
        ends = np.cumsum(self.constants[node.input[1]])[:-1]
        return [Coded(part, x.scale) for part in np.split(x.codes, ends)]

    def do_Resize(self, node: onnx.NodeProto, x: Coded) -> Coded:
        return Coded(np.kron(x.codes, np.ones((1, 2, 2), dtype=np.int64)), x.scale)

    def do_MaxPool(self, node: onnx.NodeProto, x: Coded) -> Coded:
        a = self.attrs(node)
        k, pads = a["kernel_shape"], a.get("pads", [0] * 4)
        padded = np.pad(x.codes, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=-128)
        views = np.lib.stride_tricks.sliding_window_view(padded, tuple(k), (1, 2))
        step = a.get("strides", [1, 1])
        return Coded(views[:, ::step[0], ::step[1]].max((3, 4)), x.scale)

    def do_GlobalAveragePool(self, node: onnx.NodeProto, x: Coded) -> Codes:
        sums, n = x.codes.sum((1, 2), keepdims=True), x.codes[0].size
        return lambda scale: stored(single(sums * f32(x.scale / (n * scale))), -128, 127)

    def do_Flatten(self, node: onnx.NodeProto, x: Coded) -> Coded:
        return x


def requantised(x: Coded, scale: float) -> Array:
    return x.codes if x.scale == scale else stored(single(x.codes * f32(x.scale / scale)), -128, 127)


def opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """The same model under another opset."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.opset_import[0].version = version
    return copy


def as_image(codes: Array, shape: tuple[int, ...]) -> Array:
    """Codes (C, H, W), (C), rows (C, W) or tokens (N, C) as the program's image (H, W, C)."""
    if codes.ndim == 2:
        rows = codes.T if (shape[2], shape[1]) == codes.shape else codes
        return rows[None]
    return codes.reshape(codes.shape[0], *(codes.shape[1:] or (1, 1))).transpose(1, 2, 0)


def compare(model: onnx.ModelProto, runner: ProgramRunner, seed: int = 0) -> dict[str, Array]:
    """Asserts that the program's codes are those of the whole numbers wherever it makes some; these tensors."""
    codes = np.random.default_rng(seed).integers(-128, 128, runner.input[0].shape)
    runner.input[0] = codes
    got: Mapping[str, Array] = seen(runner)
    want = WholeNumbers(model).run(codes.transpose(2, 0, 1))
    both = {}
    for name, exact in want.items():
        image = name if name in got else f"{name}/image"
        if image in got:
            whole = as_image(exact, got[image].shape)
            assert np.array_equal(got[image], whole), f"{name}: {(got[image] != whole).sum()} of {whole.size} differ"
            both[name] = exact
    return both
