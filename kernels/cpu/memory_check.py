"""Runs a program with its memory watched, in three ways that find different faults, each naming the step.

Callers: `orind verify` and the tests of every form of network; nothing of this is in the way of `ProgramRunner.run`.
`separate`: every buffer in memory of its own must give the same bits as the shared arena. `versions`: who wrote a byte
last is noted, so that each read finds what it expects, and no step writes beside its tensor. `poison`: whatever is not
alive is overwritten, so that a read of dead or never written memory changes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..ir.errors import MemoryFault
from ..ir.lifetimes import Lifetime, lifetimes, successors
from ..ir.program import Program, Tensor
from ..ir.steps import Copy, Step
from .binding import Array
from .executor import ProgramRunner, written_parts

PATTERNS = (0xFF, 0x55)
"""Bytes of dead memory: NaN and -1; 1.5e13, in float16 85.3, and 85. What one of them leaves unchanged, the other
does not."""
NOBODY, INPUT = -2, -1
Notes = npt.NDArray[np.int32]


def check_memory(program: Program, constants: Mapping[str, Array], frames: Array) -> None:
    """All three checks on the inputs `frames` (as ProgramRunner.input). Raises MemoryFault."""
    wanted = sums(separate(program), constants, frames)
    check_versions(program, constants, frames)
    check_separate(program, constants, frames, wanted)
    for pattern in PATTERNS:
        check_poison(program, constants, frames, wanted, pattern)


def separate(program: Program) -> Program:
    """The same program with every buffer in bytes of its own."""
    offsets, at = {}, 0
    for life in lifetimes(program).values():
        offsets[life.name] = at
        at += life.size
    tensors = {name: replace(t, offset=offsets[t.buffer]) for name, t in program.tensors.items()}
    return replace(program, arena_bytes=max(at, program.arena_bytes), tensors=tensors)


def sums(program: Program, constants: Mapping[str, Array], frames: Array) -> list[int]:
    """CRC-32 of what each step writes, exact or not, pads included."""
    runner = ProgramRunner(program, constants)
    np.copyto(runner.input, frames)
    return [runner.sum_of(step) for step in runner.walk()]


def check_separate(program: Program, constants: Mapping[str, Array], frames: Array, wanted: list[int]) -> None:
    """The shared arena gives the bits `wanted` of separate buffers."""
    for step, got, want in zip(program.steps, sums(program, constants, frames), wanted, strict=True):
        _compare(step, got, want, "gives other bits in the shared arena than with every buffer in memory of its own")


def check_poison(program: Program, constants: Mapping[str, Array], frames: Array, wanted: list[int],
                 pattern: int) -> None:
    """Overwrites every buffer before its first write and after its last read, and all scratch after each step."""
    runner = ProgramRunner(program, constants)
    arena = runner.binding.arena
    lives = lifetimes(program)
    inherits = successors(program, lives)
    offset = {t.buffer: t.offset for t in program.tensors.values()}
    heirs = {new for old, new in inherits.items() if offset[old] == offset[new]}
    testators = {old for old, new in inherits.items() if offset[old] == offset[new]}

    def fill(lives: list[Lifetime]) -> None:
        for life in lives:
            arena[offset[life.name]:offset[life.name] + life.nbytes] = pattern
    arena.fill(pattern)
    np.copyto(runner.input, frames)
    for index, (step, calls) in enumerate(runner.steps):
        fill([v for v in lives.values() if v.first == index and v.name not in heirs])
        with np.errstate(all="ignore"):
            for call in calls:
                call()
        _compare(step, runner.sum_of(step), wanted[index], f"depends on memory that is dead or that nobody wrote "
                 f"(filled with 0x{pattern:02X})")
        fill([v for v in lives.values() if v.last == index and v.name not in testators])
        runner.binding.workspace.spoil_scratch(pattern)


def _compare(step: Step, got: int, want: int, text: str) -> None:
    if got != want:
        raise MemoryFault(step.name, step.writes()[0], f"{text}, in '{step.writes()[0]}'")


def check_versions(program: Program, constants: Mapping[str, Array], frames: Array) -> None:
    """Notes for every byte which step wrote it last; a read must find its own tensor's, a write must stay inside."""
    runner = ProgramRunner(program, constants)
    np.copyto(runner.input, frames)
    arena, tensors, every = runner.binding.arena, program.tensors, range(program.batch)
    version = np.full(len(arena), NOBODY, dtype=np.int32)
    for name in program.inputs:
        for frame in every:
            _notes(version, tensors[name], frame)[...] = INPUT
    authors = {name: {INPUT} for name in program.inputs}                  # of a tensor that one step makes
    writers = {tensors[name].buffer: {INPUT} for name in program.inputs}  # of whatever lies in a buffer
    for index, (step, calls) in enumerate(runner.steps):
        for name in step.reads():
            expected = authors.get(name) or writers.get(tensors[name].buffer, set())
            for frame in every:
                _expect(program, step, name, _notes(version, tensors[name], frame), expected)
        before = arena.copy()
        with np.errstate(all="ignore"):
            for call in calls:
                call()
        for name in step.writes():
            writers.setdefault(tensors[name].buffer, set()).add(index)
            if not isinstance(step, Copy) or step.clear:
                authors[name] = {index}
            for frame in every:
                for part in written_parts(step, tensors[name], _notes(version, tensors[name], frame), bytewise=True):
                    part[...] = index
        strays = np.flatnonzero((arena != before) & (version != index))
        if len(strays):
            raise MemoryFault(step.name, step.writes()[0], f"writes byte {int(strays[0])} of the arena, beside its "
                              f"tensor '{step.writes()[0]}'")


def _notes(version: Notes, t: Tensor, frame: int) -> Notes:
    """The notes on a tensor's bytes; of an image (H, W, bytes of its channels)."""
    item, first = np.dtype(t.dtype).itemsize, t.offset + frame * t.frame_bytes
    if t.layout == "flat":
        return version[first:first + int(np.prod(t.shape)) * item]
    h, w, _ = t.shape
    whole = version[first:first + h * w * t.pitch * item].reshape(h, w, t.pitch * item)
    return whole[..., t.start * item:(t.start + t.span) * item]


def _expect(program: Program, step: Step, name: str, found: Notes, own: set[int]) -> None:
    for writer in np.unique(found).tolist():
        if writer == NOBODY:
            raise MemoryFault(step.name, name, f"reads '{name}', of which a part was never written")
        if writer not in own:
            other = program.steps[writer] if writer >= 0 else None
            what = f"step '{other.name}' has written '{other.writes()[0]}'" if other else "the input lies"
            raise MemoryFault(step.name, name, f"reads '{name}', but {what} there")

