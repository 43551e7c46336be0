"""Flat nodes (the float tail, and what an FP32 body has between images) to steps. Caller: `lower.py`.

Reshapes cost nothing: they are the same bytes under another shape. Every flat tensor is float32.
"""

from __future__ import annotations

import numpy as np

from ..ir.graph import Node
from ..ir.reference import ACTIVATIONS
from ..ir.steps import Binary, Cut, Join, Softmax, Transpose, Unary
from .lowering import Lowering

SAME_BYTES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Cast"})
BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
UNARY = frozenset(ACTIVATIONS) | {"Softplus", "Exp", "Sqrt", "Neg", "Clip"}
POLYNOMIAL = frozenset({"Sigmoid", "SiLU", "Softplus", "Exp", "Relu", "Sqrt", "Neg", "Clip", "LeakyRelu", "HardSigmoid",
                        "HardSwish"})
"""Unary functions whose bits CONTRACT.md fixes; the others are toleranced."""
DEFAULT_ALPHA = {"LeakyRelu": 0.01, "HardSigmoid": 0.2}


def activation_parameters(op: str, attrs: object) -> tuple[float, float]:
    """(alpha, beta) of an activation node with ONNX's defaults."""
    assert hasattr(attrs, "get")
    return float(attrs.get("alpha", DEFAULT_ALPHA.get(op, 0.0))), float(attrs.get("beta", 0.5))


def lower_flat(node: Node, out: Lowering) -> None:
    graph = out.graph
    live = [name for name in node.inputs if name and name not in graph.constants]
    for name in live:
        if out.tensors[name].dtype != "float32":
            raise out.refuse(node, f"works on {out.tensors[name].dtype}", "export it with float32 tensors")
    if not live:
        raise out.refuse(node, "all its inputs are constant", "export the model with constants folded")
    exact = all(out.tensors[name].exact for name in live)
    x = live[0]
    if node.op in SAME_BYTES:
        if node.op == "Cast" and node.attrs["to"] != "float32":
            raise out.refuse(node, f"casts to {node.attrs['to']}", "end the model in float32")
        out.declare(node.output, "float32", exact, alias=x)
    elif node.op in BINARY:
        _binary(node, out, exact)
    elif node.op in UNARY:
        alpha, beta = activation_parameters(node.op, node.attrs)
        low = high = None
        if node.op == "Clip":
            low, high = (None if not name else float(graph.constants[name].reshape(()))
                         for name in (*node.inputs[1:], "", "")[:2])
        out.declare(node.output, "float32", exact and node.op in POLYNOMIAL)
        out.steps.append(Unary(node.name, node.op, x, node.output, alpha, beta, low, high))
    elif node.op == "Transpose":
        out.declare(node.output, "float32", exact)
        out.steps.append(Transpose(node.name, x, node.output, tuple(node.attrs["perm"])))
    elif node.op == "Concat" and len(live) == len(node.inputs):
        out.declare(node.output, "float32", exact)
        out.steps.append(Join(node.name, tuple(live), node.output, node.attrs["axis"] % len(graph.shape(x))))
    elif node.op in ("Slice", "Split"):
        _cut(node, out, exact)
    elif node.op == "Softmax":
        out.declare(node.output, "float32", False)
        out.steps.append(Softmax(node.name, x, node.output, node.attrs["axis"]))
    else:
        raise out.refuse(node, f"not supported on a tensor of shape {graph.shape(x)} at this place",
                         "export the model without it, or cut the model off before it")


def _binary(node: Node, out: Lowering, exact: bool) -> None:
    a, b = node.inputs
    constant, names = "", [a, b]
    for index, name in enumerate((a, b)):
        if name in out.graph.constants:
            value = out.graph.constants[name]
            constant = out.constant(f"{node.name}/constant", value.astype(np.float32))
            names[index] = ""
    out.declare(node.output, "float32", exact)
    out.steps.append(Binary(node.name, BINARY[node.op], names[0], names[1], node.output, constant))


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
    starts, ends, axes, steps = (constants[n].tolist() if n else None for n in (*node.inputs[1:], "", "", "")[:4])
    cut = [(0, n, 1) for n in shape]
    for i, (start, end) in enumerate(zip(starts or [], ends or [], strict=False)):
        axis = (axes[i] if axes else i) % len(shape)
        cut[axis] = slice(start, end, steps[i] if steps else 1).indices(shape[axis])
    out.declare(node.output, "float32", exact)
    out.steps.append(Cut(node.name, node.inputs[0], node.output, tuple(cut)))
