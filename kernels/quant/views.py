"""A tensor whose readers need it under scales that are far apart is made once for each of them. Caller: `imported.py`.

In a quantised model a tensor may have several pairs, or a pair for one reader and none for another; the parts of a
Split, too, have pairs of their own. One code for all would cut off what some reader must see, or be too coarse for
another. So the node that makes it is copied (after fusion, so that a whole convolution is); the copies cost its
multiply-accumulates again, so readers stay together as long as none loses more than 3 dB. What float32 arithmetic makes
(an island, `passes/islands.py`) is made once, and coded once for each group of readers, by other names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..ir.graph import Array, Graph, Node, TensorInfo
from ..passes.fuse_convolutions import SUM
from ..passes.intervals import OPEN
from ..passes.islands import coded_nodes
from .calibrate import Histogram, best_scale, given_range
from .groups import Group, View
from .held import Range, Values, beside, bounds_of, cut, hull, is_finite, matters
from .scales import LARGEST_LOSS_DB, keeps_scale, loss_db
from .sums import in_float, saturates, taken_apart

WITHOUT_OWN_CODES = frozenset({"FakeQuantise", "Requantise"})


@dataclass
class Separated:
    """`scale`: of tensors that are kept to the bit. `ranges`: of the others that arithmetic makes. `assumed`: tensors
    that are read in float besides, taken to stay in the range of their other readers. `copies`: names of added nodes.
    """

    graph: Graph
    scale: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, Histogram] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)


class _Separator:
    """Goes backwards through a fused graph; `nodes` are those behind, the last first."""

    def __init__(self, values: Values, coded_by_file: Collection[str], calibrated: Mapping[str, Histogram],
                 method: str) -> None:
        self.values, self.calibrated, self.method = values, calibrated, method
        self.graph = values.graph
        self.coded = set(coded_nodes(self.graph))
        self.as_codes = self._read_as_codes(coded_by_file)
        self.nodes: list[Node] = []
        self.readers: dict[str, list[int]] = {}
        self.demand: dict[str, Range] = {}
        self.kept: dict[str, float] = {}                     # node that moves values -> the scale that it must keep
        self.origin: dict[str, str] = {}                     # copy of a tensor -> that tensor
        self.constants: dict[str, Array] = {}
        self.tensors: list[TensorInfo] = []
        self.found = Separated(self.graph)

    def _read_as_codes(self, coded_by_file: Collection[str]) -> set[str]:
        """Tensors that the file itself rounds before anybody reads them, and what only moves their values."""
        exact = {node.inputs[0] for node in self.graph.nodes if node.op == "FakeQuantise" and node.name in self.coded}
        found = {info.name for info in self.graph.inputs} | set(coded_by_file) - exact
        for node in self.graph.nodes:
            live = [name for name in node.inputs if name and name not in self.graph.constants]
            if node.op == "FakeQuantise" or (keeps_scale(node) and len(live) == 1 and live[0] in found):
                found.update(node.outputs)
        return found

    def run(self) -> Separated:
        for node in reversed(self.graph.nodes):
            if node.name not in self.coded:
                self._place_island(node)
                continue
            groups = self._groups(node, node.outputs)
            for number in reversed(range(1, len(groups))):
                self._place(self._copied(node, groups[number].views, number), groups[number])
            self._place(node, groups[0] if groups else None)
        for info in self.graph.inputs:
            self._see(info.name)
            pairs = [self.nodes[index] for index in self.readers.get(info.name, ())
                     if self.nodes[index].op == "FakeQuantise" and self.nodes[index].name in self.coded]
            if pairs:
                self.found.scale[info.name] = max(pair.attrs["alpha"] for pair in pairs)
            if is_finite(ends := cut(self.demand[info.name], self.values.of(info.name))):
                self.found.ranges[info.name] = self._range(info.name, ends)
        self.found.graph = self.graph.rebuilt(reversed(self.nodes), constants=self.constants, tensors=self.tensors)
        return self.found

    # ---- who reads what

    def _views(self, names: Sequence[str], island: bool) -> list[View]:
        """Of an island's tensors only those who read them as codes."""
        views = []
        for name in names:
            for index in self.readers.get(name, ()):
                reader = self.nodes[index]
                if island and reader.name not in self.coded:
                    continue
                scale = self.kept.get(reader.name)
                if reader.op == "FakeQuantise" and reader.name in self.coded:
                    scale = reader.attrs["alpha"]
                ends = cut(matters(reader, name, self.values, self.demand, self.coded), self.values.of(name))
                views.append(View(index, name, scale, self._range(name, ends) if is_finite(ends) else None))
        return views

    def _codes_are_read(self, views: Sequence[View]) -> bool:
        return any(self.nodes[view.reader].name in self.coded for view in views)

    def _groups(self, node: Node, names: Sequence[str]) -> list[Group]:
        """Readers that may share one code of these outputs; all of them where copies would have no sense."""
        views = self._views(names, node.name not in self.coded)
        pairs = sorted((v for v in views if v.scale is not None), key=lambda v: -(v.scale or 0))
        floats = [(best_scale(v.seen, self.method), v) for v in views if v.scale is None and v.seen is not None]
        groups: list[Group] = []
        for view in pairs:
            assert view.scale is not None
            if not groups or 20 * np.log10(groups[-1].scale / view.scale) > LARGEST_LOSS_DB:
                groups.append(Group(view.scale, []))
            groups[-1].views.append(view)
        for scale, view in sorted(floats, key=lambda found: -found[0]):
            assert view.seen is not None
            loss = [loss_db(view.seen, group.scale, self.method) for group in groups]
            if not loss or min(loss) > LARGEST_LOSS_DB:
                groups.append(Group(scale, []))
                loss.append(-np.inf)
            groups[int(np.argmin(loss))].views.append(view)
        unknown = [v for v in views if v.scale is None and v.seen is None]
        if node.op in WITHOUT_OWN_CODES or self.as_codes.issuperset(names) or not self._codes_are_read(views):
            return [Group(max((g.scale for g in groups), default=0.0), views)]
        if unknown and groups:
            widest = max(groups, key=lambda group: group.scale)
            widest.views.extend(unknown)
            if self._codes_are_read(widest.views):
                self.found.assumed += dict.fromkeys(view.tensor for view in unknown)
        elif unknown:
            groups.append(Group(0.0, unknown))
        return groups

    def _copied(self, node: Node, views: Sequence[View], number: int) -> Node:
        """The node once more, read by these views."""
        name = self.graph.free_name(f"{node.name}@{number}", self.found.copies)
        self.found.copies.append(name)
        outputs = [self._renamed(output, views, number) for output in node.outputs]
        if node.name in self.coded:
            self.coded.add(name)
        if node.name in self.values.tables:
            self.values.tables[name] = self.values.tables[node.name]
        return replace(node, name=name, outputs=tuple(outputs))

    def _renamed(self, name: str, views: Sequence[View], number: int) -> str:
        """Another name for a tensor, by which those of the views that read it do so from now on."""
        copy = self.graph.free_name(f"{name}@{number}", self.origin)
        self.origin[copy] = self.origin.get(name, name)
        self.values.name_copy(copy, name)
        self.tensors.append(replace(self.graph.tensors[name], name=copy))
        for view in views:
            if view.tensor == name:
                reader = self.nodes[view.reader]
                self.nodes[view.reader] = replace(reader, inputs=tuple(copy if x == name else x for x in reader.inputs))
                self.readers[name].remove(view.reader)
                self.readers.setdefault(copy, []).append(view.reader)
        return copy

    # ---- what is made of it

    def _place(self, node: Node, group: Group | None) -> None:
        for name in node.outputs:
            self._see(name)
        if group is not None and not self._codes_are_read(group.views):
            return self._leave_in_float(node)
        if keeps_scale(node):
            live = [name for name in node.inputs if name and name not in self.graph.constants]
            if group is not None and group.kept is not None and len(live) == 1:
                self.kept[node.name] = group.kept
        elif node.op not in WITHOUT_OWN_CODES:
            self._code(node.output, group)
            if SUM in node.attrs and self._take_apart(node):
                return None
        return self._append(node)

    def _leave_in_float(self, node: Node) -> None:
        """A node that float32 arithmetic alone reads is of it; of a convolution all but the sums."""
        if node.op != "Conv":
            self.coded.discard(node.name)
            return self._append(node)
        shape = self.graph.shape(self.origin.get(node.output, node.output))
        parts, tensors = in_float(self.graph, node, shape, self.constants)
        self.tensors += tensors
        for part in reversed(parts):
            self._append(part)
        return None

    def _place_island(self, node: Node) -> None:
        """A node in float32: each group of those that read codes of what it makes has codes of its own."""
        for name in node.outputs:
            groups = self._groups(node, [name])
            for number, group in reversed(list(enumerate(groups))):
                if not group.views:
                    continue
                read = self._renamed(name, group.views, number) if number else name
                self._see(read, island=True)
                self._code(read, group)
                if number:
                    self._append(Node(read, "Identity", (name,), (read,)))
        self._append(node)

    def _code(self, name: str, group: Group | None) -> None:
        """What the scale of a tensor is to be made of."""
        kept = group.kept if group is not None else None
        if kept is not None and name in self.as_codes:
            self.found.scale[name] = best_scale(self._range(name, self.values.of(name)), "minmax")
        elif kept is not None:
            self.found.scale[name] = kept
        elif is_finite(ends := cut(self.demand[name], self.values.of(name))):
            self.found.ranges[name] = self._range(name, ends)
        elif group is not None and (known := [view.seen for view in group.views if view.seen is not None]):
            self.found.ranges[name] = max(known, key=lambda seen: seen.largest)

    def _append(self, node: Node) -> None:
        for name in dict.fromkeys(node.inputs):
            self.readers.setdefault(name, []).append(len(self.nodes))
        self.nodes.append(node)

    def _see(self, name: str, island: bool = False) -> None:
        readers = [self.nodes[index] for index in self.readers.get(name, ())]
        parts = [matters(node, name, self.values, self.demand, self.coded) for node in readers
                 if not island or node.name in self.coded]
        self.demand[name] = OPEN if name in self.graph.outputs and not island else hull(parts)

    def _range(self, name: str, ends: Range) -> Histogram:
        """What calibration saw of a tensor, as far as `ends`; else these."""
        seen = self.calibrated.get(self.origin.get(name, name))
        if seen is None or not seen.counts.any():
            return given_range(*ends)
        if ends[0] <= seen.low and seen.high <= ends[1]:
            return seen
        top = 127 * best_scale(seen, self.method)
        return given_range(*cut(ends, (-top, top)))

    def _take_apart(self, node: Node) -> bool:
        """A table from its sum, where that would cut it; False where it would not."""
        name, made = node.output, self.found
        scale = made.scale.get(name)
        if scale is None:
            if name not in made.ranges:
                return False
            scale = best_scale(made.ranges[name], self.method)
        total, other = cut(self.demand[name], bounds_of(node)), self.values.of(node.inputs[3])
        ends = cut(beside(total, other), self.values.tables[node.name])
        if not is_finite(ends):
            return False
        table = self._range(node.attrs[SUM].table, ends)
        if not saturates(table, scale, self.method):
            return False
        first = node.attrs[SUM].table
        addend = self.graph.free_name(f"{first}@table", self.origin)
        self.origin[addend] = first
        self.values.seen.assume(addend, *self.values.tables[node.name])
        parts, tensors = taken_apart(self.graph, node, addend, self.constants)
        self.tensors += tensors
        self.coded.update(part.name for part in parts)
        made.ranges[addend] = table
        if (whole := parts[1].output) != name:
            self.origin[whole] = name
            self.values.name_copy(whole, name)
            self.demand[whole] = total
            if name in made.scale:
                made.scale[whole] = scale
            else:
                made.ranges[whole] = made.ranges[name]
        for part in reversed(parts):
            self._append(part)
        return True


def separate(values: Values, coded_by_file: Collection[str], calibrated: Mapping[str, Histogram],
             method: str) -> Separated:
    """The graph of `values` with such copies, and what each tensor's scale is to be made of. `coded_by_file`: tensors
    that the file rounds, but which are coded again. `calibrated`: what pictures gave.
    """
    return _Separator(values, coded_by_file, calibrated, method).run()
