"""Pass: convolution, activation, residual add and bounds become one Conv node (its form is in `reference.py`).

Caller: `pipeline.py`. Only forms that CONTRACT.md has are made: act(conv), clip(conv), clip(conv + r), clip(act(conv) +
r). Only in the body: what follows the last multiply-accumulate stays apart, in float. A fused node stands where its
last part stood; attribute `pre` names the pre-activation tensor, which calibration needs for the table. Convolutions
of volumes or of several frames are steps on flat tensors, which end in nothing but a bias: they stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.graph import Graph, Node
from .float_ends import STAYS
from .release_pairs import OF_PAIR

TABLES = frozenset({"Sigmoid", "SiLU", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Gelu", "GeluTanh", "Mish",
                    "Elu", "Selu", "Softplus"})
RESIDUAL = 3
"""Place of the residual among a convolution's inputs."""
PRE, POST = "table_pre_bounds", "table_post_bounds"
"""Attributes of a convolution with a table: Clips of pairs (`release_pairs.py`) before and after its activation."""
SUM = "sum_of_table"
"""Attribute of a convolution whose activation goes into a sum (`SumOfTable`). An INT8 table is in the sum's scale; the
two are taken apart again where that cuts it (kernels/quant/sums.py)."""


@dataclass(frozen=True, slots=True)
class SumOfTable:
    """Names: of the tensor that the activation made, of the Add node, and of the tensor that this made."""

    table: str
    add: str
    total: str


def _bounds(graph: Graph, node: Node) -> tuple[float | None, float | None] | None:
    """The bounds of a Relu or Clip node, None for others."""
    if node.op == "Relu":
        return (0.0, None)
    if node.op != "Clip":
        return None
    values = [float(graph.constants[i].reshape(())) if i else None for i in (*node.inputs[1:], "", "")[:2]]
    return (values[0], values[1])


class _Fuser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.open: dict[str, Node] = {}           # tensor -> Conv node that makes it and may still grow
        self.nodes: dict[str, Node] = {}
        self.body = graph.body

    def grow(self, conv: Node, node: Node, **attrs: object) -> None:
        """Replaces `conv` and `node` by one node at the place of `node`."""
        del self.nodes[conv.name]
        fused = replace(conv, outputs=node.outputs).with_attrs(**attrs)
        self.nodes[conv.name] = fused
        self.open[node.output] = fused

    def sole(self, name: str, node: Node) -> Node | None:
        conv = self.open.get(name)
        return conv if conv is not None and self.graph.only_consumer(name) is node else None

    def take(self, node: Node) -> bool:
        """Fuses `node` into the convolution before it, if that is one of the contract's forms."""
        if node.name not in self.body or STAYS in node.attrs:
            return False
        conv = self.sole(node.inputs[0], node)
        if conv is not None and "bounds" not in conv.attrs:
            bounds = _bounds(self.graph, node)
            table = "activation" in conv.attrs and len(conv.inputs) < 4
            if bounds is not None and not table:
                self.grow(conv, node, bounds=bounds, **({OF_PAIR: True} if OF_PAIR in node.attrs and len(
                    conv.inputs) < 4 and "activation" not in conv.attrs else {}))
                return True
            if bounds is not None and OF_PAIR in node.attrs and POST not in conv.attrs:
                self.grow(conv, node, **{POST: bounds})
                return True
            if node.op in TABLES and "activation" not in conv.attrs and len(conv.inputs) < 4:
                self.grow(conv, node, activation=node.op, activation_attrs=dict(node.attrs), pre=node.inputs[0])
                return True
        if conv is not None and OF_PAIR in conv.attrs and node.op in TABLES and len(conv.inputs) < 4:
            attrs = {key: value for key, value in conv.attrs.items() if key not in (OF_PAIR, "bounds")}
            self.grow(replace(conv, attrs=attrs), node, activation=node.op, activation_attrs=dict(node.attrs),
                      pre=node.inputs[0], **{PRE: conv.attrs["bounds"]})
            return True
        return node.op == "Add" and self.take_residual(node)

    def take_residual(self, node: Node) -> bool:
        a, b = node.inputs
        if a == b or self.graph.shape(a) != self.graph.shape(b) or {a, b} & set(self.graph.constants):
            return False
        order = {name: i for i, name in enumerate(self.nodes)}
        fit = [(order[conv.name], name) for name in (a, b) if (conv := self.sole(name, node)) is not None
               and "bounds" not in conv.attrs and len(conv.inputs) < 4]
        if not fit:
            return False
        name = max(fit)[1]
        conv = self.open[name]
        inputs = (*conv.inputs, "")[:3]
        grown = replace(conv, inputs=(*inputs, b if name == a else a))
        of_table = {SUM: SumOfTable(name, node.name, node.output)} if "activation" in conv.attrs else {}
        self.grow(grown, node, **of_table)
        return True


def fuse_convolutions(graph: Graph) -> Graph:
    fuser = _Fuser(graph)
    for node in graph.nodes:
        if fuser.take(node):
            continue
        fuser.nodes[node.name] = node
        shape = graph.shape(node.output)
        if node.op == "Conv" and len(shape) == 4 and shape[0] == 1:
            fuser.open[node.output] = node
    return graph.rebuilt(fuser.nodes.values())
