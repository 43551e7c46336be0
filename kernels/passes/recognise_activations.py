"""Pass: activations that exporters write out of several nodes become one. Caller: `pipeline.py`.

SiLU (x * Sigmoid(x)), Mish, HardSigmoid and HardSwish (Add 3, Clip to 0..6, Mul or Div by 6, in any order), ReLU6
(bounds that follow each other), LeakyReLU (the larger of x and a part of it; one slope). GELU: `recognise_gelu.py`.
Quantising the parts apart would lose most of the accuracy (0.362 to 0.054 mAP in a known case).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir.graph import Array, Graph, Node
from .matching import constant_side, only, scalar
from .remove_dead import remove_dead

Rule = Callable[[Graph, Node, dict[str, Array]], Node | None]
NEAR = 1e-3


def _silu(graph: Graph, node: Node, constants: dict[str, Array]) -> Node | None:
    for x, gate in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else ():
        source = graph.producers.get(gate)
        if source is not None and source.op == "Sigmoid" and source.inputs == (x,):
            return Node(node.name, "SiLU", (x,), node.outputs)
    return None


def _bounds(graph: Graph, node: Node | None) -> tuple[float, float] | None:
    """(low, high) of a Clip, Relu, Max or Min with numbers."""
    if node is None:
        return None
    if node.op == "Relu":
        return 0.0, np.inf
    if node.op == "Clip":
        low, high = (scalar(graph, name) if name else default
                     for name, default in zip((*node.inputs[1:], "", "")[:2], (-np.inf, np.inf), strict=True))
        return None if low is None or high is None else (low, high)
    if node.op in ("Max", "Min"):
        found = constant_side(graph, node)
        return None if found is None else (found[1], np.inf) if node.op == "Max" else (-np.inf, found[1])
    return None


def _source(graph: Graph, node: Node) -> str:
    """What a node of `_bounds` reads."""
    return next(name for name in node.inputs if name not in graph.constants)


def _clip(graph: Graph, node: Node, constants: dict[str, Array]) -> Node | None:
    """Two bounds behind each other, or a Max or Min with a number, as one Clip."""
    outer = _bounds(graph, node)
    if outer is None:
        return None
    x = _source(graph, node)
    before = only(graph, x, node)
    inner = _bounds(graph, before)
    if before is None or inner is None:
        if node.op in ("Clip", "Relu"):
            return None
        inner = (-np.inf, np.inf)
    else:
        x = _source(graph, before)
    low, high = max(inner[0], outer[0]), min(inner[1], outer[1])
    if low > high or graph.shape(x) != graph.shape(node.output):
        return None
    if (low, high) == (0.0, np.inf):
        return Node(node.name, "Relu", (x,), node.outputs)
    names = []
    for what, value in (("low", low), ("high", high)):
        names.append("" if np.isinf(value) else graph.free_name(f"{node.name}/{what}", constants))
        if names[-1]:
            constants[names[-1]] = np.array(value, dtype=np.float32)
    return Node(node.name, "Clip", (x, *names), node.outputs)


def _sixth(graph: Graph, node: Node) -> str | None:
    """The operand that a node divides by 6, or multiplies with 1/6."""
    found = constant_side(graph, node)
    if found is None or node.op not in ("Mul", "Div") or (node.op == "Div" and node.inputs[1] not in graph.constants):
        return None
    factor = found[1] if node.op == "Mul" else 1 / found[1] if found[1] else 0.0
    return found[0] if abs(factor - 1 / 6) < 1e-4 else None


def _shifted(graph: Graph, name: str, reader: Node) -> str | None:
    """x where `name` is Clip(x + 3, 0, 6)."""
    clip = only(graph, name, reader)
    bounds = _bounds(graph, clip)
    if clip is None or bounds is None or abs(bounds[0]) > NEAR or abs(bounds[1] - 6) > NEAR:
        return None
    source = _source(graph, clip)
    add = only(graph, source, clip)
    found = constant_side(graph, add) if add is not None and add.op == "Add" else None
    return found[0] if found is not None and abs(found[1] - 3) < NEAR else None


def _hard(graph: Graph, node: Node, constants: dict[str, Array]) -> Node | None:
    """HardSigmoid and HardSwish from their parts."""
    if node.op not in ("Mul", "Div"):
        return None
    inner = _sixth(graph, node)
    if inner is not None:
        x = _shifted(graph, inner, node)
        if x is not None:                              # clip(x + 3) / 6
            return Node(node.name, "HardSigmoid", (x,), node.outputs, {"alpha": 1 / 6, "beta": 0.5})
        product = only(graph, inner, node)             # (x clip(x + 3)) / 6
        for x, gate in (product.inputs, product.inputs[::-1]) if product is not None and product.op == "Mul" else ():
            if product is not None and _shifted(graph, gate, product) == x:
                return Node(node.name, "HardSwish", (x,), node.outputs)
    for x, gate in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else ():
        source = only(graph, gate, node)               # x HardSigmoid(x)
        if source is None:
            continue
        if source.op == "HardSigmoid" and source.inputs == (x,) and abs(source.attrs.get("alpha", 0.2) - 1 / 6) < 1e-4 \
                and abs(source.attrs.get("beta", 0.5) - 0.5) < NEAR:
            return Node(node.name, "HardSwish", (x,), node.outputs)
    return None


def _leaky(graph: Graph, node: Node, constants: dict[str, Array]) -> Node | None:
    """Max(x, a x) with 0 < a < 1; PRelu with one slope."""
    if node.op == "PRelu":
        slope = scalar(graph, node.inputs[1])
        return None if slope is None or graph.shape(node.output) != graph.shape(node.inputs[0]) else \
            Node(node.name, "LeakyRelu", node.inputs[:1], node.outputs, {"alpha": slope})
    for x, part in (node.inputs, node.inputs[::-1]) if node.op == "Max" and len(node.inputs) == 2 else ():
        source = only(graph, part, node)
        found = constant_side(graph, source) if source is not None and source.op == "Mul" else None
        if found is not None and found[0] == x and 0 < found[1] < 1:
            return Node(node.name, "LeakyRelu", (x,), node.outputs, {"alpha": found[1]})
    return None


def _mish(graph: Graph, node: Node, constants: dict[str, Array]) -> Node | None:
    """x * Tanh(Softplus(x)), which is how opsets below 18 write it."""
    for x, gate in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else ():
        bent = only(graph, gate, node)
        soft = only(graph, bent.inputs[0], bent) if bent is not None and bent.op == "Tanh" else None
        if soft is not None and soft.op == "Softplus" and soft.inputs == (x,):
            return Node(node.name, "Mish", (x,), node.outputs)
    return None


RULES: tuple[Rule, ...] = (_silu, _mish, _leaky, _clip, _hard)


def recognise_activations(graph: Graph) -> Graph:
    """Rule by rule, so that a later one sees what an earlier one made; parts that nobody reads are left to
    `remove_dead`."""
    for rule in (*RULES, _hard):
        constants: dict[str, Array] = {}
        graph = graph.rebuilt([rule(graph, node, constants) or node for node in graph.nodes], constants=constants)
        graph = remove_dead(graph)
    return graph
