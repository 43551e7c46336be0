"""Reads an ONNX file into a Graph. The only package that imports onnx; caller: `build.py`, `verify.py`.

Keeps: every tensor of the result has a known shape and type; what cannot be taken is refused here, with its node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from ..ir.errors import ModelError, UnsupportedModel, refuse
from ..ir.graph import Graph, Node, TensorInfo
from ..ir.reference import evaluate
from .operators import Context, normalise

Array = npt.NDArray[Any]
OPSETS = range(7, 24)
LARGEST_FOLDED_BYTES = 64 << 20
SHAPED_BY_FORMULA = frozenset({"Conv", "MaxPool", "AveragePool"})


def read_model(path: Path) -> Graph:
    """The graph of an ONNX file. Raises ModelError (unreadable, unsound) or UnsupportedModel (says which node)."""
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ModelError(f"{path}: not an ONNX model, or cut short; copy or export it again") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"{path}: holds no graph: not an ONNX model, or cut short; copy or export it again")
    return import_model(model, path)


def import_model(model: onnx.ModelProto, path: Path) -> Graph:
    """As `read_model`, from a model in memory; `path` is for messages and external data."""
    file = path.name
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset not in OPSETS:
        raise UnsupportedModel(f"{file}: ONNX opset {opset}; {OPSETS.start} to {OPSETS.stop - 1} are taken: "
                               "export the model with one of these")
    constants = _initializers(model, path)
    inputs = _inputs(model, file, constants)
    if len(model.graph.output) != len({o.name for o in model.graph.output}):
        raise ModelError(f"{file}: two graph outputs have the same name; export the model again")
    builder = _Builder(file, opset, constants, inputs)
    for index, proto in enumerate(model.graph.node):
        builder.add(proto, index)
    outputs = tuple(o.name for o in model.graph.output)
    return Graph(file, inputs, outputs, tuple(builder.nodes), builder.context.constants, builder.tensors)


def _initializers(model: onnx.ModelProto, path: Path) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        try:
            constants[tensor.name] = numpy_helper.to_array(tensor, str(path.parent))
        except (OSError, ValueError, TypeError, KeyError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{path.name}: the weights '{tensor.name}' are missing or cut short; copy the model with "
                             "its external data file, or export it again") from error
    return constants


def _inputs(model: onnx.ModelProto, file: str, constants: dict[str, Array]) -> tuple[TensorInfo, ...]:
    inputs = []
    for value in model.graph.input:
        if value.name in constants:                    # IR 3 lists the weights among the inputs
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
        if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
            raise UnsupportedModel(f"{file}: input '{value.name}' has the dynamic shape {shape}; export the model "
                                   "with a fixed shape, for example 1x3x256x256")
        if shape[0] != 1:
            raise UnsupportedModel(f"{file}: input '{value.name}' has the batch size {shape[0]}; export with batch 1 "
                                   "(the spec's key 'batch' makes larger ones)")
        known = tensor.elem_type in onnx.TensorProto.DataType.values()[1:]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if known else f"type {tensor.elem_type}"
        if dtype not in ("float32", "uint8"):
            raise UnsupportedModel(f"{file}: input '{value.name}' is {dtype}; export with float32 or uint8")
        inputs.append(TensorInfo(value.name, tuple(int(s) for s in shape), dtype))
    if len(inputs) != 1:
        raise UnsupportedModel(f"{file}: {len(inputs)} inputs ({', '.join(i.name for i in inputs)}); a model with one "
                               "image input is taken: cut the others off or make them constants")
    return tuple(inputs)


class _Builder:
    """Adds node by node, folding what is constant and inferring what is not."""

    def __init__(self, file: str, opset: int, constants: dict[str, Array], inputs: tuple[TensorInfo, ...]) -> None:
        self.nodes: list[Node] = []
        self.tensors = {i.name: i for i in inputs}
        shapes = {i.name: i.shape for i in inputs} | {k: tuple(v.shape) for k, v in constants.items()}
        self.context = Context(file, opset, constants, shapes)
        self.names: set[str] = set()

    def add(self, proto: onnx.NodeProto, index: int) -> None:
        ctx = self.context
        name = proto.name or f"{proto.op_type}_{index}"
        name = name if name not in self.names else f"{name}#{index}"
        self.names.add(name)
        node = Node(name, proto.op_type, tuple(proto.input), tuple(proto.output), _attributes(proto, ctx.file))
        if proto.domain not in ("", "ai.onnx"):
            raise ctx.refuse(node, f"operator of the domain '{proto.domain}'", "export with standard operators only")
        for given in node.inputs:
            if given and given not in ctx.shapes:
                raise ModelError(f"{ctx.file}: node '{name}' ({node.op}) reads '{given}', which nothing before it "
                                 "makes: the file is damaged; export the model again")
        if node.op == "Constant":
            self._keep(node, (_constant_value(node, ctx.file),))
            return
        try:
            node = normalise(ctx, node)
            if node.op == "Shape":
                self._keep(node, (np.array(ctx.shapes[node.inputs[0]], dtype=np.int64),))
                return
            constant = all(not i or i in ctx.constants for i in node.inputs)
            results = self._evaluate(node, constant)
        except (TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
            raise ctx.refuse(node, f"an attribute or input is missing or malformed ({type(error).__name__}: {error})",
                             "the file is damaged, or of another opset than it says: export the model again") from error
        if len(results) < len(node.outputs):
            raise ctx.refuse(node, f"has {len(node.outputs)} outputs, {len(results)} are known", "export it again")
        if constant and sum(r.nbytes for r in results) <= LARGEST_FOLDED_BYTES:
            self._keep(node, results)
            return
        self.nodes.append(node)
        for output, result in zip(node.outputs, results, strict=False):
            if not output:
                continue
            if 0 in result.shape:
                raise ctx.refuse(node, f"output '{output}' is empty {result.shape}", "export the model again")
            ctx.shapes[output] = tuple(result.shape)
            self.tensors[output] = TensorInfo(output, tuple(result.shape), result.dtype.name)

    def _keep(self, node: Node, values: tuple[Array, ...]) -> None:
        for output, value in zip(node.outputs, values, strict=False):
            self.context.constants[output] = value
            self.context.shapes[output] = tuple(value.shape)

    def _evaluate(self, node: Node, constant: bool) -> tuple[Array, ...]:
        """The true outputs of a constant node; else arrays of the right shape and type, made from ones."""
        ctx = self.context
        if not constant and node.op in SHAPED_BY_FORMULA:
            return (self._window_shape(node),)
        values = [None if not i else ctx.constants[i] if i in ctx.constants else
                  np.broadcast_to(np.ones((), dtype=self.tensors[i].dtype), ctx.shapes[i]) for i in node.inputs]
        try:
            with np.errstate(all="ignore"):
                return evaluate(node, values)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise refuse(ctx.file, node.name, node.op, f"its inputs do not fit: {error}",
                         "export the model again with fixed shapes") from error

    def _window_shape(self, node: Node) -> Array:
        n, c, *size = self.context.shapes[node.inputs[0]]
        a = node.attrs
        out = [(size[i] + a["pads"][i] + a["pads"][i + 2] - (a["kernel_shape"][i] - 1) * a["dilations"][i] - 1)
               // a["strides"][i] + 1 for i in (0, 1)]
        if min(out) < 1:
            raise self.context.refuse(node, f"its window is larger than the input {size}", "use a larger input")
        channels = self.context.shapes[node.inputs[1]][0] if node.op == "Conv" else c
        return np.broadcast_to(np.ones((), dtype=self.tensors[node.inputs[0]].dtype), (n, channels, *out))


def _attributes(proto: onnx.NodeProto, file: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        if value is None:
            raise ModelError(f"{file}: node '{proto.name}' ({proto.op_type}): attribute '{attribute.name}' has no "
                             "value: the file is damaged; export the model again")
        values[attribute.name] = tuple(value) if isinstance(value, list) else value
    return values


def _constant_value(node: Node, file: str) -> Array:
    for key, dtype in (("value", None), ("value_float", np.float32), ("value_int", np.int64),
                       ("value_floats", np.float32), ("value_ints", np.int64)):
        if key in node.attrs:
            return np.asarray(node.attrs[key], dtype=dtype)
    raise refuse(file, node.name, node.op, f"attribute {list(node.attrs)}", "use a dense constant")
