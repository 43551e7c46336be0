"""Which steps must wait for which: those whose bytes in the arena overlap, where at least one of the two writes.

Caller: `schedule.py`. Reads the program only, so that a lifetime that shares bytes with another is obeyed although no
tensor connects the two. Views of one buffer (parts of a Concat) overlap only where their channels do.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.program import Program, Tensor


@dataclass(frozen=True, slots=True)
class _Region:
    start: int
    end: int
    buffer: tuple[int, int, int]        # offset, frame_bytes, pitch; pitch 0: all bytes
    first: int
    last: int

    def meets(self, other: _Region) -> bool:
        if self.end <= other.start or other.end <= self.start:
            return False
        if self.buffer == other.buffer and self.buffer[2]:
            return self.first < other.last and other.first < self.last
        return True


def _region(tensor: Tensor, batch: int) -> _Region:
    end = tensor.offset + batch * tensor.frame_bytes
    pitch = tensor.pitch if tensor.layout == "nhwc" else 0
    return _Region(tensor.offset, end, (tensor.offset, tensor.frame_bytes, pitch), tensor.start,
                   tensor.start + tensor.span)


def dependences(program: Program) -> tuple[tuple[int, ...], ...]:
    """For each step the earlier steps that it must follow, ascending; those implied by others are left out."""
    regions = {name: _region(tensor, program.batch) for name, tensor in program.tensors.items()}
    reads = [[regions[n] for n in step.reads()] for step in program.steps]
    writes = [[regions[n] for n in step.writes()] for step in program.steps]
    ancestors: list[int] = []           # bit set of all that a step follows, directly or not
    found: list[tuple[int, ...]] = []
    for j in range(len(program.steps)):
        behind, direct = 0, []
        for i in range(j - 1, -1, -1):
            if behind >> i & 1:
                continue
            if _conflict(reads[i], writes[i], reads[j], writes[j]):
                direct.append(i)
                behind |= ancestors[i] | 1 << i
        ancestors.append(behind)
        found.append(tuple(reversed(direct)))
    return tuple(found)


def _conflict(reads_i: list[_Region], writes_i: list[_Region], reads_j: list[_Region],
              writes_j: list[_Region]) -> bool:
    return any(w.meets(r) for w in writes_i for r in (*reads_j, *writes_j)) or any(
        w.meets(r) for w in writes_j for r in reads_i)
