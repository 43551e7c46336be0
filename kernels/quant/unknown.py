"""Integer tensors of which a quantised (QDQ) model says nothing. Caller: `imported.py`, which asks pictures then."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..ir.elementwise import ACTIVATIONS
from ..ir.graph import Graph, Node
from ..passes.fuse_convolutions import RESIDUAL
from ..passes.islands import coded_nodes, is_coded
from .held import Range, Values, demands, is_finite, matters
from .scales import InputCode, keeps_scale
from .views import WITHOUT_OWN_CODES

CARRIES = frozenset({"Slice", "Split", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Abs", "Neg"})
"""What keeps the magnitudes of its first input."""


def unknown_tensors(graph: Graph, ranges: Mapping[str, Range], code: InputCode) -> tuple[list[str], list[str]]:
    """Tensors that will be integers and of which the file says nothing; those of them that INT8 cannot do without."""
    values, coded = Values(graph, ranges), coded_nodes(graph)
    of_file, of_sums = demands(values, sums=False), demands(values, sums=True)
    names = [info.name for info in graph.inputs if code.dtype == "float32" and is_coded(graph, coded, info.name)]
    names += [name for node in graph.nodes for name in _makes_codes(graph, coded, node)
              if not (_is_tight(graph, node) and is_finite(values.of(name)))]
    asked = [name for name in names if name not in ranges and not is_finite(of_file[name])]
    needed = []
    for name in asked:
        views = [matters(reader, name, values, of_file, coded) for reader in graph.consumers[name]]
        if not is_finite(of_sums[name]) and not any(is_finite(view) for view in views):
            needed.append(name)
    asked += [node.attrs["pre"] for node in graph.nodes if node.attrs.get("activation") == "LeakyRelu"
              and node.attrs["pre"] not in ranges]
    return asked, needed


def _is_tight(graph: Graph, node: Node) -> bool:
    """Whether bounds of what the node makes, where there are some, are values that it takes: none of sums."""
    while node.op in CARRIES:
        before = graph.producers.get(node.inputs[0])
        if before is None:
            return True
        node = before
    bounded = None not in node.attrs.get("bounds", (None,))
    alone = node.op == "Conv" and len(node.inputs) <= RESIDUAL
    return node.op in ACTIVATIONS or node.op in ("Clip", "FakeQuantise") or alone or (node.op == "Conv" and bounded)


def _makes_codes(graph: Graph, coded: Collection[str], node: Node) -> list[str]:
    """The outputs of a node whose codes have a scale of their own: not what only moves codes."""
    if node.op in WITHOUT_OWN_CODES or (node.name in coded and keeps_scale(node)):
        return []
    return [name for name in node.outputs if is_coded(graph, coded, name)]
