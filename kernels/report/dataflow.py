"""Which step gives which bytes to which: the edges between a program's steps, and its buffers over time.

Callers: `drawing.py`, `charts.py`, `dot.py`. A program names tensors, not edges: a Concat that is made in place is
several views of one buffer and no step. So this follows bytes: a read is supplied by the last writes of what it covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..ir.lifetimes import lifetimes, successors
from ..ir.program import Program, Tensor
from ..plan.layout import PlanError

INPUT = -1
"""The step number of a program input's writer. The reader of an output has the number of steps."""

ALL = (0, 1 << 62)


@dataclass(frozen=True, slots=True)
class Edge:
    """Step `writer` makes bytes that step `reader` reads as `tensor`."""

    writer: int
    reader: int
    tensor: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes of the arena, all frames of the batch, needed from step `first` to step `last`, both included (-1 and the
    number of steps: before and after the run). `replaced`: in its last step another buffer takes its bytes over."""

    name: str
    offset: int
    nbytes: int
    first: int
    last: int
    dtype: str
    tensors: tuple[str, ...]
    replaced: bool

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    @property
    def alone_to(self) -> int:
        """The last step in which it has its bytes for itself."""
        return max(self.first, self.last - 1) if self.replaced else self.last


class Flow:
    """Edges and buffers of a program. Raises PlanError for one of an older orind, without names of buffers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        if not all(tensor.buffer for tensor in program.tensors.values()):
            raise PlanError("its program does not name every buffer: make it with orind build")
        self._writes: dict[str, list[tuple[int, Tensor]]] = {}
        found: list[Edge] = []
        for name in program.inputs:
            self._write(INPUT, program.tensors[name])
        for index, step in enumerate(program.steps):
            for name in step.reads():
                found += self._read(index, program.tensors[name])
            for name in step.writes():
                self._write(index, program.tensors[name])
        for name in program.outputs:
            found += self._read(len(program.steps), program.tensors[name])
        self.edges: tuple[Edge, ...] = tuple(dict.fromkeys(found))

    def _write(self, step: int, tensor: Tensor) -> None:
        self._writes.setdefault(tensor.buffer, []).append((step, tensor))

    def _read(self, step: int, tensor: Tensor) -> list[Edge]:
        """From the last writers of the bytes that a read covers, from the latest back until all are covered."""
        missing, found = [_span(tensor)], []
        for writer, written in reversed(self._writes.get(tensor.buffer, [])):
            start, end = _span(written) if written.layout == tensor.layout else ALL
            pieces = (piece for a, b in missing for piece in ((a, min(b, start)), (max(a, end), b)))
            left = [piece for piece in pieces if piece[0] < piece[1]]
            if left != missing:
                found.append(Edge(writer, step, tensor.name))
                missing = left
            if not missing:
                break
        return found

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """In the order in which they come into use."""
        tensors: dict[str, list[Tensor]] = {}
        for tensor in self.program.tensors.values():
            tensors.setdefault(tensor.buffer, []).append(tensor)
        lives = lifetimes(self.program)
        replaced = {old for old, new in successors(self.program, lives).items()
                    if tensors[old][0].offset == tensors[new][0].offset}
        found = [Buffer(life.name, tensors[life.name][0].offset, life.size, life.first, life.last,
                        tensors[life.name][0].dtype, tuple(t.name for t in tensors[life.name]), life.name in replaced)
                 for life in lives.values()]
        return tuple(sorted(found, key=lambda b: (b.first, b.offset)))

    def live_bytes(self) -> list[int]:
        """For each step, the bytes that are needed in it; those that change hands count once."""
        return [sum(b.nbytes for b in self.buffers if b.first <= step <= b.alone_to)
                for step in range(len(self.program.steps))]


def _span(tensor: Tensor) -> tuple[int, int]:
    """Channels of the buffer; all of a flat one."""
    return (tensor.start, tensor.start + tensor.span) if tensor.layout == "nhwc" else ALL
