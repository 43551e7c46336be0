"""Flat nodes (the float tail, and what an FP32 body has between images) to steps. Caller: `lower.py`.

Reshapes cost nothing: they are the same bytes under another shape. Every flat tensor is float32; truth values are 0, 1.
"""

from __future__ import annotations

import numpy as np

from ..ir.elementwise import ACTIVATIONS
from ..ir.flat_steps import (
    Binary,
    Border,
    Cut,
    Fill,
    Join,
    MatMul,
    Normalise,
    Reduce,
    Select,
    Softmax,
    Spread,
    Take,
    Transpose,
    Unary,
    WindowConv,
    WindowPool,
)
from ..ir.graph import Node
from ..ir.movement import slices
from ..ir.windowed import element_counts
from .lowering import Lowering

SAME_BYTES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Pow": "power", "Max": "maximum",
          "Min": "minimum", "Mod": "modulo", "PRelu": "prelu", "Equal": "equal", "Greater": "greater", "Less": "less",
          "GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal", "And": "and", "Or": "or", "Xor": "xor"}
UNARY = frozenset(ACTIVATIONS) | {"Softplus", "Exp", "Sqrt", "Neg", "Clip", "Abs", "Ceil", "Floor", "Round", "Sign",
                                  "Log", "Sin", "Cos", "Not", "Reciprocal", "Erf", "Selu", "Celu", "Softsign",
                                  "ThresholdedRelu"}
EXACT = frozenset({"Sigmoid", "SiLU", "Softplus", "Exp", "Relu", "Sqrt", "Neg", "Clip", "LeakyRelu", "HardSigmoid",
                   "HardSwish", "Abs", "Ceil", "Floor", "Round", "Sign", "Not", "Reciprocal", "FakeQuantise"})
"""Unary functions whose bits CONTRACT.md fixes; the others are toleranced."""
REDUCE = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}
DEFAULT_ALPHA = {"LeakyRelu": 0.01, "HardSigmoid": 0.2, "Elu": 1.0, "Celu": 1.0, "ThresholdedRelu": 1.0,
                 "Selu": 1.67326319217681884765625}
DEFAULT_BETA = {"Selu": 1.05070102214813232421875}
TYPES = frozenset({"float32", "bool"})


def activation_parameters(op: str, attrs: object) -> tuple[float, float]:
    """(alpha, beta) of an activation node with ONNX's defaults; Selu's gamma and FakeQuantise's low are beta."""
    assert hasattr(attrs, "get")
    if op == "FakeQuantise":
        return float(attrs.get("alpha")), float(attrs.get("low"))
    beta = attrs.get("gamma", DEFAULT_BETA["Selu"]) if op == "Selu" else attrs.get("beta", 0.5)
    return float(attrs.get("alpha", DEFAULT_ALPHA.get(op, 0.0))), float(beta)


def lower_flat(node: Node, out: Lowering) -> None:
    graph = out.graph
    live = [name for name in node.inputs if name and name not in graph.constants]
    for name in live:
        if out.tensors[name].dtype != "float32" and node.op != "Cast":
            raise out.refuse(node, f"works on {out.tensors[name].dtype}", "export it with float32 tensors")
    for name in node.outputs:
        if name and graph.tensors[name].dtype not in TYPES:
            if node.op == "Cast":
                raise out.refuse(node, f"casts to {graph.tensors[name].dtype}", "end the model in float32")
            raise out.refuse(node, f"makes {graph.tensors[name].dtype}", "export it with float32 tensors")
    if not live:
        raise out.refuse(node, "all its inputs are constant", "export the model with constants folded")
    exact = all(out.tensors[name].exact for name in live)
    x = live[0]
    if node.op in SAME_BYTES:
        out.declare(node.output, "float32", exact, alias=x)
    elif node.op == "Cast":
        _cast(node, out, exact)
    elif node.op in BINARY:
        _binary(node, out, exact)
    elif node.op in UNARY:
        _unary(node, out, exact)
    elif node.op in ("Slice", "Split"):
        _cut(node, out, exact)
    else:
        out.declare(node.output, "float32", exact and node.op in ("Transpose", "Concat", "Gather", "Expand", "Pad"))
        _other(node, out, x, live)


def _other(node: Node, out: Lowering, x: str, live: list[str]) -> None:
    graph, y, a = out.graph, node.output, node.attrs
    if node.op == "Transpose":
        out.steps.append(Transpose(node.name, x, y, tuple(a["perm"])))
    elif node.op == "Concat":
        out.steps.append(Join(node.name, tuple(_stored(node, name, out) for name in node.inputs), y,
                              a["axis"] % len(graph.shape(x))))
    elif node.op == "Softmax":
        out.steps.append(Softmax(node.name, x, y, a["axis"]))
    elif node.op in REDUCE:
        out.steps.append(Reduce(node.name, REDUCE[node.op], x, y, tuple(a["axes"])))
    elif node.op == "MatMul":
        names, constant = _sides(node, out)
        out.steps.append(MatMul(node.name, names[0], names[1], y, constant))
    elif node.op == "Where":
        sides = ["" if name in graph.constants else name for name in node.inputs[1:]]
        constants = [_constant(node, f"side {i}", out, name) if name in graph.constants else ""
                     for i, name in enumerate(node.inputs[1:])]
        condition = _stored(node, node.inputs[0], out)
        out.steps.append(Select(node.name, condition, sides[0], sides[1], y, constants[0], constants[1]))
    elif node.op == "LayerNormalization" and len(live) == 1:
        scale, bias = (_constant(node, f"parameter {i}", out, name) if name else ""
                       for i, name in enumerate((*node.inputs[1:], "", "")[:2]))
        axis = a["axis"] % len(graph.shape(x))
        out.steps.append(Normalise(node.name, x, y, axis, a.get("epsilon", 1e-5), scale, bias))
    elif node.op == "Gather" and node.inputs[1] in graph.constants:
        axis = a.get("axis", 0)
        index = graph.constants[node.inputs[1]].astype(np.int64) % graph.shape(x)[axis]
        out.steps.append(Take(node.name, x, y, out.constant(f"{node.name}/index", index), axis))
    elif node.op == "Expand":
        out.steps.append(Spread(node.name, x, y))
    elif node.op == "Pad" and not a:
        pads = graph.constants[node.inputs[1]].tolist()
        value = float(graph.constants[node.inputs[2]].reshape(())) if len(node.inputs) > 2 else 0.0
        out.steps.append(Border(node.name, x, y, tuple(pads[:len(pads) // 2]), value))
    elif node.op == "Conv":
        assert len(node.inputs) < 4 and not {"bounds", "activation"} & set(a), f"{node.name} was fused"
        weight = graph.constants[node.inputs[1]]
        has_bias = len(node.inputs) > 2 and node.inputs[2]
        shift = graph.constants[node.inputs[2]] if has_bias else np.zeros(len(weight))
        out.steps.append(WindowConv(
            node.name, x, y, out.constant(f"{node.name}/weight", weight),
            out.constant(f"{node.name}/bias", shift.astype(np.float32)), a["strides"], a["pads"], a["dilations"],
            a["group"]))
    elif node.op in ("MaxPool", "AveragePool"):
        multiplier = ""
        if node.op == "AveragePool":
            counts = element_counts(node, graph.shape(x)[2:], graph.shape(y)[2:])
            multiplier = out.constant(f"{node.name}/multiplier", (1 / counts).astype(np.float32))
        out.steps.append(WindowPool(node.name, x, y, a["kernel_shape"], a["strides"], a["pads"], a["dilations"],
                                    multiplier))
    else:
        raise out.refuse(node, f"not supported on a tensor of shape {graph.shape(x)} at this place",
                         "export the model without it, or cut the model off before it")


def fill_constant(name: str, out: Lowering) -> None:
    """A graph output that is a constant."""
    value = out.graph.constants[name]
    if value.dtype.name not in TYPES:
        raise refuse_output(name, value.dtype.name, out)
    out.declare(name, "float32", True)
    out.steps.append(Fill(name, name, out.constant(f"{name}/constant", value.astype(np.float32))))


def refuse_output(name: str, dtype: str, out: Lowering) -> Exception:
    return out.refuse(Node(name, "output", (), (name,)), f"graph output '{name}' is {dtype}",
                      "end the model in float32, or leave this output out")


def _constant(node: Node, what: str, out: Lowering, name: str) -> str:
    return out.constant(f"{node.name}/{what}", out.graph.constants[name].astype(np.float32))


def _stored(node: Node, name: str, out: Lowering) -> str:
    """`name` as a tensor of the program: a constant is put into one."""
    if name not in out.graph.constants:
        return name
    stored = f"{node.name}/{name}"
    if stored not in out.tensors:
        out.declare(stored, "float32", True, shape=out.graph.shape(name))
        out.steps.append(Fill(stored, stored, _constant(node, name, out, name)))
    return stored


def _cast(node: Node, out: Lowering, exact: bool) -> None:
    source = out.graph.tensors[node.inputs[0]].dtype
    if node.attrs["to"] == "bool" and source != "bool":
        out.declare(node.output, "float32", exact)
        out.steps.append(Unary(node.name, "Boolean", node.inputs[0], node.output))
        return
    if out.tensors[node.inputs[0]].dtype != "float32":
        raise out.refuse(node, f"works on {source}", "export it with float32 tensors")
    out.declare(node.output, "float32", exact, alias=node.inputs[0])


def _unary(node: Node, out: Lowering, exact: bool) -> None:
    alpha, beta = activation_parameters(node.op, node.attrs)
    low = high = None
    if node.op == "Clip":
        low, high = (None if not name else float(out.graph.constants[name].reshape(()))
                     for name in (*node.inputs[1:], "", "")[:2])
    out.declare(node.output, "float32", exact and node.op in EXACT)
    out.steps.append(Unary(node.name, node.op, node.inputs[0], node.output, alpha, beta, low, high))


def _sides(node: Node, out: Lowering) -> tuple[list[str], str]:
    """(tensors, constant): the name of the constant one is ""."""
    constant, names = "", list(node.inputs[:2])
    for index, name in enumerate(node.inputs[:2]):
        if name in out.graph.constants:
            constant, names[index] = _constant(node, "constant", out, name), ""
    return names, constant


def _binary(node: Node, out: Lowering, exact: bool) -> None:
    names, constant = _sides(node, out)
    out.declare(node.output, "float32", exact and node.op != "Pow")
    op = "fmod" if node.op == "Mod" and node.attrs.get("fmod") else BINARY[node.op]
    out.steps.append(Binary(node.name, op, names[0], names[1], node.output, constant))


def _cut(node: Node, out: Lowering, exact: bool) -> None:
    """A Slice as one Cut, a Split as one Cut an output."""
    constants = out.graph.constants
    shape = out.graph.shape(node.inputs[0])
    if node.op == "Split":
        axis, at = node.attrs.get("axis", 0) % len(shape), 0
        for index, name in enumerate(node.outputs):
            size = out.graph.shape(name)[axis]
            ranges = tuple((at, at + size, 1) if i == axis else (0, n, 1) for i, n in enumerate(shape))
            out.declare(name, "float32", exact)
            out.steps.append(Cut(f"{node.name}#{index}", node.inputs[0], name, ranges))
            at += size
        return
    starts, ends, axes, steps = (constants[n] if n else None for n in (*node.inputs[1:], "", "")[:4])
    if starts is None or ends is None:
        raise out.refuse(node, "has no starts or ends", "export the model again")
    cut = tuple(part.indices(n) for part, n in zip(slices(shape, starts, ends, axes, steps), shape, strict=True))
    out.declare(node.output, "float32", exact)
    out.steps.append(Cut(node.name, node.inputs[0], node.output, cut))
