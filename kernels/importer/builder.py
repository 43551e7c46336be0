"""Adds node by node to a graph: checks domain and version, folds what is constant, infers shapes of what is not.

Caller: `onnx_model.py`. What cannot be taken is raised, or collected where all problems are wanted at once; then what
depends on a refused node is only checked as far as it can be without its shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..ir.errors import ModelError, refuse
from ..ir.graph import Node, TensorInfo
from ..ir.reference import OPERATORS, evaluate
from .context import Array, Context
from .operators import normalise
from .quantised import AS_QDQ, PAIRS, attach, carry
from .shapes import LARGEST_RANK, infer
from .versions import VERSIONS, arity, since_version

LARGEST_ELEMENTS = 1 << 28
LARGEST_FOLDED_BYTES = 1 << 30
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
REMEDIES = {
    "NonMaxSuppression": "cut the model off before it: the spec's decoder does this",
    "TopK": "cut the model off before it: the spec's decoder does this",
    "Einsum": "export it as MatMul, Transpose and Mul",
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"), AS_QDQ),
}
OWN = frozenset({"SiLU", "GeluTanh", "ChannelGather"})


class Builder:
    """`problems` None: the first problem is raised; a list: problems are collected there."""

    def __init__(self, context: Context, inputs: tuple[TensorInfo, ...], problems: list[str] | None = None) -> None:
        self.context = context
        self.nodes: list[Node] = []
        self.tensors = {i.name: i for i in inputs}
        for info in inputs:
            context.declare(info.name, info.shape, info.dtype)
        self.names: set[str] = set()
        self.unknown: set[str] = set()                 # outputs of refused nodes
        self.folded = 0
        self.problems = problems

    def add(self, proto: onnx.NodeProto, index: int) -> None:
        """Raises ModelError or UnsupportedModel unless problems are collected."""
        try:
            self._add(proto, index)
        except ModelError as error:
            if self.problems is None:
                raise
            self.problems.append(str(error))
            self.unknown.update(o for o in proto.output if o not in self.context.shapes)

    def _add(self, proto: onnx.NodeProto, index: int) -> None:
        ctx = self.context
        name = proto.name or f"{proto.op_type}_{index}"
        while name in self.names:
            name = f"{name}#{index}"
        self.names.add(name)
        node = Node(name, proto.op_type, tuple(proto.input), tuple(proto.output))
        self._check_operator(proto, node)
        node = Node(name, node.op, node.inputs, node.outputs, _attributes(proto, name, ctx.file))
        if self.unknown.intersection(node.inputs):
            self.unknown.update(node.outputs)
            return
        for given in node.inputs:
            if given and given not in ctx.shapes:
                raise ModelError(f"{ctx.file}: node '{name}' ({node.op}) reads '{given}', which nothing before it "
                                 "makes: the file is damaged; export the model again")
            if given and len(ctx.shapes[given]) > LARGEST_RANK:
                raise ctx.refuse(node, f"reads '{given}' of {len(ctx.shapes[given])} dimensions",
                                 "the file is damaged: export the model again")
        for made in node.outputs:
            if made and made in ctx.shapes:
                raise ModelError(f"{ctx.file}: node '{name}' ({node.op}) makes '{made}' a second time; export the "
                                 "model again")
        if node.op == "Constant":
            self._keep(node, (_constant_value(node, ctx.file),))
            return
        try:
            placed = attach(ctx, normalise(ctx, node))
            if node.op not in PAIRS:
                carry(ctx, placed)
            self._place(placed)
        except ModelError:
            raise
        except (TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
            raise ctx.refuse(node, f"an attribute or input is missing or malformed ({type(error).__name__}: {error})",
                             "the file is damaged, or of another opset than it says: export the model again") from error
        except (ValueError, ArithmeticError, MemoryError) as error:
            raise ctx.refuse(node, f"its inputs do not fit: {error}",
                             "export the model again, or give the shape with --input") from error

    def _check_operator(self, proto: onnx.NodeProto, node: Node) -> None:
        ctx = self.context
        if proto.domain not in ("", "ai.onnx"):
            integer = node.op in PAIRS or node.op.startswith(("QLinear", "QGemm", "DynamicQuantize"))
            raise ctx.refuse(node, f"operator of the domain '{proto.domain}'",
                             f"export with standard operators only{f'; {AS_QDQ}' if integer else ''}")
        if node.op in CONTROL_FLOW:
            raise ctx.refuse(node, "control flow is not supported", "export the model for one fixed path, without it")
        version = ctx.version = since_version(node.op, ctx.opset)
        if node.op not in VERSIONS or not version:
            raise ctx.refuse(node, "this operator is not supported",
                             REMEDIES.get(node.op, "export the model without it, or cut it off"))
        if version not in VERSIONS[node.op]:
            raise ctx.refuse(node, f"version {version} of this operator (opset {ctx.opset})",
                             f"export with an opset whose version is one of {', '.join(map(str, VERSIONS[node.op]))}")
        least, most, outputs = arity(node.op, version)
        made = len(node.outputs)
        if not least <= len(node.inputs) <= most or not all(node.inputs[:least]) or not 0 < made <= outputs:
            raise ctx.refuse(node, f"has {sum(map(bool, node.inputs))} inputs and {made} outputs; it needs {least} to "
                             f"{most} and at most {outputs}", "the file is damaged: export the model again")
        if not node.outputs[0]:
            raise ctx.refuse(node, "its output has no name", "export the model again")

    def _place(self, node: Node) -> None:
        """Keeps the value of a constant node, appends any other."""
        ctx = self.context
        if node.op == "Shape":
            start, end = node.attrs.get("start", 0), node.attrs.get("end")
            self._keep(node, (np.array(ctx.shape(node), dtype=np.int64)[start:end],))
            return
        if node.op == "Size":
            self._keep(node, (np.array(np.prod(ctx.shape(node)), dtype=np.int64),))
            return
        constant = all(not name or name in ctx.constants for name in node.inputs)
        found = infer(ctx, node)
        if found is not None:
            size = float(np.prod([float(n) for n in found[0]]))
            if size > LARGEST_ELEMENTS or (constant and size > LARGEST_FOLDED_BYTES // 8):
                raise ctx.refuse(node, f"makes a tensor of shape {found[0]}", "use a smaller input")
        if constant:
            with np.errstate(all="ignore"):
                results = evaluate(node, [ctx.constants[name] if name else None for name in node.inputs])
            self.folded += sum(r.nbytes for r in results)
            if self.folded > LARGEST_FOLDED_BYTES:
                raise ctx.refuse(node, "the constants of the model grow above 1 GiB", "export it with weights folded")
            self._check_outputs(node, len(results))
            self._keep(node, results)
            return
        if found is not None and 0 in found[0] and len(node.outputs) == 1:
            self._keep(node, (np.zeros(found[0], dtype=found[1]),))     # an empty tensor is a constant
            return
        made = [found] if found is not None else [(r.shape, r.dtype.name) for r in self._on_ones(node)]
        self._check_outputs(node, len(made))
        if any(0 not in shape for shape, _ in made):
            self.nodes.append(node)
        for output, (shape, dtype) in zip(node.outputs, made, strict=False):
            if min(shape, default=1) < 0:
                raise ctx.refuse(node, f"output '{output}' has the impossible shape {shape}", "export it again")
            if 0 in shape:
                ctx.keep(output, np.zeros(shape, dtype=dtype))
                continue
            ctx.declare(output, tuple(shape), dtype)
            self.tensors[output] = TensorInfo(output, tuple(shape), dtype)

    def _check_outputs(self, node: Node, known: int) -> None:
        if known < len(node.outputs):
            raise self.context.refuse(node, f"has {len(node.outputs)} outputs, {known} are known", "export it again")

    def _keep(self, node: Node, values: tuple[Array, ...]) -> None:
        for output, value in zip(node.outputs, values, strict=False):
            if output:
                self.context.keep(output, value)

    def _on_ones(self, node: Node) -> tuple[Array, ...]:
        """Arrays of the outputs' shape and type."""
        ctx = self.context
        if node.op not in OPERATORS:
            raise ctx.refuse(node, "this operator is not supported on computed tensors", "export the model without it")
        values = [None if not i else ctx.constants[i] if i in ctx.constants else
                  np.broadcast_to(np.ones((), dtype=ctx.dtypes[i]), ctx.shapes[i]) for i in node.inputs]
        with np.errstate(all="ignore"):
            return evaluate(node, values)


def _attributes(proto: onnx.NodeProto, name: str, file: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in proto.attribute:
        try:
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, onnx.TensorProto):
                if min(value.dims, default=0) < 0:
                    raise ValueError(f"it has the impossible shape {list(value.dims)}")
                value = numpy_helper.to_array(value)
        except (ValueError, TypeError, KeyError, UnicodeDecodeError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{file}: node '{name}' ({proto.op_type}): attribute '{attribute.name}' cannot be read "
                             f"({error}): the file is damaged; export the model again") from error
        if value is None:
            raise ModelError(f"{file}: node '{name}' ({proto.op_type}): attribute '{attribute.name}' has no "
                             "value: the file is damaged; export the model again")
        values[attribute.name] = tuple(value) if isinstance(value, list) else value
    return values


def _constant_value(node: Node, file: str) -> Array:
    for key, dtype in (("value", None), ("value_float", np.float32), ("value_int", np.int64),
                       ("value_floats", np.float32), ("value_ints", np.int64)):
        if key in node.attrs and not isinstance(node.attrs[key], (bytes, str)):
            try:
                return np.asarray(node.attrs[key], dtype=dtype)
            except (ValueError, TypeError) as error:
                raise refuse(file, node.name, node.op, f"its value cannot be read ({error})", "export it again") \
                    from error
    raise refuse(file, node.name, node.op, f"attribute {list(node.attrs)}", "use a dense constant")


