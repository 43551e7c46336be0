"""Is a program from a plan one that every executor can run without looking back? The one place that asks, at load.

Callers: the executor and the daemon's checker, through `programs_of`. Invariant: what passes stays inside its arena,
reads nothing that was not written before, never meets a constant of another shape or type, and shares bytes of the
arena only between buffers that are not needed at once. The values of constants are the golden check's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from .errors import ProgramError
from .lifetimes import lifetimes, successors
from .look import Array, Look
from .program import ALIGN, Program, Tensor, programs_from_text
from .steps import Copy, Step
from .validate_flat import FLAT_RULES
from .validate_images import IMAGE_RULES

DAMAGED = "the plan is damaged, build it again"
MAX_BATCH = 4096
MAX_ARENA_BYTES = 1 << 36
DTYPES = {"int8": 1, "uint8": 1, "float16": 2, "float32": 4}
RULES = {**IMAGE_RULES, **FLAT_RULES}


def programs_of(metadata: Mapping[str, str], constants: Mapping[str, Array]) -> dict[int, Program]:
    """The plan's programs by batch size. Raises ProgramError naming what is wrong with them."""
    if "program" not in metadata:
        raise ProgramError("the plan holds no program: build it again")
    programs = programs_from_text(metadata["program"])
    if not programs:
        raise ProgramError("the plan holds no program: build it again")
    for batch, program in programs.items():
        if batch != program.batch or not 1 <= batch <= MAX_BATCH:
            raise ProgramError(f"the program for batch {batch} says that it is for {program.batch}: {DAMAGED}")
        validate(program, constants)
        _check_golden(program, constants, max(programs))
    return programs


def validate(program: Program, constants: Mapping[str, Array]) -> None:
    """Raises ProgramError unless the program keeps the invariant above with these constants."""
    for tensor in program.tensors.values():
        _check_tensor(tensor)
    _check_buffers(program)
    _check_ends(program)
    _check_flow(program)
    _check_sharing(program)
    names = [step.name for step in program.steps]
    if len(set(names)) < len(names):
        raise ProgramError(f"the program has two steps '{max(names, key=names.count)}': {DAMAGED}")
    for step in program.steps:
        rule = RULES.get(type(step).__name__)
        if rule is None:
            raise ProgramError(f"step '{step.name}' is a {type(step).__name__}, of which nothing is known: {DAMAGED}")
        rule(Look(program, constants, step), step)


def _check_golden(program: Program, constants: Mapping[str, Array], largest: int) -> None:
    """The golden data are there, for the largest batch, in the shapes that the executor gives them."""
    def need(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        found = constants.get(name)
        if found is None or found.dtype != np.dtype(dtype) or found.shape != shape:
            has = "is missing" if found is None else f"is {found.dtype.name} of shape {found.shape}"
            raise ProgramError(f"the golden data '{name}' should be {dtype} of shape {shape}, and {has}: {DAMAGED}")
    entry = program.tensors[program.inputs[0]]
    frame = _one_frame(entry) if entry.layout == "flat" else (*entry.shape[:2], entry.span)
    need("golden.input", entry.dtype, (largest, *frame))
    need(f"golden.crc.b{program.batch}", "uint32", (len(program.steps),))
    for index, name in enumerate(program.outputs):
        need(f"golden.output.{index}", "float32", (largest, *_one_frame(program.tensors[name])))


def _one_frame(t: Tensor) -> tuple[int, ...]:
    """A flat tensor's shape still has ONNX's batch axis of 1."""
    return t.shape[1:] if t.shape[:1] == (1,) else t.shape


def _tensor_error(t: Tensor, why: str) -> ProgramError:
    return ProgramError(f"tensor '{t.name}' {why}: {DAMAGED}")


def bytes_of(t: Tensor) -> int:
    """What one frame needs."""
    count = max(1, prod(t.shape)) if t.layout == "flat" else t.shape[0] * t.shape[1] * t.pitch
    return count * DTYPES[t.dtype]


def _check_tensor(t: Tensor) -> None:
    if t.dtype not in DTYPES:
        raise _tensor_error(t, f"has the unknown type {t.dtype}")
    if not (0 < t.scale < float("inf")):
        raise _tensor_error(t, f"has the scale {t.scale}")
    if min(t.shape, default=1) < 0 or len(t.shape) > 16:
        raise _tensor_error(t, f"has the shape {t.shape}")
    if t.layout == "flat":
        if t.pitch or t.start or t.span or t.segments:
            raise _tensor_error(t, "is flat, but has channels")
    elif t.layout != "nhwc" or len(t.shape) != 3 or min(t.shape) < 1:
        raise _tensor_error(t, f"of shape {t.shape} has the layout '{t.layout}'")
    else:
        at = 0
        for start, count in t.segments:
            if start < at or count < 1:
                raise _tensor_error(t, f"has channels in the segments {t.segments[:8]}")
            at = start + count
        if sum(count for _, count in t.segments) != t.shape[2] or at > t.span:
            raise _tensor_error(t, f"has {t.shape[2]} channels, other than its segments")
        if t.start < 0 or t.start + t.span > t.pitch:
            raise _tensor_error(t, f"has channels [{t.start}, {t.start + t.span}) of {t.pitch}")


def _check_buffers(program: Program) -> None:
    """All tensors of a buffer agree on where it lies; the arena is as large as the last buffer reaches."""
    need: dict[str, int] = {}
    first: dict[str, Tensor] = {}
    for t in program.tensors.values():
        need[t.buffer] = max(need.get(t.buffer, 0), bytes_of(t))
        other = first.setdefault(t.buffer, t)
        if any(getattr(t, k) != getattr(other, k) for k in ("offset", "frame_bytes", "layout", "pitch", "dtype")):
            raise _tensor_error(t, f"and '{other.name}' lie in the buffer '{t.buffer}', but differently")
    end = ALIGN
    for t in first.values():
        if not need[t.buffer] <= t.frame_bytes <= -(-need[t.buffer] // 64) * 64:
            raise _tensor_error(t, f"has {t.frame_bytes} bytes a frame, and needs {need[t.buffer]}")
        if t.offset < 0 or t.offset % ALIGN:
            raise _tensor_error(t, f"lies at {t.offset} of the arena")
        end = max(end, t.offset + -(-t.frame_bytes * program.batch // ALIGN) * ALIGN)
        if end > min(program.arena_bytes, MAX_ARENA_BYTES):
            raise _tensor_error(t, f"does not fit the arena of {program.arena_bytes} bytes")
    if end != program.arena_bytes:
        raise ProgramError(f"the arena has {program.arena_bytes} bytes, its tensors reach {end}: {DAMAGED}")


def _check_ends(program: Program) -> None:
    for name in (*program.inputs, *program.outputs):
        if name not in program.tensors:
            raise ProgramError(f"the program's input or output '{name}' is unknown: {DAMAGED}")
    if len(program.inputs) != 1 or not program.outputs:
        raise ProgramError(f"the program has {len(program.inputs)} inputs, {len(program.outputs)} outputs: {DAMAGED}")
    if program.input_layout not in ("as-is", "nhwc"):
        raise ProgramError(f"the program's input is in the order '{program.input_layout}': {DAMAGED}")
    for name in program.outputs:
        if (program.tensors[name].layout, program.tensors[name].dtype) != ("flat", "float32"):
            raise _tensor_error(program.tensors[name], "is an output, but not float32 in ONNX's order")


def _check_flow(program: Program) -> None:
    """Each step finds its tensors written, as far as it reads them; nobody overwrites the input."""
    tensors = program.tensors
    done = {tensors[name].buffer: _channels(tensors[name]) for name in program.inputs}
    given = set(done)
    for step in program.steps:
        for name in (*step.reads(), *step.writes()):
            if name not in tensors:
                raise ProgramError(f"step '{step.name}' uses the unknown tensor '{name}': {DAMAGED}")
        for name in step.reads():
            if _channels(tensors[name]) & ~done.get(tensors[name].buffer, 0):
                raise ProgramError(f"step '{step.name}' reads '{name}' before it is written: {DAMAGED}")
        for name in step.writes():
            if tensors[name].buffer in given:
                raise ProgramError(f"step '{step.name}' writes '{name}' over the input: {DAMAGED}")
            done[tensors[name].buffer] = done.get(tensors[name].buffer, 0) | _channels(tensors[name], step)
    for name in program.outputs:
        if _channels(tensors[name]) & ~done.get(tensors[name].buffer, 0):
            raise ProgramError(f"the output '{name}' is never written: {DAMAGED}")


def _channels(t: Tensor, writer: Step | None = None) -> int:
    """Bit set of the physical channels of a tensor, or of those that a part of a Concat fills; 1 for a flat one."""
    if t.layout == "flat":
        return 1
    if not isinstance(writer, Copy) or writer.clear:
        return ((1 << t.span) - 1) << t.start
    found, edges = 0, [*(start for start, _ in t.segments), t.span]
    for (start, count), end in zip(t.segments, edges[1:], strict=True):
        if any(start <= to < start + count for _, to, _ in writer.runs):
            found |= ((1 << (end - start)) - 1) << (t.start + start)
    return found


def _check_sharing(program: Program) -> None:
    """No two buffers that are needed at once overlap, but for one that takes the place of a residual."""
    lives = lifetimes(program)
    heirs = {(old, new) for old, new in successors(program, lives).items()}
    offset = {t.buffer: t.offset for t in program.tensors.values()}
    names = list(lives)
    first, last, size = (np.array([getattr(lives[n], k) for n in names]) for k in ("first", "last", "size"))
    low = np.array([offset[n] for n in names])
    high = low + size
    both = (first[:, None] <= last) & (first <= last[:, None]) & (low[:, None] < high) & (low < high[:, None])
    for i, j in np.argwhere(np.triu(both, 1)).tolist():
        pair = {(names[i], names[j]), (names[j], names[i])}
        if not (pair & heirs and low[i] == low[j]):
            raise ProgramError(f"buffers '{names[i]}' and '{names[j]}' lie in the same bytes of the arena and are "
                               f"needed at once: {DAMAGED}")
