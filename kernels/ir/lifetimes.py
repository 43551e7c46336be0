"""The buffers of a program: from which step to which each is needed, and which of them takes the place of another.

Callers: lowering, which gives them offsets; the validator, which checks those; the executor's memory checks. A buffer
is what tensors of one `buffer` share: a Concat with its parts, a tensor and its reshapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .program import ALIGN, Program, Tensor
from .step import Step


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`nbytes` (all frames) from the step that first writes to the one that last reads, both included."""

    name: str
    nbytes: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Bytes of the arena that it takes."""
        return -(-self.nbytes // ALIGN) * ALIGN

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def lifetimes(program: Program) -> dict[str, Lifetime]:
    """By buffer. Inputs and outputs keep their bytes from before the first step (-1) to after the last."""
    tensors, end = program.tensors, len(program.steps)
    pinned = {tensors[name].buffer for name in (*program.inputs, *program.outputs)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(program.steps):
        for name in (*step.reads(), *step.writes()):
            first.setdefault(tensors[name].buffer, index)
            last[tensors[name].buffer] = index
    size: dict[str, int] = {}
    for tensor in tensors.values():
        size[tensor.buffer] = max(size.get(tensor.buffer, 0), tensor.frame_bytes)
    return {b: Lifetime(b, n * program.batch, -1 if b in pinned else first.get(b, 0),
                        end if b in pinned else last.get(b, end)) for b, n in size.items()}


def successors(program: Program, lives: dict[str, Lifetime]) -> dict[str, str]:
    """Buffer -> the one that may take its bytes over while it dies: a convolution's y in place of its residual.

    Legal since an executor reads each number of the residual where, and before, it writes that of y. Other
    element-wise steps could do the same, but lower the peak of no model known (scripts and tests of the arena).
    """
    found: dict[str, str] = {}
    for index, step in enumerate(program.steps):
        residual = getattr(step, "residual", "")
        if residual and _in_place(program.tensors, step, residual, index, lives):
            found[program.tensors[residual].buffer] = program.tensors[step.writes()[0]].buffer
    return found


def joined(program: Program) -> tuple[dict[str, Lifetime], dict[str, str]]:
    """Buffers that take each other's place as one, by the first of them; and, for each buffer, that first one."""
    lives = lifetimes(program)
    old = {new: old for old, new in successors(program, lives).items()}
    together: dict[str, Lifetime] = {}
    place_of: dict[str, str] = {}
    for life in sorted(lives.values(), key=lambda v: v.first):
        place_of[life.name] = home = place_of[old[life.name]] if life.name in old else life.name
        together[home] = replace(together.get(home, life), last=life.last)
    return together, place_of


def _in_place(tensors: dict[str, Tensor], step: Step, residual: str, index: int, lives: dict[str, Lifetime]) -> bool:
    old, new = tensors[residual], tensors[step.writes()[0]]
    others = list(step.reads())
    others.remove(residual)                            # once: it may be x as well
    same = all(getattr(old, k) == getattr(new, k) for k in ("dtype", "layout", "shape", "pitch", "start", "span"))
    apart = {new.buffer, *(tensors[name].buffer for name in others)}
    return (same and old.buffer not in apart and lives[old.buffer].nbytes == lives[new.buffer].nbytes
            and lives[old.buffer].last == index == lives[new.buffer].first)
