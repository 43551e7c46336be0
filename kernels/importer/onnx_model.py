"""Reads an ONNX file into a Graph. The only package that imports onnx; callers: `build.py`, `verify.py`, `explain.py`.

Keeps: every tensor of the result has a known shape and type; what cannot be taken is refused here, with its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from ..ir.errors import ModelError, UnsupportedModel
from ..ir.graph import Graph, TensorInfo
from ..regular_file import FileRefused, read_regular
from .builder import Builder
from .context import Array, Context, Shape
from .order import in_order
from .versions import known_opset

NO_SHAPES: Mapping[str, Shape] = {}
LARGEST_INPUT = 1 << 26
LARGEST_FILE = (2 << 30) - 1
"""Of a protobuf message; larger weights lie in external data."""


def parse(path: Path) -> onnx.ModelProto:
    """The file's message. Raises ModelError."""
    try:
        model = onnx.load_model_from_string(read_regular(path, LARGEST_FILE))
    except FileRefused as error:
        raise ModelError(f"{path}: {error}") from error
    except DecodeError as error:
        raise ModelError(f"{path}: not an ONNX model, or cut short; copy or export it again") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"{path}: holds no graph: not an ONNX model, or cut short; copy or export it again")
    return model


def external_files(path: Path) -> list[Path]:
    """The files beside the model that hold weights of it. Raises ModelError."""
    places = {entry.value for tensor in parse(path).graph.initializer for entry in tensor.external_data
              if entry.key == "location"}
    return [path.parent / place for place in sorted(places)]


def read_model(path: Path, shapes: Mapping[str, Shape] = NO_SHAPES) -> Graph:
    """The graph of an ONNX file; `shapes` replace those that the file gives its inputs (`--input`).

    Raises ModelError (unreadable, unsound) or UnsupportedModel (says which node).
    """
    return import_model(parse(path), path, shapes)


def import_model(model: onnx.ModelProto, path: Path, shapes: Mapping[str, Shape] = NO_SHAPES, batched: bool = True,
                 problems: list[str] | None = None) -> Graph:
    """As `read_model`, from a model in memory; `path` is for messages and external data.

    `batched` False: the first axis of the input is not taken for a batch. With `problems`, what is refused is collected
    there instead of raised, as far as anything can be said behind it; the graph is then not whole.
    """
    file = path.name
    versions = {o.version for o in model.opset_import if o.domain in ("", "ai.onnx")}
    if len(versions) > 1:
        raise ModelError(f"{file}: names the ONNX opsets {', '.join(map(str, sorted(versions)))}: only one can be "
                         "meant; export the model again")
    opset = next(iter(versions), 0)
    if not known_opset(opset):
        raise UnsupportedModel(f"{file}: ONNX opset {opset}; 7 to {onnx.defs.onnx_opset_version()} are known here: "
                               "export the model with one of these, or install a newer onnx package")
    context = Context(file, opset, _initializers(model, path))
    inputs = _inputs(model, file, context.constants, shapes, batched)
    names = [o.name for o in model.graph.output]
    if len(names) != len(set(names)) or not names:
        twice = next((name for name in names if names.count(name) > 1), None)
        raise ModelError(f"{file}: {'has no outputs' if twice is None else f'two outputs are named {twice!r}'}; export "
                         "the model again")
    builder = Builder(context, inputs, problems)
    for index, proto in in_order(model.graph.node, file):
        builder.add(proto, index)
    empty = [f"{file}: graph output '{name}' has the shape {tuple(context.shapes[name])}, no values at all; end the "
             "model before what makes it empty" for name in names if batched and 0 in context.shapes.get(name, ())]
    empty += [f"{file}: graph output '{name}' has the shape (), no axis for the batch; keep the axes that are reduced "
              "(keepdims=1)" for name in names if batched and context.shapes.get(name) == ()]
    if empty and problems is None:
        raise UnsupportedModel(empty[0])
    codes = [f"{file}: graph output '{name}' is integer codes; end the model with a DequantizeLinear"
             for name in names if name in context.coded]
    if codes and problems is None:
        raise UnsupportedModel(codes[0])
    if problems is not None:
        problems += empty + codes
    if problems:
        names = [name for name in names if name in context.shapes]
    return Graph(file, inputs, tuple(names), tuple(builder.nodes), context.constants, builder.tensors)


def _initializers(model: onnx.ModelProto, path: Path) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        external = next((e.value for e in tensor.external_data if e.key == "location"), "")
        if external.startswith(("/", "\\")) or ".." in external.replace("\\", "/").split("/"):
            raise ModelError(f"{path.name}: the weights '{tensor.name}' lie in '{external}', outside of the model's "
                             "folder; put the file beside the model and export it again")
        if min(tensor.dims, default=0) < 0:
            raise ModelError(f"{path.name}: the weights '{tensor.name}' have the impossible shape {list(tensor.dims)}; "
                             "export the model again")
        try:
            if external and (path.parent / external).exists() and not (path.parent / external).is_file():
                raise ValueError("a pipe, which would be waited for")
            value = numpy_helper.to_array(tensor, str(path.parent))
        except (OSError, ValueError, TypeError, KeyError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{path.name}: the weights '{tensor.name}' are missing or cut short"
                             f"{f' (external data {external})' if external else ''}; copy the model with its external "
                             "data file, or export it again") from error
        if tensor.name in constants:
            raise ModelError(f"{path.name}: the weights '{tensor.name}' are given twice; export the model again")
        constants[tensor.name] = value
    if model.graph.sparse_initializer:
        raise UnsupportedModel(f"{path.name}: has sparse weights; export it with dense ones")
    return constants


def _inputs(model: onnx.ModelProto, file: str, constants: Mapping[str, Array], shapes: Mapping[str, Shape],
            batched: bool) -> tuple[TensorInfo, ...]:
    # IR 3 lists the weights among the inputs
    values = [value for value in model.graph.input if value.name not in constants]
    unknown = sorted(set(shapes) - {value.name for value in values})
    if unknown:
        raise ModelError(f"{file}: --input names '{unknown[0]}', but the model's inputs are "
                         f"{', '.join(v.name for v in values) or 'none'}")
    if len(values) != 1:
        raise UnsupportedModel(f"{file}: {len(values)} inputs ({', '.join(v.name for v in values)}); a model with one "
                               "image input is taken: cut the others off or make them constants; if they are weights, "
                               "the file lacks them: export it with its weights")
    return (_input(values[0], file, shapes.get(values[0].name), batched),)


def _input(value: onnx.ValueInfoProto, file: str, given: Shape | None, batched: bool) -> TensorInfo:
    tensor = value.type.tensor_type
    declared = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    shape = list(given) if given is not None else declared
    example = "x".join(str(s) if isinstance(s, int) and s > 0 else "1" if i == 0 else "256"
                       for i, s in enumerate(declared)) or "1x3x256x256"
    if given is not None and declared and len(given) != len(declared):
        raise ModelError(f"{file}: --input gives '{value.name}' {len(given)} sizes; it has {len(declared)} dimensions")
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise UnsupportedModel(f"{file}: input '{value.name}' has the dynamic shape {shape}; give it with --input "
                               f"{value.name}={example}, or export the model with a fixed shape")
    sizes = tuple(int(s) for s in shape)
    if np.prod([float(s) for s in sizes]) > LARGEST_INPUT:
        raise UnsupportedModel(f"{file}: input '{value.name}' has the shape {sizes}, more than {LARGEST_INPUT} values; "
                               "give a smaller one with --input")
    if len(sizes) == 1 and batched:
        raise UnsupportedModel(f"{file}: input '{value.name}' has the shape {sizes}, one axis, which would be the "
                               f"batch's; export the model with a batch axis in front of it: (1, {sizes[0]})")
    if sizes[0] != 1 and batched:
        small = "x".join(map(str, (1, *sizes[1:])))
        raise UnsupportedModel(f"{file}: input '{value.name}' has the batch size {sizes[0]}; give --input "
                               f"{value.name}={small} (the spec's key 'batch' makes larger ones)")
    known = tensor.elem_type in onnx.TensorProto.DataType.values()[1:]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if known else f"type {tensor.elem_type}"
    if dtype not in ("float32", "uint8"):
        raise UnsupportedModel(f"{file}: input '{value.name}' is {dtype}; export with float32 or uint8")
    return TensorInfo(value.name, sizes, dtype)
